"""The coordinator's journal: every round that was opened, and what came of it, on disk.

A restarted coordinator replays the recorded sums through the algorithm (a deterministic
generator) and goes on with the next round number.  A round that was opened but not closed when
the process died counts as void: it is never asked again.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_protocol.descriptor import RoundDigest

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, digest BLOB NOT NULL, reports INTEGER NOT NULL DEFAULT 0, total BLOB
)
"""


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """The integer sum over the accepted reports of a round; no sum: the round was void."""

    reports: int
    total: NDArray[np.int64] | None


class Journal:
    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(_SCHEMA)

    def rounds(self) -> list[ClosedRound]:
        """Every round so far, in order."""
        rows = self._database.execute("SELECT reports, total FROM rounds ORDER BY round")
        return [
            ClosedRound(reports, None if total is None else np.frombuffer(total, dtype="<i8"))
            for reports, total in rows
        ]

    def opened(self, round_number: int, digest: RoundDigest) -> None:
        """Durable before the first silo hears of the round."""
        self._database.execute(
            "INSERT INTO rounds (round, digest) VALUES (?, ?)", (round_number, digest)
        )

    def closed(self, round_number: int, result: ClosedRound) -> None:
        total = None if result.total is None else result.total.astype("<i8").tobytes()
        self._database.execute(
            "UPDATE rounds SET reports = ?, total = ? WHERE round = ?",
            (result.reports, total, round_number),
        )

    def close(self) -> None:
        self._database.close()
