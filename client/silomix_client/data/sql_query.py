"""A query of the hospital's own over a PostgreSQL, SQLite or DuckDB database.

The query belongs to the operator: a study says what columns it needs, never what is run.  It is
read in one go, in a transaction that cannot write.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from silomix_core.task.task import Task

from silomix_client.data.columns import DOUBLE, SINGLE, Layout
from silomix_client.data.database import QueryResult, reading
from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.source import SourceRow

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
        with (
            reading(self.url, self.description) as database,
            database.result(self.query) as result,
        ):
            self.layout.check(result.header, task, self.description, "query")
            places = [result.header.index(name) for name in self.layout.wanted(task)]
            table = (
                (number, [row[place] for place in places])
                for number, row in enumerate(result.rows, start=1)
            )
            exact_below = self._exact_below(result, task)
            yield from self.layout.rows(table, task, self.description, exact_below)

    def _exact_below(self, result: QueryResult, task: Task) -> float:
        """The bound up to which the person column's floats tell whole numbers apart.

        A REAL has fewer digits than the float that Python makes of it; SQLite has no such type.
        """
        person = self.layout.person_column(task)
        if person is None:
            return DOUBLE
        return SINGLE if result.types[result.header.index(person)] in _REAL else DOUBLE
