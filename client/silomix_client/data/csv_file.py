"""A CSV file with a header row; an empty cell is a missing value."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from silomix_core.task.task import Task

from silomix_client.data.columns import Layout
from silomix_client.data.source import SourceRow
from silomix_client.errors import BadRecords


@dataclass(frozen=True, slots=True)
class CsvFile:
    path: Path
    layout: Layout = field(default_factory=Layout)

    @property
    def description(self) -> str:
        return str(self.path)

    @property
    def identity(self) -> str:
        return str(self.path.resolve())

    def local_names(self, task: Task) -> Mapping[str, str]:
        return self.layout.local_names(task)

    def rows(self, task: Task) -> Iterator[SourceRow]:
        """Read the rows, numbered as a spreadsheet numbers them: the header is row 1."""
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file, strict=True)  # an open quote takes in all that follows
                header = next(reader, None)
                if header is None:
                    raise BadRecords(f"{self.path}: empty file; expected a header row")
                self.layout.check(header, task, self.description, "file")
                picked = [header.index(name) for name in self.layout.wanted(task)]
                table = self._picked(reader, len(header), picked)
                yield from self.layout.rows(table, task, self.description)
        except OSError as error:
            raise BadRecords(f"{self.path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BadRecords(
                f"{self.path}: not UTF-8 text ({error.reason} at byte {error.start})"
            ) from error
        except csv.Error as error:
            raise BadRecords(f"{self.path}: not a CSV file: {error}") from error

    def _picked(
        self, rows: Iterator[list[str]], width: int, picked: list[int]
    ) -> Iterator[tuple[int, list[str]]]:
        number = 1
        try:
            for number, row in enumerate(rows, start=2):
                if len(row) != width:
                    raise BadRecords(
                        f"{self.path}: row {number} has {len(row)} cells, the header has {width}"
                    )
                yield number, [row[place] for place in picked]
        except csv.Error as error:
            raise BadRecords(
                f"{self.path}: not a CSV file: row {number + 1}: {error}; is there an open quote?"
            ) from error
