"""FHIR R4 resources: a bulk export (NDJSON) or bundles (JSON), in one file or a folder of them.

Read twice: who there is, which medications are referred to and what is there in several versions
has to be known before the first event.

Every Patient is a person; those that say that one replaces the other, or that both are the same,
are one.  Observations (and their components) have values; of Conditions, Procedures, medications
and Encounters it counts that they are there.  What was deleted, entered in error, cancelled or
refuted is left out.  A feature is found by the codings (system|code) that the study names for it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from silomix_core.cells import Cell
from silomix_core.feature import Kind
from silomix_core.fields import Table
from silomix_core.task import Task

from silomix_client.data.clinical import (
    AGE,
    SEX,
    Wanted,
    age_at,
    answered,
    check_study,
    read_day,
    translated,
    unit_problem,
    wanted,
)
from silomix_client.data.fhir_bundles import entries, is_deleted
from silomix_client.data.fhir_persons import Persons
from silomix_client.data.fhir_resources import (
    Place,
    Resource,
    codes_in,
    codings_of,
    dicts,
    full_date,
    name_of,
    plain,
    time_of,
    unit_of,
)
from silomix_client.data.fhir_versions import Content, Version, key_of, newest, version_of
from silomix_client.data.layout import read_values
from silomix_client.data.rows import Row
from silomix_client.errors import BadRecords

FoundBy = dict[str, list[Wanted]]  # columns by the codings that mean them
Saying = tuple[str, str | None, dict[str, Cell]]  # of whom, when, what
Said = list[Saying] | str  # or what is wrong with it
Codes = tuple[str, ...] | None  # of a medication; None: it was deleted

_SUFFIXES = (".ndjson", ".jsonl", ".json")
# resource: where its code stands, and its time, whichever there is first
_EVENTS = {
    "Observation": ("code", ("effectiveDateTime", "effectivePeriod", "effectiveInstant", "issued")),
    "Condition": ("code", ("onsetDateTime", "onsetPeriod", "recordedDate")),
    "Procedure": ("code", ("performedDateTime", "performedPeriod")),
    "MedicationRequest": ("medicationCodeableConcept", ("authoredOn",)),
    "MedicationStatement": ("medicationCodeableConcept", ("effectiveDateTime", "effectivePeriod")),
    "MedicationAdministration": (
        "medicationCodeableConcept",
        ("effectiveDateTime", "effectivePeriod"),
    ),
    "Immunization": ("vaccineCode", ("occurrenceDateTime",)),
    "Encounter": ("type", ("period",)),
}
_PATIENT = {"Immunization": "patient"}  # elsewhere it is the subject
_VOID = frozenset(
    {
        "entered-in-error",
        "cancelled",
        "not-done",
        "not-taken",
        "draft",
        "preparation",
        "planned",
        "intended",
    }
)
_REFUTED = frozenset({"refuted", "entered-in-error"})


@dataclass(frozen=True, slots=True)
class Fhir:
    """`at` is the day on which ages are counted."""

    path: Path
    at: date | None = None
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def description(self) -> str:
        return f"FHIR export {self.path}"

    @property
    def identity(self) -> str:
        return str(self.path.resolve())

    def local_names(self, task: Task) -> Mapping[str, str]:  # noqa: ARG002 found by codes
        return {}

    def rows(self, task: Task) -> Iterator[Row]:
        columns = wanted(task)
        check_study(
            task, {each.name: bool(each.codes) for each in columns}, "codes", self.description
        )
        files = self._files()
        found_by = _found_by(columns)
        survey = self._survey(files, found_by)
        chosen = self._newest_people(survey.people)
        persons = Persons(self.description, survey.people, chosen)
        for where, each in chosen:
            if each["resourceType"] == "Patient":
                cells = self._master_data(columns, each, where)
                yield Row(where, persons.of(where, each), None, cells)
        yield from self._all_events(files, _Question(found_by, persons, survey))

    # What there is -------------------------------------------------------------------------------

    def _survey(self, files: list[Path], found_by: FoundBy) -> "_Survey":
        survey = _Survey()
        seen: set[str] = set()
        for where, resource in self._resources(files):
            kind, key = resource["resourceType"], key_of(resource)
            if kind in ("Patient", "Person"):
                survey.people.append((where, resource))
            elif kind == "Medication":
                codes = tuple(each for each in codes_in(resource.get("code")) if each in found_by)
                content = None if is_deleted(resource) else codes
                survey.add_medication(resource, version_of(where, resource, content))
            elif kind in _EVENTS and key is not None:
                (survey.repeated if key in seen else seen).add(key)
        return survey

    def _newest_people(self, people: list[Place]) -> list[Place]:
        """Those whose newest version is a deletion are not among them."""
        groups: dict[str, list[Version[Resource]]] = {}
        for where, each in people:
            content = {key: each[key] for key in each if key not in ("meta", "_fullUrl")}
            groups.setdefault(key_of(each) or where, []).append(version_of(where, each, content))
        chosen = {self._newest(versions).where for versions in groups.values()}
        return [(where, each) for where, each in people if where in chosen and not is_deleted(each)]

    def _newest(self, versions: list[Version[Content]]) -> Version[Content]:
        """Two that say the same need no date."""
        found = newest(versions)
        if found is None:
            first, second = versions[:2]
            raise self._refusal(
                second.where,
                f"also in {first.where}, with another content; neither meta.lastUpdated nor "
                "meta.versionId says which is the newer one",
            )
        return found

    # Files ---------------------------------------------------------------------------------------

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        files = sorted(each for each in self.path.iterdir() if each.suffix in _SUFFIXES)
        if not files:
            raise BadRecords(f"{self.description}: no {' or '.join(_SUFFIXES)} file in the folder")
        return files

    def _resources(self, files: list[Path]) -> Iterator[Place]:
        for path in files:
            try:
                with path.open(encoding="utf-8-sig") as file:
                    if path.suffix == ".json":
                        yield from self._unpacked(path.name, file.read())
                        continue
                    for number, line in enumerate(file, start=1):
                        if line.strip():
                            yield from self._unpacked(f"{path.name} line {number}", line)
            except OSError as error:
                raise BadRecords(f"{path}: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise BadRecords(f"{path}: not UTF-8 text (at byte {error.start})") from error

    def _unpacked(self, where: str, text: str) -> Iterator[Place]:
        """A resource, or the entries of a bundle."""
        try:
            resource = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
            raise self._refusal(where, f"not JSON: {reason}") from None
        if not isinstance(resource, dict) or not isinstance(resource.get("resourceType"), str):
            raise self._refusal(where, "not a FHIR resource: it has no resourceType")
        if resource["resourceType"] != "Bundle":
            yield f"{where}, {name_of(resource)}", resource
            return
        yield from entries(self.description, where, resource)

    # Persons -------------------------------------------------------------------------------------

    def _master_data(
        self, columns: tuple[Wanted, ...], patient: Resource, where: str
    ) -> dict[str, Cell]:
        cells: dict[str, Cell] = {}
        for column in columns:
            if not column.is_master_data:
                continue
            if AGE in column.codes:
                cells[column.name] = self._age(patient, where)
            else:
                sex = patient.get("gender")
                known = isinstance(sex, str) and sex != "unknown"
                cells[column.name] = translated(column, self.values, [str(sex)] if known else [])
        return cells

    def _age(self, patient: Resource, where: str) -> Cell:
        if self.at is None:
            raise BadRecords(
                f"{self.description}: the study asks for an age; say on which day, by data.at"
            )
        born = patient.get("birthDate")
        if born is None:
            return None
        return age_at(self._day(born, where), self.at)

    def _day(self, text: object, where: str) -> date:
        try:
            return date.fromisoformat(full_date(str(text))[:10])
        except ValueError:
            raise self._refusal(where, f"not a date: {text!r:.40}") from None

    # What is recorded of them --------------------------------------------------------------------

    def _all_events(self, files: list[Path], asked: "_Question") -> Iterator[Row]:
        """Of what is there several times only what it says is kept until all versions are seen."""
        held: dict[str, list[Version[Said]]] = {}
        for where, resource in self._resources(files):
            if resource["resourceType"] not in _EVENTS:
                continue
            key = key_of(resource)
            if key is None or key not in asked.survey.repeated:
                for said in self._said(where, resource, asked):
                    yield Row(where, *said)
                continue
            held.setdefault(key, []).append(
                version_of(where, resource, self._said_or_wrong(where, resource, asked))
            )
        for versions in held.values():
            version = self._newest(versions)
            if isinstance(version.content, str):
                raise self._refusal(version.where, version.content)
            for said in version.content:
                yield Row(version.where, *said)

    def _said_or_wrong(self, where: str, resource: Resource, asked: "_Question") -> "Said":
        """What is wrong with a version matters only if it is the newest."""
        try:
            return list(self._said(where, resource, asked))
        except BadRecords as error:
            return str(error).removeprefix(str(self._refusal(where, "")))

    def _said(self, where: str, resource: Resource, asked: "_Question") -> Iterator[Saying]:
        """Whom, when, and which cells; several where a column is found in it several times."""
        if is_deleted(resource) or self._is_void(where, resource):
            return
        kind = resource["resourceType"]
        place, times = _EVENTS[kind]
        names = codes_in(resource.get(place))
        if place == "medicationCodeableConcept":
            names += self._medication(where, resource, asked.survey)
        rows: list[dict[str, Cell]] = []
        for column in _meant(names, asked.found_by):
            _put(rows, column.name, self._cell(column, resource, where))
        for part in dicts(resource.get("component")):
            for column in _meant(codes_in(part.get("code")), asked.found_by):
                _put(rows, column.name, self._cell(column, part, where))
        if not rows:
            return
        person = asked.persons.referred(resource.get(_PATIENT.get(kind, "subject")))
        if person is None:
            raise self._refusal(where, "refers to no Patient of this export")
        for cells in rows:
            yield person, time_of(resource, times), cells

    def _is_void(self, where: str, resource: Resource) -> bool:
        status = resource.get("status")
        if not isinstance(status, str | None):
            raise self._refusal(where, f"the status is not a text: {status!r:.40}")
        verified = {
            str(each.get("code")) for each in codings_of(resource.get("verificationStatus"))
        }
        never = resource.get("doNotPerform") is True
        return never or status in _VOID or not _REFUTED.isdisjoint(verified)

    def _medication(self, where: str, resource: Resource, survey: "_Survey") -> list[str]:
        """The codes of a medication that is only referred to."""
        reference = resource.get("medicationReference")
        if reference is None:
            return []
        text = str(reference.get("reference", "")) if isinstance(reference, dict) else ""
        for each in dicts(resource.get("contained")):
            if text.startswith("#") and each.get("id") in (text, text[1:]):
                return codes_in(each.get("code"))
        relative = "/".join(text.partition("/_history/")[0].split("/")[-2:])
        versions = survey.medication(text) or survey.medication(relative)
        codes = self._newest(versions).content if versions else None
        if codes is None:
            raise self._refusal(
                where,
                f"its medication {text[:60]!r} is not in this export; add the Medications, or "
                f"leave out every {resource['resourceType']}",
            )
        return list(codes)

    def _cell(self, column: Wanted, resource: Resource, where: str) -> Cell:
        """What a resource says of a column; that it is there, if it is of a type without values."""
        if resource.get("resourceType", "Observation") != "Observation":
            return True
        if isinstance(quantity := resource.get("valueQuantity"), dict):
            problem = unit_problem(column, unit_of(quantity))
            if problem is not None and "value" in quantity:
                raise self._refusal(where, f"column {column.name!r}: {problem}")
            return plain(quantity.get("value"))
        if "valueBoolean" in resource or "valueInteger" in resource or "valueString" in resource:
            keys = ("valueBoolean", "valueInteger", "valueString")
            found = next(resource[key] for key in keys if key in resource)
            if not isinstance(found, str):
                return plain(found)
            return translated(column, self.values, [found])
        concept = resource.get("valueCodeableConcept")
        codings = codings_of(concept)
        if not codings:  # words only, or a reason why there is no value, or a type of no feature
            text = concept.get("text") if isinstance(concept, dict) else None
            return translated(column, self.values, [text] if isinstance(text, str) else [])
        codes = [str(each.get("code", "")) for each in codings]
        full = [f"{each.get('system', '')}|{each.get('code', '')}" for each in codings]
        shown = [str(each.get("display", "")) for each in codings]
        if column.kind is not Kind.CATEGORY:
            return answered(column, self.values, [*codes, *shown, *full], codes)
        return translated(column, self.values, [*codes, *shown, *full])

    def _refusal(self, where: str, problem: str) -> BadRecords:
        return BadRecords(f"{self.description}: {where}: {problem}")


@dataclass(frozen=True, slots=True)
class _Survey:
    """What has to be known of all files before the first event is read; of events no more than
    which of them are there several times."""

    people: list[Place] = field(default_factory=list)
    medications: dict[str, list[Version[Codes]]] = field(default_factory=dict)
    addresses: dict[str, set[str]] = field(default_factory=dict)  # of medications
    repeated: set[str] = field(default_factory=set)

    def add_medication(self, resource: Resource, version: Version[Codes]) -> None:
        if (key := key_of(resource)) is not None:
            self.medications.setdefault(key, []).append(version)
            for name in (key, resource.get("_fullUrl", key)):
                self.addresses.setdefault(name, set()).add(key)

    def medication(self, address: str) -> list[Version[Codes]]:
        """Every version: one of them may be known by this address, and its deletion by none."""
        keys = sorted(self.addresses.get(address, ()))
        return [version for key in keys for version in self.medications[key]]


@dataclass(frozen=True, slots=True)
class _Question:
    """What is looked for in the events."""

    found_by: FoundBy
    persons: Persons
    survey: _Survey


def read_fhir(table: Table, folder: Path) -> Fhir:
    """The keys of [data] with kind = "fhir"."""
    return Fhir(folder / table.text("path"), read_day(table, "at"), read_values(table))


def _found_by(columns: tuple[Wanted, ...]) -> FoundBy:
    """Age and sex are found in Patients; an entry with their codes would contradict them."""
    found: FoundBy = {}
    for column in columns:
        for code in column.codes:
            if code not in (AGE, SEX):
                found.setdefault(code, []).append(column)
    return found


def _meant(names: list[str], found_by: FoundBy) -> Iterator[Wanted]:
    """The columns that one of the codings stands for, each once."""
    seen: list[Wanted] = []
    for name in names:
        for column in found_by.get(name, ()):
            if column not in seen:
                seen.append(column)
                yield column


def _put(rows: list[dict[str, Cell]], name: str, cell: Cell) -> None:
    """In the first that has no such cell: none replaces another."""
    for cells in rows:
        if name not in cells:
            cells[name] = cell
            return
    rows.append({name: cell})
