"""OMOP and FHIR: the same people as in a CSV file, and what is refused or left out."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from silomix_client.data.clinical.fhir.fhir_source import Fhir
from silomix_client.data.clinical.omop import Omop, Window
from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.records import read
from silomix_client.data.settings import read_source
from silomix_client.data.source import Source
from silomix_client.errors import BadRecords
from silomix_core.task.feature import Feature
from silomix_core.toml_table import InvalidField, TomlTable
from support.databases import run_all
from support.hospitals import (
    CLINICAL,
    HOSPITAL,
    LOINC,
    RXNORM,
    Event,
    Person,
    Resource,
    bundle_source,
    coded,
    csv_source,
    ndjson_source,
    omop_source,
    people,
    resources,
)
from support.postgres import Postgres

ADA = Person(7, date(1980, 6, 15), "female")
NOON = datetime(2025, 3, 1, 12)
BOTH = pytest.mark.parametrize("kind", ["omop-sqlite", "fhir-ndjson"])


def made(kind: str, folder: Path, persons: list[Person], events: list[Event]) -> Source:
    return CLINICAL[kind](folder, "", persons, events)


def place(name: str) -> int:
    return HOSPITAL.coordinates.index(name)


def features(source: Source) -> dict[str, float]:
    """The one person's coordinates by name."""
    records = read(source, HOSPITAL).records
    assert len(records) == 1
    return dict(zip(HOSPITAL.coordinates, records.features[0].tolist(), strict=False))


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


# What a person's master data say -----------------------------------------------------------------


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


# Faults ------------------------------------------------------------------------------------------


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


# What counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "void"),
    [
        ("sbp", {"status": "entered-in-error"}),
        ("sbp", {"status": "cancelled"}),
        ("statins", {"status": "draft"}),
        (
            "diabetes",
            {
                "verificationStatus": coded(
                    "http://terminology.hl7.org/CodeSystem/condition-ver-status", "refuted"
                )
            },
        ),
    ],
)
def test_what_was_entered_in_error_or_refuted_is_left_out(
    name: str, void: Resource, tmp_path: Path
) -> None:
    value: float | bool = 250.0 if name == "sbp" else True
    patient, entry = resources([ADA], [Event(7, NOON, name, value)])
    counted = features(ndjson_source(tmp_path, [patient, entry]))
    left_out = features(ndjson_source(tmp_path, [patient, entry | void]))
    assert left_out == features(ndjson_source(tmp_path, [patient]))
    assert left_out != counted


def test_components_of_an_observation_are_observations(tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 170.0)])
    value = entry.pop("valueQuantity")
    part = {"code": entry["code"], "valueQuantity": value}
    panel = entry | {"code": coded(LOINC, "85354-9"), "component": [part]}
    expected = features(ndjson_source(tmp_path, [patient, entry | {"valueQuantity": value}]))
    assert features(ndjson_source(tmp_path, [patient, panel])) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_components_with_one_code_both_count(order: int, tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 170.0)])
    high, value = features(ndjson_source(tmp_path, [patient, entry])), entry.pop("valueQuantity")
    parts = [{"code": entry["code"], "valueQuantity": value | {"value": n}} for n in (170, 110)]
    panel = entry | {"code": coded(LOINC, "85354-9"), "component": parts[::order]}
    assert features(ndjson_source(tmp_path, [patient, panel])) == high  # the larger one


def prescribed(**keys: Any) -> list[Resource]:
    patient, entry = resources([ADA], [Event(7, NOON, "statins", True)])
    del entry["medicationCodeableConcept"]
    return [patient, entry | keys]


STATIN = {"resourceType": "Medication", "id": "m", "code": coded(RXNORM, "83367")}


@pytest.mark.parametrize("to", ["Medication/m", "http://h/fhir/Medication/m/_history/1", "#m"])
def test_a_medication_may_be_a_resource_of_its_own(to: str, tmp_path: Path) -> None:
    expected = features(made("fhir-ndjson", tmp_path, [ADA], [Event(7, NOON, "statins", True)]))
    inside = {"contained": [STATIN]} if to == "#m" else {}
    found = prescribed(medicationReference={"reference": to}, **inside)
    if to != "#m":
        found.append(STATIN)
    assert features(ndjson_source(tmp_path, found)) == expected


