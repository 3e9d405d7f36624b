"""The ledger: what a silo's operator approved, and every round's privacy loss, on disk first.

One SQLite file.  A round is charged, and its sealed report stored, in one durable transaction
before the first byte leaves: a crash may waste budget, never overspend it, and a round that was
answered is answered again with the same bytes only.

The filter (design: "Ledger"): answer iff the events so far and this one stay inside the operator's
lifetime (ε, δ) and inside the study's own.  Entries record what was done (μ², number of samples);
ε is computed from them, never stored.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from silomix_core.mechanism import PrivacyEvent, PrivacyTarget, epsilon_of, within
from silomix_core.study import Study, StudyId
from silomix_protocol.descriptor import RoundDigest

from silomix_client.errors import BudgetExhausted, NotApproved, RefusedQuery
from silomix_client.snapshot import write_durably

_SCHEMA = """
CREATE TABLE IF NOT EXISTS studies (
    study BLOB PRIMARY KEY, content BLOB NOT NULL, snapshot BLOB NOT NULL,
    records INTEGER NOT NULL, reserved_mu_squared REAL NOT NULL, reserved_samples INTEGER NOT NULL,
    approved_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS charges (
    study BLOB NOT NULL REFERENCES studies, round INTEGER NOT NULL, digest BLOB NOT NULL,
    mu_squared REAL NOT NULL, samples INTEGER NOT NULL,
    sealed BLOB NOT NULL, onion BLOB, file TEXT, charged_at TEXT NOT NULL,
    PRIMARY KEY (study, round)
) WITHOUT ROWID;
"""
_LARGEST_ROW = 64 * 1024  # larger onions live in files beside the database


@dataclass(frozen=True, slots=True)
class Approval:
    """A study that this silo may answer, with the snapshot that it was approved on."""

    study: Study
    snapshot: bytes
    records: int


@dataclass(frozen=True, slots=True)
class Spending:
    """What the ledger says was spent: the events, and their ε at a δ."""

    rounds: int
    mu_squared: float
    samples: int

    def epsilon(self, delta: float) -> float:
        return epsilon_of(self.mu_squared, self.samples, delta)


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A sealed report as it was (or will be) sent, and the SHA-256 of its innermost layer."""

    onion: bytes
    sealed: bytes


class Ledger:
    """The one writer of a silo's privacy record."""

    def __init__(self, state: Path, lifetime: PrivacyTarget) -> None:
        self._lifetime = lifetime
        self._reports = state / "reports"
        self._reports.mkdir(mode=0o700, exist_ok=True)
        path = state / "ledger.sqlite"
        path.touch(mode=0o600)
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.executescript(_SCHEMA)

    # Approvals ----------------------------------------------------------------------------------

    def approve(
        self, study: Study, content: bytes, snapshot: bytes, records: int, now: datetime
    ) -> None:
        """Reserve the whole study's loss and remember the approval; refused beyond the policy."""
        with self._transaction():
            reserved = self.reservation(study, records)
            self._database.execute(
                "INSERT INTO studies VALUES (?, ?, ?, ?, ?, ?, ?)",
                (study.identity, content, snapshot, records, *reserved, now.isoformat()),
            )

    def reservation(self, study: Study, records: int) -> tuple[float, int]:
        """μ² and samples of the whole study, if it is new and the policy has room for it."""
        if self._approval_row(study.identity) is not None:
            raise NotApproved("this study is already approved")
        event = study.mechanism().event(records)
        reserved = study.rounds * event.mu_squared, study.rounds * event.samples
        mu_squared, samples = self._database.execute(
            "SELECT TOTAL(reserved_mu_squared), SUM(reserved_samples) FROM studies"
        ).fetchone()
        if not within(mu_squared + reserved[0], (samples or 0) + reserved[1], self._lifetime):
            raise BudgetExhausted(
                f"this study would take the total beyond your policy's epsilon="
                f"{self._lifetime.epsilon:g} at delta={self._lifetime.delta:g}"
            )
        return reserved

    def approval(self, identity: StudyId) -> Approval:
        row = self._approval_row(identity)
        if row is None:
            raise NotApproved(f"study {identity.hex()[:12]} was not approved here")
        content, snapshot, records = row
        return Approval(Study.parse(content), snapshot, records)

    def approvals(self) -> list[Approval]:
        rows = self._database.execute("SELECT study FROM studies ORDER BY approved_at").fetchall()
        return [self.approval(StudyId(row[0])) for row in rows]

    # Rounds -------------------------------------------------------------------------------------

    def stored(self, study: Study, round_number: int, digest: RoundDigest) -> StoredReport | None:
        """The report of a round that was already answered; refused if it is another question."""
        row = self._database.execute(
            "SELECT digest, sealed, onion, file FROM charges WHERE study = ? AND round = ?",
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

    def charge(
        self,
        study: Study,
        round_number: int,
        digest: RoundDigest,
        event: PrivacyEvent,
        report: StoredReport,
        now: datetime,
    ) -> None:
        """Charge a round and store its report durably; nothing may be sent before this returns."""
        file = sha256(report.onion).hexdigest() if len(report.onion) > _LARGEST_ROW else None
        if file is not None:
            write_durably(self._reports / file, report.onion)
        try:
            outdated = self._charge(study, round_number, digest, event, report, file, now)
        except BaseException:
            if file is not None:
                (self._reports / file).unlink(missing_ok=True)
            raise
        for name in outdated:
            (self._reports / name).unlink(missing_ok=True)

    def _charge(
        self,
        study: Study,
        round_number: int,
        digest: RoundDigest,
        event: PrivacyEvent,
        report: StoredReport,
        file: str | None,
        now: datetime,
    ) -> list[str]:
        """The transaction of a charge; names of files that it made superfluous."""
        with self._transaction():
            self._check(study, round_number, event)
            outdated = self._forget_reports(study)
            self._database.execute(
                "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    study.identity,
                    round_number,
                    digest,
                    event.mu_squared,
                    event.samples,
                    report.sealed,
                    None if file else report.onion,
                    file,
                    now.isoformat(),
                ),
            )
        return outdated

    def check(self, study: Study, round_number: int, event: PrivacyEvent) -> None:
        """Raise unless this round may be answered now; `charge` decides again, under its lock."""
        self._check(study, round_number, event)

    def spending(self, study: StudyId | None = None) -> Spending:
        """What was spent on one study, or on all."""
        where, values = ("WHERE study = ?", (study,)) if study else ("", ())
        rounds, mu_squared, samples = self._database.execute(
            f"SELECT COUNT(*), TOTAL(mu_squared), SUM(samples) FROM charges {where}",  # noqa: S608
            values,
        ).fetchone()
        return Spending(rounds, mu_squared, samples or 0)

    def close(self) -> None:
        self._database.close()

    # Helpers ------------------------------------------------------------------------------------

    def _check(self, study: Study, round_number: int, event: PrivacyEvent) -> None:
        (last,) = self._database.execute(
            "SELECT MAX(round) FROM charges WHERE study = ?", (study.identity,)
        ).fetchone()
        if last is not None and round_number <= last:
            raise RefusedQuery(f"round {round_number} comes after round {last} was answered")
        budgets = ((study.target, study.identity, "study"), (self._lifetime, None, "policy"))
        for target, scope, name in budgets:
            spent = self.spending(scope)
            if not within(
                spent.mu_squared + event.mu_squared, spent.samples + event.samples, target
            ):
                raise BudgetExhausted(
                    f"round {round_number} would exceed the {name}'s epsilon={target.epsilon:g} "
                    f"at delta={target.delta:g}"
                )

    def _approval_row(self, identity: StudyId) -> tuple[bytes, bytes, int] | None:
        row: tuple[bytes, bytes, int] | None = self._database.execute(
            "SELECT content, snapshot, records FROM studies WHERE study = ?", (identity,)
        ).fetchone()
        if row is not None and sha256(row[0]).digest() != identity:
            raise NotApproved("the ledger's copy of this study was changed")
        return row

    def _forget_reports(self, study: Study) -> list[str]:
        """Drop the bytes of earlier rounds (their charges stay); names of files to delete."""
        where = "WHERE study = ? AND (onion IS NOT NULL OR file IS NOT NULL)"
        rows = self._database.execute(
            f"SELECT file FROM charges {where}",  # noqa: S608
            (study.identity,),
        ).fetchall()
        self._database.execute(
            f"UPDATE charges SET onion = NULL, file = NULL {where}",  # noqa: S608
            (study.identity,),
        )
        return [row[0] for row in rows if row[0]]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:  # SQLite rolls back by itself when the disk is full
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
