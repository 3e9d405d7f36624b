"""What every source of data gives: rows about persons, in the study's own names.

Here a record is seen for the first time.  A source only fetches: what a cell means (its kind, what
is missing, what is out of bounds) and how several rows of one person become one record is decided
once for all sources, in `records`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from silomix_core.task.cell_values import Cell
from silomix_core.task.task import Task

Time = str | int | float | date | None  # date includes datetime; a text is ISO 8601 or a number


@dataclass(frozen=True, slots=True)
class SourceRow:
    """What one row says about one person.

    `where` finds it again within its source: "row 7", "line 3, Observation/17".  `person` is None
    where the source knows no persons.  `cells` has the study's columns (`Task.columns`) and label
    as keys; a name that is absent, or whose cell is None, is something that the row does not
    say.  A person of whom nothing is known still has one row, with no cells.
    """

    where: str
    person: str | None
    time: Time
    cells: Mapping[str, Cell]


class Source(Protocol):
    """Rows in any order, as many of a person as there are.

    `description` begins every error: the file, or the query and its database, never a secret.
    `identity` is the same for two sources that read the same data.  `local_names` are
    the names that the study's columns have here, of those that have another; errors show both.
    Raises `BadRecords` for what cannot be fetched.
    """

    @property
    def description(self) -> str: ...

    @property
    def identity(self) -> str: ...

    def local_names(self, task: Task) -> Mapping[str, str]: ...

    def rows(self, task: Task) -> Iterator[SourceRow]: ...
