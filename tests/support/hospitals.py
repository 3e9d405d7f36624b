"""The same people in a CSV file, an OMOP CDM 5.4 database and FHIR R4 resources.

Everything is recorded of them that clinical sources can hold: measurements with units, coded
answers, diagnoses by a narrower concept than the study names, prescriptions, master data.
"""

import csv
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from silomix_client.data.clinical.codes import AGE, SEX, age_at
from silomix_client.data.clinical.fhir.fhir_source import Fhir
from silomix_client.data.clinical.omop import Omop
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.source import Source
from silomix_core.task.feature import Combine, Feature, category, flag
from silomix_core.task.losses import LossName
from silomix_core.task.task import Scaling, Task

from support.databases import run_all

LOINC, SNOMED, RXNORM = (
    "http://loinc.org",
    "http://snomed.info/sct",
    "http://www.nlm.nih.gov/research/umls/rxnorm",
)
AT = date(2025, 12, 31)
STROKE, STROKE_CODE = 443454, "432504007"
HOSPITAL = Task(
    loss=LossName.LOGISTIC,
    label="stroke",
    features=(
        Feature("age", 0.0, 120.0, 60.0, combine=Combine.MAX, codes=(AGE,)),
        category("sex", ("female", "male", "other"), combine=Combine.FIRST, codes=(SEX,)),
        Feature(
            "sbp",
            60.0,
            260.0,
            120.0,
            unit="mm[Hg]",
            combine=Combine.LAST,
            codes=(f"{LOINC}|8480-6",),
            concepts=(3004249,),
        ),
        Feature(
            "creatinine",
            0.0,
            10.0,
            1.0,
            unit="mg/dL",
            combine=Combine.MEAN,
            codes=(f"{LOINC}|2160-0",),
            concepts=(3016723,),
        ),
        flag("smoker", combine=Combine.LAST, codes=(f"{LOINC}|72166-2",), concepts=(4275495,)),
        flag(
            "diabetes",
            missing=False,
            combine=Combine.ANY,
            codes=(f"{SNOMED}|73211009", f"{SNOMED}|44054006"),
            concepts=(201820,),
        ),
        Feature(
            "statins",
            0.0,
            10.0,
            0.0,
            combine=Combine.COUNT,
            codes=(f"{RXNORM}|83367",),
            concepts=(1545958,),
        ),
        category(
            "rhesus",
            ("positive", "negative"),
            combine=Combine.LAST,
            codes=(f"{LOINC}|10331-7",),
            concepts=(3003694,),
        ),
    ),
    scaling=Scaling.UNIT_BALL,
    bias=0.3,
    person="patient_id",
    time="taken_at",
    label_combine=Combine.ANY,
    label_missing=0.0,
    label_codes=(f"{SNOMED}|{STROKE_CODE}",),
    label_concepts=(STROKE,),
)
NAMES = (*HOSPITAL.columns, HOSPITAL.label, "patient_id", "taken_at")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was recorded: `name` is a feature or the label."""

    person: int
    at: datetime
    name: str
    value: float | bool | str


@dataclass(frozen=True, slots=True)
class Person:
    number: int
    born: date
    sex: str


def people(count: int, seed: int) -> tuple[list[Person], list[Event]]:
    """Of some nothing at all is recorded."""
    rng = random.Random(seed)
    persons = [
        Person(
            100 + each,
            date(rng.randint(1930, 2005), rng.randint(1, 12), rng.randint(1, 28)),
            rng.choice(("female", "male")),
        )
        for each in range(count)
    ]
    events = [_event(each, rng) for each in persons for _ in range(rng.choice((0, 1, 4, 12)))]
    rng.shuffle(events)
    return persons, events


def _event(person: Person, rng: random.Random) -> Event:
    at = datetime(2025, 1, 1) + timedelta(days=rng.randint(0, 300), seconds=rng.randint(0, 86_399))
    name, value = rng.choice(
        [
            ("sbp", round(rng.gauss(130, 30), 1)),
            ("creatinine", round(rng.expovariate(1), 3)),
            ("smoker", rng.random() < 0.5),
            ("diabetes", True),
            ("statins", True),
            ("rhesus", rng.choice(("positive", "negative"))),
            ("stroke", True),
        ]
    )
    return Event(person.number, at, name, value)


# CSV ---------------------------------------------------------------------------------------------


def csv_source(folder: Path, persons: list[Person], events: list[Event]) -> Source:
    """A row for every person and a row for every event."""
    path = folder / "data.csv"
    rows: list[dict[str, object]] = [
        {"patient_id": each.number, "age": age_at(each.born, AT), "sex": each.sex}
        for each in persons
    ]
    for event in events:
        value = int(event.value) if isinstance(event.value, bool) else event.value
        rows.append({"patient_id": event.person, "taken_at": event.at, event.name: value})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, NAMES)
        writer.writeheader()
        writer.writerows(rows)
    return CsvFile(path)


# OMOP --------------------------------------------------------------------------------------------

_CDM = {
    "person": "person_id INTEGER PRIMARY KEY, gender_concept_id INTEGER NOT NULL, "
    "year_of_birth INTEGER NOT NULL, month_of_birth INTEGER, day_of_birth INTEGER, "
    "birth_datetime TIMESTAMP, race_concept_id INTEGER NOT NULL, "
    "ethnicity_concept_id INTEGER NOT NULL, person_source_value VARCHAR(50)",
    "visit_occurrence": "visit_occurrence_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL, "
    "visit_concept_id INTEGER NOT NULL, visit_start_date DATE NOT NULL, "
    "visit_start_datetime TIMESTAMP, visit_end_date DATE NOT NULL, visit_end_datetime TIMESTAMP, "
    "visit_type_concept_id INTEGER NOT NULL",
    "condition_occurrence": "condition_occurrence_id INTEGER PRIMARY KEY, "
    "person_id INTEGER NOT NULL, condition_concept_id INTEGER NOT NULL, "
    "condition_start_date DATE NOT NULL, condition_start_datetime TIMESTAMP, "
    "condition_end_date DATE, condition_type_concept_id INTEGER NOT NULL",
    "drug_exposure": "drug_exposure_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL, "
    "drug_concept_id INTEGER NOT NULL, drug_exposure_start_date DATE NOT NULL, "
    "drug_exposure_start_datetime TIMESTAMP, drug_exposure_end_date DATE NOT NULL, "
    "drug_type_concept_id INTEGER NOT NULL",
    "procedure_occurrence": "procedure_occurrence_id INTEGER PRIMARY KEY, "
    "person_id INTEGER NOT NULL, procedure_concept_id INTEGER NOT NULL, "
    "procedure_date DATE NOT NULL, procedure_datetime TIMESTAMP, "
    "procedure_type_concept_id INTEGER NOT NULL",
    "measurement": "measurement_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL, "
    "measurement_concept_id INTEGER NOT NULL, measurement_date DATE NOT NULL, "
    "measurement_datetime TIMESTAMP, measurement_type_concept_id INTEGER NOT NULL, "
    "value_as_number NUMERIC, value_as_concept_id INTEGER, unit_concept_id INTEGER, "
    "value_source_value VARCHAR(50)",
    "observation": "observation_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL, "
    "observation_concept_id INTEGER NOT NULL, observation_date DATE NOT NULL, "
    "observation_datetime TIMESTAMP, observation_type_concept_id INTEGER NOT NULL, "
    "value_as_number NUMERIC, value_as_string VARCHAR(60), value_as_concept_id INTEGER, "
    "unit_concept_id INTEGER",
    "concept": "concept_id INTEGER PRIMARY KEY, concept_name VARCHAR(255) NOT NULL, "
    "domain_id VARCHAR(20) NOT NULL, vocabulary_id VARCHAR(20) NOT NULL, "
    "concept_class_id VARCHAR(20) NOT NULL, standard_concept VARCHAR(1), "
    "concept_code VARCHAR(50) NOT NULL",
    "concept_ancestor": "ancestor_concept_id INTEGER NOT NULL, "
    "descendant_concept_id INTEGER NOT NULL, min_levels_of_separation INTEGER NOT NULL, "
    "max_levels_of_separation INTEGER NOT NULL",
    "cohort": "cohort_definition_id INTEGER NOT NULL, subject_id INTEGER NOT NULL, "
    "cohort_start_date DATE NOT NULL, cohort_end_date DATE NOT NULL",
}
_CONCEPTS = [
    (8876, "millimeter mercury column", "Unit", "UCUM", "mm[Hg]"),
    (8840, "milligram per deciliter", "Unit", "UCUM", "mg/dL"),
    (8582, "centimeter", "Unit", "UCUM", "cm"),
    (4188539, "Yes", "Meas Value", "SNOMED", "373066001"),
    (4188540, "No", "Meas Value", "SNOMED", "373067005"),
    (9191, "positive", "Meas Value", "SNOMED", "10828004"),
    (9189, "negative", "Meas Value", "SNOMED", "260385009"),
    (201820, "Diabetes mellitus", "Condition", "SNOMED", "73211009"),
    (201826, "Type 2 diabetes mellitus", "Condition", "SNOMED", "44054006"),
]
_ANCESTORS = [(201820, 201820, 0, 0), (201820, 201826, 1, 1)]
_UNITS = {"sbp": 8876, "creatinine": 8840}
_BY_NAME = {
    "sbp": 3004249,
    "creatinine": 3016723,
    "smoker": 4275495,
    "diabetes": 201826,
    "statins": 1545958,
    "rhesus": 3003694,
    "stroke": STROKE,
}
_ANSWERS = {True: 4188539, False: 4188540, "positive": 9191, "negative": 9189}


def fill_omop(
    url: str,
    persons: Iterable[Person],
    events: Iterable[Event],
    cohort: Iterable[tuple[int, date]] = (),
) -> None:
    """A new CDM database at this address, in its default schema."""
    tables: dict[str, list[tuple[object, ...]]] = {name: [] for name in _CDM}
    for concept, name, domain, vocabulary, code in _CONCEPTS:
        tables["concept"].append((concept, name, domain, vocabulary, domain, "S", code))
    tables["concept_ancestor"] += _ANCESTORS
    for each in persons:
        sex = 8507 if each.sex == "male" else 8532
        born = each.born
        tables["person"].append(
            (each.number, sex, born.year, born.month, born.day, None, 0, 0, None)
        )
    for number, event in enumerate(events, start=1):
        table, row = _entry(number, event)
        tables[table].append(row)
    for person, start in cohort:
        tables["cohort"].append((17, person, start, start))
    statements = []
    for name, columns in _CDM.items():
        statements += [f"DROP TABLE IF EXISTS {name}", f"CREATE TABLE {name} ({columns})"]
        for row in tables[name]:
            cells = ", ".join(_literal(cell) for cell in row)
            statements.append(f"INSERT INTO {name} VALUES ({cells})")  # noqa: S608
    run_all(url, statements)


def _entry(number: int, event: Event) -> tuple[str, tuple[object, ...]]:
    concept, day = _BY_NAME[event.name], event.at.date()
    begin = (number, event.person, concept, day, event.at)
    if event.name in _UNITS:
        return "measurement", (*begin, 32817, event.value, None, _UNITS[event.name], None)
    if event.name == "rhesus":
        return "measurement", (*begin, 32817, None, _ANSWERS[event.value], None, None)
    if event.name == "smoker":
        return "observation", (*begin, 32817, None, None, _ANSWERS[event.value], None)
    if event.name == "statins":
        return "drug_exposure", (*begin, day, 32817)
    return "condition_occurrence", (*begin, None, 32817)


def _literal(cell: object) -> str:
    if cell is None:
        return "NULL"
    return repr(cell) if isinstance(cell, int | float) else f"'{cell}'"


def omop_source(
    folder: Path, url: str, persons: list[Person], events: list[Event], **options: Any
) -> Source:
    """In the SQLite or DuckDB file, or at the PostgreSQL server, that the address names."""
    cohort = options.pop("people", ())
    if url.startswith("postgresql"):
        secret = folder / "omop.url"
        secret.touch(mode=0o600)
        secret.write_text(url + "\n")
        fill_omop(url, persons, events, cohort)
        return Omop(DatabaseUrl(folder, "url_file", secret.name), at=AT, **options)
    fill_omop(url.replace(":///", f":///{folder}/"), persons, events, cohort)
    return Omop(DatabaseUrl(folder, "url", url), at=AT, **options)


# FHIR --------------------------------------------------------------------------------------------

Resource = dict[str, Any]


def resources(persons: Iterable[Person], events: Iterable[Event]) -> list[Resource]:
    made = [
        {
            "resourceType": "Patient",
            "id": str(each.number),
            "gender": each.sex,
            "birthDate": each.born.isoformat(),
        }
        for each in persons
    ]
    return made + [_resource(f"e{number}", event) for number, event in enumerate(events, start=1)]


def _resource(identifier: str, event: Event) -> Resource:
    subject = {"reference": f"Patient/{event.person}"}
    at = event.at.isoformat() + "Z"
    begin = {"id": identifier, "subject": subject}
    if event.name in ("diabetes", "stroke"):
        code = "44054006" if event.name == "diabetes" else STROKE_CODE
        return begin | {
            "resourceType": "Condition",
            "code": coded(SNOMED, code),
            "onsetDateTime": at,
        }
    if event.name == "statins":
        return begin | {
            "resourceType": "MedicationRequest",
            "status": "active",
            "intent": "order",
            "medicationCodeableConcept": coded(RXNORM, "83367"),
            "authoredOn": at,
        }
    feature = next(each for each in HOSPITAL.features if each.name == event.name)
    system, _, code = feature.codes[0].partition("|")
    observed = begin | {
        "resourceType": "Observation",
        "status": "final",
        "code": coded(system, code),
        "effectiveDateTime": at,
    }
    if event.name == "smoker":
        return observed | {
            "valueCodeableConcept": coded(SNOMED, "373066001" if event.value else "373067005")
        }
    if event.name == "rhesus":
        codes = {"positive": "10828004", "negative": "260385009"}
        answer = coded(SNOMED, codes[str(event.value)], str(event.value))
        return observed | {"valueCodeableConcept": answer}
    return observed | {
        "valueQuantity": {
            "value": event.value,
            "unit": feature.unit,
            "system": "http://unitsofmeasure.org",
            "code": feature.unit,
        }
    }


def coded(system: str, code: str, display: str = "") -> Resource:
    coding = {"system": system, "code": code} | ({"display": display} if display else {})
    return {"coding": [coding]}


def ndjson_source(folder: Path, made: Iterable[Resource]) -> Source:
    """A bulk export: a file for each type of resource."""
    export = folder / "export"
    export.mkdir(exist_ok=True)
    for old in export.iterdir():
        old.unlink()
    for each in made:
        with (export / f"{each['resourceType']}.ndjson").open("a", encoding="utf-8") as file:
            file.write(json.dumps(each) + "\n")
    return Fhir(export, at=AT)


def bundle_source(folder: Path, made: Iterable[Resource]) -> Source:
    """One file, as a server answers a query."""
    entries = [{"fullUrl": f"urn:silomix:{each['id']}", "resource": each} for each in made]
    path = folder / "bundle.json"
    path.write_text(json.dumps({"resourceType": "Bundle", "type": "searchset", "entry": entries}))
    return Fhir(path, at=AT)


Kinds = dict[str, Callable[[Path, str, list[Person], list[Event]], Source]]
CLINICAL: Kinds = {
    "omop-sqlite": lambda f, _, p, e: omop_source(f, "sqlite:///omop.sqlite", p, e),
    "omop-duckdb": lambda f, _, p, e: omop_source(f, "duckdb:///omop.duckdb", p, e),
    "omop-postgresql": lambda f, url, p, e: omop_source(f, url, p, e),
    "fhir-ndjson": lambda f, _, p, e: ndjson_source(f, resources(p, e)),
    "fhir-bundle": lambda f, _, p, e: bundle_source(f, resources(p, e)),
}
