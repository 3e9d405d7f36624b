"""The tables of a silo's database, and the folder of report bodies beside it.

`Ledger` and `StudyAccount` change them, several in one transaction; nobody else does.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from silomix_client.ledger import (
    control_variates,
    hash_chain,
    reports,
    studies,
    tallies,
    token_store,
)
from silomix_client.ledger.control_variates import ControlStore
from silomix_client.ledger.database import open_database
from silomix_client.ledger.reports import ReportStore
from silomix_client.ledger.studies import Approvals
from silomix_client.ledger.tallies import Tallies
from silomix_client.ledger.token_store import TokenStore

_ANSWERS = """
CREATE TABLE IF NOT EXISTS answers (
    study BLOB NOT NULL REFERENCES studies, round INTEGER NOT NULL, digest BLOB NOT NULL,
    query BLOB NOT NULL, entry INTEGER NOT NULL REFERENCES entries, PRIMARY KEY (study, round)
) WITHOUT ROWID;
"""
_SCHEMA = (
    hash_chain.SCHEMA
    + studies.SCHEMA
    + _ANSWERS
    + tallies.SCHEMA
    + reports.SCHEMA
    + token_store.SCHEMA
    + control_variates.SCHEMA
)
TABLES = ("entries", "studies", "answers", "tallies", "reports", "tokens", "controls")


@dataclass(frozen=True, slots=True)
class Tables:
    """One database, as a few ideas."""

    state: Path
    database: sqlite3.Connection
    studies: Approvals
    tallies: Tallies
    reports: ReportStore
    tokens: TokenStore
    controls: ControlStore

    def close(self) -> None:
        self.reports.close()
        self.database.close()


def open_tables(state: Path) -> Tables:
    """Open the database in a silo's state; LedgerBroken if this silo cannot use it."""
    database = open_database(state, _SCHEMA)
    return Tables(
        state,
        database,
        studies=Approvals(database),
        tallies=Tallies(database),
        reports=ReportStore(database, state / "reports"),
        tokens=TokenStore(database),
        controls=ControlStore(database),
    )
