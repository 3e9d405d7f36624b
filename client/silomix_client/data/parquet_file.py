"""A Parquet file: columns with types of their own, null is a missing value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silomix_core.task.task import Task

from silomix_client.data import memory
from silomix_client.data.columns import DOUBLE, HALF, SINGLE, Layout
from silomix_client.data.optional import needed
from silomix_client.data.source import SourceRow
from silomix_client.errors import BadRecords

_ROWS_AT_ONCE = 10_000
_BYTES_OF_CELL = 32  # at least, once the cell is read


@dataclass(frozen=True, slots=True)
class ParquetFile:
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
        """Read the rows; the first row is row 1."""
        arrow = needed("pyarrow", "parquet", "a Parquet file")
        parquet = needed("pyarrow.parquet", "parquet", "a Parquet file")
        try:
            with self.path.open("rb") as content, parquet.ParquetFile(content) as file:
                self.layout.check(file.schema_arrow.names, task, self.description, "file")
                self._check_size(file.metadata, task)
                table = self._tuples(arrow, file, self.layout.wanted(task))
                exact_below = self._exact_below(arrow, file.schema_arrow, task)
                yield from self.layout.rows(table, task, self.description, exact_below)
        except arrow.ArrowException as error:
            raise BadRecords(f"{self.path}: not a Parquet file: {_first_line(error)}") from error
        except OSError as error:
            raise BadRecords(f"{self.path}: {error.strerror or 'cannot be read'}") from error

    def _check_size(self, metadata: Any, task: Task) -> None:
        """Refuse a file by its number of rows, before it is unpacked.

        Its size says little: runs of like cells take no room.
        """
        rows, room = int(metadata.num_rows), memory.free_bytes()
        if rows * len(self.layout.wanted(task)) * _BYTES_OF_CELL > room:
            raise memory.too_much(f"{self.path}: {rows} rows", room)

    def _exact_below(self, arrow: Any, schema: Any, task: Task) -> float:
        """The bound up to which the person column's floats tell whole numbers apart.

        Python's own go further, but were made of what was rounded already.
        """
        if (person := self.layout.person_column(task)) is None:
            return DOUBLE
        short = {arrow.float32(): SINGLE, arrow.float16(): HALF}
        return short.get(schema.field(person).type, DOUBLE)

    def _tuples(
        self, arrow: Any, file: Any, wanted: list[str]
    ) -> Iterator[tuple[int, tuple[object, ...]]]:
        number = 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted):
            columns = [self._cells(arrow, batch, name) for name in wanted]
            for number, cells in enumerate(zip(*columns, strict=True), start=number + 1):  # noqa: B020
                yield number, cells

    def _cells(self, arrow: Any, batch: Any, name: str) -> list[object]:
        """A column as Python values; Python's times have microseconds, and end with year 9999."""
        column = batch.column(name)
        try:
            if arrow.types.is_timestamp(column.type):
                exact = column.type.unit != "ns"
                column = column.cast(arrow.timestamp("us", column.type.tz), safe=exact)
            cells: list[object] = column.to_pylist()
        except (OverflowError, ValueError) as error:
            raise BadRecords(
                f"{self.path}: column {name!r}: a value that cannot be read as {column.type}: "
                f"{_first_line(error)}"
            ) from error
        return cells


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
