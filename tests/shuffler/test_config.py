"""A mix's configuration: what it does not understand, it does not run with."""

from pathlib import Path

import pytest
from silomix_lab.consortium.create import Consortium
from silomix_shuffler.config import InvalidMixConfig, Limits, load
from support.consortia import make_consortium


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("config") / "c")


def write(made: Consortium, content: str | bytes) -> Path:
    path = made.folder / "mix-1" / "test.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


GOOD = 'name = "mix-1"\nlisten = "127.0.0.1:9101"\nstudies = ["../study.toml"]\n'


def test_the_file_that_a_consortium_is_made_with_loads(made: Consortium) -> None:
    for index, path in enumerate(made.mixes):
        config = load(path)
        assert config.name == f"mix-{index + 1}"
        assert config.listen == made.study.mixes[index].address
        assert config.studies == (made.study,)
        assert config.folder == path.parent
        assert config.grace_s == 2.0
        assert config.metrics_listen is None, "no port is opened that nobody asked for"
        assert config.limits == Limits()
        assert config.state == path.parent / "state"


def test_every_key_is_read(made: Consortium) -> None:
    limits = (
        "[limits]\nopen_rounds = 2\ndisk_mb = 50\nfree_disk_mb = 0\n"
        "report_s = 1.5\nretention_s = 60\n"
    )
    keys = 'grace_s = 7.5\nmetrics_listen = "127.0.0.1:9201"\n'
    config = load(write(made, GOOD + keys + limits))
    assert (config.name, config.listen, config.grace_s) == ("mix-1", "127.0.0.1:9101", 7.5)
    assert [study.identity for study in config.studies] == [made.study.identity]
    assert config.metrics_listen == "127.0.0.1:9201"
    assert config.limits == Limits(2, 50_000_000, 0, 1.5, 60.0)


def test_a_limit_that_is_not_named_stays_as_it_is(made: Consortium) -> None:
    limits = load(write(made, GOOD + "[limits]\nopen_rounds = 2\n")).limits
    assert limits == Limits(open_rounds=2)


def test_paths_start_at_the_files_folder(
    made: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(made, GOOD)
    monkeypatch.chdir(tmp_path)
    assert load(path).studies == (made.study,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + "grace = 2.0\n", "unknown key: grace"),
        (GOOD + "[shuffle]\nseed = 1\n", "unknown key: shuffle"),
        (GOOD.replace("name", "nom"), "missing key: name"),
        (GOOD.replace('listen = "127.0.0.1:9101"\n', ""), "missing key: listen"),
        (GOOD.replace('studies = ["../study.toml"]\n', ""), "missing key: studies"),
        (GOOD.replace('"mix-1"', "1"), "name: expected a string"),
        (GOOD.replace('["../study.toml"]', '"../study.toml"'), "studies: expected a list"),
        (GOOD.replace('["../study.toml"]', "[1]"), "studies: expected a list of strings"),
        (GOOD + 'grace_s = "2"\n', "grace_s: expected a number"),
        (GOOD + "grace_s = true\n", "grace_s: expected a"),
        (GOOD + "grace_s = nan\n", "grace_s: expected a"),
        (GOOD + "grace_s = inf\n", "grace_s: expected a"),
        (GOOD + "grace_s = -1\n", "grace_s must not be negative"),
        (GOOD.replace('["../study.toml"]', "[]"), "name at least one study"),
        (GOOD + 'metrics_listen = "9201"\n', "metrics_listen: '9201' is not host:port"),
        (GOOD + "limits = 3\n", "limits: expected a table"),
        (GOOD + "[limits]\nopen_round = 3\n", "unknown key: limits.open_round"),
        (GOOD + "[limits]\nopen_rounds = 0\n", "open_rounds and disk_mb must be above 0"),
        (GOOD + "[limits]\nopen_rounds = 1.5\n", "limits.open_rounds: expected a whole number"),
        (GOOD + "[limits]\ndisk_mb = 0\n", "open_rounds and disk_mb must be above 0"),
        (GOOD + "[limits]\nfree_disk_mb = -1\n", "free_disk_mb not below"),
        (GOOD + "[limits]\nreport_s = 0\n", "report_s and retention_s must be above 0"),
        (GOOD + "[limits]\nretention_s = -5.0\n", "report_s and retention_s must be above 0"),
        (GOOD + "[limits]\nreport_s = inf\n", "limits.report_s: expected a finite number"),
        ("name = ", "Invalid value"),
        (b"\xff\xfe", "decode"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    made: Consortium, content: str | bytes, message: str
) -> None:
    path = write(made, content)
    with pytest.raises(InvalidMixConfig, match=message) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidMixConfig, match=f"{tmp_path / 'mix.toml'}: No such file"):
        load(tmp_path / "mix.toml")


def test_a_missing_study_is_named(made: Consortium) -> None:
    path = write(made, GOOD.replace("../study.toml", "../nowhere.toml"))
    with pytest.raises(InvalidMixConfig, match=r"nowhere\.toml: No such file"):
        load(path)


def test_a_file_that_is_no_study_is_named(made: Consortium) -> None:
    path = write(made, GOOD.replace("../study.toml", "mix.toml"))
    with pytest.raises(InvalidMixConfig, match=r"mix\.toml: missing key: version"):
        load(path)


@pytest.mark.parametrize("name", ["mix-3", "silo-1", "server", "MIX-1"])
def test_a_mix_that_the_chain_does_not_name_is_refused(made: Consortium, name: str) -> None:
    path = write(made, GOOD.replace("mix-1", name))
    with pytest.raises(InvalidMixConfig, match=f"chain of this study does not name '{name}'"):
        load(path)
