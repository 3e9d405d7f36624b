"""The sample configurations in deploy/ are ones that the programs take."""

from pathlib import Path

from silomix_client.config import load as load_silo
from silomix_server.config import load as load_server
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
