"""The sample configurations in deploy/ are ones that the programs take."""

import re
from pathlib import Path

from silomix_client.config import load as load_silo
from silomix_server.config import load as load_server
from silomix_shuffler.config import Limits
from silomix_shuffler.config import load as load_mix
from support.consortia import make_consortium
from support.processes import approve_all

SAMPLES = Path(__file__).parents[2] / "deploy" / "samples"


def test_every_sample_configuration_loads(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c")
    for name, folder in (
        ("silo.toml", "silo-1"),
        ("policy.toml", "silo-1"),
        ("mix.toml", "mix-1"),
        ("server.toml", "server"),
    ):
        (made.folder / folder / name).write_text((SAMPLES / name).read_text())
    assert load_silo(made.silos[0]).policy.minimum_records == 20
    assert load_mix(made.mixes[0]).studies == (made.study,)
    assert load_server(made.server).control_listen == "127.0.0.1:9093"
    approve_all(made)  # the sample policy allows the sample study


def test_what_the_samples_have_as_comments_is_taken_too(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c")
    for name, path in (("mix.toml", made.mixes[0]), ("server.toml", made.server)):
        text = (SAMPLES / name).read_text()
        path.write_text(re.sub(r"(?m)^# (?=\w+ = |\[)", "", text))
    mix = load_mix(made.mixes[0])
    assert mix.metrics_listen == "127.0.0.1:9201"
    assert mix.limits == Limits()  # the samples show the defaults
    assert load_server(made.server).holdout == made.server.parent / "holdout.csv"


def test_a_study_has_gate_and_tokens_unless_it_says_otherwise(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c")
    assert (made.study.batching.gate, made.study.batching.tokens) == (True, True)
    assert not list(made.folder.rglob("seal.key"))  # nothing that lasts opens a report
