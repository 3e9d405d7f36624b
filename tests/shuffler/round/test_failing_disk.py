"""Reports that a full or failing disk does not take."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from silomix_lab.consortium.create import Consortium
from silomix_shuffler.storage.store import Store
from silomix_shuffler.storage.writing_thread import WritingThread
from support.consortia import make_consortium
from support.mixes import (
    collect,
    mix_serving,
    opened_round,
    run,
    sealed_reports,
    state_of,
    submission,
    submit,
    submit_all,
)
from support.submissions import ACCEPTED, REFUSED, counts, digests, gated, of_silo_1


def test_on_a_full_disk_a_report_is_refused_and_later_accepted(made: Consortium) -> None:
    """The page limit stands for a full disk: SQLite answers both in the same way."""
    store = Store(state_of(made, 0))

    async def scene() -> None:
        async with mix_serving(made, 0, disk=WritingThread(store)):
            played = await opened_round(made)
            reports = sealed_reports(played)
            full, room = fill(store)
            frames = submission(made, "silo-1", played.descriptor, reports["silo-1"].sealed)
            full()
            (receipt,) = await submit(made, "silo-1", frames)
            assert (receipt.status, receipt.signature) == (REFUSED, b"")
            assert receipt.reason == "this mix cannot store your report"
            room()
            receipts = await submit_all(played, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(played)
            assert digests(batch.reports) == gated(*reports.values())
            assert counts(batch.chain[0]) == (3, 3, 0)

    run(scene())


def fill(store: Store) -> tuple[Callable[[], object], Callable[[], object]]:
    """Two switches: no room for another page, and room again."""
    database = store._database
    database.execute("CREATE TABLE filler (x BLOB)")

    def full() -> None:
        database.execute("PRAGMA max_page_count = 1")  # SQLite makes that what there is
        database.execute(
            "CREATE TEMP TRIGGER no_room BEFORE INSERT ON main.reports BEGIN "
            "INSERT INTO filler VALUES (zeroblob(100000)); END"
        )

    def room() -> None:
        database.execute("DROP TRIGGER no_room")
        database.execute("PRAGMA max_page_count = 1000000")

    return full, room


def test_a_deadline_that_finds_only_a_report_that_failed_still_ends_the_round(
    tmp_path: Path,
) -> None:
    """The report is being written when the deadline passes, and then cannot be kept."""
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=0.3)
    store = HeldStore(state_of(made, 0))

    async def scene() -> None:
        async with mix_serving(made, 0, disk=WritingThread(store)) as rounds:
            played = await opened_round(made)
            frames = of_silo_1(played)
            sending = asyncio.create_task(submit(made, "silo-1", frames))
            assert await asyncio.to_thread(store.reached.wait, 10.0)
            current = rounds.rounds.named(played.descriptor.digest)
            while not current.batch._closing:  # noqa: ASYNC110 the deadline
                await asyncio.sleep(0.01)
            store.fails.set()
            (receipt,) = await sending
            assert receipt.status == REFUSED
            batch = await collect(played)
            assert batch.aborted == "0 valid reports, 2 needed"

    run(scene())


class HeldStore(Store):
    """Its first report waits until it may fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reached, self.fails = threading.Event(), threading.Event()

    def add(self, entries: object) -> None:
        self.reached.set()
        self.fails.wait(10.0)
        raise OSError(28, "No space left on device")