def test_a_medication_may_be_known_by_its_address(tmp_path: Path) -> None:
    patient, entry = prescribed(medicationReference={"reference": "urn:uuid:m"})
    expected = features(made("fhir-ndjson", tmp_path, [ADA], [Event(7, NOON, "statins", True)]))
    nameless = {key: cell for key, cell in STATIN.items() if key != "id"}
    source = bundled(tmp_path, **{"urn:1": patient, "urn:2": entry, "urn:uuid:m": nameless})
    assert features(source) == expected


@pytest.mark.parametrize("reference", [{"reference": "Medication/x"}, {"display": "a statin"}])
def test_a_medication_that_is_not_there_is_refused(reference: Resource, tmp_path: Path) -> None:
    text = reference.get("reference", "")
    with pytest.raises(
        BadRecords,
        match=rf"MedicationRequest/e1: its medication '{text}' is not in this export; add",
    ):
        features(ndjson_source(tmp_path, [*prescribed(medicationReference=reference), STATIN]))


@pytest.mark.parametrize(
    "never",
    [
        {"doNotPerform": True},
        {"resourceType": "MedicationStatement", "status": "not-taken"},
        {"resourceType": "MedicationStatement", "status": "intended"},
    ],
)
def test_what_was_not_taken_is_left_out(never: Resource, tmp_path: Path) -> None:
    patient, entry = prescribed(medicationCodeableConcept=coded(RXNORM, "83367"))
    counted = features(ndjson_source(tmp_path, [patient, entry]))
    left_out = features(ndjson_source(tmp_path, [patient, entry | never]))
    assert left_out == features(ndjson_source(tmp_path, [patient])) != counted


def test_a_prohibition_that_is_neither_true_nor_false_is_refused(tmp_path: Path) -> None:
    found = prescribed(doNotPerform="true")
    with pytest.raises(BadRecords, match=r"Request/e1: doNotPerform: not true or false: 'true'$"):
        features(ndjson_source(tmp_path, found))


def test_a_status_that_is_no_text_is_refused(tmp_path: Path) -> None:
    patient, entry = prescribed(status=["active"])
    with pytest.raises(BadRecords, match=r"Request/e1: the status is not a text: \['active'\]"):
        features(ndjson_source(tmp_path, [patient, entry]))


# Versions ----------------------------------------------------------------------------------------

OLD = {"lastUpdated": "2025-03-01T12:00:00Z", "versionId": "9"}
NEW = {"lastUpdated": "2025-03-01T13:30:00+01:00", "versionId": "10"}


def versions(first: Resource, second: Resource) -> list[list[Resource]]:
    patient, entry = resources([ADA], [Event(7, NOON, "statins", True)])
    entries = [entry | first, entry | second]
    return [[patient, *entries], [patient, *entries[::-1]]]


@pytest.mark.parametrize("stamps", [(OLD, NEW), ({"versionId": "9"}, {"versionId": "10"})])
def test_of_several_versions_the_newest_counts(
    stamps: tuple[Resource, Resource], tmp_path: Path
) -> None:
    old, new = stamps
    once = features(ndjson_source(tmp_path, versions({}, {})[0][:2]))
    never = features(ndjson_source(tmp_path, versions({}, {})[0][:1]))
    wrong = {"status": "entered-in-error"}
    broken = {"subject": {"reference": "Patient/99"}}
    for older, newer, expected in (
        ({}, {}, once),
        ({}, wrong, never),
        (wrong, {}, once),
        (broken, {}, once),
    ):
        for found in versions(older | {"meta": old}, newer | {"meta": new}):
            assert features(ndjson_source(tmp_path, found)) == expected
    for found in versions({"meta": old}, broken | {"meta": new}):
        with pytest.raises(
            BadRecords, match=r"line \d, MedicationRequest/e1: refers to no Patient"
        ):
            features(ndjson_source(tmp_path, found))


def test_versions_that_cannot_be_told_apart_must_say_the_same(tmp_path: Path) -> None:
    once = features(ndjson_source(tmp_path, versions({}, {})[0][:2]))
    for found in versions({}, {"meta": NEW}):
        assert features(ndjson_source(tmp_path, found)) == once
    for found in versions({"meta": {"versionId": "a"}}, {"status": "cancelled", "meta": NEW}):
        with pytest.raises(
            BadRecords,
            match=r"line 2, MedicationRequest/e1: also in .* line 1, MedicationRequest/e1, with "
            r"another content; neither meta\.lastUpdated nor",
        ):
            features(ndjson_source(tmp_path, found))


