"""Which columns of a hospital's table are those that the study asks for.

Shared by the sources that are tables (CSV, Parquet, SQL): they find the columns by name, rename
what is called otherwise here, translate local codes, and number the rows for errors.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

from silomix_core.task.cell_values import Cell, is_missing, name_of, whole_of
from silomix_core.task.task import Task
from silomix_core.toml_table import InvalidField, TomlTable

from silomix_client.data.source import SourceRow, Time
from silomix_client.errors import BadRecords

_MOST_LISTED, _MOST_SHOWN = 20, 60  # columns, and characters of each
_NOBODY = frozenset({"nan", "null", "none"})  # what programs write where there is no identifier
# From here on not every whole number is a float of this length.
DOUBLE, SINGLE, HALF = 2.0**53, 2.0**24, 2.0**11
_MOST_DIGITS = 300
_PLAIN = (str, float, int)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the operator says about the columns: nothing, where they are called as in the study.

    `columns` renames (the name here → the study's), `values` translates cells of a column of the
    study, `person` and `time` are the names here of those two.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    person: str | None = None
    time: str | None = None

    def local_names(self, task: Task) -> dict[str, str]:
        """What the study's columns are called here, of those that are called otherwise."""
        names = {studys: local for local, studys in self.columns.items()}
        if task.person is not None and self.person is not None:
            names[task.person] = self.person
        if task.time is not None and self.time is not None:
            names[task.time] = self.time
        return names

    def wanted(self, task: Task) -> list[str]:
        """The columns that are read, by their names here: features, label, then person and time."""
        local = self.local_names(task)
        names = [local.get(name, name) for name in (*task.columns, task.label)]
        person = self.person_column(task)
        time = None if task.time is None else local.get(task.time, task.time)
        return [*names, *(name for name in (person, time) if name is not None)]

    def person_column(self, task: Task) -> str | None:
        """The person column's name here.

        It is read even if the study names none: then nobody may have a second row.
        """
        if task.person is None:
            return self.person
        return self.local_names(task).get(task.person, task.person)

    def check(self, header: Sequence[str], task: Task, description: str, what: str) -> None:
        """Refuse a table that lacks a column, or has it twice; `what` is "file" or "query"."""
        wanted, seen = self.wanted(task), Counter(header)
        missing = next((name for name in wanted if not seen[name]), None)
        if missing is not None:
            there = ", ".join(f"{name:.{_MOST_SHOWN}}" for name in header[:_MOST_LISTED])
            raise BadRecords(f"{description}: no column {missing!r}; the {what} has: {there}")
        doubled = next((name for name in wanted if seen[name] > 1), None)
        if doubled is not None:
            raise BadRecords(f"{description}: column {doubled!r} occurs {seen[doubled]} times")

    def rows(
        self,
        table: Iterable[tuple[int, Sequence[object]]],
        task: Task,
        description: str,
        exact_below: float = DOUBLE,
    ) -> Iterator[SourceRow]:
        """Make rows of numbered tuples that have the columns `wanted`, in that order.

        Identifiers that are floats are refused from `exact_below` on: as shorter floats, two may
        have become one.
        """
        names = (*task.columns, task.label)
        person, has_time = self.person_column(task), task.time is not None
        for number, given in table:
            where, cells = f"row {number}", [_plain(cell) for cell in given]
            found = dict(zip(names, cells, strict=False))
            for name in self.values.keys() & found.keys():
                found[name] = _translated(found[name], self.values[name])
            identifier = None
            if person is not None:
                try:
                    identifier = _identifier(cells[len(names)], exact_below)
                except ValueError as error:
                    raise BadRecords(
                        f"{description}: {where}, column {person!r}: {error}"
                    ) from error
            yield SourceRow(where, identifier, _time(given[-1]) if has_time else None, found)


def read_layout(table: TomlTable) -> Layout:
    """Read the keys of [data] about what columns are called: columns, values, person, time."""
    columns = table.texts_by_name("columns")
    if len(set(columns.values())) < len(columns):
        raise InvalidField("data.columns: two columns are given the same name of the study")
    values = read_values(table)
    person = table.text("person") if table.has("person") else None
    time = table.text("time") if table.has("time") else None
    return Layout(columns, values, person, time)


def read_values(table: TomlTable) -> dict[str, dict[str, str]]:
    """Read [data.values.NAME]: what a code found here is called in the study."""
    if not table.has("values"):
        return {}
    inner = table.table("values")
    return {name: inner.texts_by_name(name) for name in inner.left()}


def _identifier(cell: Cell, exact_below: float) -> str:
    name = name_of(cell)
    if is_missing(cell) or name.lower() in _NOBODY:
        raise ValueError("no person")
    if isinstance(cell, float) and abs(cell) >= exact_below:
        raise ValueError(
            f"too long for a floating-point number: {cell!r}; two people may have become one, so "
            "give identifiers as texts or whole numbers"
        )
    if isinstance(cell, float) and not cell.is_integer():  # rounded: perhaps not only this one's
        raise ValueError(f"not a whole number: {cell!r}; give such identifiers as texts")
    return name


def _translated(cell: Cell, known: Mapping[str, str]) -> Cell:
    """Translate a cell by its text; where that is unknown, by the whole number it may be."""
    name = name_of(cell)
    if name not in known:
        name = whole_of(cell) or name
    return known.get(name, cell)


def _plain(cell: object) -> Cell:
    """Convert what databases and Parquet have beside the plain types."""
    if cell is None or isinstance(cell, _PLAIN):
        return cell
    if not isinstance(cell, Decimal):
        return str(cell)
    short = cell.is_finite() and cell.adjusted() < _MOST_DIGITS
    whole = short and cell == cell.to_integral_value()
    return int(cell) if whole else float(cell)  # an identifier may have more digits than a float


def _time(cell: object) -> Time:
    return cell if isinstance(cell, date) else _plain(cell)
