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
from datetime import date, datetime
from pathlib import Path

from silomix_core.task.cell_values import Cell
from silomix_core.task.feature import FeatureKind
from silomix_core.task.task import Task
from silomix_core.toml_table import TomlTable

from silomix_client.data.clinical.codes import (
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
from silomix_client.data.clinical.fhir.bundles import entries, is_deleted
from silomix_client.data.clinical.fhir.persons import Persons
from silomix_client.data.clinical.fhir.resources import (
    Place,
    Resource,
    codes_in,
    codings_of,
    dicts,
    name_of,
    time_of,
    typed,
    unit_of,
)
from silomix_client.data.clinical.fhir.versions import Content, Version, key_of, newest, version_of
from silomix_client.data.columns import read_values
from silomix_client.data.dates import fhir_date
from silomix_client.data.source import SourceRow
from silomix_client.errors import BadRecords

FoundBy = dict[str, list[Wanted]]  # columns by the codings that mean them
Saying = tuple[str, datetime | None, dict[str, Cell]]  # of whom, when, what
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
    """A FHIR export; `at` is the day on which ages are counted."""

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

    def rows(self, task: Task) -> Iterator[SourceRow]:
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
                yield SourceRow(where, persons.of(where, each), None, cells)
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
        """The newest versions of Patients and Persons, without those that were deleted."""
        groups: dict[str, list[Version[Resource]]] = {}
        for where, each in people:
            content = {key: each[key] for key in each if key not in ("meta", "_fullUrl")}
            groups.setdefault(key_of(each) or where, []).append(version_of(where, each, content))
        chosen = {self._newest(versions).where for versions in groups.values()}
        return [(where, each) for where, each in people if where in chosen and not is_deleted(each)]

    def _newest(self, versions: list[Version[Content]]) -> Version[Content]:
        """The newest version, or a refusal; two versions that say the same need no date."""
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
        """Read a resource, or the entries of a bundle, from its text."""
        try:
            resource = json.loads(text, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)
            reason = "nested too deeply" if deep else getattr(error, "msg", str(error))
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
                sex = self._typed(patient, "gender", where)
                known = sex is not None and sex != "unknown"
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
        try:
            return age_at(fhir_date(born), self.at)
        except ValueError as error:
            raise self._refusal(where, f"birthDate: {error}") from None

    def _typed(self, resource: Resource, key: str, where: str) -> Cell:
        try:
            return typed(resource, key)
        except ValueError as error:
            raise self._refusal(where, str(error)) from None

    # What is recorded of persons -----------------------------------------------------------------

    def _all_events(self, files: list[Path], asked: "_Question") -> Iterator[SourceRow]:
        """Read the rows of all events, of each its newest version.

        Of a resource that is there several times only what it says is kept until all versions are
        seen.
        """
        held: dict[str, list[Version[Said]]] = {}
        for where, resource in self._resources(files):
            if resource["resourceType"] not in _EVENTS:
                continue
            key = key_of(resource)
            if key is None or key not in asked.survey.repeated:
                for said in self._said(where, resource, asked):
                    yield SourceRow(where, *said)
                continue
            held.setdefault(key, []).append(
                version_of(where, resource, self._said_or_wrong(where, resource, asked))
            )
        for versions in held.values():
            version = self._newest(versions)
            if isinstance(version.content, str):
                raise self._refusal(version.where, version.content)
            for said in version.content:
                yield SourceRow(version.where, *said)

    def _said_or_wrong(self, where: str, resource: Resource, asked: "_Question") -> "Said":
        """What a version says, or what is wrong with it, which matters only if it is the newest."""
        try:
            return list(self._said(where, resource, asked))
        except BadRecords as error:
            return str(error).removeprefix(str(self._refusal(where, "")))

    def _said(self, where: str, resource: Resource, asked: "_Question") -> Iterator[Saying]:
        """What a resource says: of whom, when, which cells; a column may be there several times."""
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
        try:
            when = time_of(resource, times)
        except ValueError as error:
            raise self._refusal(where, str(error)) from None
        for cells in rows:
            yield person, when, cells

    def _is_void(self, where: str, resource: Resource) -> bool:
        status = resource.get("status")
        if not isinstance(status, str | None):
            raise self._refusal(where, f"the status is not a text: {status!r:.40}")
        verified = {
            str(each.get("code")) for each in codings_of(resource.get("verificationStatus"))
        }
        never = self._typed(resource, "doNotPerform", where) is True
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
        """The cell of a column in a resource; True if resources of this type have no values."""
        if resource.get("resourceType", "Observation") != "Observation":
            return True
        if isinstance(quantity := resource.get("valueQuantity"), dict):
            problem = unit_problem(column, unit_of(quantity))
            if problem is not None and "value" in quantity:
                raise self._refusal(where, f"column {column.name!r}: {problem}")
            return self._typed(quantity, "value", where)
        for key in ("valueBoolean", "valueInteger", "valueString"):
            if key in resource:
                found = self._typed(resource, key, where)
                return translated(column, self.values, [found]) if isinstance(found, str) else found
        concept = resource.get("valueCodeableConcept")
        codings = codings_of(concept)
        if not codings:  # words only, or a reason why there is no value, or a type of no feature
            text = concept.get("text") if isinstance(concept, dict) else None
            return translated(column, self.values, [text] if isinstance(text, str) else [])
        codes = [str(each.get("code", "")) for each in codings]
        full = [f"{each.get('system', '')}|{each.get('code', '')}" for each in codings]
        shown = [str(each.get("display", "")) for each in codings]
        if column.kind is not FeatureKind.CATEGORY:
            return answered(column, self.values, [*codes, *shown, *full], codes)
        return translated(column, self.values, [*codes, *shown, *full])

    def _refusal(self, where: str, problem: str) -> BadRecords:
        return BadRecords(f"{self.description}: {where}: {problem}")


@dataclass(frozen=True, slots=True)
class _Survey:
    """What has to be known of all files before the first event is read.

    Of events that is no more than which of them are there several times.
    """

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
        """Every version of a medication: one has this address, its deletion perhaps none."""
        keys = sorted(self.addresses.get(address, ()))
        return [version for key in keys for version in self.medications[key]]


@dataclass(frozen=True, slots=True)
class _Question:
    """What is looked for in the events."""

    found_by: FoundBy
    persons: Persons
    survey: _Survey


def read_fhir(table: TomlTable, folder: Path) -> Fhir:
    """Read the keys of [data] with kind = "fhir"."""
    return Fhir(folder / table.text("path"), read_day(table, "at"), read_values(table))


def _no_number(name: str) -> float:
    """Refuse NaN and Infinity, which Python reads and JSON does not know."""
    raise ValueError(f"{name} is no number")


def _found_by(columns: tuple[Wanted, ...]) -> FoundBy:
    """The columns that each coding means.

    Age and sex are left out: they are found in Patients, and an entry with their codes would
    contradict them.
    """
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
    """Put a cell into the first row that has none of this name: none replaces another."""
    for cells in rows:
        if name not in cells:
            cells[name] = cell
            return
    rows.append({name: cell})
