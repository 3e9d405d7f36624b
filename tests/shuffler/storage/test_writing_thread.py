"""The one writing thread: bodies before metadata, many reports in one commit, failures refused."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_shuffler.storage.spool import Spool
from silomix_shuffler.storage.store import KeptReport, Store
from silomix_shuffler.storage.writing_thread import WritingThread
from support.descriptors import plain_descriptor
from support.mixes import run

LENGTH = 8


class WatchedStore(Store):
    """A store that tells what it is asked, and when."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.done: list[str] = []
        self.commits: list[int] = []
        self.held = threading.Event()
        self.held.set()

    def add(self, entries: Iterable[tuple[RoundDigest, KeptReport]]) -> None:
        self.held.wait(10.0)
        group = list(entries)
        self.done.append("metadata")
        self.commits.append(len(group))
        super().add(group)


class WatchedSpool(Spool):
    def __init__(self, path: Path, done: list[str]) -> None:
        super().__init__(path, LENGTH)
        self._done = done

    def sync(self) -> None:
        self._done.append("bodies")
        super().sync()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[WritingThread, WatchedStore, WatchedSpool]]:
    """A disk with the round of `plain_descriptor` open on it."""
    store = WatchedStore(folder)
    ((seal_key, _),) = store.prepare(plain_descriptor().study, 1, range(1, 2), gate=False)
    store.open(plain_descriptor(), seal_key)
    spool = WatchedSpool(store.body(plain_descriptor().digest), store.done)
    disk = WritingThread(store)
    try:
        yield disk, store, spool
    finally:
        spool.close()
        await disk.close()


def kept(slot: int) -> KeptReport:
    return KeptReport(slot, f"silo-{slot}", b"onion", b"output %d" % slot)


def slots(folder: Path) -> list[int]:
    """What another process finds on disk."""
    store = Store(folder)
    found = [each.slot for saved in store.unfinished() for each in saved.reports]
    store.close()
    return found


def test_a_report_is_on_disk_when_keep_returns_and_its_body_before_that(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path / "s") as (disk, store, spool):
            spool.write(0, b"report 0")
            await disk.keep(plain_descriptor().digest, kept(0), spool)
            assert store.done == ["bodies", "metadata"]
            assert slots(tmp_path / "s") == [0]

    run(scene())


def test_reports_that_come_during_a_commit_share_the_next_one(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path / "s") as (disk, store, spool):
            store.held.clear()
            digest = plain_descriptor().digest
            first = asyncio.create_task(disk.keep(digest, kept(0), spool))
            await asyncio.sleep(0)  # its writer starts
            await asyncio.sleep(0)
            rest = [asyncio.create_task(disk.keep(digest, kept(n), spool)) for n in range(1, 30)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in [first, *rest]), "nobody hears before the disk"
            store.held.set()
            await asyncio.gather(first, *rest)
            assert sum(store.commits) == 30
            assert len(store.commits) == 2
            assert store.done == ["bodies", "metadata"] * 2, "one sync for the whole group"
            assert slots(tmp_path / "s") == list(range(30))

    run(scene())


def test_a_group_that_cannot_be_written_is_refused_to_all_and_the_next_one_is_fine(
    tmp_path: Path,
) -> None:
    class OnceFull(WatchedSpool):
        full = True

        def sync(self) -> None:
            if self.full:
                self.full = False
                raise OSError(28, "No space left on device")
            super().sync()

    async def scene() -> None:
        async with opened(tmp_path / "s") as (disk, store, spool):
            full = OnceFull(spool.path, store.done)
            digest = plain_descriptor().digest
            group = [disk.keep(digest, kept(number), full) for number in range(3)]
            results = await asyncio.gather(*group, return_exceptions=True)
            assert [type(each) for each in results] == [OSError] * 3
            assert slots(tmp_path / "s") == [], "no metadata without bodies"
            await disk.keep(digest, kept(0), full)
            assert slots(tmp_path / "s") == [0]
            full.close()

    run(scene())


def test_a_full_database_takes_nothing_of_a_group_and_later_all_of_it(tmp_path: Path) -> None:
    """The page limit stands for a full disk: SQLite answers both in the same way."""

    async def scene() -> None:
        async with opened(tmp_path / "s") as (disk, store, spool):
            database: sqlite3.Connection = store._database
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            database.execute(f"PRAGMA max_page_count = {pages}")
            digest = plain_descriptor().digest
            big = [KeptReport(n, f"silo-{n}", bytes(300), bytes(32)) for n in range(60)]
            group = [disk.keep(digest, each, spool) for each in big]
            results = await asyncio.gather(*group, return_exceptions=True)
            assert {type(each) for each in results} == {sqlite3.OperationalError}
            assert slots(tmp_path / "s") == []
            database.execute("PRAGMA max_page_count = 1000000")
            await asyncio.gather(*(disk.keep(digest, each, spool) for each in big))
            assert slots(tmp_path / "s") == list(range(60))

    run(scene())


def test_a_step_is_taken_even_if_who_asked_for_it_is_gone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path / "s") as (disk, store, _):
            may_go = threading.Event()
            blocking = asyncio.create_task(disk.do(may_go.wait, 10.0))
            step = asyncio.create_task(disk.do(store.forwarded, plain_descriptor().digest))
            await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            may_go.set()
            await blocking
            state, _ = await disk.do(store.known, plain_descriptor().digest) or (None, "")
            assert state is not None
            assert state.value == "forwarded"

    run(scene())


def test_a_silo_that_hangs_up_does_not_take_its_report_back(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path / "s") as (disk, store, spool):
            store.held.clear()
            digest = plain_descriptor().digest
            waiting = asyncio.create_task(disk.keep(digest, kept(0), spool))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            store.held.set()
            await disk.keep(digest, kept(1), spool)
            assert slots(tmp_path / "s") == [0, 1]

    run(scene())
