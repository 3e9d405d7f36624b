"""A query of the hospital's own over a PostgreSQL, SQLite or DuckDB database.

The query belongs to the operator: a study says what columns it needs, never what is run.  It is
read in one go, in a transaction that cannot write.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from silomix_core.task.task import Task

from silomix_client.data.columns import DOUBLE, SINGLE, Layout
from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.source import SourceRow
from silomix_client.errors import BadRecords

if TYPE_CHECKING:
    from sqlalchemy import CursorResult

_ROWS_AT_ONCE = 10_000
_REAL = frozenset({"700", "FLOAT"})  # the type in PostgreSQL's catalogue, and in DuckDB's


@dataclass(frozen=True, slots=True)
class SqlQuery:
    url: DatabaseUrl
    query: str
    layout: Layout = field(default_factory=Layout)

    @property
    def description(self) -> str:
        return f"query of {self.url.description}"

    @property
    def identity(self) -> str:
        return f"{self.url.description}\n{' '.join(self.query.split())}"

    def local_names(self, task: Task) -> Mapping[str, str]:
        return self.layout.local_names(task)

    def rows(self, task: Task) -> Iterator[SourceRow]:
        """Run the query and read its rows; the first row of the result is row 1."""
        from sqlalchemy.exc import SQLAlchemyError

        engine = self.url.engine()
        try:
            with engine.connect() as connection:
                options = {"stream_results": True, "max_row_buffer": _ROWS_AT_ONCE}
                options["no_parameters"] = True  # a % is a % and no placeholder
                result = connection.execution_options(**options).exec_driver_sql(self.query)
                with closing(result):
                    yield from self._rows(result, task)
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            raise BadRecords(f"{self.description}: {self.url.scrubbed(reason)}") from None
        finally:
            engine.dispose()

    def _rows(self, result: "CursorResult[Any]", task: Task) -> Iterator[SourceRow]:
        if not result.returns_rows:
            raise BadRecords(f"{self.description}: gives no rows; expected a SELECT")
        header = list(result.keys())
        self.layout.check(header, task, self.description, "query")
        picked = [header.index(name) for name in self.layout.wanted(task)]
        table = (
            (number, [row[place] for place in picked]) for number, row in enumerate(result, start=1)
        )
        exact_below = self._exact_below(result, header, task)
        yield from self.layout.rows(table, task, self.description, exact_below)

    def _exact_below(self, result: "CursorResult[Any]", header: list[str], task: Task) -> float:
        """The bound up to which the person column's floats tell whole numbers apart.

        A REAL has fewer digits than the float that Python makes of it; SQLite has no such type.
        """
        person = self.layout.person_column(task)
        if person is None or result.cursor is None or result.cursor.description is None:
            return DOUBLE
        kind = result.cursor.description[header.index(person)][1]
        return SINGLE if str(kind) in _REAL else DOUBLE
