"""The silo's one database, which the ledger, stored reports and tokens share."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silomix_protocol import durable

from silomix_client.errors import LedgerBroken

_VERSION = 5
_UPGRADES = {  # what became of a report moved to a file; the chain has a new kind of entry
    4: "ALTER TABLE reports DROP COLUMN receipt; ALTER TABLE reports DROP COLUMN committed"
}


def open_database(state: Path, schema: str) -> sqlite3.Connection:
    """state/ledger.sqlite with these tables; LedgerBroken if it is not ours to use."""
    with alone(state / "ledger.lock"):  # SQLite does not wait for a lock to change its mode
        try:
            path = state / "ledger.sqlite"
            return durable.open_database(path, schema, _VERSION, upgrades=_UPGRADES)
        except durable.UnusableDatabase as error:
            raise LedgerBroken(str(error)) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody else is in here meanwhile; the lock goes with the process, whatever happens."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
