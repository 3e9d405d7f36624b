"""The one thread that writes: what many streams have to say goes to disk together.

SQLite is touched by this thread only, and spools are made durable by it.  Reports that arrive while
a commit is under way share the next one, so that a disk that takes its time costs a batch little.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from silomix_protocol.rounds.descriptor import RoundDigest

from silomix_shuffler.storage.spool import Spool
from silomix_shuffler.storage.store import KeptReport, Store

Args = ParamSpec("Args")
Result = TypeVar("Result")
_GATHER_S = 0.02  # the batch waits for others anyway, and a receipt with it
_Entry = tuple[RoundDigest, KeptReport, Spool]


class WritingThread:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._pending: list[tuple[_Entry, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def do(
        self, step: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
    ) -> Result:
        """Take one step on the writing thread; it is taken even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        taken = loop.run_in_executor(self._thread, partial(step, *args, **kwargs))
        return await asyncio.shield(taken)

    async def keep(
        self, digest: RoundDigest, kept: KeptReport, spool: Spool, *, more_to_come: bool = False
    ) -> None:
        """Return when this report, whose body was written to `spool`, is safe.

        With `more_to_come` the report waits a moment for others to share a commit with.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._pending.append(((digest, kept, spool), done))
        if not more_to_come:
            self._due()
        elif self._timer is None:
            self._timer = loop.call_later(_GATHER_S, self._due)
        await done

    def _due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._pending:
            group, self._pending = self._pending, []
            try:
                errors = await self.do(self._keep_all, [entry for entry, _ in group])
            except Exception as failure:
                errors = [failure] * len(group)
            for (_, done), error in zip(group, errors, strict=True):
                if done.done():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

    def _keep_all(self, entries: list[_Entry]) -> list[Exception | None]:
        """Keep all entries; return what went wrong with each.  A lost batch spoils no other."""
        failed: dict[int, Exception | None] = {}
        for _, _, spool in entries:
            if id(spool) not in failed:
                failed[id(spool)] = _failure(spool)
        good = [(digest, kept) for digest, kept, spool in entries if failed[id(spool)] is None]
        self.store.add(good)
        return [failed[id(spool)] for _, _, spool in entries]

    async def close(self) -> None:
        self._due()
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        await self.do(self.store.close)
        self.end()

    def end(self) -> None:
        """End the thread after the steps that it was asked for."""
        self._thread.shutdown()


def _failure(spool: Spool) -> Exception | None:
    try:
        spool.sync()
    except OSError as error:
        return error
    return None