def test_of_a_patient_the_newest_version_counts(tmp_path: Path) -> None:
    (patient,) = resources([ADA], [])
    newer = patient | {"birthDate": "1990-01-01", "meta": NEW}
    older = patient | {"meta": OLD}
    expected = features(ndjson_source(tmp_path, [newer]))
    for found in ([older, newer], [newer, older]):
        assert features(ndjson_source(tmp_path, found)) == expected
    with pytest.raises(BadRecords, match="Patient/7: also in Patient"):
        features(ndjson_source(tmp_path, [patient, newer]))


# Deletions ---------------------------------------------------------------------------------------

THEN, LATER, LAST = (f"2025-03-0{day}T12:00:00Z" for day in (1, 2, 3))


def wrote(resource: Resource, moment: str, number: int) -> Resource:
    """An entry of a history: this version was made then."""
    meta = {"lastUpdated": moment, "versionId": str(number)}
    name = f"{resource['resourceType']}/{resource['id']}"
    return {
        "fullUrl": f"http://h/fhir/{name}",
        "resource": resource | {"meta": meta},
        "request": {"method": "PUT", "url": name},
        "response": {"status": "200", "lastModified": moment, "etag": f'W/"{number}"'},
    }


def deleted(resource: Resource, moment: str = LATER, number: int = 2) -> Resource:
    """As FHIR R4 writes it: there is no resource."""
    name = f"{resource['resourceType']}/{resource['id']}"
    return {
        "fullUrl": f"http://h/fhir/{name}",
        "request": {"method": "DELETE", "url": name},
        "response": {"status": "204", "lastModified": moment, "etag": f'W/"{number}"'},
    }


def history(folder: Path, *entries: Resource, kind: str = "history", **more: object) -> Source:
    bundle = {"resourceType": "Bundle", "type": kind, "entry": list(entries)} | more
    path = folder / "history.json"
    path.write_text(json.dumps(bundle))
    return Fhir(path, at=date(2025, 12, 31))


def other_forms(gone: Resource, entry: Resource) -> list[Resource]:
    """The same deletion by what else servers write."""
    name = f"{entry['resourceType']}/{entry['id']}"
    bare: Resource = {"request": gone["request"]}
    left = {key: entry[key] for key in ("resourceType", "id")}
    return [
        bare | {"response": {"status": "204", "lastModified": LATER}},
        bare | {"response": {"status": "204", "etag": '"2"'}},
        bare | {"resource": left | {"meta": {"versionId": "2"}}},
        bare | {"resource": entry | {"meta": {"versionId": "2", "lastUpdated": LATER}}},
        {"request": {"method": "DELETE", "url": f"{name}/_history/2"}},
        {"request": {"method": "DELETE", "url": f"http://h/fhir/{name}/_history/2"}},
        {"request": {"method": "DELETE"}, "fullUrl": f"http://h/fhir/{name}/_history/2"},
    ]


def test_what_was_deleted_is_left_out_until_it_is_made_again(tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 250.0)])
    ada, first, again = wrote(patient, THEN, 1), wrote(entry, THEN, 1), wrote(entry, LAST, 3)
    once, never = features(history(tmp_path, ada, first)), features(history(tmp_path, ada))
    assert once != never
    for gone in (deleted(entry), *other_forms(deleted(entry), entry)):
        for order in ([ada, first, gone], [gone, first, ada]):
            assert features(history(tmp_path, *order)) == never, gone
            assert features(history(tmp_path, *order, again)) == once, gone
        assert features(history(tmp_path, ada, gone)) == never, "nothing else of it is there"


def test_a_deletion_in_one_file_is_of_the_resource_in_another(tmp_path: Path) -> None:
    """A bulk export lists what is gone in bundles of their own; they say when they were made."""
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 250.0)])
    never = features(ndjson_source(tmp_path, [patient]))
    entry["meta"] = {"lastUpdated": THEN}
    source = ndjson_source(tmp_path, [patient, entry])
    once = features(source)
    bare = {"request": deleted(entry)["request"]}
    made: Resource = {"resourceType": "Bundle", "type": "transaction", "entry": [bare]}
    listed = tmp_path / "export" / "deleted.ndjson"
    for moment, expected in ((LATER, never), ("2025-02-01T00:00:00Z", once)):
        listed.write_text(json.dumps(made | {"meta": {"lastUpdated": moment}}))
        assert features(source) == expected


