"""The check of a ledger from its first entry on: is it whole, and does all else follow from it?

Checks the hash chain; that every approval's plan is what its study file asks for; that every
charge is of an approved, open study, for a later round than the one before, and costs what that
plan says; that rounds without a charge are those in which the silo had to abstain; and that the
sums and stored answers which the silo reads every round are those of the chain.  Nothing is taken
from the code that wrote it but the formats.

A silo may be answering meanwhile: everything that is compared is of one moment of the database.
"""

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from google.protobuf.message import DecodeError
from silomix_core.mechanism.attendance import Attendance
from silomix_core.study.study import StudyId
from silomix_proto import round_pb2
from silomix_protocol.host.durable import one_moment
from silomix_protocol.rounds.descriptor import RefusedDescriptor, check

from silomix_client.data.snapshot import FOLDER as SNAPSHOTS
from silomix_client.data.snapshot import unchanged
from silomix_client.errors import LedgerBroken, NotApproved
from silomix_client.ledger import hash_chain
from silomix_client.ledger.entries import (
    Approval,
    event_line,
    event_of,
    is_plan_of,
    planned_run,
    whole_plan,
)
from silomix_client.ledger.hash_chain import ChainEntry
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.ledger_tables import TABLES


@dataclass(frozen=True, slots=True)
class Verified:
    """A ledger that is whole: how many entries it has, and the hash of the last (b"" if none).

    `earlier` is the number of the entry whose hash was noted before, if one was given.
    """

    entries: int
    head: bytes
    earlier: int | None = None


