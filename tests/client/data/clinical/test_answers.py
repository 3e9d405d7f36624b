"""Yes, no and numbers: coded, written, or of another type than their name says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from silomix_client.data.records import read
from silomix_client.data.source import Source
from silomix_client.errors import BadRecords
from support.clinical import ADA, BOTH, NOON, altered, features, loosen, made
from support.hospitals import HOSPITAL, LOINC, Event, coded, ndjson_source, resources


def test_local_codes_are_translated(tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "rhesus", "positive")])
    local = entry | {"valueCodeableConcept": coded("http://lab.example", "RH+")}
    source: Any = ndjson_source(tmp_path, [patient, local])
    with pytest.raises(BadRecords, match=r"not one of positive, negative: 'RH\+'"):
        read(source, HOSPITAL)
    told = replace(source, values={"rhesus": {"RH+": "positive"}})
    assert features(told) == features(ndjson_source(tmp_path, [patient, entry]))


def smoker(source: Source, **values: dict[str, str]) -> float:
    told: Any = replace(source, values=values)  # type: ignore[type-var]
    return features(told)["smoker"]


def omop_answer(folder: Path, **cells: object) -> Source:
    """An observation of smoking that says just this."""
    source = made("omop-sqlite", folder, [ADA], [Event(7, NOON, "smoker", True)])
    cells = {"value_as_concept_id": None} | cells
    loosen(folder, "observation")
    for name, cell in cells.items():
        shown = "NULL" if cell is None else repr(cell)
        altered(folder, f"UPDATE observation SET {name} = {shown}")  # noqa: S608
    return source


def fhir_answer(folder: Path, **value: object) -> Source:
    patient, entry = resources([ADA], [Event(7, NOON, "smoker", True)])
    del entry["valueCodeableConcept"]
    return ndjson_source(folder, [patient, entry | value])


ANSWERS = [  # what OMOP has, its code in FHIR, and whether it is a yes
    (4188539, "373066001", True),
    (4188540, "373067005", False),
    (9191, "10828004", True),
    (9189, "260385009", False),
    (45877994, "LA33-6", True),
    (45878245, "LA32-8", False),
    (4181412, "52101004", True),
    (4132135, "2667000", False),
]


@pytest.mark.parametrize(("concept", "code", "says"), ANSWERS)
def test_a_coded_yes_or_no_is_the_same_in_omop_and_fhir(
    concept: int, code: str, says: bool, tmp_path: Path
) -> None:
    found = smoker(omop_answer(tmp_path, value_as_concept_id=concept))
    assert (found > 0) == says
    answer = coded("urn:any", code)
    assert smoker(fhir_answer(tmp_path, valueCodeableConcept=answer)) == found


def test_an_answer_is_known_by_its_code_in_the_vocabulary(tmp_path: Path) -> None:
    source = omop_answer(tmp_path, value_as_concept_id=9190)
    row = "9190, 'Not detected', 'Meas Value', 'SNOMED', 'Qualifier', 'S', '260415000'"
    altered(tmp_path, f"INSERT INTO concept VALUES ({row})")  # noqa: S608
    assert smoker(source) < 0


@pytest.mark.parametrize("text", ["No", "never", "2"])
def test_a_written_answer_that_is_no_flag_is_refused(text: str, tmp_path: Path) -> None:
    problem = rf"column 'smoker': not true or false \(1 or 0\): '{text}'"
    for make in (
        lambda: omop_answer(tmp_path, value_as_string=text),
        lambda: fhir_answer(tmp_path, valueString=text),
        lambda: fhir_answer(tmp_path, valueCodeableConcept={"text": text}),
    ):
        with pytest.raises(BadRecords, match=problem):
            smoker(make())
        assert smoker(make(), smoker={text: "false"}) < 0


@pytest.mark.parametrize(("text", "says"), [("false", False), ("true", True), ("0", False)])
def test_a_written_flag_is_one(text: str, says: bool, tmp_path: Path) -> None:
    found = smoker(omop_answer(tmp_path, value_as_string=text))
    assert (found > 0) == says
    assert smoker(fhir_answer(tmp_path, valueString=text)) == found


def test_another_coded_answer_is_refused_until_the_operator_says_what_it_means(
    tmp_path: Path,
) -> None:
    source = omop_answer(tmp_path, value_as_concept_id=1)
    with pytest.raises(BadRecords, match=r"observation 1, column 'smoker': .*: 'code 1'"):
        smoker(source)
    assert smoker(source, smoker={"1": "false"}) < 0
    answer = coded("urn:local", "1", "never")
    with pytest.raises(BadRecords, match=r"Observation/e1, column 'smoker': .*: 'code 1'"):
        smoker(fhir_answer(tmp_path, valueCodeableConcept=answer))
    for local in ("1", "never", "urn:local|1"):
        source = fhir_answer(tmp_path, valueCodeableConcept=answer)
        assert smoker(source, smoker={local: "false"}) < 0


@BOTH
def test_a_code_is_no_number(kind: str, tmp_path: Path) -> None:
    source = made(kind, tmp_path, [ADA], [Event(7, NOON, "rhesus", "positive")])
    rhesus = replace(HOSPITAL.features[2], unit="", codes=(f"{LOINC}|10331-7",))
    task = replace(HOSPITAL, features=(replace(rhesus, concepts=(3003694,)),))
    assert read(source, task).profile.features[0].high == 1  # a yes
    if kind == "omop-sqlite":
        altered(tmp_path, "UPDATE measurement SET value_as_concept_id = 8876")
        with pytest.raises(BadRecords, match="column 'sbp': not a number: 'code 8876'"):
            read(source, task)


def test_an_entry_that_says_nothing_says_that_a_flag_is_set(tmp_path: Path) -> None:
    assert smoker(omop_answer(tmp_path)) > 0
    assert smoker(omop_answer(tmp_path, value_as_string=" ", value_as_number="")) > 0
