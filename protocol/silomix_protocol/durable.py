"""What a party must not lose: SQLite in whole transactions, files that are whole or not there."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UnusableDatabase(Exception):
    """The file is no database, or one that another release made; the message names it."""


def open_database(
    path: Path, schema: str, version: int, *, any_thread: bool = False
) -> sqlite3.Connection:
    """The database at `path`, for its owner only, made with these tables if it is new.

    With `any_thread` it may be used from any thread, by one at a time.
    """
    path.touch(mode=0o600)
    database = sqlite3.connect(
        path, isolation_level=None, timeout=30.0, check_same_thread=not any_thread
    )
    try:
        _prepare(database, path, schema, version)
    except BaseException as error:
        database.close()
        if type(error) is sqlite3.DatabaseError:  # and not, say, a full disk
            raise UnusableDatabase(f"{path}: {error}") from error
        raise
    return database


def _prepare(database: sqlite3.Connection, path: Path, schema: str, version: int) -> None:
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    (found,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if tables and found != version:
        raise UnusableDatabase(f"{path} was made by another release (format {found})")
    with transaction(database):
        for statement in schema.split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {version}")


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing, and on disk when this is left: a power cut changes nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # SQLite rolls back by itself when the disk is full
            database.execute("ROLLBACK")
        raise


@contextmanager
def note(database: sqlite3.Connection) -> Iterator[None]:
    """A transaction that outlives this process but perhaps not a power cut: it does not wait."""
    database.execute("PRAGMA synchronous=NORMAL")
    try:
        with transaction(database):
            yield
    finally:
        database.execute("PRAGMA synchronous=FULL")


def write_durably(path: Path, content: bytes) -> None:
    """Write, sync, rename: after this returns the file is whole, even after a crash."""
    temporary = path.with_name(path.name + ".part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder remember its files' names."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
