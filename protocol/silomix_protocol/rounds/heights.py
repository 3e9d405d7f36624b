"""How far a silo's ledger has come: signed by the silo, kept by others, shown to it again.

A ledger that was put back to an earlier state cannot know what it forgot, and neither of two copies
of a silo knows of the other.  So a silo leaves the height of its ledger with those that it talks to
anyway: with every report at the first mix, at the start of a lease at the coordinator, every minute
at the authority.  Each keeps the highest and shows it, and a silo that is shown its own signature
above its ledger, or on another entry than its ledger has, answers nothing.

Heights are ordered by when the ledger was last restored from a backup, then by its entries: what a
proper restore forgot counts as spent, so a restored ledger stands above all that it may have lost.
Entries are named by a *mark*, a keyed hash of the chain's head: the head itself would let others
try out what the last entry says (whether the silo abstained, for one).
"""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from silomix_proto import ledger_pb2

from silomix_protocol.keys import ForgedSignature, SigningKey, verify

SCHEMA = """
CREATE TABLE IF NOT EXISTS heights (
    sign_key BLOB PRIMARY KEY, restored_ms INTEGER NOT NULL, entries INTEGER NOT NULL,
    mark BLOB NOT NULL, signature BLOB NOT NULL
) WITHOUT ROWID;
"""
_PURPOSE = "ledger-height"
_MARK_BYTES = 32
_LARGEST = 2**63 - 1  # the largest integer of SQLite


@dataclass(frozen=True, slots=True)
class Height:
    """The height of a ledger, as its silo signed it."""

    restored_ms: int  # when last restored from a backup, since 1970; 0: never
    entries: int
    mark: bytes
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not (0 <= self.restored_ms <= _LARGEST and 0 <= self.entries <= _LARGEST):
            raise ValueError("no ledger has this height")
        if len(self.mark) != _MARK_BYTES:
            raise ValueError("the mark of an entry has another length")

    @classmethod
    def of(cls, message: ledger_pb2.LedgerHeight) -> "Height":
        return cls(message.restored_ms, message.entries, message.mark, message.signature)

    def to_wire(self) -> ledger_pb2.LedgerHeight:
        return ledger_pb2.LedgerHeight(
            restored_ms=self.restored_ms,
            entries=self.entries,
            mark=self.mark,
            signature=self.signature,
        )

    @property
    def place(self) -> tuple[int, int]:
        """The two numbers that heights are ordered by."""
        return self.restored_ms, self.entries

    def is_behind(self, other: "Height") -> bool:
        """Return whether a ledger of this height cannot be one that had the other: it is lower, or
        has another entry there."""
        if self.place == other.place:
            return self.mark != other.mark
        return self.place < other.place


class BehindHeight(Exception):
    """The height does not follow the one that is held of the same silo."""

    def __init__(self, held: Height) -> None:
        super().__init__("your ledger is behind what you signed before, or another one")
        self.held = held


class OwnLedger(Protocol):
    """A silo's own ledger, for code that talks to others on behalf of any kind of party."""

    def height(self) -> ledger_pb2.LedgerHeight: ...

    def hear(self, shown: ledger_pb2.LedgerHeight, by: str) -> None:
        """Take notice of a height that somebody shows as this ledger's own."""


# Signing and checking -----------------------------------------------------------------------------


def mark_of(head: bytes, key: SigningKey) -> bytes:
    """The mark of the ledger entry with this hash."""
    return key.tag("ledger-mark", head)


def sign_height(silo: str, place: tuple[int, int], mark: bytes, key: SigningKey) -> Height:
    signature = key.sign(_PURPOSE, *_parts(silo, *place, mark))
    return Height(*place, mark, signature)


def check_height(message: ledger_pb2.LedgerHeight, silo: str, sign_key: bytes) -> Height:
    """The height, if this silo signed it; ForgedSignature otherwise."""
    try:
        height = Height.of(message)
    except ValueError as error:
        raise ForgedSignature(str(error)) from error
    parts = _parts(silo, height.restored_ms, height.entries, height.mark)
    verify(sign_key, height.signature, _PURPOSE, *parts)
    return height


def _parts(silo: str, restored_ms: int, entries: int, mark: bytes) -> tuple[bytes, ...]:
    return silo.encode("utf-8"), restored_ms.to_bytes(8, "big"), entries.to_bytes(8, "big"), mark


# Keeping ------------------------------------------------------------------------------------------


class HeightBook:
    """The highest height of every silo, by its signing key; `save` stores each new one."""

    def __init__(
        self,
        kept: Mapping[bytes, Height] | None = None,
        save: Callable[[bytes, Height], None] = lambda _key, _height: None,
    ) -> None:
        self._held, self._save = dict(kept or {}), save

    def of(self, sign_key: bytes) -> Height | None:
        return self._held.get(sign_key)

    def take(self, sign_key: bytes, height: Height) -> None:
        """Hold this height from now on; BehindHeight if it does not follow the one held so far."""
        held = self._held.get(sign_key)
        if held is not None and height.is_behind(held):
            raise BehindHeight(held)
        if held is None or height.place != held.place:
            self._save(sign_key, height)
            self._held[sign_key] = height

    def exchange(self, sign_key: bytes, height: Height) -> Height | None:
        """Hold this height if it follows the one before; return that one, to show, if it differs.

        Parties that do not rely on heights leave the judgement to the silo, which alone knows its
        entries.
        """
        held = self._held.get(sign_key)
        with suppress(BehindHeight):
            self.take(sign_key, height)
        return None if held == height else held


def kept_heights(database: sqlite3.Connection) -> dict[bytes, Height]:
    """The heights in the table, by signing key."""
    return {row[0]: Height(*row[1:]) for row in database.execute("SELECT * FROM heights")}


def keep_height(database: sqlite3.Connection, sign_key: bytes, height: Height) -> None:
    """Put a height into the table, in place of a lower one, inside the caller's transaction."""
    database.execute(
        "INSERT INTO heights VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "restored_ms = excluded.restored_ms, entries = excluded.entries, "
        "mark = excluded.mark, signature = excluded.signature "
        "WHERE (excluded.restored_ms, excluded.entries) > (restored_ms, entries)",
        (sign_key, *height.place, height.mark, height.signature),
    )
