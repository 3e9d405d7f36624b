"""The audit log and the ledger: each shows what is missing in the other."""

import errno
import json
import shutil
import threading
from pathlib import Path

import pytest
from silomix_client.approval import approve as approving
from silomix_client.approval.approve import approve, review, revoke
from silomix_client.audit_log.log import FILE, AuditLog
from silomix_client.audit_log.verify_log import (
    LogEnd,
    check_chain,
    end_of_log,
    lines,
    note_unlogged,
)
from silomix_client.config.silo_config import load
from silomix_client.errors import AuditLogBroken, BudgetExhausted, NotApproved, SiloBusy
from silomix_client.ledger import database
from silomix_client.process import run as run_silo
from silomix_lab.consortium.create import Consortium
from silomix_protocol.host import logs
from support.audit_logs import answered, checked, events, rehashed, texts
from support.silos import NOW, approved_silo, asked, open_desk, open_ledger, study_file


def test_every_act_and_refusal_has_its_line(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    answered(consortium, config, 1, 2)
    second = review(config, study_file(consortium).replace(b'"test"', b'"second"'))
    with pytest.raises(BudgetExhausted):
        approve(config, second, NOW)
    revoke(config, consortium.study, NOW)
    assert checked(config) == []
    found = list(lines(config.state))
    assert [line.event for line in found] == [
        *["study_approved", "round_charged", "round_charged", "approval_refused", "study_revoked"]
    ]
    given, first, _, refused, taken = found
    identity = consortium.study.identity.hex()
    assert given.fields["study"] == taken.fields["study"] == identity
    assert (given.fields["people"], given.fields["entry"]) == (40, 1)
    assert first.fields["study"] == identity[:12]
    assert (first.fields["round"], first.fields["entry"], taken.fields["entry"]) == (1, 2, 4)
    assert refused.level == "warning"
    assert "beyond your policy's epsilon=2" in refused.fields["reason"]


def test_an_end_that_was_cut_off_is_found_by_the_ledger(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    answered(consortium, config, 1, 2, 3)
    (config.state / FILE).write_bytes(b"".join(texts(config.state)[:2]))
    with pytest.raises(AuditLogBroken, match=r"entry 3 of the ledger has no line \(2 in all\)"):
        checked(config)


def test_a_line_that_was_taken_out_with_all_hashes_made_anew_is_found_by_the_ledger(
    consortium: Consortium,
) -> None:
    config = approved_silo(consortium)
    answered(consortium, config, 1, 2, 3)
    found = texts(config.state)
    (config.state / FILE).write_bytes(b"".join(rehashed([*found[:2], found[3]])))
    with pytest.raises(AuditLogBroken, match=r"entry 3 of the ledger has no line \(1 in all\)"):
        checked(config)


def test_a_ledger_that_was_rolled_back_is_found_by_the_log(consortium: Consortium) -> None:
    """Budget that was spent would be free again: the ledger alone looks whole."""
    config = approved_silo(consortium)
    answered(consortium, config, 1)
    state, copy = config.state, config.folder / "older"
    shutil.copytree(state, copy)
    answered(consortium, config, 2)
    log = (state / FILE).read_bytes()
    shutil.rmtree(state)
    shutil.copytree(copy, state)
    assert checked(config) == []  # both together: only a hash that was noted elsewhere tells
    (state / FILE).write_bytes(log)
    with pytest.raises(AuditLogBroken, match=r"line 3 names entry 3 of the ledger as .* has none"):
        checked(config)
    with pytest.raises(AuditLogBroken, match="the ledger was rolled back or replaced"):
        run_silo(config)  # else it would answer the same round with other noise
    answered(consortium, config, 3)  # another entry 3
    with pytest.raises(AuditLogBroken, match="line 3 names entry 3 of the ledger"):
        checked(config)


def test_a_silo_that_died_before_it_wrote_a_line_writes_at_its_next_start_that_it_is_missing(
    consortium: Consortium,
) -> None:
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    open_desk(config, consortium.study, ledger).answer(asked(consortium, 1))  # and no line
    log = AuditLog(config.state, config.name)
    note_unlogged(ledger, log, check_chain(config.state))
    note_unlogged(ledger, log, check_chain(config.state))  # once is enough
    log.close()
    ledger.close()
    assert events(config.state) == ["study_approved", "ledger_entries_unlogged"]
    (note,) = checked(config)
    assert note.startswith("line 2: entries of the ledger had no line")


def test_a_look_between_a_charge_and_its_line_waits_for_the_line(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the silo takes: it writes only when somebody is seen waiting for it."""
    config = approved_silo(consortium)
    charged, waiting = threading.Event(), threading.Event()

    def hear(name: str, _fields: dict[str, object], *, warning: bool) -> None:
        assert not warning
        if name == "round_charged":
            charged.set()
            assert waiting.wait(30), "nobody waited"

    def answer() -> None:
        with logs.heard_by(hear):
            answered(consortium, config, 1)

    answering = threading.Thread(target=answer)
    answering.start()
    assert charged.wait(30)
    monkeypatch.setattr(database.time, "sleep", lambda _s: waiting.set())
    try:
        assert checked(config) == []
    finally:
        waiting.set()
        answering.join()


def test_a_silo_that_is_stuck_between_a_charge_and_its_line_is_no_alarm(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = approved_silo(consortium)
    monkeypatch.setattr(database, "_WAIT_S", 0.01)
    with database.telling(config.state), pytest.raises(SiloBusy, match="in the middle of writing"):
        checked(config)


def test_an_end_that_is_being_written_is_not_looked_at(log: AuditLog, tmp_path: Path) -> None:
    """A line that is cut off may be repaired while somebody reads what is before it."""
    for number in range(3):
        log.append("something", number=number)
    end, half = end_of_log(tmp_path), texts(tmp_path)[0][:40]
    with (tmp_path / FILE).open("ab") as file:
        file.write(half)
    assert end_of_log(tmp_path) == LogEnd(end.whole, len(half))
    assert check_chain(tmp_path, end=end).lines == 3
    assert check_chain(tmp_path).torn == len(half)


def test_a_silo_whose_log_was_changed_does_not_start_and_says_so_there(
    consortium: Consortium,
) -> None:
    config = approved_silo(consortium)
    answered(consortium, config, 1)
    path = config.state / FILE
    path.write_bytes(path.read_bytes().replace(b'"people":40', b'"people":41'))
    with pytest.raises(AuditLogBroken, match="line 1 was changed"):
        run_silo(config)
    last = json.loads(texts(config.state)[-1])
    assert last["event"] == "silo_failed"
    assert last["fields"]["reason"].endswith("line 1 was changed")


def test_nothing_is_approved_on_a_ledger_that_was_rolled_back(consortium: Consortium) -> None:
    config = load(consortium.silos[0])
    older = config.folder / "older.sqlite"
    open_ledger(config).close()
    shutil.copy(config.state / "ledger.sqlite", older)
    approved_silo(consortium)
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        (config.state / name).unlink(missing_ok=True)
    shutil.copy(older, config.state / "ledger.sqlite")
    with pytest.raises(AuditLogBroken, match="the ledger was rolled back or replaced"):
        approved_silo(consortium)
    assert open_ledger(config).approvals() == []


def test_data_that_a_revocation_left_frozen_is_deleted_at_the_next_start(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = approved_silo(consortium)
    with monkeypatch.context() as patch:
        patch.setattr(approving, "forget", lambda *_: None)  # killed before
        revoke(config, consortium.study, NOW)
    (frozen,) = (config.state / "snapshots").iterdir()
    with pytest.raises(NotApproved, match="no study is approved"):
        run_silo(config)
    assert not frozen.exists()


def test_a_revocation_that_cannot_be_logged_has_deleted_the_frozen_data(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = approved_silo(consortium)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(AuditLog, "append", full)
    with pytest.raises(OSError, match="no space"):
        revoke(config, consortium.study, NOW)
    assert list((config.state / "snapshots").iterdir()) == []


def test_a_log_that_was_moved_away_begins_anew_with_what_the_ledger_knows(
    consortium: Consortium,
) -> None:
    config = approved_silo(consortium)
    answered(consortium, config, 1, 2)
    (config.state / FILE).rename(config.folder / "old.jsonl")
    revoke(config, consortium.study, NOW)
    with pytest.raises(NotApproved, match="no study is approved"):
        run_silo(config)
    (first, *_) = (line for line in lines(config.state) if line.event == "ledger_entries_unlogged")
    assert (first.fields["first_entry"], first.fields["entry"]) == (1, 3)
    assert len(checked(config)) == 1
