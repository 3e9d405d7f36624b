"""OMOP and FHIR: the same people as in a CSV file, and what is refused or left out."""

from dataclasses import replace
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from silomix_client.data.clinical.fhir.fhir_source import Fhir
from silomix_client.data.clinical.omop import Omop, Window
from silomix_client.data.records import read
from silomix_client.data.settings import read_source
from silomix_client.errors import BadRecords
from silomix_core.task.feature import Feature
from silomix_core.toml_table import InvalidField, TomlTable
from support.clinical import ADA, BOTH, NOON, features, made
from support.hospitals import (
    CLINICAL,
    HOSPITAL,
    LOINC,
    Event,
    Person,
    csv_source,
    ndjson_source,
    people,
    resources,
)
from support.postgres import Postgres


@pytest.mark.parametrize("kind", list(CLINICAL))
def test_the_same_people_give_the_same_records_as_from_csv_to_the_last_bit(
    kind: str, tmp_path: Path, database_server: Postgres
) -> None:
    persons, events = people(60, seed=3)
    expected = read(csv_source(tmp_path, persons, events), HOSPITAL).records
    found = read(CLINICAL[kind](tmp_path, database_server.url, persons, events), HOSPITAL).records
    assert len(expected) == 60
    assert len(np.unique(expected.features, axis=0)) == 60
    assert 5 < (expected.labels > 0).sum() < 55
    assert found.features.tobytes() == expected.features.tobytes()
    assert found.labels.tobytes() == expected.labels.tobytes()


def test_the_resources_of_these_tests_are_valid_fhir() -> None:
    for each in resources(*people(20, seed=4)):
        kind = each["resourceType"]
        model = getattr(import_module(f"fhir.resources.R4B.{kind.lower()}"), kind)
        model.model_validate(each)


@pytest.mark.parametrize(("born", "age"), [((1980, 12, 31), 45), ((1981, 1, 1), 44)])
@BOTH
def test_an_age_is_in_whole_years_on_the_day_that_the_operator_names(
    kind: str, born: tuple[int, int, int], age: int, tmp_path: Path
) -> None:
    ages = replace(HOSPITAL.features[0], low=0.0, high=100.0)
    task = replace(HOSPITAL, features=(ages,))
    person = Person(7, date(*born), "male")
    found = read(made(kind, tmp_path, [person], []), task).records
    assert found.features[0, 0] == round((2 * age / 100 - 1) * 2**16)


@BOTH
def test_without_that_day_an_age_is_refused(kind: str, tmp_path: Path) -> None:
    source: Any = made(kind, tmp_path, [ADA], [])
    with pytest.raises(BadRecords, match=r"asks for an age; say on which day, by data\.at"):
        read(replace(source, at=None), HOSPITAL)


def test_a_year_of_birth_alone_is_a_birth_date(tmp_path: Path) -> None:
    patient = resources([ADA], [])[0] | {"birthDate": "1980"}
    first = features(ndjson_source(tmp_path, [patient]))
    full = features(ndjson_source(tmp_path, [patient | {"birthDate": "1980-01-01"}]))
    assert first == full


@BOTH
def test_another_unit_is_refused_with_entry_and_column(kind: str, tmp_path: Path) -> None:
    source = made(kind, tmp_path, [ADA], [Event(7, NOON, "sbp", 120.0)])
    sbp = replace(HOSPITAL.features[2], unit="kPa")
    task = replace(HOSPITAL, features=(sbp,))
    where = "measurement 1, " if kind == "omop-sqlite" else r"line 1, Observation/e1: "
    with pytest.raises(
        BadRecords,
        match=where + r"column 'sbp': the unit is 'mm\[Hg\]', the study asks for kPa",
    ):
        read(source, task)


def test_an_operator_can_vouch_for_the_units_of_an_omop_database(tmp_path: Path) -> None:
    source: Any = made("omop-sqlite", tmp_path, [ADA], [Event(7, NOON, "sbp", 120.0)])
    task = replace(HOSPITAL, features=(replace(HOSPITAL.features[2], unit="kPa"),))
    assert len(read(replace(source, assume_units=True), task).records) == 1


