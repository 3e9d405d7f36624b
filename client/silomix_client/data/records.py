"""Rows become persons, and persons become the records that a study is answered with.

All validation happens here, when the operator approves a study, and is seen by the operator only.
What comes out has one record for each person, however many rows there were: everything later
bounds and counts records.
"""

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, isnan, nan
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray
from silomix_core.model.clipped_sum import Records
from silomix_core.task.cell_values import BadCell, Cell, is_missing, number, occurrence, row_parser
from silomix_core.task.combine_rows import combined
from silomix_core.task.feature import Combine
from silomix_core.task.task import Task

from silomix_client.data import memory
from silomix_client.data.dates import text_time
from silomix_client.data.profile import Profile, profile_of
from silomix_client.data.source import Source, SourceRow, Time
from silomix_client.errors import BadRecords

Floats = NDArray[np.float64]

_ROWS_BETWEEN_LOOKS = 2**14
# Measured bytes: of a cell as it was read and while it is sorted, of a value of a person's record
# until it is encoded, of a person (where it was first seen), of its identifier in two forms.
_BYTES_OF_CELL, _BYTES_OF_VALUE, _BYTES_OF_PERSON, _BYTES_OF_IDENTIFIER = 64, 48, 70, 200
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"[0-9]{1,100}(?:\.[0-9]{0,100})?(?:e[+-]?[0-9]{1,2})?")
_MINUS = "\u2212"  # a symbol to Unicode, not a dash
_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")


@dataclass(frozen=True, slots=True)
class Reading:
    """The records of a source, one for each person, and what the operator is shown of them."""

    records: Records
    profile: Profile


def read(source: Source, task: Task) -> Reading:
    """Read every person of the source, in the order of identifiers (of rows, without any)."""
    with memory.bounded(source.description) as room:
        return _read(source, task, room)


def _read(source: Source, task: Task, room: int) -> Reading:
    cells = _Cells(source, task)
    for place, row in enumerate(source.rows(task), start=1):
        cells.add(row)
        if place % _ROWS_BETWEEN_LOOKS == 0 and cells.bytes_needed() > room:
            raise memory.too_much(f"{source.description}: {row.where} and before it", room)
    if not cells.people:
        raise BadRecords(f"{source.description}: no records")
    table = cells.table()
    labels = cells.labels(table[:, -1])
    records = Records(task.encode(table[:, :-1]), task.encode_labels(labels))
    return Reading(records, profile_of(source.description, task, table, cells.rows_of_people()))


def check_people(reading: Reading, floor: int, stated: int | None) -> None:
    """Refuse data of fewer people than the policy's floor, or of another number than stated."""
    people, described = len(reading.records), reading.profile.source
    if people < floor:
        raise BadRecords(f"{described}: {people} people, your policy asks for at least {floor}")
    if stated is not None and people != stated:
        raise BadRecords(
            f"{described}: {people} people, the study says {stated}; "
            "ask the study lead to correct it"
        )


