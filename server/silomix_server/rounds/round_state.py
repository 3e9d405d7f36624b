"""How far a round has come at the coordinator: a state machine without I/O.

An attempt that brought no batch may be followed by another one, if every mix abandoned every
attempt before it.  Once a batch arrived, opened or not, the round is never tried again: the same
reports in two different batches would give away the difference.
"""

from dataclasses import dataclass, field

from silomix_proto import round_pb2
from silomix_protocol.rounds.descriptor import MOST_ATTEMPTS, Descriptor

TRIES = 3  # attempts at one round by one run of the coordinator


@dataclass(slots=True)
class RoundState:
    """The state of one round; `tried` has the attempts of earlier coordinator runs, too."""

    number: int
    query: bytes
    mixes: int
    tried: list[Descriptor]
    abandoned: list[round_pb2.Abandonment] = field(default_factory=list)  # by attempt, then mix
    asked: int = 0  # silos, in the last attempt that asked any
    chain: tuple[round_pb2.HopStatement, ...] = ()  # what the mixes state of a batch, if one came
    listed: bool = False  # whether silos were shown a list
    _tries: int = 0

    @property
    def unabandoned(self) -> list[Descriptor]:
        """The attempts that some mix has not yet signed to have abandoned."""
        return self.tried[len(self.abandoned) // self.mixes :]

    @property
    def may_try(self) -> bool:
        used_up = self._tries >= TRIES or len(self.tried) >= MOST_ATTEMPTS
        return not used_up and not self.chain and not self.unabandoned

    @property
    def attempt(self) -> int:
        """The number of the next attempt."""
        return len(self.tried) + 1

    @property
    def last(self) -> Descriptor:
        return self.tried[-1]

    def abandon(self, statements: tuple[round_pb2.Abandonment, ...]) -> None:
        """Take every mix's abandonment of the first attempt that has none yet."""
        if self.chain:
            raise ValueError("a batch of this round came")
        if len(statements) != self.mixes:
            raise ValueError("not every mix abandoned the attempt")
        self.abandoned += statements

    def begin(self, descriptor: Descriptor) -> None:
        if not self.may_try:
            raise ValueError("the round may not be tried again")
        self.tried.append(descriptor)
        self._tries += 1

    def ask(self) -> None:
        self.asked = len(self.last.silos)

    def collect(self, chain: tuple[round_pb2.HopStatement, ...]) -> None:
        if not self.asked:
            raise ValueError("nobody was asked")
        self.chain = chain

    def show_list(self) -> None:
        if not self.chain:
            raise ValueError("there is no batch")
        self.listed = True