@pytest.mark.parametrize(
    ("kind", "what", "lost"),
    [("omop-sqlite", "concepts", {"concepts": ()}), ("fhir-ndjson", "codes", {"codes": ()})],
)
def test_a_feature_that_cannot_be_found_is_named(
    kind: str, what: str, lost: dict[str, Any], tmp_path: Path
) -> None:
    creatinine = replace(HOSPITAL.features[3], **lost)
    task = replace(HOSPITAL, features=(creatinine,))
    with pytest.raises(BadRecords, match=f"the study names no {what} for 'creatinine'"):
        read(made(kind, tmp_path, [ADA], []), task)


@BOTH
def test_a_study_that_takes_rows_for_persons_is_refused(kind: str, tmp_path: Path) -> None:
    only = Feature("sbp", 60.0, 260.0, 120.0, codes=(f"{LOINC}|8480-6",), concepts=(3004249,))
    task = replace(HOSPITAL, features=(only,), person=None, time=None, label_combine=None)
    with pytest.raises(BadRecords, match="entries of one person must be combined"):
        read(made(kind, tmp_path, [ADA], []), task)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: not a FHIR resource"),
        ('{"id": "7"}', "line 2: not a FHIR resource"),
        ('{"resourceType": 5}', "line 2: not a FHIR resource"),
    ],
)
def test_a_broken_line_is_named(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "export.ndjson"
    path.write_text('{"resourceType": "Patient", "id": "7", "birthDate": "1980"}\n' + text)
    with pytest.raises(BadRecords, match=rf"export\.ndjson {problem}"):
        read(Fhir(path, at=date(2025, 1, 1)), HOSPITAL)


def test_an_entry_of_a_patient_who_is_not_there_is_refused(tmp_path: Path) -> None:
    made = resources([ADA], [Event(8, NOON, "sbp", 120.0)])
    with pytest.raises(BadRecords, match="Observation/e1: refers to no Patient of this export"):
        read(ndjson_source(tmp_path, made), HOSPITAL)


@pytest.mark.parametrize(
    "born",
    [
        "yesterday",
        "1980-13-01",
        "1980-02-30",
        "15.06.1980",
        "1980-06-15garbage",
        "1980-06-15T00:00:00Z",
        "1980-06-15 ",
        "1980-6-15",
        "1980-06-",
        "1980x",
        "19800615",
        "1980-W24-7",
        "",
        1980,
        ["1980-06-15"],
    ],
)
def test_a_birth_date_that_is_none_is_refused_with_its_line(born: object, tmp_path: Path) -> None:
    patient = resources([ADA], [])[0] | {"birthDate": born}
    with pytest.raises(BadRecords) as told:
        read(ndjson_source(tmp_path, [patient]), HOSPITAL)
    assert "Patient.ndjson line 1, Patient/7: birthDate: no" in str(told.value)
    assert str(told.value).endswith(f": {born!r}")


@pytest.mark.parametrize(
    ("time", "ends"),
    [
        ("2025-03-01T12:00:00Zgarbage", "'2025-03-01T12:00:00Zgarbage'"),
        ("2025-03-01x12:00", "'2025-03-01x12:00'"),
        ("2025-03-01T25:00:00Z", "'2025-03-01T25:00:00Z'"),
        ("20250301", "'20250301'"),
        (20250301, "20250301"),
    ],
)
def test_a_time_of_an_entry_that_is_none_is_refused_with_its_field(
    time: object, ends: str, tmp_path: Path
) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 120.0)])
    found = ndjson_source(tmp_path, [patient, entry | {"effectiveDateTime": time}])
    with pytest.raises(BadRecords, match=r"Observation/e1: effectiveDateTime: no") as told:
        read(found, HOSPITAL)
    assert str(told.value).endswith(ends)


@pytest.mark.parametrize(
    "time", ["2025", "2025-03", "2025-03-01", "2025-03-01T12:00:00.125+01:00", "2025-03-01T12:00Z"]
)
def test_every_form_of_a_fhir_time_is_read(time: str, tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 120.0)])
    read(ndjson_source(tmp_path, [patient, entry | {"effectiveDateTime": time}]), HOSPITAL)


