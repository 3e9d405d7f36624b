"""The ledger: what a silo's operator approved, and every round's privacy loss, on disk first.

One SQLite file.  A round is charged, and its sealed report stored, in one durable transaction
before the first byte leaves: a crash may waste budget, never overspend it, and a round that was
answered is answered again with the same bytes only.

What was done stands in a hash chain (`chain`) as events; ε is computed from them, never stored.
The filter (design: "Ledger"): answer iff the losses so far and this one stay inside the operator's
lifetime budget, where a study counts with the worst of its disjoint phases.  Approval reserves the
whole study beforehand, so that an approved study is never cut short by another one.
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from silomix_core.accounting.budget import NOTHING, Budget, Loss
from silomix_core.accounting.events import PrivacyEvent
from silomix_core.study import Study, StudyId
from silomix_protocol.descriptor import RoundDigest

from silomix_client import chain
from silomix_client.config import MAIN, Policy
from silomix_client.entries import Approval, Spending, Total, approval_line, event_line, event_of
from silomix_client.errors import (
    BudgetExhausted,
    InvalidConfig,
    LedgerBroken,
    NotApproved,
    RefusedQuery,
)
from silomix_client.snapshot import write_durably

_SCHEMA = (
    chain.SCHEMA
    + """
CREATE TABLE IF NOT EXISTS studies (
    study BLOB PRIMARY KEY, content BLOB NOT NULL, partition BLOB NOT NULL,
    population TEXT NOT NULL,
    approved INTEGER NOT NULL REFERENCES entries, closed INTEGER REFERENCES entries
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (
    study BLOB NOT NULL REFERENCES studies, round INTEGER NOT NULL, digest BLOB NOT NULL,
    entry INTEGER NOT NULL REFERENCES entries, sealed BLOB NOT NULL, onion BLOB, file TEXT,
    PRIMARY KEY (study, round)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tallies (
    study BLOB NOT NULL REFERENCES studies, phase INTEGER NOT NULL, event TEXT NOT NULL,
    count INTEGER NOT NULL, PRIMARY KEY (study, phase, event)
) WITHOUT ROWID;
"""
)
TABLES = ("entries", "studies", "answers", "tallies")
_VERSION = 2
_LARGEST_ROW = 64 * 1024  # larger onions live in files beside the database


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A sealed report as it was (or will be) sent, and the SHA-256 of its innermost layer."""

    onion: bytes
    sealed: bytes


class Ledger:
    """The one writer of a silo's privacy record."""

    def __init__(self, state: Path, policy: Policy) -> None:
        self.state = state
        self._reports = state / "reports"
        self._reports.mkdir(mode=0o700, exist_ok=True)
        with _alone(state / "ledger.lock"):  # SQLite does not wait for a lock to change its mode
            self._open(state / "ledger.sqlite")
        self.policy = policy

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        """What was charged must count somewhere: a policy that leaves it out is refused."""
        for name in {row[0] for row in self.database.execute("SELECT population FROM studies")}:
            if name not in policy.budgets:
                raise InvalidConfig(
                    f"your policy names no population {name!r}, but the ledger has studies of it; "
                    "keep it in the policy, with its budget"
                )
            for study in self._studies_of(name):
                schemes = {
                    event.scheme for part in self.spending(study).phases for event, _ in part
                }
                if not all(policy.budgets[name].covers(scheme) for scheme in schemes):
                    raise InvalidConfig(
                        "the ledger has subsampled studies, which the Gaussian accountant does not "
                        'cover; keep accountant = "renyi" in your policy'
                    )
        self._policy = policy

    # Approvals ----------------------------------------------------------------------------------

    def approve(self, approval: Approval, content: bytes, now: datetime) -> None:
        """Reserve the whole study's loss and remember the approval; refused beyond the policy."""
        with self._transaction():
            self.reserve(approval)
            entry = chain.append(self.database, approval_line(approval, now))
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

    def reserve(self, approval: Approval) -> None:
        """Raise unless the study is new and the policy has room for all of it."""
        row = self._study_row(approval.study.identity)
        if row is not None:
            *_, closed = row
            raise NotApproved(
                "this study is already approved"
                if closed is None
                else "this study was closed here; a closed study cannot be approved again"
            )
        budget, scheme = self._budget(approval.population), approval.study.minibatch.scheme
        if not budget.covers(scheme):
            raise NotApproved(
                f"the study draws {scheme.value} batches, which the exact Gaussian accountant of "
                'your policy does not cover; accountant = "renyi" would, at a looser bound for '
                "all your studies"
            )
        if not budget.holds(self._reserved(approval.population) + approval.planned(budget)):
            raise BudgetExhausted(
                f"this study would take the total beyond your policy's {_named(budget)}; "
                "`silomix silo ledger` shows what the others reserved"
            )

    def approval(self, identity: StudyId) -> Approval:
        row = self._study_row(identity)
        if row is None:
            raise NotApproved(f"study {identity.hex()[:12]} was not approved here")
        content, partition, line, closed = row
        body = json.loads(line)
        return Approval(
            study=_parsed(content),
            silo=body["silo"],
            snapshot=bytes.fromhex(body["snapshot"]),
            partition=partition,
            population=body["population"],
            closed=closed is not None,
            plan=body["plan"],
        )

    def approvals(self) -> list[Approval]:
        rows = self.database.execute("SELECT study FROM studies ORDER BY approved").fetchall()
        return [self.approval(StudyId(row[0])) for row in rows]

    def close_study(self, identity: StudyId, now: datetime) -> None:
        """Answer this study no more; what it had reserved and not spent is free again."""
        with self._transaction():
            if self.approval(identity).closed:
                raise NotApproved("this study is already closed")
            body = {"kind": "close", "at": now.isoformat(), "study": identity.hex()}
            entry = chain.append(self.database, body)
            self.database.execute(
                "UPDATE studies SET closed = ? WHERE study = ?", (entry.number, identity)
            )
            outdated = self._forget_reports(identity)
        self._delete(outdated)

    # Rounds -------------------------------------------------------------------------------------

    def stored(self, study: Study, round_number: int, digest: RoundDigest) -> StoredReport | None:
        """The report of a round that was already answered; refused if it is another question."""
        row = self.database.execute(
            "SELECT digest, sealed, onion, file FROM answers WHERE study = ? AND round = ?",
            (study.identity, round_number),
        ).fetchone()
        if row is None:
            return None
        known, sealed, onion, file = row
        if known != digest:
            raise RefusedQuery(f"round {round_number} was asked again with another query")
        if onion is None and (file is None or not (self._reports / file).exists()):
            raise RefusedQuery("that round is over; its report is no longer kept")
        return StoredReport(onion or (self._reports / file).read_bytes(), sealed)

    def check(self, approval: Approval, round_number: int) -> None:
        """Raise unless this round may be answered now; `charge` decides again, under its lock."""
        self._check(approval, round_number)

    def charge(
        self,
        approval: Approval,
        round_number: int,
        digest: RoundDigest,
        report: StoredReport,
        now: datetime,
    ) -> chain.Entry:
        """Charge a round and store its report durably; nothing may be sent before this returns."""
        file = sha256(report.onion).hexdigest() if len(report.onion) > _LARGEST_ROW else None
        if file is not None:
            write_durably(self._reports / file, report.onion)
        study = approval.study.identity
        try:
            with self._transaction():
                phase, event = self._check(approval, round_number)
                entry = self._record(study, round_number, phase, event, digest, now)
                outdated = self._forget_reports(study)
                onion = None if file else report.onion
                self.database.execute(
                    "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (study, round_number, digest, entry.number, report.sealed, onion, file),
                )
        except BaseException:
            if file is not None:
                (self._reports / file).unlink(missing_ok=True)
            raise
        self._delete(outdated)
        return entry

    # Reading ------------------------------------------------------------------------------------

    def spending(self, study: StudyId) -> Spending:
        """What was spent on one study."""
        phases: dict[int, list[tuple[PrivacyEvent, int]]] = {}
        for phase, event, count in self.database.execute(
            "SELECT phase, event, count FROM tallies WHERE study = ?", (study,)
        ):
            phases.setdefault(phase, []).append((event_of(json.loads(event)), count))
        length = max(phases, default=-1) + 1
        return Spending(tuple(tuple(phases.get(phase, ())) for phase in range(length)))

    def total(self, population: str = MAIN) -> Total:
        """What was spent on all studies of a population."""
        budget = self._budget(population)
        spent = [self.spending(study) for study in self._studies_of(population)]
        loss = sum((spending.loss(budget) for spending in spent), NOTHING)
        return Total(budget, sum(spending.rounds for spending in spent), loss)

    def reserved(self, population: str = MAIN) -> Total:
        """What open studies of a population may cost in all, and what its closed ones did cost."""
        budget, rounds = self._budget(population), 0
        for approval in map(self.approval, self._studies_of(population)):
            if not approval.closed and not budget.covers(approval.study.minibatch.scheme):
                raise InvalidConfig(
                    f"the Gaussian accountant of your policy does not cover the open study "
                    f"{approval.study.short_id}, which draws batches; "
                    'keep accountant = "renyi" in your policy, or close it'
                )
            spent = self.spending(approval.study.identity)
            rounds += spent.rounds if approval.closed else approval.study.rounds
        return Total(budget, rounds, self._reserved(population))

    def sweep(self) -> None:
        """Delete stored reports that no charge names: a crash may have left one, never sent.

        Only for the one process that answers rounds, before it does.
        """
        kept = {row[0] for row in self.database.execute("SELECT file FROM answers")}
        self._delete([path.name for path in self._reports.iterdir() if path.name not in kept])

    def close(self) -> None:
        self.database.close()

    # Helpers ------------------------------------------------------------------------------------

    def _open(self, path: Path) -> None:
        path.touch(mode=0o600)
        self.database = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=FULL")
        (version,) = self.database.execute("PRAGMA user_version").fetchone()
        (tables,) = self.database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if tables and version != _VERSION:
            raise LedgerBroken(f"{path} was made by another release (format {version})")
        with self._transaction():
            for statement in _SCHEMA.split(";"):
                self.database.execute(statement)
            self.database.execute(f"PRAGMA user_version = {_VERSION}")

    def _check(self, approval: Approval, round_number: int) -> tuple[int, PrivacyEvent]:
        """The phase and event of a round that may be answered now; otherwise raises."""
        study = approval.study
        if not self._is_open(study.identity):
            raise RefusedQuery("this study is closed here, or was never approved")
        if not 1 <= round_number <= study.rounds:
            raise RefusedQuery(f"round {round_number} is not one of the study's {study.rounds}")
        (last,) = self.database.execute(
            "SELECT MAX(round) FROM answers WHERE study = ?", (study.identity,)
        ).fetchone()
        if last is not None and round_number <= last:
            raise RefusedQuery(f"round {round_number} comes after round {last} was answered")
        phase, event = approval.event(round_number)
        spent = self.spending(study.identity).with_round(phase, event)
        if sum(count for _, count in spent.phases[phase]) > approval.mechanism.phases[phase].rounds:
            raise BudgetExhausted(f"round {round_number} is one more than its phase has")
        budget = self._budget(approval.population)
        if not budget.holds(self._spent_on_others(approval) + spent.loss(budget)):
            raise BudgetExhausted(
                f"round {round_number} would exceed your policy's {_named(budget)}"
            )
        return phase, event

    def _record(
        self,
        study: StudyId,
        round_number: int,
        phase: int,
        event: PrivacyEvent,
        digest: RoundDigest,
        now: datetime,
    ) -> chain.Entry:
        """Write the charge into the chain and into the sums that are read every round."""
        line = event_line(event)
        entry = chain.append(
            self.database,
            {
                "kind": "charge",
                "at": now.isoformat(),
                "study": study.hex(),
                "round": round_number,
                "phase": phase,
                "event": line,
                "query": digest.hex(),
            },
        )
        self.database.execute(
            "INSERT INTO tallies VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
            (study, phase, json.dumps(line, sort_keys=True)),
        )
        return entry

    def _budget(self, population: str) -> Budget:
        budget = self._policy.budgets.get(population)
        if budget is None:
            raise NotApproved(f"your policy names no population {population!r}")
        return budget

    def _studies_of(self, population: str) -> list[StudyId]:
        rows = self.database.execute(
            "SELECT study FROM studies WHERE population = ? ORDER BY approved", (population,)
        )
        return [StudyId(row[0]) for row in rows]

    def _is_open(self, study: StudyId) -> bool:
        row = self.database.execute(
            "SELECT 1 FROM studies WHERE study = ? AND closed IS NULL", (study,)
        ).fetchone()
        return row is not None

    def _reserved(self, population: str) -> Loss:
        """What open studies may still cost in all, and what closed ones did cost."""
        budget = self._budget(population)
        losses = (
            self.approval(study).planned(budget)
            if self._is_open(study)
            else self.spending(study).loss(budget)
            for study in self._studies_of(population)
        )
        return sum(losses, NOTHING)

    def _spent_on_others(self, approval: Approval) -> Loss:
        budget = self._budget(approval.population)
        losses = (
            self.spending(study).loss(budget)
            for study in self._studies_of(approval.population)
            if study != approval.study.identity
        )
        return sum(losses, NOTHING)

    def _study_row(self, identity: StudyId) -> tuple[bytes, bytes, str, int | None] | None:
        row: tuple[bytes, bytes, str, int | None] | None = self.database.execute(
            "SELECT content, partition, line, closed FROM studies JOIN entries ON approved = number"
            " WHERE study = ?",
            (identity,),
        ).fetchone()
        if row is not None and sha256(row[0]).digest() != identity:
            raise LedgerBroken("the ledger's copy of this study was changed")
        return row

    def _forget_reports(self, study: StudyId) -> list[str]:
        """Drop the bytes of earlier rounds (their charges stay); names of files to delete."""
        where = "WHERE study = ? AND (onion IS NOT NULL OR file IS NOT NULL)"
        rows = self.database.execute(f"SELECT file FROM answers {where}", (study,))  # noqa: S608
        files = [row[0] for row in rows if row[0]]
        self.database.execute(
            f"UPDATE answers SET onion = NULL, file = NULL {where}",  # noqa: S608
            (study,),
        )
        return files

    def _delete(self, files: list[str]) -> None:
        for name in files:
            (self._reports / name).unlink(missing_ok=True)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.database.in_transaction:  # SQLite rolls back by itself when the disk is full
                self.database.execute("ROLLBACK")
            raise
        self.database.execute("COMMIT")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else is in here meanwhile; the lock goes with the process, whatever happens."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@lru_cache(maxsize=64)
def _parsed(content: bytes) -> Study:
    return Study.parse(content)


def _named(budget: Budget) -> str:
    return f"epsilon={budget.target.epsilon:g} at delta={budget.target.delta:g}"
