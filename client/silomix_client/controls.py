"""Control variates, in the ledger's database: what a silo keeps of its last used answer of a study.

For each study the integers S behind cᵢ, all of them noised already, and the last round whose
report was found in the list that the server committed to.  `put` and `drop` are called inside a
transaction of the ledger, together with the answer that the new S stands behind.
"""

import sqlite3

import numpy as np
from silomix_core.reporting import Integers
from silomix_core.study import StudyId
from silomix_protocol.durable import note

from silomix_client.errors import LedgerBroken

SCHEMA = """
CREATE TABLE IF NOT EXISTS controls (
    study BLOB PRIMARY KEY REFERENCES studies, kept BLOB NOT NULL, included INTEGER NOT NULL
) WITHOUT ROWID;
"""


class ControlStore:
    """The controls table."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def find(self, study: StudyId, dimension: int) -> Integers:
        """The integers of the last used answer; 0 before the first."""
        row = self._database.execute(
            "SELECT kept FROM controls WHERE study = ?", (study,)
        ).fetchone()
        if row is None:
            return np.zeros(dimension, dtype=np.int64)
        if len(row[0]) != 8 * dimension:
            raise LedgerBroken("the stored control variate has another dimension than the study")
        return np.frombuffer(row[0], dtype="<i8").astype(np.int64)

    def is_included(self, study: StudyId, round_number: int) -> bool:
        """Whether the report of this round was found in its list."""
        row = self._database.execute(
            "SELECT 1 FROM controls WHERE study = ? AND included = ?", (study, round_number)
        ).fetchone()
        return row is not None

    def note_included(self, study: StudyId, round_number: int) -> None:
        """Remember that the report of this round, the last answered one, is in its list."""
        with note(self._database):
            self._database.execute(
                "UPDATE controls SET included = ? WHERE study = ?", (round_number, study)
            )

    # Inside a transaction ------------------------------------------------------------------------

    def put(self, study: StudyId, kept: Integers) -> None:
        """Keep these integers; the answer that is charged with them is in no list yet."""
        self._database.execute(
            "INSERT OR REPLACE INTO controls VALUES (?, ?, 0)",
            (study, kept.astype("<i8").tobytes()),
        )

    def drop(self, study: StudyId) -> None:
        self._database.execute("DELETE FROM controls WHERE study = ?", (study,))
