"""The bodies of a batch on disk: equal slots, read back in any order, durable under one name."""

import os
import stat
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from silomix_shuffler.storage.spool import Spool

LENGTH = 8


def spool_at(path: Path) -> Spool:
    return Spool(path, LENGTH)


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    reports=st.dictionaries(
        st.integers(0, 40), st.binary(min_size=LENGTH, max_size=LENGTH), max_size=12
    ),
    data=st.data(),
)
def test_what_was_written_is_read_in_the_order_asked_for(
    tmp_path: Path, reports: dict[int, bytes], data: st.DataObject
) -> None:
    """Slots come in any order and with gaps: reports are opened as they arrive."""
    path = tmp_path / "body"
    path.unlink(missing_ok=True)
    spool = spool_at(path)
    for slot, report in reports.items():
        spool.write(slot, report)
        if data.draw(st.booleans()):
            spool.sync()
    order = data.draw(st.permutations(sorted(reports)))
    wanted = [reports[slot] for slot in order]
    assert list(spool.read(order)) == wanted
    spool.sync()
    spool.close()
    restarted = spool_at(path)
    assert list(restarted.read(order)) == wanted
    restarted.close()


def test_what_is_not_synced_is_there_under_its_last_name(tmp_path: Path) -> None:
    first = spool_at(tmp_path / "part")
    for slot in range(5):
        first.write(slot, b"report %d" % slot)
    first.rename(tmp_path / "body")
    first.close()
    assert (tmp_path / "body").read_bytes() == b"report 0report 1report 2report 3report 4"


@pytest.mark.parametrize("report", [b"", b"short", b"far too long"])
def test_a_report_of_another_length_is_not_written(tmp_path: Path, report: bytes) -> None:
    spool = spool_at(tmp_path / "body")
    with pytest.raises(ValueError, match="another length"):
        spool.write(0, report)
    assert not (tmp_path / "body").exists()
    spool.close()


def test_a_missing_report_is_an_error_and_no_silence(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "body")
    spool.write(0, b"report 0")
    with pytest.raises(OSError, match="a report is missing"):
        list(spool.read([0, 1]))
    spool.close()


def test_a_disk_that_takes_only_a_part_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spool_at(tmp_path / "body")
    write, room = os.pwrite, [3]

    def full(file: int, report: bytes, at: int) -> int:
        return write(file, report[: room[0]], at)

    monkeypatch.setattr(os, "pwrite", full)

    def written() -> None:
        spool.write(0, b"report 0")
        spool.sync()

    with pytest.raises(OSError, match="No space left"):
        written()
    room[0] = 100
    written()  # it was sent again
    assert (tmp_path / "body").read_bytes() == b"report 0"
    spool.close()


def test_nobody_closes_the_file_while_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number, could be another batch's by then."""
    spool, writing, may_go = spool_at(tmp_path / "body"), Event(), Event()
    write = os.pwrite

    def slowly(*args: Any) -> int:
        writing.set()
        assert may_go.wait(10.0)
        return write(*args)

    monkeypatch.setattr(os, "pwrite", slowly)
    with ThreadPoolExecutor(2) as threads:
        written = threads.submit(spool.write, 0, b"report 0")
        assert writing.wait(10.0)
        deleted = threads.submit(spool.delete)
        assert not wait([deleted], timeout=0.2).done
        may_go.set()
        written.result(10.0)
        deleted.result(10.0)
    assert list(tmp_path.iterdir()) == []


def test_closed_on_the_way_it_fails_as_a_file_does(tmp_path: Path) -> None:
    """A round may be abandoned while another thread writes it down."""
    spool = spool_at(tmp_path / "body")
    spool.write(0, b"report 0")
    spool.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        spool.sync()
    with pytest.raises(OSError, match="Bad file descriptor"):
        list(spool.read([0]))
    with pytest.raises(OSError, match="Bad file descriptor"):
        spool.write(1, b"report 1")


def test_a_batch_is_never_in_memory(tmp_path: Path) -> None:
    length = 100_000
    spool = Spool(tmp_path / "body", length)
    tracemalloc.start()
    try:
        for slot in range(200):
            spool.write(slot, bytes([slot]) * length)
        assert tracemalloc.get_traced_memory()[0] < 10**6, "of 20 MB"
        assert [report[0] for report in spool.read(range(200))] == list(range(200))
        spool.close()
        assert tracemalloc.get_traced_memory()[0] < 10**6
    finally:
        tracemalloc.stop()


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "body")
    spool.write(0, b"report 0")
    spool.sync()
    assert stat.S_IMODE((tmp_path / "body").stat().st_mode) == 0o600
    spool.close()


def test_renamed_it_replaces_what_was_there_and_goes_on(tmp_path: Path) -> None:
    old, new = spool_at(tmp_path / "body"), spool_at(tmp_path / "part")
    old.write(0, b"of crash")
    old.sync()
    new.write(0, b"report 0")
    new.rename(tmp_path / "body")
    assert [path.name for path in tmp_path.iterdir()] == ["body"]
    assert list(new.read([0])) == [(tmp_path / "body").read_bytes()] == [b"report 0"]
    old.close()
    new.delete()
    assert list(tmp_path.iterdir()) == []


def test_its_content_is_synced_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could leave a complete-looking file with holes in it."""
    done: list[str] = []

    def noted(name: str, really: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            done.append(name)
            return really(*args)

        return call

    monkeypatch.setattr(os, "fdatasync", noted("data", os.fdatasync))
    monkeypatch.setattr(os, "fsync", noted("folder", os.fsync))
    monkeypatch.setattr(os, "rename", noted("rename", os.rename))
    spool = spool_at(tmp_path / "part")
    spool.write(0, b"report 0")
    spool.rename(tmp_path / "body")
    spool.close()
    assert done == ["data", "rename", "folder"]


def test_two_threads_with_the_first_reports_share_one_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        spool, ready = spool_at(tmp_path / f"body {number}"), Barrier(4)

        def write(slot: int, spool: Spool = spool, ready: Barrier = ready) -> None:
            ready.wait()
            spool.write(slot, b"report %d" % slot)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(write, range(4)))
        assert list(spool.read(range(4))) == [b"report %d" % slot for slot in range(4)]
        spool.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_deleting_twice_is_as_deleting_once(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "body")
    spool.delete()
    spool.delete()
    assert list(tmp_path.iterdir()) == []
