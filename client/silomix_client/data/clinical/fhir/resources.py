"""Small readers of FHIR's JSON, in which anything may stand anywhere."""

from datetime import datetime
from typing import Any, cast

from silomix_core.task.cell_values import Cell

from silomix_client.data.dates import fhir_time

Resource = dict[str, Any]
Place = tuple[str, Resource]  # where it stands, for errors

_UCUM = "http://unitsofmeasure.org"
_TYPES: dict[str, tuple[type, ...]] = {
    "valueBoolean": (bool,),
    "valueInteger": (int,),
    "valueString": (str,),
    "doNotPerform": (bool,),
    "gender": (str,),
    "value": (int, float),
}


def codes_in(concept: object) -> list[str]:
    return [f"{each.get('system', '')}|{each.get('code', '')}" for each in codings_of(concept)]


def codings_of(concept: object) -> list[dict[str, Any]]:
    """The codings of one CodeableConcept, or of several."""
    several = concept if isinstance(concept, list) else [concept]
    return [
        coding
        for each in several
        if isinstance(each, dict)
        for coding in items(each.get("coding"))
        if isinstance(coding, dict)
    ]


def time_of(resource: Resource, keys: tuple[str, ...]) -> datetime | None:
    """The time under the first key that is there; ValueError, with the key, if it is no time."""
    for key in keys:
        found = resource.get(key)
        if isinstance(found, dict):
            found = found.get("start") or found.get("end")
        if found is not None:
            try:
                return fhir_time(found)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
    return None


def typed(resource: Resource, key: str) -> Cell:
    """A value of the type that FHIR gives it, None if it is not there; else ValueError."""
    found = resource.get(key)
    types = _TYPES[key]
    if found is None or (isinstance(found, types) and (type(found) is not bool or bool in types)):
        return cast("Cell", found)
    names = {bool: "true or false", int: "a whole number", str: "a text"}
    what = "a number" if float in types else names[types[0]]
    raise ValueError(f"{key}: not {what}: {found!r:.40}")


def unit_of(quantity: Resource) -> str:
    coded = quantity.get("system") == _UCUM and quantity.get("code")
    return str(coded or quantity.get("unit") or "")


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def dicts(value: object) -> list[Resource]:
    return [each for each in items(value) if isinstance(each, dict)]


def name_of(resource: Resource) -> str:
    return f"{resource['resourceType']}/{resource.get('id', '?')}"
