"""Databases that tests fill: PostgreSQL, SQLite and DuckDB by one address each."""

from collections.abc import Iterable

import duckdb
from sqlalchemy import create_engine

_DUCKDB = "duckdb:///"


def run_all(url: str, statements: Iterable[str]) -> None:
    """Run these statements in the database that an address of SQLAlchemy's names."""
    if url.startswith(_DUCKDB):
        with duckdb.connect(url.removeprefix(_DUCKDB)) as database:
            for statement in statements:
                database.execute(statement)
        return
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    engine.dispose()
