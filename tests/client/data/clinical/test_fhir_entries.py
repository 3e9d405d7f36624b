"""What counts in a FHIR export: statuses, components, medications, and the newest version."""

from pathlib import Path
from typing import Any

import pytest
from silomix_client.errors import BadRecords
from support.clinical import ADA, NOON, bundled, features, made
from support.hospitals import LOINC, RXNORM, Event, Resource, coded, ndjson_source, resources


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
