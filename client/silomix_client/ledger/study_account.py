"""A study's account in the ledger: its rounds, its last report, its tokens, its control variate.

A round is charged, and its sealed report stored, in one durable transaction before the first byte
leaves: a crash may waste budget, never overspend it.  A round that was answered is answered again
with the same payload only: in the same bytes, or sealed again for another attempt, which replaces
them just as durably and charges nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from silomix_core.reports.reporter import Integers
from silomix_core.study.study import Study
from silomix_proto import mix_pb2
from silomix_protocol.host.durable import transaction
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest

from silomix_client.config.silo_config import Policy
from silomix_client.errors import RefusedQuery
from silomix_client.ledger import database, hash_chain
from silomix_client.ledger.entries import Approval, event_line
from silomix_client.ledger.hash_chain import ChainEntry
from silomix_client.ledger.ledger_tables import Tables
from silomix_client.ledger.outcome_rules import ReportOutcome
from silomix_client.ledger.privacy_filter import PrivacyFilter
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.tallies import RoundCost
from silomix_client.ledger.token_store import HeldToken

# may this round be answered, under that policy and in that state of the database?
_Asked = tuple[Approval, int, Policy, tuple[int, int]]


class StudyAccount:
    """What a silo did in one study and keeps for it, round by round."""

    def __init__(self, study: Study, tables: Tables, privacy_filter: PrivacyFilter) -> None:
        self._study, self._tables, self._filter = study, tables, privacy_filter
        self._database = tables.database
        self._decided: tuple[_Asked, RoundCost] | None = None

    # Rounds -------------------------------------------------------------------------------------

    def check(self, approval: Approval, round_number: int) -> RoundCost:
        """The cost of a round, if it may be answered now; otherwise raises.

        `charge` decides again, under its lock.  Decided once for one state of the database: as long
        as nobody changed it, neither this process nor another, the answer is the same.
        """
        asked = approval, round_number, self._filter.policy, self._state()
        if self._decided is None or self._decided[0] != asked:
            self._decided = asked, self._decide(approval, round_number)
        return self._decided[1]

    def charge(
        self,
        approval: Approval,
        report: StoredReport,
        now: datetime,
        kept: Integers | None = None,
    ) -> ChainEntry:
        """Charge a round and store its report durably; nothing may be sent before this returns.

        A round in which the silo abstains is answered, at no charge.  The token of the round is
        spent: it is in the report.  `kept` is what the report is a difference from, in a study with
        control variates; after the last round nobody needs it.
        """
        descriptor = report.descriptor
        with self._storing(report):
            cost = self.check(approval, descriptor.round)
            entry = self._record(descriptor, cost, now)
            self._tables.tokens.forget(descriptor.study, descriptor.round)
            if kept is not None and descriptor.round < self._study.rounds:
                self._tables.controls.put(descriptor.study, kept)
            elif kept is not None:
                self._tables.controls.drop(descriptor.study)
        return entry

    def replace(self, earlier: RoundDigest, report: StoredReport) -> None:
        """Store the same payload, sealed for another attempt, in place of the report of `earlier`.

        As durable as a charge, and charges nothing: nothing may be sent before this returns.
        """
        with self._storing(report):
            if self._tables.reports.digest(self._study.identity) != earlier:
                raise RefusedQuery("that round is over; its report is no longer kept")

    def telling(self) -> AbstractContextManager[None]:
        """Hold the lock from a charge to the line of the audit log that names it."""
        return database.telling(self._tables.state)

    def stored(self, round_number: int) -> StoredReport | None:
        """The stored report of a round, None if it was not answered; refused if no longer kept."""
        row = self._database.execute(
            "SELECT 1 FROM answers WHERE study = ? AND round = ?",
            (self._study.identity, round_number),
        ).fetchone()
        if row is None:
            return None
        report = self.last_report()
        if report is None or report.descriptor.round != round_number:
            raise RefusedQuery("that round is over; its report is no longer kept")
        return report

    def last_round(self) -> int:
        """The last round that was answered; 0 before the first."""
        (last,) = self._database.execute(
            "SELECT MAX(round) FROM answers WHERE study = ?", (self._study.identity,)
        ).fetchone()
        return last or 0

    def answers_to(self, query: bytes) -> list[int]:
        """The rounds in which this query was answered, earlier ones first."""
        rows = self._database.execute(
            "SELECT round FROM answers WHERE study = ? AND query = ? ORDER BY round",
            (self._study.identity, query),
        )
        return [number for (number,) in rows]

    # The last report, and what became of it -----------------------------------------------------

    def last_report(self) -> StoredReport | None:
        """The report of the last answered round; None if there is none, or its file is gone."""
        return self._tables.reports.find(self._study)

    def outcome(self, digest: RoundDigest) -> ReportOutcome:
        """What became known of the report of D; NOTHING if it is not the last report."""
        return self._tables.reports.outcome(self._study.identity, digest)

    def note_outcome(self, digest: RoundDigest, known: ReportOutcome) -> None:
        """Keep what is known of the report of D, which is the last one."""
        self._tables.reports.keep_outcome(self._study.identity, digest, known)

    def note_receipt(self, digest: RoundDigest, receipt: mix_pb2.Receipt) -> None:
        """Keep what the first mix signed about the last report."""
        self.note_outcome(digest, replace(self.outcome(digest), receipt=receipt))

    # What later rounds need ---------------------------------------------------------------------

    def keep_tokens(self, tokens: Mapping[int, HeldToken]) -> None:
        """Store the tokens of these rounds durably; a token that is there already stays."""
        with transaction(self._database):
            self._tables.tokens.put(self._study.identity, tokens)

    def token(self, round_number: int) -> HeldToken | None:
        return self._tables.tokens.find(self._study.identity, round_number)

    def rounds_with_token(self) -> set[int]:
        return self._tables.tokens.rounds(self._study.identity)

    def control(self, dimension: int) -> Integers:
        """The integers behind the control variate of the last used answer; 0 before the first."""
        return self._tables.controls.find(self._study.identity, dimension)

    # Helpers ------------------------------------------------------------------------------------

    @contextmanager
    def _storing(self, report: StoredReport) -> Iterator[None]:
        """Open a transaction in which this report takes the place of the study's last one."""
        reports = self._tables.reports
        file = reports.write_body(report)
        try:
            with transaction(self._database):
                yield
                outdated = reports.put(report, file)
        except BaseException:
            reports.delete_bodies([file] if file else [])
            raise
        reports.delete_bodies(outdated)

    def _state(self) -> tuple[int, int]:
        """A mark that changes whenever another connection, or this one, changes the database."""
        (others,) = self._database.execute("PRAGMA data_version").fetchone()
        return others, self._database.total_changes

    def _decide(self, approval: Approval, round_number: int) -> RoundCost:
        study = self._study
        if not self._tables.studies.is_open(study.identity):
            raise RefusedQuery("this study was revoked here, or never approved")
        if not 1 <= round_number <= study.rounds:
            raise RefusedQuery(f"round {round_number} is not one of the study's {study.rounds}")
        last = self.last_round()
        if round_number <= last:
            raise RefusedQuery(f"round {round_number} comes after round {last} was answered")
        return self._filter.cost(approval, round_number)

    def _record(self, descriptor: Descriptor, cost: RoundCost, now: datetime) -> ChainEntry:
        """Write the round into the chain and into what is read every round."""
        study, number, query = descriptor.study, descriptor.round, descriptor.query
        entry = hash_chain.append(self._database, _round_line(descriptor, cost, now))
        self._tables.tallies.add(study, cost)
        self._database.execute(
            "INSERT INTO answers VALUES (?, ?, ?, ?, ?)",
            (study, number, descriptor.digest, query, entry.number),
        )
        return entry


def _round_line(descriptor: Descriptor, cost: RoundCost, now: datetime) -> dict[str, Any]:
    return {
        "kind": "charge" if cost.takes_part else "abstention",
        "at": now.isoformat(),
        "study": descriptor.study.hex(),
        "round": descriptor.round,
        "phase": cost.phase,
        "event": event_line(cost.event),
        "times": cost.times,
        "digest": descriptor.digest.hex(),
        "query": descriptor.query.hex(),
    }