def test_a_deletion_of_no_known_time_is_refused_if_the_resource_is_there(tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 250.0)])
    bare = {"request": deleted(entry)["request"]}
    made = {"lastUpdated": LATER}  # of the bundle, which says nothing about a history's entries
    source = history(tmp_path, wrote(patient, THEN, 1), wrote(entry, THEN, 1), bare, meta=made)
    with pytest.raises(BadRecords, match=r"entry 3, Observation/e1: also in .* entry 2, Obs"):
        features(source)


@pytest.mark.parametrize("url", [None, 7, "", "Observation", "Observation?code=x", "h/fhir/"])
def test_a_deletion_that_does_not_say_of_what_is_refused(url: object, tmp_path: Path) -> None:
    (patient,) = resources([ADA], [])
    gone = {"request": {"method": "DELETE", "url": url}}
    with pytest.raises(BadRecords, match=r"history\.json, entry 2: a deletion that does not say"):
        features(history(tmp_path, wrote(patient, THEN, 1), gone))


def test_a_deleted_patient_is_nobody(tmp_path: Path) -> None:
    ada, bob = resources([ADA, Person(8, ADA.born, ADA.sex)], [])
    (event,) = resources([], [Event(8, NOON, "sbp", 250.0)])
    first = [wrote(ada, THEN, 1), wrote(bob, THEN, 1), deleted(bob)]
    assert len(read(history(tmp_path, *first), HOSPITAL).records) == 1
    back = wrote(bob, LAST, 3)
    assert len(read(history(tmp_path, *first, back), HOSPITAL).records) == 2
    with pytest.raises(BadRecords, match="Observation/e1: refers to no Patient of this export"):
        read(history(tmp_path, *first, wrote(event, THEN, 1)), HOSPITAL)


def test_patients_that_are_the_same_as_a_deleted_one_are_one(tmp_path: Path) -> None:
    ada, bob, third = strangers()
    ada["link"] = [{"other": {"reference": "Patient/9"}, "type": "replaces"}]
    bob["link"] = [{"other": {"reference": "urn:x"}, "type": "replaces"}]
    made = [wrote(each, THEN, 1) for each in (ada, bob, third)]
    made[2]["fullUrl"] = "urn:x"
    assert len(read(history(tmp_path, *made, deleted(third)), HOSPITAL).records) == 1


def test_a_link_counts_until_the_person_that_has_it_is_deleted(tmp_path: Path) -> None:
    both = resources([ADA, Person(8, ADA.born, ADA.sex)], [])
    person = {"resourceType": "Person", "id": "a"}
    person["link"] = [{"target": {"reference": f"Patient/{number}"}} for number in (7, 8)]
    made = [wrote(each, THEN, 1) for each in (*both, person)]
    assert len(read(history(tmp_path, *made), HOSPITAL).records) == 1
    assert len(read(history(tmp_path, *made, deleted(person)), HOSPITAL).records) == 2


@pytest.mark.parametrize("to", ["Medication/m", "http://h/fhir/Medication/m"])
def test_a_medication_that_was_deleted_is_not_in_the_export(to: str, tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "statins", True)])
    medication = {"resourceType": "Medication", "id": "m"}
    medication["code"] = entry.pop("medicationCodeableConcept")
    entry["medicationReference"] = {"reference": to}
    made = [wrote(each, THEN, 1) for each in (patient, entry, medication)]
    once = features(history(tmp_path, *made))
    gone = {key: value for key, value in deleted(medication).items() if key != "fullUrl"}
    with pytest.raises(BadRecords, match=f"its medication '{to}' is not in this export"):
        features(history(tmp_path, *made, gone))
    assert features(history(tmp_path, *made, gone, wrote(medication, LAST, 3))) == once


def test_age_and_sex_are_the_patients_and_no_observations(tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 170.0)])
    expected = features(ndjson_source(tmp_path, [patient]))
    answer = {"valueCodeableConcept": coded("urn:sex", "male")}
    del entry["valueQuantity"]
    aged = entry | {"code": coded(LOINC, "30525-0"), "valueInteger": 99}
    sexed = entry | {"id": "e2", "code": coded(LOINC, "46098-0")} | answer
    assert features(ndjson_source(tmp_path, [patient, aged, sexed])) == expected


