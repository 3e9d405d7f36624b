"""The ledger: what a silo's operator approved, and every round's privacy loss, on disk first.

One SQLite file.  A round is charged, and its sealed report stored (`reports`), in one durable
transaction before the first byte leaves: a crash may waste budget, never overspend it.  A round
that was answered is answered again with the same payload only: in the same bytes, or sealed again
for another attempt, which replaces them just as durably and charges nothing.

What was done stands in a hash chain (`hash_chain`) as events; ε is computed from them, never
stored.  The filter (docs/privacy.md, "The ledger"): answer iff the losses so far and this one stay
inside the operator's lifetime budget, where a study counts with the worst of its disjoint phases.
Approval reserves the whole study beforehand, so that an approved study is never cut short by
another one.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from silomix_core.accounting.budget import NOTHING, Budget, PrivacyLoss
from silomix_core.accounting.events import PrivacyEvent
from silomix_core.reports.reporter import Integers
from silomix_core.study.study import Study, StudyId
from silomix_protocol.host.durable import cut_log, transaction
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest

from silomix_client.config.silo_config import MAIN, Policy
from silomix_client.errors import (
    BudgetExhausted,
    InvalidSiloConfig,
    NotApproved,
    RefusedQuery,
)
from silomix_client.ledger import control_variates, hash_chain, reports, studies, token_store
from silomix_client.ledger.control_variates import ControlStore
from silomix_client.ledger.database import open_database
from silomix_client.ledger.entries import (
    Approval,
    Spending,
    Total,
    approval_line,
    event_line,
    event_of,
    whole_plan,
)
from silomix_client.ledger.reports import ReportStore, StoredReport
from silomix_client.ledger.studies import Approvals
from silomix_client.ledger.token_store import TokenStore

_SCHEMA = (
    hash_chain.SCHEMA
    + studies.SCHEMA
    + """
