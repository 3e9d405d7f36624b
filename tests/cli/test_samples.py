"""The sample configurations in deploy/ are ones that the programs take."""

import re
from pathlib import Path

from silomix_authority.config import AuthorityConfig
from silomix_authority.config import load as load_authority
from silomix_client.config.policy_rules import Rules
from silomix_client.config.silo_config import load as load_silo
from silomix_server.config import load as load_server
from silomix_shuffler.config import Limits
from silomix_shuffler.config import load as load_mix
from support.consortia import make_consortium
from support.processes import approve_all

SAMPLES = Path(__file__).parents[2] / "deploy" / "samples"


def test_every_sample_configuration_loads(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", minimum_batch=3)
    for name, folder in (
        ("silo.toml", "silo-1"),
        ("policy.toml", "silo-1"),
        ("mix.toml", "mix-1"),
        ("server.toml", "server"),
    ):
        (made.folder / folder / name).write_text((SAMPLES / name).read_text())
    made.authority.write_text((SAMPLES / "authority.toml").read_text())
    sample, usual = load_authority(made.authority), AuthorityConfig(made.authority.parent, "", "")
    assert sample.table() == usual.table() | {"address": sample.address, "listen": sample.listen}
    assert load_silo(made.silos[0]).policy.rules.minimum_people == 11
    assert load_mix(made.mixes[0]).studies == (made.study,)
    assert load_server(made.server).control_listen == "127.0.0.1:9093"
    approve_all(made)  # the sample policy allows the sample study


def test_what_the_samples_have_as_comments_is_taken_too(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", minimum_batch=3)
    for name, path in (
        ("mix.toml", made.mixes[0]),
        ("server.toml", made.server),
        ("silo.toml", made.silos[0]),
        ("policy.toml", made.silos[0].parent / "policy.toml"),
    ):
        text = (SAMPLES / name).read_text().partition("# Instead of data")[0]
        path.write_text(re.sub(r"(?m)^# (?=\w+ = |\[)", "", text))
    folder = made.silos[0].parent
    (folder / "inspection.pem").write_bytes((folder / "ca.crt").read_bytes())
    (folder / "proxy.login").touch(mode=0o600)
    (folder / "proxy.login").write_text("user:password")
    mix = load_mix(made.mixes[0])
    assert mix.metrics_listen == "127.0.0.1:9201"
    assert mix.limits == Limits()  # the samples show the defaults
    assert mix.inspected_listen == "0.0.0.0:9102"
    server = load_server(made.server)
    assert server.holdout == made.server.parent / "holdout.csv"
    assert server.inspected_listen == "0.0.0.0:9095"
    silo = load_silo(made.silos[0])
    assert str(silo.syslog) == "unix:/dev/log"
    assert silo.network.proxy is not None
    assert silo.network.proxy.address == "proxy.hospital.example:3128"
    assert set(silo.network.inspected) == {"server", "mix-1"}
    unset = [name for name in Rules.__slots__ if getattr(silo.policy.rules, name) is None]
    assert unset == []  # the sample shows every rule


def test_every_way_to_name_data_in_the_sample_is_taken(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", minimum_batch=3)
    text = (SAMPLES / "silo.toml").read_text()
    plain, *tables = text.split("# [data]")
    kinds = []
    for table in tables:
        shown = "[data]" + re.sub(r"(?m)^#( |$)", "", table)
        made.silos[0].write_text(plain.replace("data = ", "# ") + shown)
        kinds.append(type(load_silo(made.silos[0]).data).__name__)
    assert kinds == ["CsvFile", "ParquetFile", "SqlQuery", "Omop", "Fhir"]


def test_a_study_has_gate_and_tokens_unless_it_says_otherwise(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", minimum_batch=3)
    assert (made.study.batching.gate, made.study.batching.tokens) == (True, True)
    assert not list(made.folder.rglob("seal.key"))  # nothing that lasts opens a report