@pytest.mark.parametrize("link", ["replaced-by", "replaces", "refer", "seealso"])
def test_two_patients_that_are_one_person_become_one_record(link: str, tmp_path: Path) -> None:
    twin = Person(8, ADA.born, ADA.sex)
    first, second, one, two = resources(
        [ADA, twin],
        [
            Event(7, NOON, "sbp", 100.0),
            Event(8, NOON + timedelta(days=1), "sbp", 200.0),
        ],
    )
    second["link"] = [{"other": {"reference": "Patient/7"}, "type": link}]
    merged = features(ndjson_source(tmp_path, [first, second, one, two]))
    assert merged == features(
        ndjson_source(tmp_path, [first, two | {"subject": {"reference": "Patient/7"}}])
    )


def linked_by(kind: str, patient: Resource) -> list[Resource]:
    """Somebody who is not in the export, or a Person resource, makes two patients one."""
    if kind == "absent":
        for each in (patient["first"], patient["second"]):
            each["link"] = [{"other": {"reference": "Patient/99"}, "type": "replaced-by"}]
        return []
    targets = [{"target": {"reference": f"Patient/{number}"}} for number in (7, 8)]
    return [{"resourceType": "Person", "id": "p", "link": targets}]


@pytest.mark.parametrize("kind", ["absent", "person"])
def test_two_patients_that_are_the_same_as_a_third_are_one_record(
    kind: str, tmp_path: Path
) -> None:
    first, second = resources([ADA, Person(8, ADA.born, ADA.sex)], [])
    more = linked_by(kind, {"first": first, "second": second})
    assert len(read(ndjson_source(tmp_path, [first, second, *more]), HOSPITAL).records) == 1


def people_of(*made: Resource, folder: Path) -> int:
    return len(read(ndjson_source(folder, made), HOSPITAL).records)


def bundled(folder: Path, **by_url: Resource) -> Source:
    """A bundle whose entries have these addresses; a resource may do without an id."""
    entries = [{"fullUrl": url, "resource": each} for url, each in by_url.items()]
    path = folder / "bundle.json"
    path.write_text(json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries}))
    return Fhir(path, at=date(2025, 12, 31))


@pytest.mark.parametrize("to", ["Person/b", "http://h/fhir/Person/b", "urn:uuid:b"])
def test_persons_that_are_linked_to_each_other_are_one(to: str, tmp_path: Path) -> None:
    first, second = resources([ADA, Person(8, ADA.born, ADA.sex)], [])
    one = {"resourceType": "Person", "id": "a"}
    one["link"] = [{"target": {"reference": each}} for each in ("Patient/7", to)]
    other = {"resourceType": "Person", "id": "b", "link": [{"target": {"reference": "Patient/8"}}]}
    made = {"urn:1": first, "urn:2": second, "urn:uuid:a": one, "urn:uuid:b": other}
    assert len(read(bundled(tmp_path, **made), HOSPITAL).records) == 1


def strangers() -> list[Resource]:
    persons = [Person(number, ADA.born, ADA.sex) for number in (7, 8, 9)]
    return resources(persons, [])


def by_identifier(value: str) -> list[Resource]:
    other = {"identifier": {"system": "urn:mrn", "value": value}}
    return [{"other": other, "type": "seealso"}]


def test_a_link_by_an_identifier_finds_the_one_patient_who_has_it(tmp_path: Path) -> None:
    first, second, third = strangers()
    first["link"] = by_identifier("8")
    for each in (second, third):
        each["identifier"] = [{"system": "urn:mrn", "value": each["id"]}, {"system": "urn:mrn"}]
    assert people_of(first, second, third, folder=tmp_path) == 2


