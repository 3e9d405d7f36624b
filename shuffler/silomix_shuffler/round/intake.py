"""Reports coming in: opened, written to the batch's spool, durable before anybody hears of it.

From here on the mix holds one layer less; what does not open is counted and forgotten, and its
sender gets the same receipt: what opens and what does not is nobody's business.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TypeVarTuple

from silomix_protocol.host import logs
from silomix_protocol.rounds.batches import IncomingBatch, check_report
from silomix_protocol.rounds.heights import Height
from silomix_protocol.rounds.onion import UnopenableLayer, open_layer

from silomix_shuffler.errors import NoRoom
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round.round import Round
from silomix_shuffler.round.upload import Upload
from silomix_shuffler.storage.spool import Spool
from silomix_shuffler.storage.store import KeptReport
from silomix_shuffler.storage.writing_thread import WritingThread

Args = TypeVarTuple("Args")

_LARGE = 2**16  # bytes from which opening a layer gets a thread of its own
_LARGE_AT_ONCE = 2


class Intake:
    def __init__(self, disk: WritingThread, metrics: Metrics) -> None:
        self._disk = disk
        self._counters = {
            kept: metrics.reports.labels("accepted" if kept else "dropped")
            for kept in (True, False)
        }
        self._openers = ThreadPoolExecutor(_LARGE_AT_ONCE, thread_name_prefix="open")

    async def keep(
        self,
        current: Round,
        silo: str,
        upload: Upload,
        signature: bytes,
        height: tuple[bytes, Height],
    ) -> None:
        """Add an admitted silo's report to the batch; if that fails, it is as if it never came."""
        digest, slot = current.batch.descriptor.digest, current.next_slot()
        try:
            if upload.large:
                output = await self._opening(_open_upload, current, upload, slot)
            else:
                output = _open_upload(current, upload, slot)
            upload.close()  # others may be waiting for its place in memory
            kept = KeptReport(slot, silo, upload.digest, output, signature, height)
            more = current.batch.waits
            await self._disk.keep(digest, kept, current.spool, more_to_come=more)
        except Exception as error:  # whatever it was, nobody waits for this report any more
            current.batch.withdraw(silo)
            logs.warning("report_not_kept", reason=type(error).__name__)
            raise NoRoom("this mix cannot store your report") from error
        finally:
            upload.close()
        fresh = current.batch.add(slot, output, silo)
        self.count(int(fresh), int(not fresh))

    async def open_all(self, current: Round, incoming: IncomingBatch) -> list[bytes | None]:
        """Open every report of the previous mix's batch, one at a time; durable once it is sealed.

        Returns SHA-256 of what is inside each, by slots; None for what is no layer of ours.
        """
        spool = Spool(current.spool.path.with_suffix(".part"), current.length_out)
        outputs: list[bytes | None] = []
        try:
            async for report, digest in incoming.reports():
                work = current, report, digest, len(outputs), spool
                if len(report) < _LARGE:
                    output = _open_report(*work)
                else:
                    output = await self._opening(_open_report, *work)
                outputs.append(output)
        except OSError as error:
            spool.delete()
            raise NoRoom("this mix cannot store the batch") from error
        except BaseException:
            spool.delete()
            raise
        current.take_bodies(spool)
        return outputs

    def _opening(
        self, step: Callable[[*Args], bytes | None], *args: *Args
    ) -> "asyncio.Future[bytes | None]":
        """Open a large layer beside the event loop."""
        return asyncio.get_running_loop().run_in_executor(self._openers, step, *args)

    def count(self, accepted: int, dropped: int = 0) -> None:
        self._counters[True].inc(accepted)
        self._counters[False].inc(dropped)


def _open_upload(current: Round, upload: Upload, slot: int) -> bytes | None:
    return _open_and_write(current, upload.read(), slot, current.spool)


def _open_report(
    current: Round, report: bytes | bytearray, digest: bytes, slot: int, spool: Spool
) -> bytes | None:
    check_report(report, digest)
    return _open_and_write(current, report, slot, spool)


def _open_and_write(
    current: Round, layer: bytes | bytearray, slot: int, spool: Spool
) -> bytes | None:
    """Open a layer into its slot; SHA-256 of what was inside, None if it is no layer of ours."""
    if current.seal_key is None:
        return None
    try:
        opened = open_layer(layer, current.seal_key, current.hop, current.batch.descriptor.digest)
    except UnopenableLayer:
        return None
    spool.write(slot, opened)
    return sha256(opened).digest()