@dataclass(slots=True)
class _Story:
    """What the chain has told so far."""

    plans: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    attendances: dict[str, Attendance] = field(default_factory=dict)  # of open studies
    populations: dict[str, str] = field(default_factory=dict)
    approved: dict[str, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    sums: dict[tuple[str, int, str], tuple[int, int]] = field(
        default_factory=dict
    )  # events, rounds
    answers: dict[tuple[str, int], tuple[str, str, int]] = field(default_factory=dict)


def verify(ledger: Ledger, earlier_head: str | None = None) -> Verified:
    """Check everything that was ever written; LedgerBroken says what does not fit.

    `earlier_head` is (the beginning of) a head that the operator noted before: it must still be
    part of the chain, or the ledger was rolled back.
    """
    story, entries, head, earlier = _Story(), 0, b"", None
    with one_moment(ledger.database):
        for entry in hash_chain.checked(ledger.database):
            _read(entry, story, ledger)
            entries, head = entry.number, entry.hash
            if earlier_head is not None and entry.hash.hex().startswith(earlier_head.lower()):
                earlier = entry.number
        _check_tables(ledger, story)
        _check_schema(ledger)
    if earlier_head is not None and earlier is None:
        raise LedgerBroken(
            f"no entry has the hash {earlier_head}: the ledger was rolled back or replaced"
        )
    return Verified(entries, head, earlier)


def check_snapshots(ledger: Ledger) -> None:
    """Check that every open study's frozen data is there and unchanged; LedgerBroken if not."""
    for approval in ledger.approvals():
        if not approval.closed and (problem := snapshot_problem(ledger, approval)):
            raise LedgerBroken(problem)


def snapshot_problem(ledger: Ledger, approval: Approval) -> str | None:
    """What is wrong with the frozen data of a study, unless it was revoked meanwhile.

    Not to be called within one moment of the database: a revocation closes the study there
    before it deletes the file, so who misses the file has to look at the study again.
    """
    identity = approval.study.identity
    try:
        unchanged(identity, approval.snapshot, ledger.state / SNAPSHOTS)
    except NotApproved as error:
        return None if ledger.approval(identity).closed else str(error)
    return None


def _read(entry: ChainEntry, story: _Story, ledger: Ledger) -> None:
    body = entry.body
    try:
        if body["kind"] == "approval":
            _read_approval(entry, story, ledger)
        elif body["kind"] in ("charge", "abstention"):
            _read_answer(entry, story)
        elif body["kind"] == "close":
            story.closed[body["study"]] = entry.number
        elif body["kind"] == hash_chain.FORFEIT:
            _read_forfeit(entry, story)
        elif body["kind"] == hash_chain.PUT_BACK:
            _check_put_back(body)
        else:
            raise LedgerBroken(f"of unknown kind {body['kind']!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerBroken(f"entry {entry.number} of the ledger cannot be read") from error
    except LedgerBroken as error:
        raise LedgerBroken(f"entry {entry.number} of the ledger: {error}") from error


def _read_approval(entry: ChainEntry, story: _Story, ledger: Ledger) -> None:
    body = entry.body
    approval = ledger.approval(StudyId(bytes.fromhex(body["study"])))
    if body["study"] in story.plans:
        raise LedgerBroken("the study was approved twice")
    if approval.partition and sha256(approval.partition).hexdigest() != body["partition"]:
        raise LedgerBroken("the study's split into phases was changed")
    if not approval.closed and not is_plan_of(body["plan"], approval):
        raise LedgerBroken("the recorded plan is not what the study asks for")
    if not approval.closed and approval.partition:
        story.attendances[body["study"]] = approval.attendance
    story.plans[body["study"]] = body["plan"]
    story.populations[body["study"]] = body["population"]
    story.approved[body["study"]] = entry.number


def _read_answer(entry: ChainEntry, story: _Story) -> None:
    body = entry.body
    study, number, phase = body["study"], body["round"], body["phase"]
    if study not in story.plans or study in story.closed:
        raise LedgerBroken("a charge for a study that is not approved, or closed")
    if number <= story.last.get(study, 0):
        raise LedgerBroken(f"round {number} is charged after round {story.last[study]}")
    planned = planned_run(story.plans[study], phase)
    if (event_of(body["event"]), body["times"]) != (planned.event, planned.steps):
        raise LedgerBroken("the charge is not the event that was agreed to")
    takes_part = body["kind"] == "charge"
    attendance = story.attendances.get(study)
    if attendance is not None and not attendance.has(number, phase):
        raise LedgerBroken(f"round {number} is charged to a phase that it does not belong to")
    if attendance is not None and attendance.takes_part(number) != takes_part:
        raise LedgerBroken("the silo took part in another round than its check-in says")
    line = json.dumps(body["event"], sort_keys=True)
    events, rounds = story.sums.get((study, phase, line), (0, 0))
    events, rounds = events + planned.steps * takes_part, rounds + takes_part
    story.sums[study, phase, line] = events, rounds
    if rounds > planned.rounds:
        raise LedgerBroken("more rounds than the phase has")
    story.last[study] = number
    story.answers[study, number] = (body["digest"], body["query"], entry.number)


def _read_forfeit(entry: ChainEntry, story: _Story) -> None:
    """Read an entry by which a study counts as spent as a whole: the ledger was put back."""
    study = entry.body["study"]
    if study not in story.plans or study in story.closed:
        raise LedgerBroken("a study is given up that is not approved, or closed")
    story.closed[study] = entry.number
    for phase, event, events, rounds in whole_plan(story.plans[study]):
        line = json.dumps(event_line(event), sort_keys=True)
        story.sums[study, phase, line] = events, rounds


def _check_put_back(body: dict[str, Any]) -> None:
    if not isinstance(body["complete"], bool):
        raise LedgerBroken("it does not say whether the ledger is complete")
    if not isinstance(body.get("above_ms", 0), int):
        raise LedgerBroken("it does not say what the ledger stands above")


def _check_schema(ledger: Ledger) -> None:
    """Refuse anything but the ledger's tables: a trigger could undo what the silo writes."""
    rows = ledger.database.execute("SELECT type, name FROM sqlite_master")
    if {tuple(row) for row in rows} != {("table", name) for name in TABLES}:
        raise LedgerBroken("the database holds more, or less, than the ledger's tables")


def _check_tables(ledger: Ledger, story: _Story) -> None:
    rows = ledger.database.execute("SELECT study, phase, event, count, rounds FROM tallies")
    found = {(study.hex(), phase, event): tuple(sums) for study, phase, event, *sums in rows}
    if found != story.sums:
        raise LedgerBroken("the ledger's sums do not follow from its entries")
    rows = ledger.database.execute("SELECT study, round, digest, query, entry FROM answers")
    if {
        (study.hex(), number): (digest.hex(), query.hex(), entry)
        for study, number, digest, query, entry in rows
    } != story.answers:
        raise LedgerBroken("the stored answers are not those that were charged")
    _check_reports(ledger, story)
    rows = ledger.database.execute("SELECT study, population, approved, closed FROM studies")
    if {row[0].hex(): row[1:] for row in rows} != {
        study: (population, story.approved[study], story.closed.get(study))
        for study, population in story.populations.items()
    }:
        raise LedgerBroken("the list of studies does not follow from its entries")


def _check_reports(ledger: Ledger, story: _Story) -> None:
    """Check that a stored report is of its study's last charged round and of its charged query.

    Its attempt may be a later one than that of the charge.
    """
    rows = ledger.database.execute("SELECT study, round, digest, descriptor FROM reports")
    for identity, number, digest, signed in rows.fetchall():
        study = identity.hex()
        try:
            described = round_pb2.SignedDescriptor.FromString(signed)
            descriptor = check(described, ledger.approval(StudyId(identity)).study)
        except (DecodeError, RefusedDescriptor, NotApproved) as error:
            raise LedgerBroken(f"the stored report of study {study[:12]}: {error}") from error
        _, query, _ = story.answers.get((study, number), ("", "", 0))
        fits = descriptor.round == number == story.last.get(study)
        if not fits or descriptor.query.hex() != query or descriptor.digest != digest:
            raise LedgerBroken(f"the stored report of study {study[:12]} was never charged")