class _Cells:
    """The cells that were read: of which person and column, their time and value.

    Kept as columns of numbers, so that a row takes as much memory as it has cells.
    """

    def __init__(self, source: Source, task: Task) -> None:
        self._source, self._task = source, task
        features = [each for each in task.features for _ in each.columns]
        self._rules = [*(each.rule for each in features), task.label_rule_of_rows]
        parsers = [*map(row_parser, features), self._label_parser()]
        names = (*task.columns, task.label)
        self._places = {
            name: (place, parse)
            for place, (name, parse) in enumerate(zip(names, parsers, strict=True))
        }
        self._persons: dict[str, int] = {}
        self._forms: dict[str, str] = {}  # identifiers by what is left of them without their form
        self._first: list[str] = []  # where a person was seen first
        self._rows = array("q")  # of each person
        self._keys = array("q")  # whose and of which column: person · columns + place
        self._when, self._value = array("d"), array("d")

    @property
    def people(self) -> int:
        return len(self._first)

    def add(self, row: SourceRow) -> None:
        start, when = self._person(row) * len(self._rules), self._time(row)
        for name, cell in row.cells.items():
            place, parse = self._places[name]
            try:
                value = parse(cell)
            except BadCell as error:
                raise self._refusal(row.where, name, str(error)) from error
            if value == value:
                self._keys.append(start + place)
                self._when.append(when)
                self._value.append(value)

    def bytes_needed(self) -> int:
        """About how much memory it takes to make records of what was read so far."""
        each = _BYTES_OF_PERSON + _BYTES_OF_VALUE * len(self._rules)
        identifiers = _BYTES_OF_IDENTIFIER * len(self._persons)
        return _BYTES_OF_CELL * len(self._keys) + each * self.people + identifiers

    def table(self) -> Floats:
        """The raw values (people, columns and label), NaN (in a count 0) where no row has one."""
        width = len(self._rules)
        empty = [0.0 if rule is Combine.COUNT else nan for rule in self._rules]
        table = np.tile(np.array(empty), (self.people, 1))
        keys = np.array(self._keys, dtype=np.int64)
        when, value = np.array(self._when), np.array(self._value)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        ends = np.append(starts[1:], len(order))
        single = order[starts[ends - starts == 1]]
        table.reshape(-1)[keys[single]] = value[single]
        for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
            chosen = order[start:end]
            key = int(keys[chosen[0]])
            dated = list(zip(when[chosen].tolist(), value[chosen].tolist(), strict=True))
            table.reshape(-1)[key] = combined(self._rules[key % width], dated)
        return table[self._order()]

    def labels(self, found: Floats) -> Floats:
        """Fill missing labels with the study's default, or refuse."""
        default = self._task.label_missing
        if default is None and np.isnan(found).any():
            person = self._order()[int(np.flatnonzero(np.isnan(found))[0])]
            raise self._refusal(
                self._first[person],
                self._task.label,
                f"no row of this person has a label; it must be {self._task.label_rule}",
            )
        return found if default is None else np.where(np.isnan(found), default, found)

    def rows_of_people(self) -> NDArray[np.int64]:
        return np.array(self._rows, dtype=np.int64)

    def _order(self) -> list[int]:
        """The people by identifier: a database gives the same rows in another order every time."""
        if self._task.person is None:
            return list(range(self.people))
        return [self._persons[name] for name in sorted(self._persons)]

    def _person(self, row: SourceRow) -> int:
        if row.person is None:
            if self._task.person is not None:
                raise self._refusal(row.where, self._task.person, "no person")
            return self._new_person(row)
        known = self._persons.get(row.person)
        if known is None:
            self._check_form(row.person, row.where)
            self._persons[row.person] = self.people
            return self._new_person(row)
        if self._task.person is None:
            raise BadRecords(
                f"{self._source.description}: {row.where}: the same person as in "
                f"{self._first[known]}; this study takes every row for another person, so give "
                "one row for each, or ask the study lead for a study that combines rows"
            )
        self._rows[known] += 1
        return known

    def _check_form(self, person: str, where: str) -> None:
        """Refuse an identifier that may be another form of a known one, as 7 and 007.

        Two records of one person would cost it twice: this is asked about, not guessed.
        """
        other = self._forms.setdefault(_loosely(person), person)
        if other != person:
            raise BadRecords(
                f"{self._source.description}: {where}: {person!r:.40} may be the person "
                f"{other!r:.40} of {self._first[self._persons[other]]}; write every identifier in "
                "one way"
            )

    def _new_person(self, row: SourceRow) -> int:
        self._first.append(row.where)
        self._rows.append(1)
        return self.people - 1

    def _time(self, row: SourceRow) -> float:
        if self._task.time is None:
            return -inf
        try:
            return _instant(row.time)
        except ValueError as error:
            raise self._refusal(row.where, self._task.time, str(error)) from error

    def _label_parser(self) -> Callable[[Cell], float]:
        """The parser of a label; it refuses a missing one at once if no other row can have it."""
        task, classes = self._task, frozenset(map(float, range(self._task.classes or 2)))
        counts = task.label_rule_of_rows is Combine.COUNT
        optional = task.person is not None or task.label_missing is not None

        def parse(cell: Cell) -> float:
            if counts:
                return occurrence(cell)
            value = number(cell)
            fits = optional if isnan(value) else task.loss.is_regression or value in classes
            if not fits:
                raise BadCell(f"a label must be {task.label_rule}")
            return value

        return parse

    def _refusal(self, where: str, column: str, problem: str) -> BadRecords:
        local = self._source.local_names(self._task).get(column)
        named = repr(column) if local is None else f"{local!r} (the study's {column!r})"
        return BadRecords(f"{self._source.description}: {where}, column {named}: {problem}")


def _loosely(person: str) -> str:
    """The form that all ways to write one identifier have in common.

    Made alike are case, width, dashes, what cannot be seen, what spreadsheets write before a text
    or make of a long number, the hyphens of a UUID, and zeros at the start of a number.  Other
    separators stay: 1-23 and 12-3 are two people.
    """
    text = normalize("NFKC", person).casefold()
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_plain_char, text))
    text = text.strip().lstrip("'+").strip()
    if _UUID.fullmatch(text):
        text = text.replace("-", "")
    if _NUMBER.fullmatch(text):
        value = Decimal(text)
        if value == value.to_integral_value():
            return str(int(value))
    return _LEADING_ZEROS.sub("", text)


def _plain_char(char: str) -> str:
    kind = category(char)
    if char.isspace():
        return " "
    if kind == "Pd" or char == _MINUS:
        return "-"
    return "" if kind in ("Cf", "Cc") else char


def _instant(time: Time) -> float:
    """A time as a number: the number that it is, or seconds since 1970; −∞ if it is not known.

    A date, or a date and time that names no zone, is in UTC.
    """
    if isinstance(time, datetime):
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if isinstance(time, date):
        return datetime(time.year, time.month, time.day, tzinfo=UTC).timestamp()
    if is_missing(time):
        return -inf
    try:
        value = number(time)
    except BadCell:
        value = nan
    if not isnan(value):
        return value
    try:
        return _instant(text_time(str(time).strip()))
    except ValueError:
        raise ValueError(f"not a date, a date and time or a number: {time!r:.40}") from None
