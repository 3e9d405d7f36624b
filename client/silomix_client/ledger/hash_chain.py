"""A hash chain in SQLite: entries that can be appended and checked, not changed unnoticed.

Entry k is a line of JSON; its hash is SHA-256(label ‖ hash of entry k−1 ‖ that line).  Whoever
changes, removes or reorders entries must change every later hash, and so the *head*: the hash of
the last entry, which silos log with every round.  An operator who kept any earlier head can tell
whether it is still part of the chain.
"""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from silomix_client.errors import LedgerBroken

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, line TEXT NOT NULL, hash BLOB NOT NULL
);
"""
_LABEL = b"silomix ledger entry v1\0"
_START = bytes(32)
PUT_BACK = "put-back"  # kind of the entry that follows what a backup had
FORFEIT = "forfeit"  # kind of the entry by which a study counts as spent as a whole since then


@dataclass(frozen=True, slots=True)
class ChainEntry:
    """An entry of the chain: one thing that was done, as it was written down."""

    number: int
    hash: bytes
    body: dict[str, Any]

    @property
    def short(self) -> str:
        """The beginning of the hash, enough to note down and compare."""
        return self.hash.hex()[:16]


def append(database: sqlite3.Connection, body: dict[str, Any]) -> ChainEntry:
    """Add an entry; call it inside a transaction that holds the write lock."""
    number, previous = last(database)
    line = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    entry = ChainEntry(number + 1, _hash(previous, line), body)
    database.execute("INSERT INTO entries VALUES (?, ?, ?)", (entry.number, line, entry.hash))
    return entry


def checked(database: sqlite3.Connection) -> Iterator[ChainEntry]:
    """All entries in order; LedgerBroken at the first that does not fit the one before it."""
    previous, expected = _START, 1
    for number, line, known in database.execute("SELECT * FROM entries ORDER BY number"):
        if number != expected:
            raise LedgerBroken(f"entry {expected} of the ledger is missing")
        if _hash(previous, line) != known:
            raise LedgerBroken(f"entry {number} of the ledger was changed")
        try:
            body = json.loads(line)
        except ValueError as error:
            raise LedgerBroken(f"entry {number} of the ledger cannot be read") from error
        yield ChainEntry(number, known, body)
        previous, expected = known, number + 1


def of_kind(database: sqlite3.Connection, kind: str) -> list[dict[str, Any]]:
    """The bodies of the entries of one kind, in order."""
    rows = database.execute(
        "SELECT line FROM entries WHERE line LIKE '%' || :kind || '%' AND json_valid(line)"
        " AND json_extract(line, '$.kind') = :kind ORDER BY number",
        {"kind": kind},
    )
    return [json.loads(line) for (line,) in rows]


def may_have_forgotten(database: sqlite3.Connection) -> bool:
    """Whether an operator who could not say what came after the backup put the ledger back."""
    return any(body.get("complete") is not True for body in of_kind(database, PUT_BACK))


def last(database: sqlite3.Connection) -> tuple[int, bytes]:
    """The number and hash of the last entry; 0 and zero bytes before the first."""
    row = database.execute("SELECT number, hash FROM entries ORDER BY number DESC").fetchone()
    return row if row else (0, _START)


def hash_of(database: sqlite3.Connection, number: int) -> bytes | None:
    """The hash of an entry, zero bytes for number 0; None if there is no such entry."""
    row = database.execute("SELECT hash FROM entries WHERE number = ?", (number,)).fetchone()
    return _START if number == 0 else row[0] if row else None


def restored_ms(database: sqlite3.Connection) -> int:
    """When the ledger was last put back from a backup, in milliseconds since 1970; 0 if never.

    It grows with every restore, also if the machine's clock did not, and stands above what others
    had shown by then (`above_ms`): a clock that was ahead once must not stop the silo for good.
    """
    restored = 0
    for body in of_kind(database, PUT_BACK):
        at = datetime.fromisoformat(body["at"])
        above_ms = body.get("above_ms", 0)
        restored = max(restored + 1, round(1000 * at.timestamp()), above_ms + 1)
    return restored


def _hash(previous: bytes, line: str) -> bytes:
    return sha256(_LABEL + previous + line.encode()).digest()
