"""The real parties as machines that can be put into any state they were in before.

A machine interns its states: each is known by a small number, and a step from a state with an
input is taken by the real code once and remembered.  So a search over the states of a whole world
costs what looking up costs, although every step was taken by the code that runs in production.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

Snapshot = TypeVar("Snapshot")
Event = tuple[Hashable, ...]
Output = tuple[Hashable, ...]


class Machine(ABC, Generic[Snapshot]):
    """Numbered states of one kind of party, and the steps between them."""

    first: int  # the number of the state in which it begins

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._snapshots: list[Snapshot] = []
        self._origins: list[tuple[int, Event]] = []
        self._steps: dict[tuple[int, Event], tuple[int, Output]] = {}

    def number(self, snapshot: Snapshot, origin: tuple[int, Event] = (0, ())) -> int:
        """The number of this state, a new one if nothing like it was seen."""
        known = self._numbers.setdefault(self.key(snapshot), len(self._snapshots))
        if known == len(self._snapshots):
            self._snapshots.append(snapshot)
            self._origins.append(origin)
        return known

    def snapshot(self, number: int) -> Snapshot:
        return self._snapshots[number]

    def origin(self, number: int) -> tuple[int, Event]:
        """The state and the event that first led here."""
        return self._origins[number]

    def step(self, number: int, event: Event) -> tuple[int, Output]:
        """The state after the event, and what the party says; taken once, remembered."""
        taken = self._steps.get((number, event))
        if taken is None:
            after, said = self.take(self._snapshots[number], event)
            taken = self._steps[number, event] = self.number(after, (number, event)), said
        return taken

    def forget_steps(self) -> None:
        """Take every step anew: the code behind them changed."""
        self._steps.clear()

    @property
    def steps_taken(self) -> int:
        """By the real code."""
        return len(self._steps)

    @abstractmethod
    def key(self, snapshot: Snapshot) -> Hashable:
        """What makes two states the same: all that can ever matter, no random bytes."""

    @abstractmethod
    def take(self, snapshot: Snapshot, event: Event) -> tuple[Snapshot, Output]:
        """Put the real party into this state and let the event happen."""


class Quotient:
    """A machine's states without differences that nobody could ever notice.

    All states that the events of an alphabet lead to are visited, then those are made one that
    look alike and whose every event gives the same words and leads to the same again: the coarsest
    bisimulation, by refining a partition until nothing changes.  A world that sees of a party only
    what it says, and how it looks, has then as many behaviours as before, and fewer states.
    """

    def __init__(
        self,
        machine: Machine[Any],
        alphabet: Callable[[int], Iterable[Event]],
        looks: Callable[[int], Hashable],
    ) -> None:
        self.machine = machine
        steps: dict[int, dict[Event, tuple[int, Output]]] = {}
        waiting = [machine.first]
        while waiting:
            number = waiting.pop()
            if number not in steps:
                steps[number] = {each: machine.step(number, each) for each in alphabet(number)}
                waiting.extend(after for after, _ in steps[number].values())
        self.visited = len(steps)
        self._classes = _refined(steps, {number: looks(number) for number in steps})
        self._some = {place: number for number, place in reversed(self._classes.items())}
        self._steps = {
            place: {event: (self._classes[after], said) for event, (after, said) in own.items()}
            for place, number in self._some.items()
            for own in [steps[number]]
        }
        self.first = self._classes[machine.first]

    def __len__(self) -> int:
        return len(self._some)

    def step(self, place: int, event: Event) -> tuple[int, Output]:
        return self._steps[place][event]

    def some(self, place: int) -> int:
        """One of the machine's states that are this one."""
        return self._some[place]

    def of(self, number: int) -> int:
        return self._classes[number]


def _refined(
    steps: dict[int, dict[Event, tuple[int, Output]]], looks: dict[int, Hashable]
) -> dict[int, int]:
    """The class of every state."""
    classes = _numbered(looks)
    while True:
        finer = _numbered(
            {
                number: (
                    classes[number],
                    frozenset((each, said, classes[after]) for each, (after, said) in own.items()),
                )
                for number, own in steps.items()
            }
        )
        if len(set(finer.values())) == len(set(classes.values())):
            return finer
        classes = finer


def _numbered(values: dict[int, Hashable]) -> dict[int, int]:
    numbers: dict[Hashable, int] = {}
    return {each: numbers.setdefault(value, len(numbers)) for each, value in values.items()}
