"""Which patients of a FHIR export are one person, and which reference finds whom."""

from datetime import timedelta
from pathlib import Path

import pytest
from silomix_client.data.records import read
from silomix_client.errors import BadRecords
from support.clinical import ADA, NOON, bundled, features, strangers
from support.hospitals import (
    HOSPITAL,
    Event,
    Person,
    Resource,
    bundle_source,
    ndjson_source,
    resources,
)


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


@pytest.mark.parametrize("to", ["Person/b", "http://h/fhir/Person/b", "urn:uuid:b"])
def test_persons_that_are_linked_to_each_other_are_one(to: str, tmp_path: Path) -> None:
    first, second = resources([ADA, Person(8, ADA.born, ADA.sex)], [])
    one = {"resourceType": "Person", "id": "a"}
    one["link"] = [{"target": {"reference": each}} for each in ("Patient/7", to)]
    other = {"resourceType": "Person", "id": "b", "link": [{"target": {"reference": "Patient/8"}}]}
    made = {"urn:1": first, "urn:2": second, "urn:uuid:a": one, "urn:uuid:b": other}
    assert len(read(bundled(tmp_path, **made), HOSPITAL).records) == 1


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
