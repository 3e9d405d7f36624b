"""The parties of a small world: as machines, or without what nobody could notice."""

from collections.abc import Hashable
from typing import Protocol

from exploration.machines import Event, Output, Quotient
from exploration.mix import MixMachine, View
from exploration.questions import Name
from exploration.silo import SiloMachine
from exploration.vocabulary import Evil, Vocabulary, lists, mix_alphabet, silo_alphabet


class SiloPlayer(Protocol):
    first: int

    def step(self, state: int, event: Event) -> tuple[int, Output]: ...

    def charged_twice(self, state: int) -> bool: ...


class MixPlayer(Protocol):
    first: int

    def step(self, state: int, event: Event) -> tuple[int, Output]: ...

    def view(self, state: int, name: Name) -> View | None: ...

    def marks(self, state: int) -> tuple[Hashable, ...]:
        """In what of this state each silo is: to tell silos apart, as far as it goes."""

    def renamed(self, state: int, places: tuple[int, ...]) -> int:
        """The state in which silo `places[i]` did what silo i did."""


class SmallSilo(Quotient):
    """A silo's machine, as far as a vocabulary can tell its states apart."""

    def __init__(self, machine: SiloMachine, may: Vocabulary, evil: Evil) -> None:
        self._machine = machine
        events = silo_alphabet(may, evil)
        super().__init__(machine, lambda state: events, machine.charged_twice)

    def charged_twice(self, state: int) -> bool:
        return self._machine.charged_twice(self.some(state))


class SmallMix(Quotient):
    """A mix's machine of one round, as far as a vocabulary can tell its states apart."""

    def __init__(self, machine: MixMachine, may: Vocabulary, number: int) -> None:
        self._machine, names = machine, may.names[number - 1]
        self._renamed: dict[tuple[int, tuple[int, ...]], int] = {}

        def looks(state: int) -> Hashable:
            views = [machine.view(state, each) for each in names]
            return tuple(None if each is None else tuple(lists(each, may)) for each in views)

        super().__init__(machine, mix_alphabet(may, machine, number), looks)

    def view(self, state: int, name: Name) -> View | None:
        return self._machine.view(self.some(state), name)

    def marks(self, state: int) -> tuple[Hashable, ...]:
        return self._machine.marks(self.some(state))

    def renamed(self, state: int, places: tuple[int, ...]) -> int:
        key = state, places
        if key not in self._renamed:
            self._renamed[key] = self.of(self._machine.renamed(self.some(state), places))
        return self._renamed[key]
