"""Histories of FHIR resources: what was deleted is left out until it is made again."""

import json
from datetime import date
from pathlib import Path

import pytest
from silomix_client.data.clinical.fhir.fhir_source import Fhir
from silomix_client.data.records import read
from silomix_client.data.source import Source
from silomix_client.errors import BadRecords
from support.clinical import ADA, NOON, features, strangers
from support.hospitals import (
    HOSPITAL,
    LOINC,
    Event,
    Person,
    Resource,
    coded,
    ndjson_source,
    resources,
)

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
