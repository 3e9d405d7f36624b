"""The batch of one round at one mix, as a state machine without I/O.

    OPEN ──────► SEALED ──────► FORWARDED ──────► RELEASED ──────► PURGED
      │            │                │                                ▲
      └──► ABORTED ◄                └────────────────────────────────┤
              └──────────────────────────────────────────────────────┘

OPEN: reports are admitted, one per silo, or come as the previous mix's batch.  SEALED: complete,
or at its deadline with at least the minimum; its order is drawn and nobody is admitted any more.
FORWARDED: its first byte may have left, so that it can never be abandoned.  RELEASED: the mix gave
its release key away.  ABORTED: below the minimum or abandoned; nothing left and nothing will.
PURGED: bodies and keys are gone, what happened is remembered.  A report never moves to another
batch.  What others rely on is on disk before they hear of it: see `store`.
"""

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from silomix_protocol.descriptor import Descriptor

from silomix_shuffler.errors import GateClosed, ReplayedReport, WrongRound, WrongSender

Shuffle = Callable[[MutableSequence[Any]], None]


class State(Enum):
    OPEN = "open"
    SEALED = "sealed"
    FORWARDED = "forwarded"
    RELEASED = "released"
    ABORTED = "aborted"
    PURGED = "purged"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a batch was closed: which slots go out, in which order; `aborted` says why none do."""

    received: int
    sequence: tuple[int, ...]
    outputs: tuple[bytes, ...]
    aborted: str = ""

    @property
    def dropped(self) -> int:
        return self.received - len(self.sequence)


@dataclass(slots=True)
class Batch:
    """Reports of one round on their way through this mix."""

    descriptor: Descriptor
    state: State = State.OPEN
    admitted: dict[str, bytes] = field(default_factory=dict)  # silo → SHA-256(onion), first mix
    committed: bytes = b""  # SHA-256 of the one list that this mix gave its word for
    _closing: bool = False
    _received: int = 0
    _expected: frozenset[str] = field(init=False)
    _slots: dict[bytes, int] = field(default_factory=dict)  # SHA-256 of an opened report → slot

    def __post_init__(self) -> None:
        self._expected = frozenset(self.descriptor.silos)

    # Reports in ---------------------------------------------------------------------------------

    def admit(self, silo: str, onion: bytes) -> bool:
        """Take note of a silo's report; False if the very same one is already here."""
        if silo not in self._expected:
            raise WrongSender("this round does not expect a report from you")
        known = self.admitted.get(silo)
        if known == onion:
            return False
        if known is not None:
            raise ReplayedReport("you already sent another report for this round")
        if self.state is not State.OPEN or self._closing:
            raise WrongRound("the batch of this round is closed")
        self.admitted[silo] = onion
        return True

    def withdraw(self, silo: str) -> None:
        """The silo's report could not be kept: as if it had never come."""
        del self.admitted[silo]

    def add(self, slot: int, output: bytes | None) -> bool:
        """Count an opened report; None, or one that is here already, counts as dropped (False)."""
        self._received += 1
        if output is None or output in self._slots:
            return False
        self._slots[output] = slot
        return True

    def close(self) -> None:
        """The deadline has passed: admit nobody any more, finish opening what was admitted."""
        self._closing = True

    def complete(self, gone: frozenset[str]) -> bool:
        """Whether it is time to seal: every admitted report is opened, and nobody is left to wait
        for (a silo in `gone` only while the minimum is not reached)."""
        if self.state is not State.OPEN or self._received != len(self.admitted):
            return False
        if self._closing:
            return True
        if not self.waits:
            return True
        enough = len(self._slots) >= self.descriptor.minimum_batch
        return enough and self.missing() <= gone

    @property
    def waits(self) -> bool:
        """Whether there is somebody who sent nothing yet."""
        return len(self.admitted) < len(self._expected)

    def missing(self) -> frozenset[str]:
        """Silos that the round waits for and that sent nothing."""
        return self._expected - self.admitted.keys()

    # Steps --------------------------------------------------------------------------------------

    def seal(self, shuffle: Shuffle) -> Outcome:
        """Close the batch: its slots in random order, or none below the minimum."""
        self._step({State.OPEN}, State.SEALED, "the batch of this round is closed")
        entries = list(self._slots.items())
        minimum = self.descriptor.minimum_batch
        if len(entries) < minimum:
            self.state = State.ABORTED
            reason = f"{len(entries)} valid reports, {minimum} needed"
            return Outcome(self._received, (), (), reason)
        shuffle(entries)
        outputs, slots = zip(*entries, strict=True)
        return Outcome(self._received, slots, outputs)

    def abort(self) -> None:
        """Nothing left this mix and nothing will; said again, it changes nothing."""
        over = "the batch of this round may have been forwarded"
        self._step({State.OPEN, State.SEALED, State.ABORTED}, State.ABORTED, over)

    def forward(self) -> None:
        """From now on the batch may be known to the next one in the chain."""
        allowed = {State.SEALED, State.FORWARDED, State.RELEASED}
        if self.state not in allowed:
            raise WrongRound("this round has no batch to forward")
        if self.state is State.SEALED:
            self.state = State.FORWARDED

    def commit(self, list_hash: bytes) -> None:
        """Stand by one list of what came out of the chain; by another one never."""
        if self.state not in (State.FORWARDED, State.RELEASED):
            raise WrongRound("this round has no batch that could be committed to")
        if self.committed not in (b"", list_hash):
            raise WrongRound("another list of this round was committed to")
        self.committed = list_hash

    def release(self, list_hash: bytes, confirmed: frozenset[str]) -> None:
        """Open the gate, if enough silos of the round confirmed the committed list."""
        if self.state not in (State.FORWARDED, State.RELEASED):
            raise WrongRound("this round has no batch that could be released")
        if list_hash != self.committed:
            raise WrongRound("this is not the list that was committed to")
        valid = confirmed & self._expected
        if len(valid) < self.descriptor.minimum_batch:
            raise GateClosed(
                f"{len(valid)} silos confirmed the list, {self.descriptor.minimum_batch} needed"
            )
        self.state = State.RELEASED

    def purge(self) -> None:
        """Forget everything but that the round was."""
        self.state = State.PURGED
        self.admitted, self._slots = {}, {}

    def _step(self, allowed: set[State], target: State, otherwise: str) -> None:
        if self.state not in allowed:
            raise WrongRound(otherwise)
        self.state = target
