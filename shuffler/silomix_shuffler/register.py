"""Which descriptor each round was opened with, kept over restarts.

A mix opens one descriptor per (study, round).  A server that shows different silos different
queries therefore splits its own batch and falls below the minimum.
"""

import sqlite3
from pathlib import Path

from silomix_protocol.descriptor import Descriptor

from silomix_shuffler.errors import WrongRound

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
    study BLOB NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (study, round)
) WITHOUT ROWID
"""


class RoundRegister:
    """Durable memory of opened rounds; `open` returns only when it is on disk."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(_SCHEMA)

    def open(self, descriptor: Descriptor) -> bool:
        """True if the round is new; WrongRound if it belongs to another descriptor."""
        row = self._database.execute(
            "SELECT digest FROM rounds WHERE study = ? AND round = ?",
            (descriptor.study, descriptor.round),
        ).fetchone()
        if row is None:
            self._database.execute(
                "INSERT INTO rounds VALUES (?, ?, ?)",
                (descriptor.study, descriptor.round, descriptor.digest),
            )
            return True
        if row[0] != descriptor.digest:
            raise WrongRound("this round was opened with another descriptor")
        return False

    def close(self) -> None:
        self._database.close()
