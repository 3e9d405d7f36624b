"""The batch of one round at one mix, as a state machine without I/O.

    OPEN ──────► SEALED ──────► FORWARDED ──────► RELEASED ──────► PURGED
      │            │                │                                ▲
      └──► ABORTED ◄                └──► VOIDED                      │
              └──────────────────────────────────────────────────────┘

OPEN: reports are admitted, one per silo, or come as the previous mix's batch.  SEALED: complete,
or at its deadline with at least the minimum; its order is drawn and nobody is admitted any more.
FORWARDED: its first byte may have left, so that it can never be abandoned.  RELEASED: the mix gave
its release key away.  VOIDED: the release key is destroyed, no report of the batch opens any more;
it is remembered so for good.  ABORTED: below the minimum or abandoned; nothing left and nothing
will.  PURGED: bodies and keys are gone, what happened is remembered.  A report never moves to
another batch.  What others rely on is on disk before they hear of it: see `store`.

A report that is kept out of the list must not open either: who does not confirm the list would be
known as its sender.  So a mix stands by a list of just as many reports as it forwarded, and gives
its key only when as many silos found themselves in it; the first mix, which knows who sent what it
forwarded, when every one of those did.  Any other list makes the batch void.
"""

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any

from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.statements import DIGEST_BYTES, digests

from silomix_shuffler.errors import (
    GateClosed,
    ReplayedReport,
    UnfitList,
    WrongRound,
    WrongSender,
)

Shuffle = Callable[[MutableSequence[Any]], None]


class State(Enum):
    OPEN = "open"
    SEALED = "sealed"
    FORWARDED = "forwarded"
    RELEASED = "released"
    VOIDED = "voided"
    ABORTED = "aborted"
    PURGED = "purged"


