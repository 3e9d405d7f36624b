"""The audit log: what is in it, and that nobody edits, cuts or reorders it unnoticed."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from silomix_client import process as silo_process
from silomix_client.approval.approve import approve, review
from silomix_client.audit_log.log import FILE, AuditLog, audit_log
from silomix_client.audit_log.verify_log import check_chain, lines, verify
from silomix_client.config.silo_config import load
from silomix_client.errors import AuditLogBroken, SiloError
from silomix_lab.consortium.create import Consortium
from silomix_protocol.host import logs
from support.audit_logs import answered, checked, events, rehashed, texts
from support.silos import NOW, approved_silo, asked, open_desk, open_ledger, study_file


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


@pytest.mark.slow
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
