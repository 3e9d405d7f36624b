"""Silos that die or race: what a child process does, and what must be true afterwards."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import FrameType

from silomix_client.config.silo_config import MAIN, SiloConfig, load
from silomix_client.errors import SiloError
from silomix_client.ledger import reports as reports_module
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.verify_ledger import verify
from silomix_client.rounds.round_request import RoundRequest
from silomix_core.accounting.events import PrivacyTarget
from silomix_lab.consortium.create import Consortium

from support.silos import abandonments, asked, consortium_of, open_desk, open_ledger

# Children that die or race -----------------------------------------------------------------------


def answer_and_die(silo_toml: str, moment: str) -> None:
    """Answer round 1 and kill this very process with SIGKILL at `moment`."""
    config = load(Path(silo_toml))
    made = consortium_of(config)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    fatal = {"before the row is written": "INSERT INTO entries", "before the commit": "COMMIT"}
    charging: list[str] = []

    def watch(statement: str) -> None:
        if statement.startswith("INSERT INTO entries"):
            charging.append(statement)
        if charging and moment in fatal and statement.startswith(fatal[moment]):
            os.kill(os.getpid(), signal.SIGKILL)

    ledger.database.set_trace_callback(watch)
    if moment == "before the charge":
        account = ledger.account(made.study)
        setattr(account, "charge", lambda *_: os.kill(os.getpid(), signal.SIGKILL))  # noqa: B010
    report = desk.answer(asked(made, 1))
    (config.folder / "sent").write_bytes(report.onion)
    if moment == "after the charge":
        os.kill(os.getpid(), signal.SIGKILL)


def answer_all_rounds(silo_toml: str, epsilon: float) -> None:
    """Try every round of every approved study, in turn, under a lifetime ε.

    Prints which were answered, as "study round", with the SHA-256 of each report.
    """
    config = load(Path(silo_toml))
    made = consortium_of(config)
    lifetime = PrivacyTarget(epsilon, config.policy.budgets[MAIN].target.delta)
    ledger = open_ledger(config, lifetime)
    studies = [approval.study for approval in ledger.approvals()]
    desks = [open_desk(config, study, ledger) for study in studies]
    sent: dict[str, str] = {}
    for round_number in range(1, made.study.rounds + 1):
        for study, desk in zip(studies, desks, strict=True):
            question = asked(replace(made, study=study), round_number)
            try:
                report = desk.answer(question)
            except SiloError:
                continue
            sent[f"{study.short_id} {round_number}"] = sha256(report.onion).hexdigest()
    ledger.close()
    print(json.dumps(sent))


# Killed at every line ----------------------------------------------------------------------------

_WATCHED = (
    "silomix_client/rounds/answer.py",
    "silomix_client/ledger/ledger.py",
    "silomix_client/ledger/reports.py",
    "silomix_client/ledger/token_store.py",
    "silomix_client/ledger/hash_chain.py",
    "silomix_client/ledger/control_variates.py",
    "silomix_protocol/host/durable.py",
)


def question_of(made: Consortium, attempt: int) -> RoundRequest:
    """Round 1, or a later attempt of it after every mix abandoned the one before."""
    if attempt == 1:
        return asked(made, 1)
    earlier = asked(made, 1, attempt=attempt - 1).descriptor.digest
    return asked(made, 1, attempt=attempt, abandoned=abandonments(made, earlier))


def answer_killed_at(silo_toml: str, attempt: int, line: int, largest_row: int) -> bool:
    """Answer round 1 in a child that gets SIGKILL before its `line`-th line; whether it did."""
    child = os.fork()
    if child == 0:
        try:
            _answer_until(silo_toml, attempt, line, largest_row)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _answer_until(silo_toml: str, attempt: int, line: int, largest_row: int) -> None:
    config = load(Path(silo_toml))
    made = consortium_of(config)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    question = question_of(made, attempt)
    reports_module._LARGEST_ROW = largest_row
    with die_at_line(line):
        report = desk.answer(question)
    (config.folder / "sent").write_bytes(report.onion)
    os.kill(os.getpid(), signal.SIGKILL)  # sent, but nobody has heard of it


@contextmanager
def die_at_line(line: int) -> Iterator[None]:
    """SIGKILL before the `line`-th line of our own code in here."""
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., object] | None:
        nonlocal left
        if not frame.f_code.co_filename.endswith(_WATCHED):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    yield
    sys.settrace(None)


def kill_at_every_line(folder: str, attempt: int, largest_row: int) -> None:
    """Kill a silo before each line between the query and the report; print what was found.

    After each death the ledger must be whole; a report that was sent must be charged, and a round
    that is asked again must be charged once and answered with the bytes that were stored.  At a
    later attempt the stored report is the earlier one or the later one, with the same payload.
    """
    reports_module._LARGEST_ROW = largest_row
    earlier = _answered_before(folder) if attempt > 1 else None
    lines = stored_lines = 0
    while True:
        lines += 1
        scratch = Path(folder).with_name(f"killed-{lines}")
        shutil.copytree(folder, scratch)
        silo_toml = scratch / "silo-1" / "silo.toml"
        assert answer_killed_at(str(silo_toml), attempt, lines, largest_row)
        stored_lines += _judged(load(silo_toml), attempt, earlier)
        finished = (scratch / "silo-1" / "sent").exists()
        shutil.rmtree(scratch)
        if finished:
            print(json.dumps({"lines": lines, "stored": stored_lines}))
            return
        assert lines < 1000


def _answered_before(folder: str) -> StoredReport:
    config = load(Path(folder) / "silo-1" / "silo.toml")
    made = consortium_of(config)
    ledger = open_ledger(config)
    try:
        return open_desk(config, made.study, ledger).answer(question_of(made, 1))
    finally:
        ledger.close()


def _judged(config: SiloConfig, attempt: int, earlier: StoredReport | None) -> bool:
    """Whether the killed silo had stored the report; and all is as it must be."""
    made, sent = consortium_of(config), config.folder / "sent"
    ledger = open_ledger(config)
    verify(ledger)
    question = question_of(made, attempt)
    found = ledger.account(made.study).last_report()
    stored = found is not None and found.descriptor.digest == question.descriptor.digest
    assert stored or found == earlier
    assert ledger.total().rounds == (1 if stored or earlier else 0)
    assert stored or not sent.exists(), "sent without being stored"
    again = open_desk(config, made.study, ledger).answer(question)
    assert not stored or again == found, "other bytes for a stored report"
    assert earlier is None or again.payload == earlier.payload, "fresh noise for a charged round"
    assert not sent.exists() or sent.read_bytes() == again.onion
    assert ledger.total().rounds == 1
    assert verify(ledger).entries == 2
    ledger.sweep()
    files = list((config.state / "reports").iterdir())
    assert len(files) == (0 if 2 * len(again.onion) < reports_module._LARGEST_ROW else 1)
    ledger.close()
    return stored