@dataclass(frozen=True, slots=True)
class BatchOutcome:
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
    """The reports of one round on their way through this mix."""

    descriptor: Descriptor
    state: State = State.OPEN
    admitted: dict[str, bytes] = field(default_factory=dict)  # silo → SHA-256(onion), first mix
    forwarded: int = 0  # reports that go out
    senders: frozenset[str] = frozenset()  # first mix: the silos whose reports those are
    committed: bytes = b""  # SHA-256 of the one list that this mix gave its word for
    doubtful: bool = False  # a power cut behind its list: its key may have been given away
    _closing: bool = False
    _received: int = 0
    _expected: frozenset[str] = field(init=False)
    _slots: dict[bytes, int] = field(default_factory=dict)  # SHA-256 of an opened report → slot
    _sent_by: dict[bytes, str] = field(default_factory=dict)  # the same → silo, first mix

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

    def readmit(self, silo: str, onion: bytes) -> None:
        """Take note of a silo's report that an earlier process admitted."""
        self.admitted[silo] = onion

    def withdraw(self, silo: str) -> None:
        """Forget a silo's report that could not be kept, as if it had never come."""
        del self.admitted[silo]

    def add(self, slot: int, output: bytes | None, silo: str | None = None) -> bool:
        """Count an opened report; None, or a report that is here already, is dropped (False).

        The first mix knows which silo sent it.
        """
        self._received += 1
        if output is None or output in self._slots:
            return False
        self._slots[output] = slot
        if silo is not None:
            self._sent_by[output] = silo
        return True

    def close(self) -> None:
        """Admit no silo any more, as at the deadline; admitted reports are still opened."""
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
        """Whether some silo of the round sent nothing yet."""
        return len(self.admitted) < len(self._expected)

    def missing(self) -> frozenset[str]:
        """The silos that the round waits for and that sent nothing."""
        return self._expected - self.admitted.keys()

    # Steps --------------------------------------------------------------------------------------

    def seal(self, shuffle: Shuffle) -> BatchOutcome:
        """Close the batch: its slots in random order, or none below the minimum."""
        self._step({State.OPEN}, State.SEALED, "the batch of this round is closed")
        entries = list(self._slots.items())
        minimum = self.descriptor.minimum_batch
        if len(entries) < minimum:
            self.state = State.ABORTED
            reason = f"{len(entries)} valid reports, {minimum} needed"
            return BatchOutcome(self._received, (), (), reason)
        shuffle(entries)
        outputs, slots = zip(*entries, strict=True)
        self.forwarded, self.senders = len(slots), frozenset(self._sent_by.values())
        return BatchOutcome(self._received, slots, outputs)

    def fail(self) -> None:
        """Give up a batch that could not be written down: nothing of it left."""
        self.state = State.ABORTED

    def abort(self) -> None:
        """Abort: nothing left this mix and nothing will.  A second call changes nothing."""
        over = "the batch of this round may have been forwarded"
        self._step({State.OPEN, State.SEALED, State.ABORTED}, State.ABORTED, over)

    def forward(self) -> None:
        """Mark the batch as forwarded: the next one in the chain may know it from now on."""
        allowed = {State.SEALED, State.FORWARDED, State.RELEASED}
        if self.state not in allowed:
            raise WrongRound("this round has no batch to forward")
        if self.state is State.SEALED:
            self.state = State.FORWARDED

    def commit(self, joined: bytes) -> None:
        """Stand by one list (joined digests) of what came out of the chain, never by another.

        UnfitList if what arrived cannot be what this mix forwarded; the batch is then void.
        """
        if self.state not in (State.FORWARDED, State.RELEASED):
            raise WrongRound("this round has no batch that could be committed to")
        list_hash = sha256(joined).digest()
        if self.committed == list_hash:
            return
        if self.state is State.RELEASED:
            raise WrongRound("another list of this round was committed to")
        if self.committed:
            self._refuse_list("another list of this round was committed to")
        if not self._fits(joined):
            self._refuse_list(
                f"the list is not one of {self.forwarded} different reports, "
                "as many as this mix forwarded"
            )
        self.committed = list_hash

    def stand_by(self, joined: bytes) -> None:
        """Stand by the list that this mix, the last one, hands over itself."""
        self.committed = sha256(joined).digest()

    def take_back_word(self, before: bytes) -> None:
        """Stand by the list `before`, or by none, as the last one could not be written down."""
        self.committed = before

    def _fits(self, joined: bytes) -> bool:
        listed = digests(joined)
        whole = len(joined) == DIGEST_BYTES * self.forwarded
        return whole and len(set(listed)) == self.forwarded

    def _refuse_list(self, reason: str) -> None:
        self.void()
        raise UnfitList(reason)

    def release(self, list_hash: bytes, confirmed: frozenset[str]) -> None:
        """Open the gate, if everybody whose report is in the committed list confirmed it."""
        if self.state not in (State.FORWARDED, State.RELEASED):
            raise WrongRound("this round has no batch that could be released")
        if not self.committed or list_hash != self.committed:
            raise WrongRound("this is not the list that was committed to")
        if self.state is State.RELEASED:
            return  # the list was judged before, and the key is known
        missing = len(self.senders - confirmed)
        if missing:
            raise GateClosed(f"{missing} silos whose reports went out did not confirm the list")
        valid, needed = len(confirmed & self._expected), self.needed
        if valid < needed:
            raise GateClosed(f"{valid} silos confirmed the list, {needed} needed")
        self.state = State.RELEASED

    def take_back_key(self) -> None:
        """Close the gate again, as its opening could not be written down."""
        self.state = State.FORWARDED

    @property
    def needed(self) -> int:
        """How many silos must confirm the list: as many as it has reports."""
        return max(self.forwarded, self.descriptor.minimum_batch)

    def void(self) -> None:
        """Make the batch void: no report of it is ever opened.  A second call changes nothing.

        A batch that nobody can have seen is aborted instead.
        """
        if self.state in (State.RELEASED, State.PURGED):
            raise WrongRound("the release key of this round was given away, or the round is over")
        if self.state in (State.FORWARDED, State.VOIDED):
            self.state = State.VOIDED
        else:
            self.abort()

    @property
    def discloses(self) -> bool:
        """Whether the mix may disclose what became of each report: surely none can be opened."""
        return self.state is State.VOIDED and not self.doubtful

    def purge(self) -> None:
        """Forget everything but that the round was, and that it is void if it is."""
        if self.state is not State.VOIDED:
            self.state = State.PURGED
        self.admitted, self._slots, self._sent_by = {}, {}, {}
        self.senders = frozenset()

    def _step(self, allowed: set[State], target: State, otherwise: str) -> None:
        if self.state not in allowed:
            raise WrongRound(otherwise)
        self.state = target
