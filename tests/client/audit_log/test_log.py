"""The audit log: what is in it, and that nobody edits, cuts or reorders it unnoticed."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from silomix_client import process as silo_process
from silomix_client.approval import approve as approving
from silomix_client.approval.approve import approve, review, revoke
from silomix_client.audit_log.log import FILE, START, AuditLog, audit_log
from silomix_client.audit_log.verify_log import (
    LogEnd,
    check_chain,
    end_of_log,
    lines,
    note_unlogged,
    verify,
)
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.errors import (
    AuditLogBroken,
    BudgetExhausted,
    NotApproved,
    SiloBusy,
    SiloError,
)
from silomix_client.ledger import database
from silomix_client.network.syslog import Syslog, SyslogAddress
from silomix_client.process import run as run_silo
from silomix_lab.consortium.create import Consortium
from silomix_protocol.host import logs
from support.silos import NOW, approved_silo, asked, open_desk, open_ledger, study_file


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    opened = AuditLog(tmp_path, "silo-1")
    yield opened
    opened.close()


def texts(state: Path) -> list[bytes]:
    return (state / FILE).read_bytes().splitlines(keepends=True)


def events(state: Path) -> list[str]:
    return [line.event for line in lines(state)]


def rehashed(found: list[bytes], *, renumbered: bool = True) -> list[bytes]:
    """What an insider who knows the format makes of lines: a chain that is right again."""
    made, previous = [], START
    for number, text in enumerate(found, start=1):
        content = json.loads(text) | {"previous": previous}
        content["number"] = number if renumbered else content["number"]
        del content["hash"]
        body = json.dumps(content, separators=(",", ":"))
        previous = sha256(b"silomix audit line v1\0" + body.encode()).hexdigest()
        made.append(f'{body[:-1]},"hash":"{previous}"}}\n'.encode())
    return made


# The chain ---------------------------------------------------------------------------------------


def test_the_chain_can_be_checked_from_its_description_alone(tmp_path: Path, log: AuditLog) -> None:
    """As docs/approval.md tells an auditor to: nothing of ours but the file."""
    for number in range(3):
        log.append("something", round=number, text='é"\n\x1b[2J', nothing=None, share=0.1234567891)
    previous = "0" * 64
    for number, text in enumerate((tmp_path / FILE).read_text("ascii").splitlines(), start=1):
        line = json.loads(text)
        body, found = text[: -len(',"hash":"') - 66] + "}", text[-66:-2]
        assert sha256(b"silomix audit line v1\0" + body.encode()).hexdigest() == found
        assert (line["number"], line["previous"], line["hash"]) == (number, previous, found)
        assert line["fields"]["text"] == 'é"\n\x1b[2J'
        assert line["fields"]["share"] == 0.123457
        previous = found
    assert check_chain(tmp_path).head == previous
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def _change(found: list[bytes]) -> list[bytes]:
    return [found[0], found[1].replace(b"event-1", b"event-9"), *found[2:]]


def _change_and_hash(found: list[bytes]) -> list[bytes]:
    changed = rehashed([found[0], found[1].replace(b"event-1", b"event-9")])
    return [*changed, *found[2:]]


ATTACKS = {
    "change": _change,
    "change and hash anew": _change_and_hash,
    "remove": lambda found: [found[0], *found[2:]],
    "remove and hash anew": lambda found: rehashed([found[0], *found[2:]], renumbered=False),
    "remove the first": lambda found: found[1:],
    "swap": lambda found: [found[0], found[2], found[1], *found[3:]],
    "repeat": lambda found: [*found[:2], found[1], *found[2:]],
    "insert": lambda found: [*found[:2], *rehashed(found[:1]), *found[2:]],
    "an empty line": lambda found: [*found[:2], b"\n", *found[2:]],
    "no JSON": lambda found: [found[0], b"{}\n", *found[2:]],
    "not ASCII": lambda found: [found[0], "é\n".encode(), *found[2:]],
    "spaces": lambda found: [found[0], found[1].replace(b'":', b'": ', 1), *found[2:]],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_lines_cannot_be_edited_removed_or_moved(
    tmp_path: Path, log: AuditLog, attack: object
) -> None:
    for number in range(4):
        log.append(f"event-{number}")
    assert check_chain(tmp_path).lines == 4
    (tmp_path / FILE).write_bytes(b"".join(attack(texts(tmp_path))))  # type: ignore[operator]
    with pytest.raises(AuditLogBroken, match=r"line [12345] "):
        check_chain(tmp_path)


@pytest.mark.parametrize("how", ["cut off", "rewritten", "replaced by an older copy"])
def test_a_hash_that_was_noted_elsewhere_finds_a_log_that_is_right_in_itself(
    tmp_path: Path, log: AuditLog, how: str
) -> None:
    log.append("first")
    older = texts(tmp_path)
    noted = [log.append(name).hash for name in ("second", "third")][-1]
    assert verify(tmp_path, None, noted[:16]).earlier == 3
    forged = {
        "cut off": texts(tmp_path)[:2],
        "rewritten": rehashed([text.replace(b"second", b"nobody") for text in texts(tmp_path)]),
        "replaced by an older copy": older,
    }[how]
    (tmp_path / FILE).write_bytes(b"".join(forged))
    check_chain(tmp_path)  # by itself it is whole
    with pytest.raises(AuditLogBroken, match="rolled back or replaced"):
        verify(tmp_path, None, noted[:16])


# The log and the ledger --------------------------------------------------------------------------


def answered(made: Consortium, config: SiloConfig, *rounds: int) -> None:
    """Rounds as a running silo answers them: its log goes to the audit log."""
    log, ledger = AuditLog(config.state, config.name), open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    with logs.heard_by(log.hear):
        for number in rounds:
            desk.answer(asked(made, number))
    assert log.failure is None
    ledger.close()
    log.close()


def checked(config: SiloConfig, head: str | None = None) -> list[str]:
    ledger = open_ledger(config)
    try:
        return verify(config.state, ledger, head).notes
    finally:
        ledger.close()


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


# Crashes, other processes, full disks ------------------------------------------------------------


@pytest.mark.parametrize("torn", [b'{"number":3,"at":"20', b"\0" * 500])
def test_a_line_that_a_crash_cut_off_is_removed_and_told(tmp_path: Path, torn: bytes) -> None:
    first = AuditLog(tmp_path, "silo-1")
    first.append("before")
    first.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(torn)
    assert check_chain(tmp_path).torn == len(torn)  # no alarm: what is whole is right
    log = AuditLog(tmp_path, "silo-1")
    log.append("after")
    log.close()
    assert events(tmp_path) == ["before", "audit_line_torn", "after"]
    result = check_chain(tmp_path)
    assert (result.lines, result.torn) == (3, 0)
    assert result.notes == ["line 2: a line was cut off by a crash or a full disk"]


def test_a_changed_last_line_is_never_built_upon(tmp_path: Path, log: AuditLog) -> None:
    log.append("before")
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b"before", b"forged"))
    with pytest.raises(AuditLogBroken, match="its last line was changed; keep a copy"):
        AuditLog(tmp_path, "silo-1")


@pytest.mark.parametrize("how", ["cut", "emptied", "moved away", "replaced"])
def test_a_running_silo_writes_down_that_its_log_was_changed(
    tmp_path: Path, log: AuditLog, how: str
) -> None:
    for name in ("first", "second"):
        head = log.append(name).hash
    path = tmp_path / FILE
    if how == "moved away":
        path.rename(tmp_path / "old.jsonl")
    elif how == "replaced":
        path.rename(tmp_path / "old.jsonl")
        path.write_bytes(texts_of(tmp_path / "old.jsonl")[0])
    else:
        os.truncate(path, len(texts(tmp_path)[0]) if how == "cut" else 0)
    log.append("third")
    log.append("fourth")
    *_, changed, third, fourth = lines(tmp_path)
    assert (changed.event, third.event, fourth.event) == ("audit_log_changed", "third", "fourth")
    assert changed.fields == {"lines_before": 2, "head_before": head[:16]}
    assert "shorter, or another one" in check_chain(tmp_path).notes[0]


def texts_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


_WRITER = """
import sys
from pathlib import Path
from silomix_client.audit_log.log import AuditLog
log = AuditLog(Path(sys.argv[1]), "silo-1")
print("ready", flush=True)
for number in range(500):
    log.append("another", number=number)
