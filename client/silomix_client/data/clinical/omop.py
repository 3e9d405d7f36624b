"""An OMOP CDM 5.4 database: a cohort of persons, and what is recorded of them.

The persons are those of a cohort, by its number in the table `cohort` or by a query of the
operator's own; without either, everybody in `person`.  A feature is found by the concepts that the
study names for it, and by all that descend from them, in measurement, observation,
condition_occurrence, drug_exposure, procedure_occurrence and visit_occurrence.  The first two have
values; of the others it counts that there is an entry.  Windows of days before and after a
person's start in the cohort say which entries are features and which are labels.

Everything is read in one transaction that cannot write.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from silomix_core.task.cell_values import Cell, is_missing, name_of
from silomix_core.task.feature import FeatureKind
from silomix_core.task.task import Task
from silomix_core.toml_table import InvalidField, TomlTable

from silomix_client.data.clinical.codes import (
    AGE,
    Wanted,
    age_at,
    answered,
    check_study,
    read_day,
    translated,
    unit_problem,
    wanted,
)
from silomix_client.data.columns import read_values
from silomix_client.data.database import Database, reading
from silomix_client.data.database_url import DatabaseUrl, read_database_url
from silomix_client.data.dates import text_time
from silomix_client.data.source import SourceRow
from silomix_client.errors import BadRecords

Entry = Mapping[str, Any]  # a row, by the names of its columns

_AT_ONCE = 500  # concepts in one query
# the standard concepts of yes, positive and present, and of their contraries, by code: so that they
# are known where the database does not have the vocabulary
_ANSWERS = {
    4188539: "373066001",
    4188540: "373067005",
    45877994: "LA33-6",
    45878245: "LA32-8",
    9191: "10828004",
    9189: "260385009",
    4181412: "52101004",
    4132135: "2667000",
}
_WHOLE = re.compile(r"-?[0-9]{1,19}(?:\.0*)?")
_SEXES = {8507: "male", 8532: "female"}
_VALUES = {"measurement": "NULL", "observation": "e.value_as_string"}  # where a text may stand
# table: what its concept column begins with, its date, its date with a time
_EVENTS = {
    "measurement": ("measurement", "measurement_date", "measurement_datetime"),
    "observation": ("observation", "observation_date", "observation_datetime"),
    "condition_occurrence": ("condition", "condition_start_date", "condition_start_datetime"),
    "drug_exposure": ("drug", "drug_exposure_start_date", "drug_exposure_start_datetime"),
    "procedure_occurrence": ("procedure", "procedure_date", "procedure_datetime"),
    "visit_occurrence": ("visit", "visit_start_date", "visit_start_datetime"),
}


@dataclass(frozen=True, slots=True)
class Window:
    """Days from a person's start in the cohort, the first and the last included."""

    first: int
    last: int

    def has(self, day: date, start: date) -> bool:
        return self.first <= (day - start).days <= self.last


