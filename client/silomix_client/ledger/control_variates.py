"""Control variates, in the ledger's database: what a silo keeps of its last used answer of a study.

For each study the integers S behind its control variate cᵢ, all of them noised already.  `put`
and `drop` are called inside a transaction of the ledger, together with the answer that the new S
stands behind; whether that one was used is known afterwards (`outcome_rules`).
"""

import sqlite3

import numpy as np
from silomix_core.reports.reporter import Integers
from silomix_core.study.study import StudyId

from silomix_client.errors import LedgerBroken

SCHEMA = """
CREATE TABLE IF NOT EXISTS controls (
    study BLOB PRIMARY KEY REFERENCES studies, kept BLOB NOT NULL
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

    # Inside a transaction ------------------------------------------------------------------------

    def put(self, study: StudyId, kept: Integers) -> None:
        """Store these integers in place of the study's last ones."""
        self._database.execute(
            "INSERT OR REPLACE INTO controls VALUES (?, ?)",
            (study, kept.astype("<i8").tobytes()),
        )

    def drop(self, study: StudyId) -> None:
        self._database.execute("DELETE FROM controls WHERE study = ?", (study,))
