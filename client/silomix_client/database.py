"""The silo's one database: opened once, changed in whole transactions, on disk when they end."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silomix_client.errors import LedgerBroken

_VERSION = 3


def open_database(state: Path, schema: str) -> sqlite3.Connection:
    """state/ledger.sqlite with these tables; LedgerBroken if another release made it."""
    with _alone(state / "ledger.lock"):  # SQLite does not wait for a lock to change its mode
        path = state / "ledger.sqlite"
        path.touch(mode=0o600)
        database = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if tables and version != _VERSION:
            raise LedgerBroken(f"{path} was made by another release (format {version})")
        with transaction(database):
            for statement in schema.split(";"):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {_VERSION}")
        return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing, and on disk when this is left: a power cut changes nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if database.in_transaction:  # SQLite rolls back by itself when the disk is full
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


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
def _alone(path: Path) -> Iterator[None]:
    """Nobody else is in here meanwhile; the lock goes with the process, whatever happens."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
