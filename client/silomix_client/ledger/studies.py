"""The studies that the operator approved, as the ledger's database has them."""

import json
import sqlite3
from functools import lru_cache
from hashlib import sha256

from silomix_core.study.reader import parse_study
from silomix_core.study.study import Study, StudyId

from silomix_client.errors import LedgerBroken, NotApproved
from silomix_client.ledger.entries import Approval

SCHEMA = """
CREATE TABLE IF NOT EXISTS studies (
    study BLOB PRIMARY KEY, content BLOB NOT NULL, partition BLOB NOT NULL,
    population TEXT NOT NULL,
    approved INTEGER NOT NULL REFERENCES entries, closed INTEGER REFERENCES entries
) WITHOUT ROWID;
"""


class Approvals:
    """The studies table."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def find(self, identity: StudyId) -> Approval:
        """The approval of this study; NotApproved if there is none."""
        row = self._database.execute(
            "SELECT content, partition, line, closed FROM studies JOIN entries ON approved = number"
            " WHERE study = ?",
            (identity,),
        ).fetchone()
        if row is None:
            raise NotApproved(f"study {identity.hex()[:12]} was not approved here")
        content, partition, line, closed = row
        if sha256(content).digest() != identity:
            raise LedgerBroken("the ledger's copy of this study was changed")
        body = json.loads(line)
        return Approval(
            study=_parsed(content),
            silo=body["silo"],
            snapshot=bytes.fromhex(body["snapshot"]),
            partition=partition,
            population=body["population"],
            closed=closed is not None,
            plan=body["plan"],
            at=body["at"],
        )

    def all(self) -> list[Approval]:
        rows = self._database.execute("SELECT study FROM studies ORDER BY approved").fetchall()
        return [self.find(StudyId(row[0])) for row in rows]

    def study_file(self, identity: StudyId) -> bytes:
        row = self._database.execute(
            "SELECT content FROM studies WHERE study = ?", (identity,)
        ).fetchone()
        if row is None or sha256(row[0]).digest() != identity:
            raise LedgerBroken("the ledger's copy of this study was changed")
        content: bytes = row[0]
        return content

    def is_known(self, study: StudyId) -> bool:
        """Whether the study was ever approved here."""
        row = self._database.execute("SELECT 1 FROM studies WHERE study = ?", (study,)).fetchone()
        return row is not None

    def is_open(self, study: StudyId) -> bool:
        row = self._database.execute(
            "SELECT 1 FROM studies WHERE study = ? AND closed IS NULL", (study,)
        ).fetchone()
        return row is not None

    def populations(self) -> set[str]:
        """The populations that any study was approved for."""
        return {row[0] for row in self._database.execute("SELECT population FROM studies")}

    def of_population(self, population: str) -> list[StudyId]:
        rows = self._database.execute(
            "SELECT study FROM studies WHERE population = ? ORDER BY approved", (population,)
        )
        return [StudyId(row[0]) for row in rows]

    # Inside a transaction, which also writes the entry ------------------------------------------

    def put(self, approval: Approval, content: bytes, entry: int) -> None:
        """Store what the operator approved, by this entry of the chain."""
        identity, secret = approval.study.identity, approval.partition
        self._database.execute(
            "INSERT INTO studies VALUES (?, ?, ?, ?, ?, NULL)",
            (identity, content, secret, approval.population, entry),
        )

    def close(self, study: StudyId, entry: int) -> None:
        """Close a study; its secret goes: with it noise could be taken off reports."""
        self._database.execute(
            "UPDATE studies SET closed = ?, partition = x'' WHERE study = ?", (entry, study)
        )


@lru_cache(maxsize=64)
def _parsed(content: bytes) -> Study:
    return parse_study(content)
