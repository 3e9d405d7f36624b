"""Tokens that the silo may still use, in the ledger's database: one per round not yet charged.

A token is worth one report.  When its round is charged it is inside the stored payload, and its
row goes in the same transaction.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from silomix_core.study.study import StudyId
from silomix_protocol.rounds.tokens import Token

SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    study BLOB NOT NULL REFERENCES studies, round INTEGER NOT NULL, key BLOB NOT NULL,
    token BLOB NOT NULL, PRIMARY KEY (study, round)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token and the public key under which the server proved to have made it."""

    key: bytes
    token: Token


class TokenStore:
    """The tokens table."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def find(self, study: StudyId, round_number: int) -> HeldToken | None:
        row = self._database.execute(
            "SELECT key, token FROM tokens WHERE study = ? AND round = ?", (study, round_number)
        ).fetchone()
        return None if row is None else HeldToken(row[0], Token.from_bytes(row[1]))

    def rounds(self, study: StudyId) -> set[int]:
        """The rounds for which a token is stored."""
        rows = self._database.execute("SELECT round FROM tokens WHERE study = ?", (study,))
        return {row[0] for row in rows}

    # Inside a transaction ------------------------------------------------------------------------

    def put(self, study: StudyId, tokens: Mapping[int, HeldToken]) -> None:
        """Store the tokens of these rounds; a token that is there already stays."""
        rows = [(study, number, held.key, held.token.to_bytes()) for number, held in tokens.items()]
        self._database.executemany("INSERT OR IGNORE INTO tokens VALUES (?, ?, ?, ?)", rows)

    def forget(self, study: StudyId, last_round: int) -> None:
        """Drop the tokens of all rounds up to `last_round`."""
        self._database.execute(
            "DELETE FROM tokens WHERE study = ? AND round <= ?", (study, last_round)
        )