@pytest.mark.parametrize("having", [0, 2])
def test_a_link_by_an_identifier_of_nobody_or_several_is_refused(
    having: int, tmp_path: Path
) -> None:
    first, *others = strangers()
    first["link"] = by_identifier("8")
    for each in others[:having]:
        each["identifier"] = [{"system": "urn:mrn", "value": "8"}]
    with pytest.raises(
        BadRecords,
        match=rf"Patient/7: a link without a reference to a Patient; {having} Patients have "
        r"'urn:mrn\|8'",
    ):
        people_of(first, *others, folder=tmp_path)


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ({"type": "seealso"}, "a link without a reference to a Patient"),
        ({"type": "seealso", "other": {"display": "Ada"}}, "a link without a reference"),
        ({"type": ["seealso"], "other": {"reference": "Patient/8"}}, "a link of no type"),
    ],
)
def test_a_link_to_nobody_is_refused(link: Resource, problem: str, tmp_path: Path) -> None:
    first, *others = strangers()
    with pytest.raises(BadRecords, match=rf"line 1, Patient/7: {problem}"):
        people_of(first | {"link": [link]}, *others, folder=tmp_path)


def test_contained_resources_of_one_name_make_nobody_one(tmp_path: Path) -> None:
    link = [{"other": {"reference": "#r"}, "type": "seealso"}]
    assert people_of(*(each | {"link": link} for each in strangers()), folder=tmp_path) == 3


def test_a_patient_without_an_id_is_known_by_its_address_or_refused(tmp_path: Path) -> None:
    nameless = [{k: v for k, v in each.items() if k != "id"} for each in strangers()]
    source = bundled(tmp_path, **{f"urn:uuid:{n}": each for n, each in enumerate(nameless)})
    assert len(read(source, HOSPITAL).records) == 3
    with pytest.raises(BadRecords, match="a Patient with neither an id nor a fullUrl"):
        people_of(*nameless, folder=tmp_path)


@pytest.mark.parametrize(
    "reference",
    ["Patient/7", "https://fhir.example/r4/Patient/7", "Patient/7/_history/2", "urn:silomix:7"],
)
def test_every_form_of_a_reference_finds_its_patient(reference: str, tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "sbp", 200.0)])
    expected = features(bundle_source(tmp_path, [patient, entry]))
    moved = entry | {"subject": {"reference": reference}}
    assert features(bundle_source(tmp_path, [patient, moved])) == expected


def test_local_codes_are_translated(tmp_path: Path) -> None:
    patient, entry = resources([ADA], [Event(7, NOON, "rhesus", "positive")])
    local = entry | {"valueCodeableConcept": coded("http://lab.example", "RH+")}
    source: Any = ndjson_source(tmp_path, [patient, local])
    with pytest.raises(BadRecords, match=r"not one of positive, negative: 'RH\+'"):
        read(source, HOSPITAL)
    told = replace(source, values={"rhesus": {"RH+": "positive"}})
    assert features(told) == features(ndjson_source(tmp_path, [patient, entry]))


# Answers -----------------------------------------------------------------------------------------


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


# Entries of nobody -------------------------------------------------------------------------------


def altered(folder: Path, *statements: str) -> None:
    """The SQLite database of the folder, after its operator was at work."""
    with closing(sqlite3.connect(folder / "omop.sqlite")) as database, database:
        for statement in statements:
            database.execute(statement)


def loosen(folder: Path, name: str) -> None:
    """A table without constraints or types, as a quick export makes it."""
    with closing(sqlite3.connect(folder / "omop.sqlite")) as database, database:
        names = ", ".join(row[1] for row in database.execute(f"PRAGMA table_info({name})"))
        database.execute(f"CREATE TABLE copied ({names})")
        database.execute(f"INSERT INTO copied SELECT * FROM {name}")  # noqa: S608
        database.execute(f"DROP TABLE {name}")
        database.execute(f"ALTER TABLE copied RENAME TO {name}")


@pytest.mark.parametrize("person", ["99", "NULL"])
def test_an_omop_entry_of_nobody_in_person_is_refused(person: str, tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [Event(7, NOON, "diabetes", True)])
    table = "condition_occurrence"
    loosen(tmp_path, table)
    altered(tmp_path, f"UPDATE {table} SET person_id = {person}")  # noqa: S608
    shown = "None" if person == "NULL" else person
    with pytest.raises(
        BadRecords, match=rf"condition_occurrence 1: person {shown} is not in the table person"
    ):
        read(source, HOSPITAL)


def test_a_person_without_an_identifier_is_refused(tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [])
    loosen(tmp_path, "person")
    altered(tmp_path, "UPDATE person SET person_id = NULL")
    with pytest.raises(BadRecords, match="the table person has a row without person_id"):
        read(source, HOSPITAL)


