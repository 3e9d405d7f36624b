"""What a party must not lose: SQLite in whole transactions, files that are whole or not there."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp


class UnusableDatabase(Exception):
    """The file is no database, or one that another release made; the message names it."""


def open_database(
    path: Path,
    schema: str,
    version: int,
    *,
    upgrades: Mapping[int, str] | None = None,
    any_thread: bool = False,
) -> sqlite3.Connection:
    """The database at `path`, for its owner only, made with these tables if it is new.

    `upgrades` has, for formats that this release takes over, the statements that make the next
    format of each.  With `any_thread` it may be used from any thread, by one at a time.
    """
    path.touch(mode=0o600)
    database = sqlite3.connect(
        path, isolation_level=None, timeout=30.0, check_same_thread=not any_thread
    )
    try:
        _prepare(database, path, schema, version, upgrades or {})
    except BaseException as error:
        database.close()
        if type(error) is sqlite3.DatabaseError:  # and not, say, a full disk
            raise UnusableDatabase(f"{path}: {error}") from error
        raise
    return database


def _prepare(
    database: sqlite3.Connection, path: Path, schema: str, version: int, upgrades: Mapping[int, str]
) -> None:
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    with transaction(database):
        (found,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        steps = range(found, version) if tables else range(0)
        if tables and found > version:
            raise UnusableDatabase(
                f"{path} was made by another release (format {found}), newer than this one "
                f"({version}): install that release again; nothing is ever converted back"
            )
        if not set(steps) <= set(upgrades):
            raise UnusableDatabase(
                f"{path} was made by another release (format {found}), older than this one "
                f"({version}), which cannot take it over: end its studies with that release"
            )
        for statement in [each for step in steps for each in upgrades[step].split(";")]:
            database.execute(statement)
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


@contextmanager
def one_moment(database: sqlite3.Connection) -> Iterator[None]:
    """Everything that is read inside is of one moment, whoever writes meanwhile."""
    database.execute("BEGIN")
    try:
        yield
    finally:
        database.execute("ROLLBACK")


def write_durably(path: Path, content: bytes) -> None:
    """Write, sync, rename: after this returns the file is whole, even after a crash."""
    write_whole(path, content, sync=True)
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write, rename: nobody reads half of it, but a power cut may lose it, or only its name."""
    # A new file under a name that nobody can guess: in a folder like /tmp somebody else could have
    # made the file, or a link, that a secret would be written to; and two writers never share one.
    descriptor, name = mkstemp(".part", path.name + ".", path.parent)  # for its owner only
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the folder remember its files' names."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
