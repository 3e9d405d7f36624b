"""The sums of a study's charges, in the ledger's database: what is read before every round.

They follow from the chain's entries (`verify_ledger` checks that), and are written in the same
transaction.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from silomix_core.accounting.events import PrivacyEvent
from silomix_core.study.study import StudyId

from silomix_client.ledger.entries import Spending, event_line, event_of, whole_plan

SCHEMA = """
CREATE TABLE IF NOT EXISTS tallies (
    study BLOB NOT NULL REFERENCES studies, phase INTEGER NOT NULL, event TEXT NOT NULL,
    count INTEGER NOT NULL, rounds INTEGER NOT NULL, PRIMARY KEY (study, phase, event)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a round costs: so many events of its phase, if the silo takes part in it."""

    phase: int
    event: PrivacyEvent
    times: int
    takes_part: bool


class Tallies:
    """The tallies table."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def spending(self, study: StudyId) -> Spending:
        """The privacy spent on one study."""
        phases: dict[int, list[tuple[PrivacyEvent, int]]] = {}
        charged = 0
        for phase, event, count, rounds in self._database.execute(
            "SELECT phase, event, count, rounds FROM tallies WHERE study = ?", (study,)
        ):
            phases.setdefault(phase, []).append((_event(event), count))
            charged += rounds
        length = max(phases, default=-1) + 1
        return Spending(tuple(tuple(phases.get(phase, ())) for phase in range(length)), charged)

    # Inside a transaction ------------------------------------------------------------------------

    def add(self, study: StudyId, cost: RoundCost) -> None:
        """Add a round; one in which the silo abstains writes the same row and adds nothing."""
        self._database.execute(
            "INSERT INTO tallies VALUES (:study, :phase, :event, :times, :rounds) "
            "ON CONFLICT DO UPDATE SET count = count + :times, rounds = rounds + :rounds",
            {
                "study": study,
                "phase": cost.phase,
                "event": _written(cost.event),
                "times": cost.times * cost.takes_part,
                "rounds": int(cost.takes_part),
            },
        )

    def fill(self, study: StudyId, plan: Sequence[dict[str, Any]]) -> None:
        """Count all that a plan allows as spent."""
        rows = [
            (study, phase, _written(event), events, rounds)
            for phase, event, events, rounds in whole_plan(plan)
        ]
        self._database.executemany("INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?, ?)", rows)


def _written(event: PrivacyEvent) -> str:
    return json.dumps(event_line(event), sort_keys=True)


@lru_cache(maxsize=256)
def _event(written: str) -> PrivacyEvent:
    return event_of(json.loads(written))