def test_an_identifier_is_the_same_as_a_number_and_as_text(tmp_path: Path) -> None:
    events = [Event(7, NOON, "diabetes", True)]
    expected = features(cohort_source(tmp_path, events))
    table = "condition_occurrence"
    loosen(tmp_path, table)
    altered(tmp_path, f"UPDATE {table} SET person_id = '7'")  # noqa: S608
    assert features(omop_again(tmp_path)) == expected


def omop_again(folder: Path) -> Source:
    return Omop(DatabaseUrl(folder, "url", "sqlite:///omop.sqlite"), cohort=17)


# Numbers as texts --------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["12O", "1_0", "high"])
def test_a_text_where_an_omop_number_belongs_is_refused(cell: str, tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [Event(7, NOON, "sbp", 120.0)])
    altered(tmp_path, f"UPDATE measurement SET value_as_number = '{cell}'")  # noqa: S608
    with pytest.raises(BadRecords, match=f"measurement 1, column 'sbp': not a number: '{cell}'"):
        read(source, HOSPITAL)


def test_an_empty_text_is_no_number(tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [Event(7, NOON, "sbp", 120.0)])
    altered(tmp_path, "UPDATE measurement SET value_as_number = ''")
    assert read(source, HOSPITAL).profile.features[2].missing == 1


@pytest.mark.parametrize("year", ["'1980'", "1980.0", "'1980.0'"])
def test_a_year_of_birth_may_be_a_text_or_a_float(year: str, tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [])
    expected = features(source)
    change = f"year_of_birth = {year}, month_of_birth = '6', gender_concept_id = '8532'"
    loosen(tmp_path, "person")
    altered(tmp_path, f"UPDATE person SET {change}")  # noqa: S608
    assert features(source) == expected


@pytest.mark.parametrize("year", ["'c. 1980'", "1980.5", "-7", "9e99", "x'00'"])
def test_a_year_of_birth_that_is_none_is_refused(year: str, tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [])
    loosen(tmp_path, "person")
    altered(tmp_path, f"UPDATE person SET year_of_birth = {year}")  # noqa: S608
    with pytest.raises(BadRecords, match="person 7, column 'year_of_birth': "):
        features(source)


def test_concepts_may_be_texts(tmp_path: Path) -> None:
    events = [Event(7, NOON, "diabetes", True), Event(7, NOON, "smoker", False)]
    source = made("omop-sqlite", tmp_path, [ADA], events)
    expected = features(source)
    for table, columns in (
        ("condition_occurrence", ["condition_concept_id"]),
        ("observation", ["observation_concept_id", "value_as_concept_id"]),
        ("concept_ancestor", ["ancestor_concept_id", "descendant_concept_id"]),
    ):
        for column in columns:
            altered(
                tmp_path,
                f"ALTER TABLE {table} ADD COLUMN as_text TEXT",
                f"UPDATE {table} SET as_text = {column}",  # noqa: S608
                f"ALTER TABLE {table} DROP COLUMN {column}",
                f"ALTER TABLE {table} RENAME COLUMN as_text TO {column}",
            )
    assert features(source) == expected
    altered(tmp_path, "UPDATE observation SET value_as_concept_id = 'no'")
    with pytest.raises(BadRecords, match="observation 2: not a concept: 'no'"):
        features(source)


# Cohorts -----------------------------------------------------------------------------------------


def cohort_source(folder: Path, events: list[Event], **options: Any) -> Source:
    persons = [ADA, Person(8, date(1990, 1, 1), "male")]
    start = date(2025, 3, 1)
    options = {"cohort": 17, "people": [(7, start)]} | options
    return omop_source(folder, "sqlite:///omop.sqlite", persons, events, **options)


def labels(source: Source) -> list[float]:
    return read(source, HOSPITAL).records.labels.tolist()


def test_only_persons_of_the_cohort_are_read(tmp_path: Path) -> None:
    events = [Event(7, NOON, "sbp", 100.0), Event(8, NOON, "sbp", 200.0)]
    alone = features(cohort_source(tmp_path, events[:1]))
    assert features(cohort_source(tmp_path, events)) == alone
    queried = cohort_source(
        tmp_path,
        events,
        cohort=None,
        cohort_query="SELECT subject_id, cohort_start_date FROM cohort",
    )
    assert features(queried) == alone


