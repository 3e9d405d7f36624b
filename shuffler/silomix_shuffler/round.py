"""One round at one mix: its batch, with what the event loop needs around it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from silomix_core.study import Study
from silomix_proto import round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.onion import onion_bytes

from silomix_shuffler.batch import Batch, State
from silomix_shuffler.disk import Disk
from silomix_shuffler.spool import Spool

Chain = tuple[round_pb2.HopStatement, ...]  # what the mixes so far state about the batch


def place(study: Study, mix: str) -> int:
    """Where in the study's chain this mix stands."""
    return [each.name for each in study.mixes].index(mix)


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
    reason: str = ""  # why it was aborted
    collectors: int = 0
    extended: bool = False  # its batch was coming when time was up
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # sealed or aborted, on disk
    left: asyncio.Event = field(default_factory=asyncio.Event)  # the batch, to whoever is next
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    keeping: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    _slots: int = 0
    _deadline: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, study: Study, hop: int, batch: Batch, payload: int, disk: Disk) -> "Round":
        """The round of a study whose reports carry `payload` bytes, its bodies on this disk."""
        length_in, length_out = (onion_bytes(payload, study, each) for each in (hop, hop + 1))
        spool = disk.spool(disk.store.body(batch.descriptor.digest), length_out)
        return cls(study, hop, batch, spool, length_in, length_out)

    @property
    def last(self) -> bool:
        return self.hop == len(self.study.mixes) - 1

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do but to answer the same question again."""
        match self.batch.state:
            case State.RELEASED | State.ABORTED | State.PURGED:
                return True
            case State.FORWARDED:
                return self.last or self.delivered
            case _:
                return False

    @property
    def settled(self) -> bool:
        """Whether nobody has a reason to ask about it again."""
        over = self.batch.state in (State.RELEASED, State.ABORTED)
        return over or (self.finished and not self.last and not self.study.batching.gate)

    @property
    def has_bodies(self) -> bool:
        if self.batch.state in (State.ABORTED, State.PURGED):
            return False
        return not self.delivered

    @property
    def body_bytes(self) -> int:
        return len(self.batch.descriptor.silos) * self.length_out

    def next_slot(self, used: int | None = None) -> int:
        """A slot that nobody used; `used` tells of one that somebody did."""
        slot = self._slots if used is None else used
        self._slots = max(self._slots, slot + 1)
        return slot

    def arm(self, seconds: float, at_deadline: "Callable[[Round], None]") -> None:
        """Set, or set anew, the round's one timer."""
        self.disarm()
        self._deadline = asyncio.get_running_loop().call_later(seconds, at_deadline, self)

    def disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
