"""A database that is read: PostgreSQL, SQLite or DuckDB, each by a driver of Python's (PEP 249).

All queries see one state of the data, and none can write.  What a driver refuses is told as it
says it, without anything of the address that could be a password.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.optional import needed
from silomix_client.errors import BadRecords

if TYPE_CHECKING:
    from sqlalchemy import URL

    Driver = tuple[tuple[type[Exception], ...], Callable[[], Any]]  # its errors, its connection

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows that a query gives, read as they are asked for; `types` as the driver calls them."""

    header: list[str]
    types: list[str]
    rows: Iterator[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Database:
    """An open database; `description` begins every error."""

    description: str
    kind: str
    connection: Any

    @contextmanager
    def result(self, query: str) -> Iterator[QueryResult]:
        """Run a query as it is written: a % is a % and no placeholder."""
        # PostgreSQL's driver fetches all rows at once but for a cursor with a name.
        options = {"name": "silomix"} if self.kind == "postgresql" else {}
        with closing(self.connection.cursor(**options)) as cursor:
            cursor.execute(query)
            if cursor.description is None:
                raise BadRecords(f"{self.description}: gives no rows; expected a SELECT")
            header = [column[0] for column in cursor.description]
            types = [str(column[1]) for column in cursor.description]
            yield QueryResult(header, types, _rows(cursor))

    def entries(self, query: str) -> Iterator[dict[str, Any]]:
        """Run a query and give its rows by the names of their columns, in lower case.

        SQLite and DuckDB give them as the table was made, whatever the query calls them.
        """
        with self.result(query) as result:
            names = [name.lower() for name in result.header]
            for row in result.rows:
                yield dict(zip(names, row, strict=True))


@contextmanager
def reading(url: DatabaseUrl, description: str) -> Iterator[Database]:
    """Open a database for reading only; BadRecords says why it, or a query of it, was refused."""
    address = url.parsed()
    kind = address.get_backend_name()
    errors, connect = _DRIVERS[kind](address, url.folder)
    try:
        with closing(connect()) as connection:
            yield Database(description, kind, connection)
    except errors as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise BadRecords(f"{description}: {url.scrubbed(reason)}") from None


def _rows(cursor: Any) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        yield from rows


def _duckdb(address: "URL", folder: Path) -> "Driver":
    duckdb = needed("duckdb", "duckdb", "a DuckDB database")
    file = str(folder / (address.database or ""))
    settings = {name.lower(): value for name, value in address.query.items()}
    settings["access_mode"] = "READ_ONLY"  # whatever the address says
    return (duckdb.Error,), lambda: duckdb.connect(file, config=settings)


def _sqlite(address: "URL", folder: Path) -> "Driver":
    """Open SQLite so that no file is made where there is none, and nothing is changed."""
    file = f"file:{quote(str(folder / (address.database or '')))}"
    query = {"mode": "ro", "uri": "true"}
    errors, raw_connection = _engine(address.set(drivername="sqlite", database=file, query=query))

    def connect() -> Any:
        connection = raw_connection()
        connection.cursor().execute("BEGIN")
        return connection

    return errors, connect


def _postgresql(address: "URL", folder: Path) -> "Driver":  # noqa: ARG001 a server has no folder
    psycopg = needed("psycopg", "postgresql", "a PostgreSQL database")
    errors, raw_connection = _engine(address.set(drivername="postgresql+psycopg"))

    def connect() -> Any:
        connection = raw_connection()
        connection.driver_connection.read_only = True
        connection.driver_connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    return errors, connect


def _engine(address: "URL") -> "Driver":
    """What SQLAlchemy makes of an address: options, several hosts, SQLite's regexp and floor."""
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.exc import SQLAlchemyError

    engine = create_engine(address, poolclass=NullPool, hide_parameters=True)
    return (engine.dialect.loaded_dbapi.Error, SQLAlchemyError), engine.raw_connection


_DRIVERS = {"duckdb": _duckdb, "postgresql": _postgresql, "sqlite": _sqlite}