CREATE TABLE IF NOT EXISTS answers (
    study BLOB NOT NULL REFERENCES studies, round INTEGER NOT NULL, digest BLOB NOT NULL,
    query BLOB NOT NULL, entry INTEGER NOT NULL REFERENCES entries, PRIMARY KEY (study, round)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tallies (
    study BLOB NOT NULL REFERENCES studies, phase INTEGER NOT NULL, event TEXT NOT NULL,
    count INTEGER NOT NULL, rounds INTEGER NOT NULL, PRIMARY KEY (study, phase, event)
) WITHOUT ROWID;
"""
    + reports.SCHEMA
    + token_store.SCHEMA
    + control_variates.SCHEMA
)
TABLES = ("entries", "studies", "answers", "tallies", "reports", "tokens", "controls")

_Asked = tuple[Approval, int, tuple[int, int]]  # may this round be answered in that state?
_Cost = tuple[int, PrivacyEvent, int, bool]  # phase, event, how often, whether the silo takes part


class Ledger:
    """The one writer of a silo's privacy record."""

    def __init__(self, state: Path, policy: Policy) -> None:
        self.state = state
        self.database = open_database(state, _SCHEMA)
        self._approvals = Approvals(self.database)
        self.reports = ReportStore(self.database, state / "reports")
        self.token_store = TokenStore(self.database)
        self.controls = ControlStore(self.database)
        self._decided: tuple[_Asked, _Cost] | None = None
        self._read_restores()
        self.policy = policy

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        """Set the policy; refuse one that leaves out what was charged: it must count somewhere."""
        self._decided = None
        for name in {row[0] for row in self.database.execute("SELECT population FROM studies")}:
            if name not in policy.budgets:
                raise InvalidSiloConfig(
                    f"your policy names no population {name!r}, but the ledger has studies of it; "
                    "keep it in the policy, with its budget"
                )
            for study in self._approvals.of_population(name):
                schemes = {
                    event.scheme for part in self.spending(study).phases for event, _ in part
                }
                if not all(policy.budgets[name].covers(scheme) for scheme in schemes):
                    raise InvalidSiloConfig(
                        "the ledger has subsampled studies, which the Gaussian accountant does not "
                        'cover; keep accountant = "renyi" in your policy'
                    )
        self._policy = policy

    # Approvals ----------------------------------------------------------------------------------

    def approve(self, approval: Approval, content: bytes, now: datetime) -> hash_chain.ChainEntry:
        """Reserve the whole study's loss and remember the approval; refuse it beyond the policy."""
        with transaction(self.database):
            self.reserve(approval)
            return self._remember(approval, content, now)

    def enter(self, approval: Approval, content: bytes, now: datetime) -> None:
        """Remember, without any check, an approval that this ledger, put back, had forgotten."""
        with transaction(self.database):
            self._remember(approval, content, now)

    def knows(self, identity: StudyId) -> bool:
        """Whether the study was ever approved here."""
        return self._approvals.is_known(identity)

    def reserve(self, approval: Approval) -> None:
        """Raise unless the study is new and the policy has room for all of it."""
        identity = approval.study.identity
        if self._forgetful:
            raise BudgetExhausted(
                "this ledger was put back from a backup and may have forgotten studies, so all of "
                "your policy's budget counts as spent; restore the backup again into a new folder "
                "and name the studies that were approved after it was made"
            )
        if self._approvals.is_open(identity):
            raise NotApproved("this study is already approved")
        if self._approvals.is_known(identity):
            raise NotApproved(
                "this study was revoked here; a revoked study cannot be approved again"
            )
        budget = self._budget(approval.population)
        check_room(approval, budget, self._reserved(approval.population))

    def approval(self, identity: StudyId) -> Approval:
        return self._approvals.find(identity)

    def approvals(self) -> list[Approval]:
        return self._approvals.all()

    def study_file(self, identity: StudyId) -> bytes:
        """The study file that was approved, byte for byte."""
        return self._approvals.study_file(identity)

    def close_study(self, identity: StudyId, now: datetime) -> hash_chain.ChainEntry:
        """Answer this study no more; what it had reserved and not spent is free again."""
        with transaction(self.database):
            entry, outdated = self._close("close", identity, now)
        self._clear_away(outdated)
        return entry

    def forfeit(self, identity: StudyId, now: datetime) -> None:
        """Answer this study no more; all that it had reserved counts as spent.

        For a ledger that was put back: nobody knows how many rounds were answered meanwhile.
        """
        with transaction(self.database):
            _, outdated = self._close(hash_chain.FORFEIT, identity, now)
            rows = [
                (identity, phase, json.dumps(event_line(event), sort_keys=True), events, rounds)
                for phase, event, events, rounds in whole_plan(self.approval(identity).plan)
            ]
            self.database.executemany("INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?, ?)", rows)
        self._clear_away(outdated)

    def put_back(self, body: dict[str, Any]) -> None:
        """Write down that this is an earlier ledger, put back, and what its operator knows."""
        with transaction(self.database):
            hash_chain.append(self.database, body | {"kind": hash_chain.PUT_BACK})
        self._read_restores()

    def _read_restores(self) -> None:
        self._forgetful = hash_chain.may_have_forgotten(self.database)
        self._restored_ms = hash_chain.restored_ms(self.database)

    def height(self) -> tuple[int, int, bytes]:
        """When the ledger was last put back (ms since 1970; 0: never), its entries and its head."""
        return self._restored_ms, *hash_chain.last(self.database)

    def hash_of(self, entry: int) -> bytes | None:
        return hash_chain.hash_of(self.database, entry)

    def put_back_from(self) -> list[dict[str, Any]]:
        """The note of each time that the ledger was put back: `at`, `backup`, `complete`."""
        return hash_chain.of_kind(self.database, hash_chain.PUT_BACK)

    def forfeited(self) -> set[StudyId]:
        """The studies that count as spent as a whole because the ledger was put back."""
        bodies = hash_chain.of_kind(self.database, hash_chain.FORFEIT)
        return {StudyId(bytes.fromhex(body["study"])) for body in bodies}

    # Rounds -------------------------------------------------------------------------------------

    def stored(self, study: Study, round_number: int) -> StoredReport | None:
        """The stored report of a round, None if it was not answered; refused if no longer kept."""
        row = self.database.execute(
            "SELECT 1 FROM answers WHERE study = ? AND round = ?", (study.identity, round_number)
        ).fetchone()
        if row is None:
            return None
        report = self.reports.find(study)
        if report is None or report.descriptor.round != round_number:
            raise RefusedQuery("that round is over; its report is no longer kept")
        return report

    def last_round(self, study: StudyId) -> int:
        """The last round that was answered; 0 before the first."""
        (last,) = self.database.execute(
            "SELECT MAX(round) FROM answers WHERE study = ?", (study,)
        ).fetchone()
        return last or 0

    def answers_to(self, study: StudyId, query: bytes) -> list[int]:
        """The rounds in which this question was answered, earlier ones first."""
        rows = self.database.execute(
            "SELECT round FROM answers WHERE study = ? AND query = ? ORDER BY round", (study, query)
        )
        return [number for (number,) in rows]

    def check(self, approval: Approval, round_number: int) -> None:
        """Raise unless this round may be answered now; `charge` decides again, under its lock."""
        self._check(approval, round_number)

    def charge(
        self,
        approval: Approval,
        report: StoredReport,
        now: datetime,
        kept: Integers | None = None,
    ) -> hash_chain.ChainEntry:
        """Charge a round and store its report durably; nothing may be sent before this returns.

        A round in which the silo abstains is answered, at no charge.  The token of the round is
        spent: it is in the report.  `kept` is what the report is a difference from, in a study with
        control variates; after the last round nobody needs it.
        """
        descriptor = report.descriptor
        with self._storing(report):
            cost = self._check(approval, descriptor.round)
            entry = self._record(descriptor, cost, now)
            self.token_store.forget(descriptor.study, descriptor.round)
            if kept is not None and descriptor.round < approval.study.rounds:
                self.controls.put(descriptor.study, kept)
            elif kept is not None:
                self.controls.drop(descriptor.study)
        return entry

    def replace(self, earlier: RoundDigest, report: StoredReport) -> None:
        """Store the same payload, sealed for another attempt, in place of the report of `earlier`.

        As durable as a charge, and charges nothing: nothing may be sent before this returns.
        """
        with self._storing(report):
            if self.reports.digest(report.descriptor.study) != earlier:
                raise RefusedQuery("that round is over; its report is no longer kept")

    # Reading ------------------------------------------------------------------------------------

    def spending(self, study: StudyId) -> Spending:
        """The privacy spent on one study."""
        phases: dict[int, list[tuple[PrivacyEvent, int]]] = {}
        charged = 0
        for phase, event, count, rounds in self.database.execute(
            "SELECT phase, event, count, rounds FROM tallies WHERE study = ?", (study,)
        ):
            phases.setdefault(phase, []).append((_event(event), count))
            charged += rounds
        length = max(phases, default=-1) + 1
        return Spending(tuple(tuple(phases.get(phase, ())) for phase in range(length)), charged)

    def total(self, population: str = MAIN) -> Total:
        """The privacy spent on all studies of a population."""
        budget = self._budget(population)
        spent = [self.spending(study) for study in self._approvals.of_population(population)]
        loss = sum((spending.loss(budget) for spending in spent), NOTHING)
        return Total(budget, sum(spending.rounds for spending in spent), loss)

    def reserved(self, population: str = MAIN) -> Total:
        """What open studies of a population may cost in all, and what its closed ones did cost."""
        budget, rounds = self._budget(population), 0
        for approval in map(self.approval, self._approvals.of_population(population)):
            if not approval.closed and not budget.covers(approval.study.minibatch.scheme):
                raise InvalidSiloConfig(_not_covered(approval))
            spent = self.spending(approval.study.identity)
            asked = sum(phase.answers for phase in approval.study.phases)
            rounds += spent.rounds if approval.closed else asked
        return Total(budget, rounds, self._reserved(population))

    def sweep(self) -> None:
        """Delete stored reports that no charge names: a crash may have left one, never sent.

        Only the one process that answers rounds calls this, before it does.
        """
        self.reports.sweep()

    def close(self) -> None:
        self.reports.close()
        self.database.close()

    # Helpers ------------------------------------------------------------------------------------

    def _remember(self, approval: Approval, content: bytes, now: datetime) -> hash_chain.ChainEntry:
        entry = hash_chain.append(self.database, approval_line(approval, now))
        self.database.execute(
            "INSERT INTO studies VALUES (?, ?, ?, ?, ?, NULL)",
            (
                approval.study.identity,
                content,
                approval.partition,
                approval.population,
                entry.number,
            ),
        )
        return entry

    def _close(
        self, kind: str, identity: StudyId, now: datetime
    ) -> tuple[hash_chain.ChainEntry, list[str]]:
        """Close a study, inside a transaction; returns the names of bodies to delete afterwards."""
        approval = self.approval(identity)
        if approval.closed:
            raise NotApproved("this study is already revoked")
        body = {"kind": kind, "at": now.isoformat(), "study": identity.hex()}
        entry = hash_chain.append(self.database, body)
        self.database.execute(  # the secret goes: with it noise could be taken off reports
            "UPDATE studies SET closed = ?, partition = x'' WHERE study = ?",
            (entry.number, identity),
        )
        self.token_store.forget(identity, approval.study.rounds)
        self.controls.drop(identity)
        return entry, self.reports.forget(identity)

    def _clear_away(self, outdated: list[str]) -> None:
        """Delete a closed study's bodies and secret: neither may stay on the disk."""
        self.reports.delete_bodies(outdated)
        cut_log(self.database)

    @contextmanager
    def _storing(self, report: StoredReport) -> Iterator[None]:
        """Open a transaction in which this report takes the place of the study's last one."""
        file = self.reports.write_body(report)
        try:
            with transaction(self.database):
                yield
                outdated = self.reports.put(report, file)
        except BaseException:
            self.reports.delete_bodies([file] if file else [])
            raise
        self.reports.delete_bodies(outdated)

    def _check(self, approval: Approval, round_number: int) -> _Cost:
        """The cost of a round, if it may be answered now; otherwise raises.

        Decided once for one state of the database: as long as nobody changed it, neither this
        process nor another, the answer is the same.
        """
        asked = approval, round_number, self._state()
        if self._decided is None or self._decided[0] != asked:
            self._decided = asked, self._decide(approval, round_number)
        return self._decided[1]

    def _state(self) -> tuple[int, int]:
        """A mark that changes whenever another connection, or this one, changes the database."""
        (others,) = self.database.execute("PRAGMA data_version").fetchone()
        return others, self.database.total_changes

    def _decide(self, approval: Approval, round_number: int) -> _Cost:
        study = approval.study
        if not self._approvals.is_open(study.identity):
            raise RefusedQuery("this study was revoked here, or never approved")
        if not 1 <= round_number <= study.rounds:
            raise RefusedQuery(f"round {round_number} is not one of the study's {study.rounds}")
        last = self.last_round(study.identity)
        if round_number <= last:
            raise RefusedQuery(f"round {round_number} comes after round {last} was answered")
        number, event = approval.event(round_number)
        phase = approval.mechanism.phases[number]
        takes_part = approval.attendance.takes_part(round_number)
        spent = self.spending(study.identity)
        room = phase.events - spent.events_of(number)
        if takes_part and room < phase.steps:
            raise BudgetExhausted(f"round {round_number} is one more than its phase has")
        # Checked as if the silo took part in any case: a refusal must not tell who does.
        if room >= phase.steps:
            spent = spent.with_round(number, event, phase.steps)
        budget = self._budget(approval.population)
        if not budget.covers(study.minibatch.scheme):
            raise RefusedQuery(_not_covered(approval))
        if not budget.holds(self._spent_on_others(approval) + spent.loss(budget)):
            raise BudgetExhausted(
                f"round {round_number} would exceed your policy's {_named(budget)}"
            )
        return number, event, phase.steps, takes_part

    def _record(self, descriptor: Descriptor, cost: _Cost, now: datetime) -> hash_chain.ChainEntry:
        """Write the round into the chain and into the sums that are read every round.

        A silo that abstains writes the same rows, and adds nothing to the sum.
        """
        phase, event, times, takes_part = cost
        line = event_line(event)
        entry = hash_chain.append(
            self.database,
            {
                "kind": "charge" if takes_part else "abstention",
                "at": now.isoformat(),
                "study": descriptor.study.hex(),
                "round": descriptor.round,
                "phase": phase,
                "event": line,
                "times": times,
                "digest": descriptor.digest.hex(),
                "query": descriptor.query.hex(),
            },
        )
        self.database.execute(
            "INSERT INTO tallies VALUES (:study, :phase, :event, :times, :rounds) "
            "ON CONFLICT DO UPDATE SET count = count + :times, rounds = rounds + :rounds",
            {
                "study": descriptor.study,
                "phase": phase,
                "event": json.dumps(line, sort_keys=True),
                "times": times * takes_part,
                "rounds": int(takes_part),
            },
        )
        self.database.execute(
            "INSERT INTO answers VALUES (?, ?, ?, ?, ?)",
            (
                descriptor.study,
                descriptor.round,
                descriptor.digest,
                descriptor.query,
                entry.number,
            ),
        )
        return entry

    def _budget(self, population: str) -> Budget:
        budget = self._policy.budgets.get(population)
        if budget is None:
            raise NotApproved(f"your policy names no population {population!r}")
        return budget

    def _reserved(self, population: str) -> PrivacyLoss:
        """What open studies may still cost in all, and what closed ones did cost."""
        budget = self._budget(population)
        losses = (
            self.approval(study).planned(budget)
            if self._approvals.is_open(study)
            else self.spending(study).loss(budget)
            for study in self._approvals.of_population(population)
        )
        return sum(losses, NOTHING)

    def _spent_on_others(self, approval: Approval) -> PrivacyLoss:
        budget = self._budget(approval.population)
        losses = (
            self.spending(study).loss(budget)
            for study in self._approvals.of_population(approval.population)
            if study != approval.study.identity
        )
        return sum(losses, NOTHING)


def check_room(approval: Approval, budget: Budget, reserved: PrivacyLoss) -> None:
    """Raise unless the budget has room for the whole study beside what is reserved."""
    scheme = approval.study.minibatch.scheme
    if not budget.covers(scheme):
        raise NotApproved(
            f"the study draws {scheme.value} batches, which the exact Gaussian accountant of "
            'your policy does not cover; accountant = "renyi" would, at a looser bound for '
            "all your studies"
        )
    if not budget.holds(reserved + approval.planned(budget)):
        raise BudgetExhausted(
            f"this study would take the total beyond your policy's {_named(budget)}; "
            "`silomix silo ledger` shows what the others reserved"
        )


@lru_cache(maxsize=256)
def _event(written: str) -> PrivacyEvent:
    return event_of(json.loads(written))


def _not_covered(approval: Approval) -> str:
    return (
        f"the Gaussian accountant of your policy does not cover the open study "
        f"{approval.study.short_id}, which draws batches; "
        'keep accountant = "renyi" in your policy, or revoke it'
    )


def _named(budget: Budget) -> str:
    return f"epsilon={budget.target.epsilon:g} at delta={budget.target.delta:g}"
