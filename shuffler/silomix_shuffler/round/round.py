"""One round at one mix: its batch, with what the event loop needs around it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from silomix_core.study.study import Study
from silomix_proto import round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.onion import onion_bytes

from silomix_shuffler.batch import Batch, State
from silomix_shuffler.storage.spool import Spool
from silomix_shuffler.storage.store import Store

Chain = tuple[round_pb2.HopStatement, ...]  # what the mixes so far state of a batch


def place(study: Study, mix: str) -> int:
    """The place of this mix in the study's chain, from 0."""
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
    reason: str = ""  # why it was aborted or voided
    voided: bool = False  # its keys are destroyed on disk
    disclosed: bytes = b""  # what the mix discloses of the void batch
    collectors: int = 0
    extended: bool = False  # its batch was coming when time was up
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # sealed or aborted, on disk
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    voiding: asyncio.Lock = field(default_factory=asyncio.Lock)
    keeping: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    _slots: int = 0
    _deadline: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, study: Study, hop: int, batch: Batch, payload: int, store: Store) -> "Round":
        """The round of a study whose reports carry `payload` bytes, its bodies on this disk."""
        length_in, length_out = (onion_bytes(payload, study, each) for each in (hop, hop + 1))
        spool = Spool(store.body(batch.descriptor.digest), length_out)
        return cls(study, hop, batch, spool, length_in, length_out)

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

    def next_slot(self, used: int | None = None) -> int:
        """Take a slot that no report has; with `used`, take note of one that a report has."""
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