@pytest.mark.parametrize(("day", "counts"), [(-31, False), (-30, True), (0, True), (1, False)])
def test_features_are_of_the_window_before_a_persons_start(
    day: int, counts: bool, tmp_path: Path
) -> None:
    events = [Event(7, NOON + timedelta(days=day), "sbp", 250.0)]
    found = features(cohort_source(tmp_path, events, window=Window(-30, 0)))
    nothing = features(cohort_source(tmp_path, []))
    assert (found != nothing) == counts


@pytest.mark.parametrize(("day", "label"), [(0, -1.0), (1, 1.0), (30, 1.0), (31, -1.0)])
def test_labels_are_of_the_window_after_it(day: int, label: float, tmp_path: Path) -> None:
    events = [Event(7, NOON + timedelta(days=day), "stroke", True)]
    source = cohort_source(tmp_path, events, window=Window(-30, 0), label_window=Window(1, 30))
    assert labels(source) == [label]


def test_an_age_is_that_at_the_start_of_the_cohort(tmp_path: Path) -> None:
    birthday = date(2025, 6, 15)  # Ada's
    before = features(cohort_source(tmp_path, [], people=[(7, birthday - timedelta(days=1))]))
    after = features(cohort_source(tmp_path, [], people=[(7, birthday)]))
    assert after["age"] > before["age"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cohort": 18}, "nobody is in the cohort"),
        (
            {"people": [(7, date(2025, 1, 1)), (99, date(2025, 1, 1))]},
            "the cohort has person 99, the table person does not",
        ),
        (
            {"cohort": None, "cohort_query": "SELECT subject_id FROM cohort"},
            "data.cohort_query gives no column 'cohort_start_date'",
        ),
        (
            {"cohort": None, "cohort_query": "SELECT *, subject_id FROM cohort"},
            "data.cohort_query gives column 'subject_id' 2 times",
        ),
        ({"cohort": None, "cohort_query": "SELECT * FROM nowhere"}, "nowhere"),
        (
            {
                "cohort": None,
                "cohort_query": "SELECT NULL AS subject_id, cohort_start_date FROM cohort "
                "UNION SELECT 99, cohort_start_date FROM cohort",
            },
            "the cohort has an entry without subject_id",
        ),
        ({"schema": "cdm"}, "cdm"),
    ],
)
def test_a_cohort_that_is_none_is_refused(
    options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(BadRecords, match=problem) as caught:
        read(cohort_source(tmp_path, [], **options), HOSPITAL)
    assert str(caught.value).startswith("OMOP database sqlite:///omop.sqlite: ")


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_names_may_be_in_capitals_and_in_a_schema(kind: str, tmp_path: Path) -> None:
    events = [Event(7, NOON, "sbp", 100.0), Event(7, NOON, "smoker", True)]
    url = f"{kind}:///omop.{kind}"
    source: Any = omop_source(tmp_path, url, [ADA], events, people=[(7, ADA.born)], cohort=17)
    expected = features(source)
    run_all(
        url.replace(":///", f":///{tmp_path}/"),
        [
            f"ALTER TABLE {table} RENAME COLUMN {name} TO {name.upper()}"
            for table, name in (("person", "person_id"), ("cohort", "subject_id"))
        ],
    )
    schemas = ("main", "MAIN", "omop.main") if kind == "duckdb" else ("main", "MAIN")
    assert [features(replace(source, schema=name)) for name in schemas] == [expected] * len(schemas)


def test_all_queries_of_a_sqlite_database_see_one_state(tmp_path: Path) -> None:
    source = cohort_source(tmp_path, [Event(7, NOON, "sbp", 100.0)])
    expected = features(source)
    altered(tmp_path, "PRAGMA journal_mode = WAL")
    rows = source.rows(HOSPITAL)
    first = next(rows)  # of the table person; the entries come after it
    altered(tmp_path, "DELETE FROM measurement")
    assert ["sbp" in row.cells for row in (first, *rows)] == [False, True]
    assert features(source) != expected


def test_a_cohort_query_cannot_change_anything(tmp_path: Path) -> None:
    source: Any = cohort_source(tmp_path, [])
    hostile = replace(source, cohort=None, cohort_query="DELETE FROM cohort RETURNING *")
    with pytest.raises(BadRecords):
        read(hostile, HOSPITAL)
    assert len(read(source, HOSPITAL).records) == 1


# silo.toml ---------------------------------------------------------------------------------------


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