@dataclass(frozen=True, slots=True)
class Omop:
    """An OMOP database; `at` is the day on which ages are counted where there is no cohort."""

    url: DatabaseUrl
    schema: str | None = None
    cohort: int | None = None
    cohort_query: str | None = None
    at: date | None = None
    window: Window | None = None
    label_window: Window | None = None
    assume_units: bool = False
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def description(self) -> str:
        return f"OMOP database {self.url.description}"

    @property
    def identity(self) -> str:
        chosen = self.cohort_query or self.cohort
        return f"{self.url.description}\n{self.schema}\n{chosen}"

    def local_names(self, task: Task) -> Mapping[str, str]:  # noqa: ARG002 found by codes
        return {}

    def rows(self, task: Task) -> Iterator[SourceRow]:
        """Read one row for each entry, after an empty or master-data one for every person."""
        columns = wanted(task)
        check_study(
            task,
            {each.name: bool(each.concepts) or each.is_master_data for each in columns},
            "concepts",
            self.description,
        )
        with reading(self.url, self.description) as database:
            yield from self._rows(database, columns)

    def _rows(self, database: Database, columns: tuple[Wanted, ...]) -> Iterator[SourceRow]:
        starts = self._starts(database)
        known: set[str | None] = set()
        for row in self._persons(database, columns, starts):
            known.add(row.person)
            yield row
        found_by = self._found_by(database, columns)
        for name in _EVENTS:
            yield from self._events(database, name, found_by, starts, known)

    # The persons ---------------------------------------------------------------------------------

    def _starts(self, database: Database) -> dict[str, date] | None:
        """The day each person first enters the cohort; None without a cohort: everybody counts."""
        if self.cohort is None and self.cohort_query is None:
            return None
        starts: dict[str, date] = {}
        for person, start in self._cohort(database):
            if person is None:
                raise BadRecords(f"{self.description}: the cohort has an entry without subject_id")
            day = self._day(start, f"cohort of person {person}")
            name = name_of(person)
            starts[name] = min(day, starts.get(name, day))
        if not starts:
            raise BadRecords(f"{self.description}: nobody is in the cohort")
        return starts

    def _cohort(self, database: Database) -> Iterator[tuple[Any, Any]]:
        """Read who is in the cohort, and from which day on."""
        names = ("subject_id", "cohort_start_date")
        query = self.cohort_query or (
            f"SELECT {', '.join(names)} FROM {self._table(database, 'cohort')} "  # noqa: S608
            f"WHERE cohort_definition_id = {self.cohort}"
        )
        with database.result(query) as result:
            header = [name.lower() for name in result.header]
            for name in names:
                if (count := header.count(name)) != 1:
                    given = f"column {name!r} {count} times" if count else f"no column {name!r}"
                    raise BadRecords(f"{self.description}: data.cohort_query gives {given}")
            person, start = map(header.index, names)
            for row in result.rows:
                yield row[person], row[start]

    def _persons(
        self,
        database: Database,
        columns: tuple[Wanted, ...],
        starts: dict[str, date] | None,
    ) -> Iterator[SourceRow]:
        """Read everybody once, with what the table `person` says."""
        query = (
            "SELECT person_id, year_of_birth, month_of_birth, day_of_birth, gender_concept_id "  # noqa: S608
            f"FROM {self._table(database, 'person')}"
        )
        left = set(starts) if starts is not None else set()
        for person in database.entries(query):
            if person["person_id"] is None:
                raise BadRecords(
                    f"{self.description}: the table person has a row without person_id"
                )
            name = name_of(person["person_id"])
            if starts is not None and name not in starts:
                continue
            left.discard(name)
            start = starts[name] if starts is not None else None
            cells = {
                each.name: self._master_data(each, person, start)
                for each in columns
                if each.is_master_data
            }
            yield SourceRow(f"person {name}", name, None, cells)
        if left:
            raise BadRecords(
                f"{self.description}: the cohort has person {min(left)}, the table person does not"
            )

    def _master_data(self, column: Wanted, person: Entry, start: date | None) -> Cell:
        if AGE not in column.codes:
            concept = self._concept(person["gender_concept_id"], f"person {person['person_id']}")
            texts = [str(concept), _SEXES.get(concept, "")] if concept else []
            return translated(column, self.values, texts)
        day = start or self.at
        if day is None:
            raise BadRecords(
                f"{self.description}: the study asks for an age; say on which day, by "
                "data.at or with a cohort"
            )
        if not person["year_of_birth"]:
            return None
        born = self._born(person)
        return age_at(born, day)

    def _born(self, person: Entry) -> date:
        try:
            parts = (
                person["year_of_birth"],
                person["month_of_birth"] or 1,
                person["day_of_birth"] or 1,
            )
            return date(*map(_whole, parts))
        except (ValueError, OverflowError) as error:
            raise BadRecords(
                f"{self.description}: person {person['person_id']}, column 'year_of_birth': {error}"
            ) from None

    # What is recorded of persons -----------------------------------------------------------------

    def _found_by(self, database: Database, columns: tuple[Wanted, ...]) -> dict[int, list[Wanted]]:
        """The columns that each concept of the database stands for."""
        found: dict[int, list[Wanted]] = {}
        for column in columns:
            for concept in column.concepts:
                found.setdefault(concept, []).append(column)
        named = {concept: list(each) for concept, each in found.items()}
        for some in _parts(sorted(named)):
            query = (
                "SELECT ancestor_concept_id, descendant_concept_id "  # noqa: S608
                f"FROM {self._table(database, 'concept_ancestor')} "
                f"WHERE ancestor_concept_id IN ({some})"
            )
            for row in database.entries(query):
                where = "concept_ancestor"
                known = found.setdefault(self._concept(row["descendant_concept_id"], where), [])
                above = named[self._concept(row["ancestor_concept_id"], where)]
                known += [each for each in above if each not in known]
        return found

    def _events(
        self,
        database: Database,
        name: str,
        found_by: dict[int, list[Wanted]],
        starts: dict[str, date] | None,
        known: set[str | None],
    ) -> Iterator[SourceRow]:
        for some in _parts(sorted(found_by)):
            for entry in database.entries(self._query(database, name, some)):
                person, where = name_of(entry["person_id"]), f"{name} {entry['entry']}"
                if starts is None and (entry["person_id"] is None or person not in known):
                    raise BadRecords(
                        f"{self.description}: {where}: person {entry['person_id']} is not in the "
                        "table person"
                    )
                if person not in known:  # not in the cohort
                    continue
                day = self._day(entry["day"], where)
                start = starts[person] if starts is not None else None
                cells = {
                    column.name: self._cell(name, column, entry, where)
                    for column in found_by[self._concept(entry["concept"], where)]
                    if self._is_within(column, day, start)
                }
                if cells:
                    time = entry["time"] if entry["time"] is not None else day
                    yield SourceRow(where, person, time, cells)

    def _query(self, database: Database, name: str, concepts: str) -> str:
        """The entries of a table that have one of these concepts, with their values, if any."""
        stem, day, time = _EVENTS[name]
        picked = [
            f"e.{name}_id AS entry, e.person_id, e.{stem}_concept_id AS concept",
            f"e.{day} AS day, e.{time} AS time",
        ]
        joined = ""
        if name in _VALUES:
            picked += [
                "e.value_as_number, e.value_as_concept_id, unit.concept_code AS unit",
                f"{_VALUES[name]} AS text",
                "answer.concept_name AS answer, answer.concept_code AS answer_code",
            ]
            concept = self._table(database, "concept")
            joined = (
                f"LEFT JOIN {concept} unit "
                "ON unit.concept_id = e.unit_concept_id AND unit.vocabulary_id = 'UCUM' "
                f"LEFT JOIN {concept} answer ON answer.concept_id = e.value_as_concept_id "
            )
        return (
            f"SELECT {', '.join(picked)} FROM {self._table(database, name)} e {joined}"  # noqa: S608
            f"WHERE e.{stem}_concept_id IN ({concepts})"
        )

    def _cell(self, name: str, column: Wanted, entry: Entry, where: str) -> Cell:
        """The cell of a column in an entry; True if entries of this table have no values."""
        if name not in _VALUES:
            return True
        number = _plain(entry["value_as_number"])
        concept = self._concept(entry["value_as_concept_id"], where)
        if column.kind is FeatureKind.CATEGORY:
            texts = [str(concept), entry["answer"] or ""] if concept else [entry["text"] or ""]
            return translated(column, self.values, texts) or number
        if is_missing(number):
            return self._answer(column, entry, concept)
        problem = None if self.assume_units else unit_problem(column, entry["unit"] or "")
        if problem is not None:
            raise BadRecords(f"{self.description}: {where}, column {column.name!r}: {problem}")
        return number

    def _answer(self, column: Wanted, entry: Entry, concept: int) -> Cell:
        """The answer in an entry without a number; if it is quite empty, it sets a flag."""
        text = (entry["text"] or "").strip()
        if concept:
            names = [str(concept), entry["answer"] or "", text]
            codes = [entry["answer_code"] or "", _ANSWERS.get(concept, "")]
            return answered(column, self.values, names, codes)
        if text:
            return translated(column, self.values, [text])
        return True if column.kind is FeatureKind.FLAG else None

    def _is_within(self, column: Wanted, day: date, start: date | None) -> bool:
        window = self.label_window if column.is_label else self.window
        return window is None or start is None or window.has(day, start)

    def _concept(self, found: object, where: str) -> int:
        """A concept's number, 0 where there is none, as in OMOP; SQLite may have it as text."""
        try:
            return _whole(found or 0)
        except (ValueError, OverflowError):
            raise BadRecords(f"{self.description}: {where}: not a concept: {found!r:.40}") from None

    def _day(self, found: object, where: str) -> date:
        """The day of an entry; SQLite has no dates: there they are texts."""
        if isinstance(found, datetime):
            return found.date()
        if isinstance(found, date):
            return found
        try:
            return text_time(str(found)).date()
        except ValueError:
            raise BadRecords(f"{self.description}: {where}: not a date: {found!r:.40}") from None

    def _table(self, database: Database, name: str) -> str:
        """A table as queries call it; only in DuckDB may a schema be one of another catalogue."""
        if self.schema is None:
            return name
        parts = self.schema.split(".") if database.kind == "duckdb" else [self.schema]
        quoted = ('"' + part.strip('"').replace('"', '""') + '"' for part in parts)
        return ".".join((*quoted, name))


