"""The batch of one round at one mix, as a state machine without I/O.

OPEN, reports are admitted one per silo and opened; CLOSING after the deadline, those admitted are
still opened; then RELEASED, permuted, exactly once: complete,
or at the deadline with at least the minimum; or ABORTED below the minimum, everything deleted.
A report never moves to another batch.
"""

from collections.abc import Callable, MutableSequence
from enum import Enum, auto
from typing import Any

from silomix_protocol.batches import Batch, Counts
from silomix_protocol.descriptor import Descriptor

from silomix_shuffler.errors import ReplayedReport, WrongRound, WrongSender

Shuffle = Callable[[MutableSequence[Any]], None]


class State(Enum):
    OPEN = auto()
    CLOSING = auto()
    RELEASED = auto()
    ABORTED = auto()


class OpenBatch:
    """Reports of one round on their way through this mix."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.state = State.OPEN
        self._admitted: dict[str, bytes] = {}  # silo → SHA-256 of its onion (first mix only)
        self._seen: set[bytes] = set()  # encapsulated keys: equal ones are duplicates
        self._opened: list[bytes] = []
        self._received = 0

    @property
    def _finished(self) -> bool:
        return self.state in (State.RELEASED, State.ABORTED)

    def admit(self, silo: str, onion_digest: bytes) -> bool:
        """Take note of a silo's report; False if the very same one is already here."""
        if silo not in self.descriptor.silos:
            raise WrongSender("this round does not expect a report from you")
        known = self._admitted.get(silo)
        if known == onion_digest:
            return False
        if known is not None:
            raise ReplayedReport("you already sent another report for this round")
        if self.state is not State.OPEN:
            raise WrongRound("the batch of this round is closed")
        self._admitted[silo] = onion_digest
        return True

    def add(self, encapsulated_key: bytes, opened: bytes | None) -> None:
        """Put an opened layer into the batch; None, or a repeated key, counts as dropped."""
        if self._finished:
            return
        self._received += 1
        if opened is not None and encapsulated_key not in self._seen:
            self._opened.append(opened)
        self._seen.add(encapsulated_key)

    def close(self) -> None:
        """The deadline has passed: admit nobody any more, finish opening what was admitted."""
        if self.state is State.OPEN:
            self.state = State.CLOSING

    def complete(self, gone: frozenset[str]) -> bool:
        """Whether it is time to release: every admitted report is opened, and nobody is left to
        wait for (a silo in `gone` only while the minimum is not reached)."""
        if self._finished or self._received != len(self._admitted):
            return False
        if self.state is State.CLOSING:
            return True
        enough = len(self._opened) >= self.descriptor.minimum_batch
        return not self.missing() - (gone if enough else frozenset())

    def missing(self) -> frozenset[str]:
        """Silos that the round waits for and that sent nothing."""
        return frozenset(self.descriptor.silos) - frozenset(self._admitted)

    def release(self, shuffle: Shuffle) -> Batch:
        """Close the batch: its reports in random order, or none below the minimum."""
        if self._finished:
            raise WrongRound("the batch of this round is closed")
        reports, self._opened, self._seen = self._opened, [], set()
        dropped = self._received - len(reports)
        if len(reports) < self.descriptor.minimum_batch:
            self.state = State.ABORTED
            reason = f"{len(reports)} valid reports, {self.descriptor.minimum_batch} needed"
            return Batch(self.descriptor, (), Counts(self._received, 0, dropped), reason)
        self.state = State.RELEASED
        shuffle(reports)
        return Batch(self.descriptor, tuple(reports), Counts(self._received, len(reports), dropped))
