"""The silo's one database, which the ledger, stored reports and tokens share."""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silomix_protocol.host import durable

from silomix_client.errors import LedgerBroken, SiloBusy

_FILE = "ledger.sqlite"
_VERSION = 6
_UPGRADES = {  # what became of a report moved to a file; the chain has a new kind of entry
    4: "ALTER TABLE reports DROP COLUMN receipt; ALTER TABLE reports DROP COLUMN committed",
    5: "ALTER TABLE controls DROP COLUMN included",
}
_TELLING = "ledger.telling.lock"
_WAIT_S, _LOOK_S = 20.0, 0.002


def has_ledger(state: Path) -> bool:
    """Whether anything was ever written down here; looking makes no folder."""
    return (state / _FILE).exists()


def open_database(state: Path, schema: str) -> sqlite3.Connection:
    """Open state/ledger.sqlite with these tables; LedgerBroken if this silo cannot use it."""
    with alone(state / "ledger.lock"):  # SQLite does not wait for a lock to change its mode
        try:
            return durable.open_database(state / _FILE, schema, _VERSION, upgrades=_UPGRADES)
        except durable.UnusableDatabase as error:
            raise LedgerBroken(str(error)) from error


@contextmanager
def telling(state: Path) -> Iterator[None]:
    """Hold the lock from an entry of the ledger to the line of the audit log that names it.

    Whoever writes both does so inside this block: outside of it neither is ahead of the other.
    """
    with alone(state / _TELLING):
        yield


@contextmanager
def nobody_telling(state: Path) -> Iterator[None]:
    """Hold a moment at which no process is between an entry and its line, or raise SiloBusy."""
    descriptor = os.open(state / _TELLING, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_in_time(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock_in_time(descriptor: int, operation: int) -> None:
    """Take a lock that others hold for milliseconds; SiloBusy if they do not let go."""
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            return fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError as busy:
            if time.monotonic() > end:
                raise SiloBusy(
                    "another process of this silo is in the middle of writing and does not get on "
                    f"with it (waited {_WAIT_S:g} s): is it stopped, or its disk stuck?"
                ) from busy
        time.sleep(_LOOK_S)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep every other process out of this block; the lock goes with its process in any case."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