"""


def test_processes_and_threads_that_write_at_the_same_time_make_one_chain(
    tmp_path: Path, log: AuditLog
) -> None:
    """The silo's threads write for as long as two other processes do."""
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"

    def write() -> None:
        while any(other.poll() is None for other in others):
            log.append("own")

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(60) for other in others] == [0, 0]
    log.append("last")
    found = events(tmp_path)
    assert found.count("another") == 1000
    assert found.count("own") > 10
    assert check_chain(tmp_path).notes == []
    for other in others:
        assert other.stdout is not None
        other.stdout.close()


def test_a_full_disk_is_told_and_the_log_goes_on_when_there_is_room(
    tmp_path: Path, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("before")
    write = os.write

    def half(descriptor: int, content: bytes) -> int:
        return write(descriptor, content[: len(content) // 2])

    def none(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for broken, told in ((half, "no room for a line"), (none, "No space left")):
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", broken)
            log.hear("during", {}, warning=False)
        assert log.failure is not None
        assert told in log.failure
    log.hear("after", {}, warning=False)
    assert log.failure is None
    assert events(tmp_path) == ["before", "audit_line_torn", "after"]


def test_entries_whose_lines_had_no_room_are_told_before_the_next_lease(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = approved_silo(consortium)
    with audit_log(config) as log, closing(open_ledger(config)) as ledger:
        process = silo_process._Process(config, log)
        desk = open_desk(config, consortium.study, ledger)
        with monkeypatch.context() as full, logs.heard_by(log.hear):
            full.setattr(log, "_write", raising(OSError(errno.ENOSPC, "no space")))
            desk.answer(asked(consortium, 1))
            with pytest.raises(SiloError, match="the audit log cannot be written"):
                process._read_policy()
        log.hear("lease_refused", {}, warning=True)
        process._read_policy()
    assert events(config.state)[-1] == "ledger_entries_unlogged"
    (note,) = checked(config)
    assert "had no room before it wrote one" in note


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_arguments: object, **_named: object) -> None:
        raise error

    return fail


def test_a_round_waits_for_no_disk_and_a_command_does(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    config = approved_silo(consortium)
    assert str(config.state / FILE) in synced
    synced.clear()
    answered(consortium, config, 1, 2)
    assert [path for path in synced if path.endswith(FILE)] == []
    assert len(texts(config.state)) == 3


# What lines tell ---------------------------------------------------------------------------------


def test_lines_tell_nothing_of_records(consortium: Consortium) -> None:
    """Bad cells are shown to the operator who approves, and written nowhere."""
    config = load(consortium.silos[0])
    data = config.folder / "data.csv"
    good = data.read_text()
    data.write_text(good + "canary-4711,0,1\n")
    with pytest.raises(Exception, match="canary-4711"):
        review(config, study_file(consortium))
    data.write_text(good)
    approve(config, review(config, study_file(consortium)), NOW)
    answered(consortium, config, 1)
    first_cells = good.splitlines()[1].split(",")
    content = (config.state / FILE).read_text()
    assert "canary" not in content
    assert not any(len(cell) > 3 and cell in content for cell in first_cells)


# Syslog ------------------------------------------------------------------------------------------


def parsed(message: bytes) -> tuple[str, str, bytes]:
    """Priority and version, message id, and the line of an RFC 5424 message."""
    head, at, _host, app, process, name, structured, line = message.split(b" ", 7)
    assert (app, structured, int(process)) == (b"silomix", b"-", os.getpid())
    assert json.loads(line)["at"] == at.decode()
    return head.decode(), name.decode(), line


def sent(tmp_path: Path, address: str) -> list[bytes]:
    """Write two lines to the file and to a syslog there; the file's."""
    syslog = Syslog(SyslogAddress.parse(address))
    log = AuditLog(tmp_path, "silo-1", syslog)
    log.append("silo_started")
    log.append("lease_refused", warning=True, reason="é" * 30)
    assert log.close() == 0
    return [text.rstrip(b"\n") for text in texts(tmp_path)]


def check_messages(found: list[bytes], wanted: list[bytes]) -> None:
    """Facility 13, severity notice and warning, and the file's very lines, hashes included."""
    assert [parsed(each) for each in found] == [
        ("<109>1", "silo_started", wanted[0]),
        ("<108>1", "lease_refused", wanted[1]),
    ]


@pytest.mark.parametrize("kind", ["unix", "udp"])
def test_lines_go_to_a_syslog_as_datagrams(tmp_path: Path, kind: str) -> None:
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as collector:
        collector.settimeout(30.0)
        if kind == "unix":
            collector.bind(str(tmp_path / "log"))
            address = f"unix:{tmp_path / 'log'}"
        else:
            collector.bind(("127.0.0.1", 0))
            address = f"udp://127.0.0.1:{collector.getsockname()[1]}"
        wanted = sent(tmp_path, address)
        check_messages([collector.recv(65_536) for _ in wanted], wanted)


def test_lines_go_to_a_syslog_over_tcp_in_counted_frames(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as collector:
        wanted = sent(tmp_path, f"tcp://127.0.0.1:{collector.getsockname()[1]}")
        connection, _ = collector.accept()
        with connection, connection.makefile("rb") as stream:
            content = stream.read()
    found = []
    while content:
        length, _, rest = content.partition(b" ")
        found.append(rest[: int(length)])
        content = rest[int(length) :]
    check_messages(found, wanted)


def test_a_syslog_that_does_not_answer_holds_nobody_up_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix_client.network.syslog._MOST_WAITING", 5)
    monkeypatch.setattr("silomix_client.audit_log.log._SYSLOG_S", 0.1)
    with socket.socket() as nobody:  # bound, but not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        syslog = Syslog(SyslogAddress.parse(f"tcp://127.0.0.1:{nobody.getsockname()[1]}"))
        log = AuditLog(tmp_path, "silo-1", syslog)
        started = time.monotonic()
        for _ in range(50):
            log.append("round_charged")
        assert time.monotonic() - started < 2
        assert log.close() >= 50
    assert "syslog_lost" in events(tmp_path)
    assert events(tmp_path).count("round_charged") == 50  # the file has them all
    check_chain(tmp_path)


def test_lines_that_wait_for_a_syslog_take_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix_client.network.syslog._MOST_BYTES", 5_000)
    monkeypatch.setattr("silomix_client.audit_log.log._SYSLOG_S", 0.1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        syslog = Syslog(SyslogAddress.parse(f"tcp://127.0.0.1:{nobody.getsockname()[1]}"))
        log = AuditLog(tmp_path, "silo-1", syslog)
        for _ in range(10):
            log.append("policy_read", text="x" * 1000)
        assert 5 <= syslog.lost <= 9
        log.close()


@pytest.mark.parametrize(
    "address", ["", "/dev/log", "unix:dev/log", "udp:host:514", "udp://host", "tls://host:6514"]
)
def test_an_address_that_is_none_is_refused(consortium: Consortium, address: str) -> None:
    path = consortium.silos[0]
    path.write_text(path.read_text() + f'[audit_log]\nsyslog = "{address}"\n')
    with pytest.raises(Exception, match=r"silo.toml: .*syslog"):
        load(path)
