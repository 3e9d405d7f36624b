"""The bodies of a batch on disk: equal slots, read back in any order, durable under one name."""

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from silomix_shuffler.spool import Spool

LENGTH = 8


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
    spool = Spool(path, LENGTH)
    for slot, report in reports.items():
        spool.write(slot, report)
    order = data.draw(st.permutations(sorted(reports)))
    assert list(spool.read(order)) == [reports[slot] for slot in order]
    spool.close()


def test_it_is_still_there_after_a_restart(tmp_path: Path) -> None:
    first = Spool(tmp_path / "body", LENGTH)
    first.write(1, b"report 1")
    first.sync()
    first.close()
    second = Spool(tmp_path / "body", LENGTH)
    assert list(second.read([1])) == [b"report 1"]
    second.close()


@pytest.mark.parametrize("report", [b"", b"short", b"far too long"])
def test_a_report_of_another_length_is_not_written(tmp_path: Path, report: bytes) -> None:
    spool = Spool(tmp_path / "body", LENGTH)
    with pytest.raises(ValueError, match="another length"):
        spool.write(0, report)
    assert not (tmp_path / "body").exists()
    spool.close()


def test_a_missing_report_is_an_error_and_no_silence(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "body", LENGTH)
    spool.write(0, b"report 0")
    with pytest.raises(OSError, match="a report is missing"):
        list(spool.read([0, 1]))
    spool.close()


def test_a_disk_that_takes_only_a_part_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "body", LENGTH)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:3], at))
    with pytest.raises(OSError, match="No space left"):
        spool.write(0, b"report 0")
    spool.close()


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "body", LENGTH)
    spool.write(0, b"report 0")
    assert stat.S_IMODE((tmp_path / "body").stat().st_mode) == 0o600
    spool.close()


def test_renamed_it_replaces_what_was_there_and_goes_on(tmp_path: Path) -> None:
    old, new = Spool(tmp_path / "body", LENGTH), Spool(tmp_path / "part", LENGTH)
    old.write(0, b"of crash")
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
    monkeypatch.setattr(Path, "rename", noted("rename", Path.rename))
    spool = Spool(tmp_path / "part", LENGTH)
    spool.write(0, b"report 0")
    spool.rename(tmp_path / "body")
    spool.close()
    assert done == ["data", "rename", "folder"]


def test_two_threads_with_the_first_reports_share_one_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        spool, ready = Spool(tmp_path / f"body {number}", LENGTH), Barrier(4)

        def write(slot: int, spool: Spool = spool, ready: Barrier = ready) -> None:
            ready.wait()
            spool.write(slot, b"report %d" % slot)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(write, range(4)))
        assert list(spool.read(range(4))) == [b"report %d" % slot for slot in range(4)]
        spool.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_deleting_twice_is_as_deleting_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "body", LENGTH)
    spool.delete()
    spool.delete()
    assert list(tmp_path.iterdir()) == []