@pytest.mark.parametrize("value", [True, "120", "120mmHg", [120], {"low": 1}])
def test_a_quantity_that_is_no_number_is_refused_with_its_field(
    value: object, tmp_path: Path
) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 120.0)])
    entry["valueQuantity"]["value"] = value
    with pytest.raises(BadRecords, match=r"Observation/e1: value: not a number: "):
        read(ndjson_source(tmp_path, [patient, entry]), HOSPITAL)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("valueBoolean", "true", "valueBoolean: not true or false: 'true'"),
        ("valueBoolean", 1, "valueBoolean: not true or false: 1"),
        ("valueInteger", True, "valueInteger: not a whole number: True"),
        ("valueInteger", 7.5, "valueInteger: not a whole number: 7.5"),
        ("valueString", 7, "valueString: not a text: 7"),
    ],
)
def test_a_value_of_another_type_than_its_name_says_is_refused(
    key: str, value: object, told: str, tmp_path: Path
) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 120.0)])
    del entry["valueQuantity"]
    with pytest.raises(BadRecords, match=f"Observation/e1: {told}$"):
        read(ndjson_source(tmp_path, [patient, entry | {key: value}]), HOSPITAL)


def test_a_sex_that_is_no_text_is_refused(tmp_path: Path) -> None:
    patient = resources([ADA], [])[0] | {"gender": 2}
    with pytest.raises(BadRecords, match=r"Patient/7: gender: not a text: 2$"):
        read(ndjson_source(tmp_path, [patient]), HOSPITAL)


def test_a_word_that_only_python_takes_for_a_number_is_no_json(tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 120.0)])
    entry["valueQuantity"]["value"] = float("nan")
    with pytest.raises(BadRecords, match=r"line 1: not JSON: NaN is no number$"):
        read(ndjson_source(tmp_path, [patient, entry]), HOSPITAL)


@pytest.mark.parametrize("link", [{"type": "seealso"}, ["Patient/8"], "Patient/8"])
def test_links_that_are_no_list_of_links_are_refused(link: object, tmp_path: Path) -> None:
    """Who does not read one makes two persons of one, and each costs a budget."""
    patient = resources([ADA], [])[0] | {"link": link}
    with pytest.raises(BadRecords, match=r"Patient/7: link: not a list of links: "):
        read(ndjson_source(tmp_path, [patient]), HOSPITAL)


def test_both_are_described_in_silo_toml(tmp_path: Path) -> None:
    url = {"url": "sqlite:///omop.sqlite"}
    window = {"cohort": 17, "window": [-365, 0], "label_window": [1, 30]}
    omop = read_source(TomlTable({"data": {"kind": "omop"} | url | window}), tmp_path)
    assert isinstance(omop, Omop)
    assert (omop.cohort, omop.window, omop.label_window) == (17, Window(-365, 0), Window(1, 30))
    words = {"values": {"sex": {"diverse": "other"}}}
    fhir = read_source(
        TomlTable({"data": {"kind": "fhir", "path": "export", "at": "2025-12-31"} | words}),
        tmp_path,
    )
    assert fhir == Fhir(tmp_path / "export", date(2025, 12, 31), {"sex": {"diverse": "other"}})


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"cohort": 1, "cohort_query": "SELECT 1"}, "a cohort or a cohort_query, not both"),
        ({"window": [-1, 0]}, "a window counts from the start of a cohort"),
        ({"cohort": 1, "window": [0, -1]}, r"data\.window: expected two days, as \[-365, 0\]"),
        ({"cohort": 1, "window": [1]}, r"data\.window: expected two days"),
        ({"at": "today"}, r"data\.at: expected a date such as 2025-12-31: 'today'"),
        ({"cohorts": 1}, r"unknown key: data\.cohorts"),
    ],
)
def test_a_wrong_key_is_named(keys: dict[str, Any], problem: str, tmp_path: Path) -> None:
    data = {"kind": "omop", "url": "sqlite:///omop.sqlite"} | keys
    with pytest.raises(InvalidField, match=problem):
        read_source(TomlTable({"data": data}), tmp_path)
