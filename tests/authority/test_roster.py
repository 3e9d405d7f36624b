"""From the roster to a study file: keys come from their owners, or not at all."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from silomix_core.study.reader import parse_study
from silomix_core.toml_table import InvalidField
from silomix_lab.consortium.create import Consortium
from silomix_protocol.enrolment.roster import Roster, completed
from support.consortia import make_consortium
from support.operator_commands import silomix


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("roster") / "c")


@pytest.fixture(scope="module")
def roster(made: Consortium) -> Path:
    out = made.folder / "roster.toml"
    silomix("authority", "roster", str(made.authority), "--out", str(out), cwd=made.folder)
    return out


def outline(made: Consortium) -> dict[str, Any]:
    """The consortium's study as its lead writes it: names, no keys, no addresses."""
    table = tomllib.loads((made.folder / "study.toml").read_text())
    parties = [table["server"], *table["mixes"], *table["silos"]]
    for party in parties:
        for key in [key for key in party if key.endswith(("_key", "address"))]:
            del party[key]
    return table


def test_an_outline_and_the_roster_make_the_study(made: Consortium, roster: Path) -> None:
    (made.folder / "outline.toml").write_text(tomli_w.dumps(outline(made)))
    files = "outline.toml", str(roster)
    ended = silomix("study", "assemble", *files, "--out", "new.toml", cwd=made.folder)
    assert ended.returncode == 0, ended.stderr
    study = parse_study((made.folder / "new.toml").read_bytes())
    assert (study.silos, study.mixes, study.server) == (
        made.study.silos,
        made.study.mixes,
        made.study.server,
    )
    assert study.identity.hex() in ended.stdout
    again = silomix("study", "assemble", *files, "--out", "new.toml", cwd=made.folder)
    assert again.returncode == 1
    assert "already a file" in again.stderr


def test_a_study_that_no_noise_can_serve_is_not_written(made: Consortium, roster: Path) -> None:
    table = outline(made)
    table["privacy"]["epsilon"] = 80.0
    (made.folder / "wishes.toml").write_text(tomli_w.dumps(table))
    ended = silomix(
        "study", "assemble", "wishes.toml", str(roster), "--out", "never.toml", cwd=made.folder
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("silomix: wishes.toml: [privacy] with [algorithm]: epsilon=80")
    assert "use an epsilon of at most 6" in ended.stderr
    assert not (made.folder / "never.toml").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("addresses", ["127.0.0.1:1"]),  # the authority redirects a mix to itself
        ("name", "mix-9"),
        ("sign_key", "AAAA" * 10 + "AAA="),
    ],
)
def test_the_authority_cannot_change_what_a_party_said_of_itself(
    roster: Path, key: str, value: object
) -> None:
    table = tomllib.loads(roster.read_text())
    (entry,) = (each for each in table["parties"] if each["name"] == "mix-1")
    assert entry[key] != value
    entry[key] = value
    with pytest.raises(InvalidField, match="did not sign its entry"):
        Roster.parse(tomli_w.dumps(table).encode())


def test_a_party_that_is_missing_or_of_another_kind_or_key_is_named(
    made: Consortium, roster: Path
) -> None:
    parties, study = Roster.parse(roster.read_bytes()), outline(made)
    for edit, told in (
        ({"mixes": [{"name": "mix-7"}]}, "no party 'mix-7'"),
        ({"mixes": [{"name": "silo-1"}]}, "silo-1 is a silo in the roster, not a mix"),
        ({"mixes": [{"name": "mix-1", "sign_key": "AAAA"}]}, "sign_key of mix-1 is another"),
        ({"server": {}}, "expected a table with a name"),
        ({"silos": 3}, "missing key: silos"),
    ):
        with pytest.raises(InvalidField, match=told):
            completed(study | edit, parties)
