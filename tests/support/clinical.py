"""One person in OMOP and FHIR, and the coordinates that a study reads of her."""

import json
import sqlite3
from contextlib import closing
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from silomix_client.data.clinical.fhir.fhir_source import Fhir
from silomix_client.data.records import read
from silomix_client.data.source import Source

from support.hospitals import CLINICAL, HOSPITAL, Event, Person, Resource, omop_source, resources

ADA = Person(7, date(1980, 6, 15), "female")
NOON = datetime(2025, 3, 1, 12)
BOTH = pytest.mark.parametrize("kind", ["omop-sqlite", "fhir-ndjson"])


def made(kind: str, folder: Path, persons: list[Person], events: list[Event]) -> Source:
    return CLINICAL[kind](folder, "", persons, events)


def features(source: Source) -> dict[str, float]:
    """The one person's coordinates by name."""
    records = read(source, HOSPITAL).records
    assert len(records) == 1
    return dict(zip(HOSPITAL.coordinates, records.features[0].tolist(), strict=False))


def bundled(folder: Path, **by_url: Resource) -> Source:
    """A bundle whose entries have these addresses; a resource may do without an id."""
    entries = [{"fullUrl": url, "resource": each} for url, each in by_url.items()]
    path = folder / "bundle.json"
    path.write_text(json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries}))
    return Fhir(path, at=date(2025, 12, 31))


def strangers() -> list[Resource]:
    persons = [Person(number, ADA.born, ADA.sex) for number in (7, 8, 9)]
    return resources(persons, [])


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


def cohort_source(folder: Path, events: list[Event], **options: Any) -> Source:
    persons = [ADA, Person(8, date(1990, 1, 1), "male")]
    start = date(2025, 3, 1)
    options = {"cohort": 17, "people": [(7, start)]} | options
    return omop_source(folder, "sqlite:///omop.sqlite", persons, events, **options)
