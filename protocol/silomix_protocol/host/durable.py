"""What a party must not lose: SQLite in whole transactions, files that are whole or not there.

A power cut takes everything that was not synced: content, so that a file is there and empty, and
names.  So a file that anybody needs later is written by `write_durably` or `write_new`; whatever
is written otherwise is made anew at the next start, or unreadable content counts as "not known".
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp

from silomix_protocol.host import logs


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

    Deleted content is overwritten; only `cut_log` removes it from the write-ahead log as well.
    `upgrades` has, for each older format that this release takes over, the statements that make the
    next format of it.  With `any_thread` the database may be used from any thread, one at a time.
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
    database.execute("PRAGMA secure_delete=ON")
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
    """Write everything inside or nothing; on leaving, it is on disk, and a power cut keeps it."""
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
    """A transaction that outlives this process but perhaps no power cut: it waits for no disk."""
    database.execute("PRAGMA synchronous=NORMAL")
    try:
        with transaction(database):
            yield
    finally:
        database.execute("PRAGMA synchronous=FULL")


def cut_log(database: sqlite3.Connection) -> None:
    """Empty the write-ahead log: what was deleted must not live on in it.

    Waits for others who read from it, half a minute at most, and warns if they did not end.
    """
    (busy, _, _) = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        path = database.execute("PRAGMA database_list").fetchone()[2]
        logs.warning(
            "log_not_cut",
            file=f"{path}-wal",
            hint="another process reads it: what was deleted stays there until all have ended",
        )


@contextmanager
def one_moment(database: sqlite3.Connection) -> Iterator[None]:
    """Read everything inside as of the moment of entering, whoever writes meanwhile.

    Inside another `one_moment`, or inside a transaction, the moment is that one's.
    """
    if database.in_transaction:
        yield
        return
    database.execute("BEGIN")
    try:
        database.execute("SELECT 1 FROM sqlite_master").fetchone()  # SQLite's moment is a read's
        yield
    finally:
        database.execute("ROLLBACK")


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write, sync, rename: nobody reads half of a file, and after that no power cut takes it."""
    with _synced(path, content, mode) as temporary:
        temporary.replace(path)
    sync_folder(path.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, as durably, for its owner only; else FileExistsError.

    Two writers at the same time never overwrite each other, and a crash leaves no part of a file.
    """
    with _synced(path, content, 0o600) as temporary:
        os.link(temporary, path)
        temporary.unlink()
    sync_folder(path.parent)


@contextmanager
def _synced(path: Path, content: bytes, mode: int) -> Iterator[Path]:
    """A file with this content beside `path`, to be given its name inside."""
    # A new file under a name that nobody can guess: in a folder like /tmp somebody else could have
    # made the file, or a link, that a secret would be written to; and two writers never share one.
    descriptor, name = mkstemp(".part", path.name + ".", path.parent)  # for its owner only
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_folder(folder: Path, *, mode: int = 0o700) -> None:
    """Make a folder, for its owner only, that no power cut takes; its parents are ordinary."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode=0o777)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names of its files survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
