"""What commands say: of files that others could change, what is in the data, an impossible ε."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from silomix.main import app
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.hospitals import AT, HOSPITAL, ndjson_source, people, resources
from support.processes import silomix
from support.silos import approved_silo
from typer.testing import CliRunner

# Files that others could change ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["policy.toml", "state"])
def test_the_doctor_fails_where_others_could_change_what_a_silo_trusts(
    tmp_path: Path, name: str
) -> None:
    made = make_consortium(tmp_path / "c")
    approved_silo(made)
    path = made.silos[0].parent / name
    path.chmod(path.stat().st_mode | 0o002)
    told = silomix("silo", "doctor", str(made.silos[0]), cwd=made.folder)
    assert told.returncode == 1
    assert told.stdout.startswith("failed   configuration")
    assert f"{path}: other users could change it" in told.stdout
    assert f"chmod go-w {path}" in told.stdout
    assert "Traceback" not in told.stderr


# What is in the data -----------------------------------------------------------------------------

ESCAPE = "\x1b]0;PWNED\x07\x1b[2J\u202e\x9b1m\r\nsilomix: all is well"
ORDERS = {char for char in ESCAPE if not char.isprintable()} - {"\n"}
Resource = dict[str, Any]


def in_values(each: Resource) -> Resource:
    """In every text of a resource but its type, which names the file."""

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: inner if key == "resourceType" else spoilt(inner)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [spoilt(inner) for inner in value]
        return f"{value}{ESCAPE}" if isinstance(value, str) else value

    found = spoilt(each)
    assert isinstance(found, dict)
    return found


def at(kind: str, *path: str | int) -> Callable[[Resource], Resource]:
    """At one place of all resources of a kind that have it."""

    def change(each: Resource) -> Resource:
        place: Any = each
        try:
            for step in path[:-1]:
                place = place[step]
            if each["resourceType"] == kind:
                place[path[-1]] = f"{place[path[-1]]}{ESCAPE}"
        except KeyError:
            return each
        return each

    return change


PLACES = {
    "everywhere": in_values,
    "gender": at("Patient", "gender"),
    "birth": at("Patient", "birthDate"),
    "id": at("Patient", "id"),
    "reference": at("Observation", "subject", "reference"),
    "date": at("Observation", "effectiveDateTime"),
    "status": at("Observation", "status"),
    "system": at("Observation", "code", "coding", 0, "system"),
    "code": at("Observation", "code", "coding", 0, "code"),
    "unit": at("Observation", "valueQuantity", "code"),
    "answer": at("Observation", "valueCodeableConcept", "coding", 0, "code"),
    "display": at("Observation", "valueCodeableConcept", "coding", 0, "display"),
    "name of a field": lambda each: each | {ESCAPE: {ESCAPE: [ESCAPE]}},
    "kind": lambda each: each | {"resourceType": each["resourceType"] + ESCAPE},
}


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("fhir") / "c"
    made = make_consortium(folder, records=(30, 30, 30), task=HOSPITAL)
    text = made.silos[0].read_text().replace('data = "data.csv"\n', "")
    made.silos[0].write_text(f'{text}\n[data]\nkind = "fhir"\npath = "export"\nat = "{AT}"\n')
    return made


@pytest.mark.parametrize("command", ["review", "check"])
@pytest.mark.parametrize("place", PLACES)
def test_what_stands_in_fhir_resources_is_only_shown(
    hospital: Consortium, place: str, command: str
) -> None:
    persons, events = people(30, 0)
    spoilt = [PLACES[place](each) for each in json.loads(json.dumps(resources(persons, events)))]
    ndjson_source(hospital.silos[0].parent, spoilt)
    study = hospital.folder / "study.toml"
    done = CliRunner().invoke(app, ["silo", command, str(hospital.silos[0]), str(study)])
    said = done.output + str(done.exception)
    assert done.exit_code in (0, 1)
    assert not ORDERS & set(said)
    assert "\nsilomix: all is well" not in said


# An ε that no noise can keep ---------------------------------------------------------------------

IMPOSSIBLE = {
    "too large": ({"epsilon": 80.0}, {}),
    "too small": ({"epsilon": 1e-9}, {}),
    "at a tiny delta": ({"delta": 1e-300}, {}),
    "of one silo": ({}, {"epsilon": 80.0, "delta": 1e-5}),
}


@pytest.mark.parametrize(("privacy", "silo"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_study_with_an_epsilon_that_no_noise_can_keep_is_not_written(
    hospital: Consortium, tmp_path: Path, privacy: dict[str, float], silo: dict[str, float]
) -> None:
    table = tomllib.loads((hospital.folder / "study.toml").read_text())
    for party in (table["server"], *table["mixes"], *table["silos"]):
        for key in [key for key in party if key.endswith(("_key", "address"))]:
            del party[key]
    table["privacy"] |= privacy
    table["silos"][1] |= silo
    outline, roster, out = tmp_path / "outline.toml", tmp_path / "roster.toml", tmp_path / "new"
    outline.write_text(tomli_w.dumps(table))
    run = CliRunner().invoke
    run(app, ["authority", "roster", str(hospital.authority), "--out", str(roster)])
    done = run(app, ["study", "assemble", str(outline), str(roster), "--out", str(out)])
    assert done.exit_code == 1
    assert "epsilon" in str(done.exception)
    assert str(outline) in str(done.exception)
    assert not out.exists()
