"""How long a mix remembers: rounds that nobody asks about any more are purged, and unused keys."""

import asyncio

from silomix_shuffler.batch import State
from silomix_shuffler.round.background_tasks import Tasks
from silomix_shuffler.round.open_rounds import OpenRounds, purging
from silomix_shuffler.storage.writing_thread import WritingThread

_UNUSED_KEYS_S = 86_400.0  # how long keys wait for their round


class Retention:
    def __init__(
        self, rounds: OpenRounds, disk: WritingThread, tasks: Tasks, retention_s: float
    ) -> None:
        self._rounds, self._disk, self._tasks = rounds, disk, tasks
        self._retention_s = retention_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look for old rounds after a while, again and again."""
        pause = min(60.0, self._retention_s)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pause, lambda: self._tasks.start(self._expire()))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def purge(self) -> None:
        """Purge forgotten rounds on disk too."""
        over = self._rounds.unpurged()
        if over:
            await self._disk.do(self._disk.store.purge, purging(over))
            self._rounds.purged(over)

    async def _expire(self) -> None:
        """Purge rounds that nobody asked about for long; cut the log, which has deleted keys."""
        before = asyncio.get_running_loop().time() - self._retention_s
        try:
            for current in self._rounds:
                if current.since < before and current.batch.state is not State.OPEN:
                    self._rounds.forget(current)
            await self.purge()
            await self._disk.do(self._disk.store.expire_keys, _UNUSED_KEYS_S)
            await self._disk.do(self._disk.store.tidy)
        finally:
            self.start()
