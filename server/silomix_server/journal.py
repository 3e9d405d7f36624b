"""The coordinator's journal: every round that was opened, and what came of it, on disk.

A restarted coordinator replays the recorded sums through the algorithm (a deterministic
generator) and goes on with the next round number.  A round that was opened but not closed when
the process died counts as void: it is never asked again.  The exception is a round that is
*withdrawn*, since no silo ever heard of it: its number is used again, for a further attempt.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_proto import round_pb2
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.durable import note, open_database, transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, reports INTEGER NOT NULL DEFAULT 0, total BLOB
);
CREATE TABLE IF NOT EXISTS attempts (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, digest BLOB NOT NULL,
    descriptor BLOB NOT NULL, signature BLOB NOT NULL, PRIMARY KEY (round, attempt)
) WITHOUT ROWID;
"""
_VERSION = 2


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """The integer sum over so many reports of a round; no sum: the round was void."""

    reports: int
    total: NDArray[np.int64] | None


class Journal:
    def __init__(self, path: Path) -> None:
        self._database = open_database(path, _SCHEMA, _VERSION)

    def rounds(self) -> list[ClosedRound]:
        """Every round so far, in order."""
        rows = self._database.execute("SELECT reports, total FROM rounds ORDER BY round")
        return [
            ClosedRound(reports, None if total is None else np.frombuffer(total, dtype="<i8"))
            for reports, total in rows
        ]

    def attempts(self, round_number: int) -> list[round_pb2.SignedDescriptor]:
        """The descriptors of a round so far, first attempt first."""
        rows = self._database.execute(
            "SELECT descriptor, signature FROM attempts WHERE round = ? ORDER BY attempt",
            (round_number,),
        )
        return [
            round_pb2.SignedDescriptor(descriptor=encoded, signature=signature)
            for encoded, signature in rows
        ]

    def opened(self, descriptor: Descriptor) -> None:
        """Durable before a mix or a silo hears of the attempt."""
        number, attempt = descriptor.round, descriptor.attempt
        signed = descriptor.digest, descriptor.encoded, descriptor.signature
        with transaction(self._database):
            self._database.execute("INSERT OR IGNORE INTO rounds (round) VALUES (?)", (number,))
            self._database.execute(
                "INSERT INTO attempts VALUES (?, ?, ?, ?, ?)", (number, attempt, *signed)
            )

    def withdrawn(self, round_number: int) -> None:
        """No silo was asked in this round, whatever its attempts."""
        self._database.execute("DELETE FROM rounds WHERE round = ?", (round_number,))

    def closed(self, round_number: int, result: ClosedRound) -> None:
        """Durable with the next opening, or when the journal is closed.

        Until then a power cut makes the round void, as if the coordinator had died during it.
        """
        total = None if result.total is None else result.total.astype("<i8").tobytes()
        with note(self._database):
            self._database.execute(
                "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)",
                (round_number, result.reports, total),
            )

    def close(self) -> None:
        self._database.close()
