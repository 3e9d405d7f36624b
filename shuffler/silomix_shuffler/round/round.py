"""One round at one mix: its batch, with what the event loop needs around it.

Whoever takes a step with a round calls a method of it; nothing here waits or touches the database.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from silomix_core.study.study import Study
from silomix_proto import round_pb2
from silomix_protocol.keys import SealKey

from silomix_shuffler.batch import Batch, BatchOutcome, State
from silomix_shuffler.storage.spool import Spool
from silomix_shuffler.storage.store import SavedRound

Chain = tuple[round_pb2.HopStatement, ...]  # what the mixes so far state of a batch


@dataclass(slots=True)
class Round:
    study: Study
    hop: int
    batch: Batch
    spool: Spool
    length_in: int  # bytes of a report when it arrives, and when it leaves
    length_out: int
    seal_key: SealKey | None = None
    release_key: SealKey | None = None
    chain: Chain = ()
    sequence: tuple[int, ...] = ()
    delivered: bool = False
    reason: str = ""  # why it was aborted or voided
    voided: bool = False  # its keys are destroyed on disk
    disclosed: bytes = b""  # what the mix discloses of the void batch
    collectors: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # sealed or aborted, on disk
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    voiding: asyncio.Lock = field(default_factory=asyncio.Lock)
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    _extended: bool = False  # its batch was coming when time was up
    _slots: int = 0
    _deadline: asyncio.TimerHandle | None = None

    # What it is in --------------------------------------------------------------------------------

    @property
    def last(self) -> bool:
        return self.hop == len(self.study.mixes) - 1

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do but to answer the same questions again."""
        match self.batch.state:
            case State.RELEASED | State.VOIDED | State.ABORTED | State.PURGED:
                return True
            case State.FORWARDED:
                return self.last or self.delivered
            case _:
                return False

    @property
    def settled(self) -> bool:
        """Whether nobody has a reason to ask about the round again."""
        over = self.batch.state in (State.RELEASED, State.VOIDED, State.ABORTED)
        return over or (self.finished and not self.last and not self.study.batching.gate)

    @property
    def has_bodies(self) -> bool:
        if self.batch.state in (State.VOIDED, State.ABORTED, State.PURGED):
            return False
        return not self.delivered

    @property
    def body_bytes(self) -> int:
        return len(self.batch.descriptor.silos) * self.length_out

    # Steps ----------------------------------------------------------------------------------------

    def use_keys(self, seal_key: SealKey | None, release_key: SealKey | None) -> None:
        self.seal_key, self.release_key = seal_key, release_key

    def go_on(self, saved: SavedRound) -> None:
        """Go on where an earlier process ended."""
        self.chain, self.sequence = saved.chain, saved.sequence
        self.delivered, self.reason = saved.delivered, saved.reason
        self.disclosed, self.voided = saved.disclosed, saved.state is State.VOIDED
        self._slots = max((kept.slot + 1 for kept in saved.reports), default=0)
        if saved.state is not State.OPEN:
            self.closed.set()

    def next_slot(self) -> int:
        """Take a slot that no report has."""
        self._slots += 1
        return self._slots - 1

    def take_bodies(self, spool: Spool) -> None:
        """Take the bodies that came as one batch."""
        self.spool.close()
        self.spool = spool

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Count somebody who waits for the batch, as long as this lasts."""
        self.collectors += 1
        try:
            yield
        finally:
            self.collectors -= 1

    def seal(self, stated: Chain, outcome: BatchOutcome) -> None:
        """Take note that the batch is closed on disk, or aborted there."""
        self.chain, self.sequence, self.reason = stated, outcome.sequence, outcome.aborted
        self.since = asyncio.get_running_loop().time()
        if outcome.aborted or not self.study.batching.gate:
            self.seal_key = None  # behind a gate it may have to be disclosed
        if outcome.aborted:
            self.spool.delete()
        self.closed.set()

    def fail(self, reason: str) -> None:
        """Give the round up in this process: nothing left, and on disk it is still open."""
        self.batch.fail()
        self.reason = reason
        if self.hop:  # a first mix's rows still name its bodies
            self.spool.delete()
        self.closed.set()

    def deliver(self) -> None:
        """Delete the bodies of a batch that the next one has, or will never take."""
        self.delivered = True
        self.spool.delete()

    def release(self) -> None:
        """Take note that the release key is given away: the server has what the last mix had."""
        self.seal_key = None
        if self.last:
            self.delivered = True
            self.delete_bodies()

    def abort(self, reason: str) -> str:
        """Abort for good; return why it was aborted, maybe earlier, for another reason."""
        self.batch.abort()
        self.disarm()
        self.reason = self.reason or reason
        if not (self.chain and self.chain[-1].aborted):
            self.chain, self.sequence = (), ()
        return self.reason

    def end_aborted(self) -> None:
        """Take note that the round is aborted on disk, too."""
        self.seal_key = None
        self.spool.delete()
        self.closed.set()

    def void(self, reason: str) -> str:
        """Take note of why it is void, if nobody did before; return the reason."""
        self.disarm()
        self.reason = self.reason or reason
        return self.reason

    def destroy_keys(self, disclosed: bytes) -> None:
        """Take note that the keys are destroyed on disk, and what is disclosed instead."""
        self.spool.delete()
        self.seal_key = self.release_key = None
        self.disclosed = disclosed
        self.voided = self.delivered = True

    def forget(self) -> None:
        """Forget everything but that it was; with its key goes the chance to open it."""
        self.disarm()
        if self.batch.state is State.FORWARDED and self.study.batching.gate:
            self.batch.void()
        self.batch.purge()
        self.chain, self.sequence = (), ()
        self.seal_key = self.release_key = None
        self.closed.set()

    def close(self) -> None:
        """Let go of timer and file; what is on disk stays."""
        self.disarm()
        self.spool.close()

    def delete_bodies(self) -> None:
        with suppress(OSError):  # what stays is swept at the next start
            self.spool.delete()

    # Its one timer --------------------------------------------------------------------------------

    def arm(self, seconds: float, at_deadline: "Callable[[Round], None]") -> None:
        """Set, or set anew, the round's one timer."""
        self.disarm()
        self._deadline = asyncio.get_running_loop().call_later(seconds, at_deadline, self)

    def disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def may_extend(self) -> bool:
        """Whether its batch is just coming; once only."""
        coming = self.taking.locked() and not self._extended
        self._extended = self._extended or coming
        return coming
