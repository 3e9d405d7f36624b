"""Small readers of FHIR's JSON, in which anything may stand anywhere."""

from typing import Any

from silomix_core.cells import Cell

Resource = dict[str, Any]
Place = tuple[str, Resource]  # where it stands, for errors

_UCUM = "http://unitsofmeasure.org"


def codes_in(concept: object) -> list[str]:
    return [f"{each.get('system', '')}|{each.get('code', '')}" for each in codings_of(concept)]


def codings_of(concept: object) -> list[dict[str, Any]]:
    """Of one CodeableConcept, or of several."""
    several = concept if isinstance(concept, list) else [concept]
    return [
        coding
        for each in several
        if isinstance(each, dict)
        for coding in items(each.get("coding"))
        if isinstance(coding, dict)
    ]


def time_of(resource: Resource, keys: tuple[str, ...]) -> str | None:
    for key in keys:
        found = resource.get(key)
        if isinstance(found, dict):
            found = found.get("start") or found.get("end")
        if isinstance(found, str):
            return full_date(found)
    return None


def full_date(text: str) -> str:
    """2024 and 2024-05 are dates to FHIR: their first day."""
    return text + "-01-01"[3 * (text.count("-")) :] if len(text) in (4, 7) else text


def unit_of(quantity: Resource) -> str:
    coded = quantity.get("system") == _UCUM and quantity.get("code")
    return str(coded or quantity.get("unit") or "")


def plain(value: object) -> Cell:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def dicts(value: object) -> list[Resource]:
    return [each for each in items(value) if isinstance(each, dict)]


def name_of(resource: Resource) -> str:
    return f"{resource['resourceType']}/{resource.get('id', '?')}"