def read_omop(table: TomlTable, folder: Path) -> Omop:
    """Read the keys of [data] with kind = "omop"."""
    cohort = table.whole("cohort") if table.has("cohort") else None
    query = table.lines("cohort_query") if table.has("cohort_query") else None
    if cohort is not None and query is not None:
        raise InvalidField("data: name a cohort or a cohort_query, not both")
    windows = _window(table, "window"), _window(table, "label_window")
    if any(windows) and cohort is None and query is None:
        raise InvalidField("data: a window counts from the start of a cohort; name one")
    return Omop(
        url=read_database_url(table, folder),
        schema=table.text("schema") if table.has("schema") else None,
        cohort=cohort,
        cohort_query=query,
        at=read_day(table, "at"),
        window=windows[0],
        label_window=windows[1],
        assume_units=table.flag("assume_units", default=False),
        values=read_values(table),
    )


def _window(table: TomlTable, key: str) -> Window | None:
    if not table.has(key):
        return None
    days = table.wholes(key)
    if len(days) != 2 or days[0] > days[1]:
        raise InvalidField(f"data.{key}: expected two days, as [-365, 0]")
    return Window(*days)


def _parts(concepts: list[int]) -> Iterator[str]:
    """The concepts as lists in SQL, each of them short enough for a query."""
    for start in range(0, len(concepts), _AT_ONCE):
        yield ", ".join(map(str, concepts[start : start + _AT_ONCE]))


def _whole(cell: object) -> int:
    """The whole number in 1960, 1960.0 or "1960"."""
    if not _WHOLE.fullmatch(str(cell)):
        raise ValueError(f"not a whole number: {cell!r:.40}")
    return int(str(cell).partition(".")[0])


def _plain(number: object) -> Cell:
    """A number as a float; a text, as SQLite may have, stays one: refused later, with its name."""
    if number is None or isinstance(number, str):
        return number
    return float(str(number))
