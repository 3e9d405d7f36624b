"""A mix's configuration: what it does not understand, it does not run with."""

from pathlib import Path

import pytest
from silomix.consortium import Consortium
from silomix_shuffler.config import InvalidConfig, load
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


def test_every_key_is_read(made: Consortium) -> None:
    config = load(write(made, GOOD + "grace_s = 7.5\n"))
    assert (config.name, config.listen, config.grace_s) == ("mix-1", "127.0.0.1:9101", 7.5)
    assert [study.identity for study in config.studies] == [made.study.identity]


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
        ("name = ", "Invalid value"),
        (b"\xff\xfe", "decode"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    made: Consortium, content: str | bytes, message: str
) -> None:
    path = write(made, content)
    with pytest.raises(InvalidConfig, match=message) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=f"{tmp_path / 'mix.toml'}: No such file"):
        load(tmp_path / "mix.toml")


def test_a_missing_study_is_named(made: Consortium) -> None:
    path = write(made, GOOD.replace("../study.toml", "../nowhere.toml"))
    with pytest.raises(InvalidConfig, match=r"nowhere\.toml: No such file"):
        load(path)


def test_a_file_that_is_no_study_is_named(made: Consortium) -> None:
    path = write(made, GOOD.replace("../study.toml", "mix.toml"))
    with pytest.raises(InvalidConfig, match=r"mix\.toml: missing key: version"):
        load(path)


@pytest.mark.parametrize("name", ["mix-3", "silo-1", "server", "MIX-1"])
def test_a_mix_that_the_chain_does_not_name_is_refused(made: Consortium, name: str) -> None:
    path = write(made, GOOD.replace("mix-1", name))
    with pytest.raises(InvalidConfig, match=f"chain of this study does not name '{name}'"):
        load(path)
