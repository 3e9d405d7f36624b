"""What may happen in a small world: the words of the server and of mixes and silos that are its."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from exploration.machines import Event
from exploration.mix import PLACES, Listed, MixMachine, View, bits
from exploration.questions import Name
from silomix_shuffler.batch import State

MINIMUM = 2
EVERYBODY = 0b111
UNSIGNED = 99  # the tag of a list that not every honest mix signed


_HONEST: dict[str, tuple[int, ...]] = {"first": (1,), "last": (0,), "none": (0, 1), "both": ()}


class Evil(Enum):
    """Which mix is the adversary's."""

    FIRST = "first"
    LAST = "last"
    NONE = "none"
    BOTH = "both"

    @property
    def honest(self) -> tuple[int, ...]:
        """Places of the honest mixes in the chain."""
        return _HONEST[self.value]

    @property
    def signs_anything(self) -> tuple[int, ...]:
        return tuple(hop for hop in (0, 1) if hop not in self.honest)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How much may happen; `closings`: what the server says about the end of rounds."""

    rounds: int = 1
    attempts: int = 1
    variants: int = 1
    colluding: int = 0  # silos
    closings: bool = False
    expiry: bool = False
    power: bool = True
    few_lists: bool = False  # where no mix is honest: one that the silo is in, one that lacks it

    @property
    def colluders(self) -> int:
        """Bits of the silos that are the adversary's."""
        return (1 << self.colluding) - 1

    @property
    def names(self) -> list[list[Name]]:
        """Every D, by rounds."""
        return [
            [
                (number, attempt, variant)
                for attempt in range(1, self.attempts + 1)
                for variant in range(self.variants)
            ]
            for number in range(1, self.rounds + 1)
        ]


def faults(may: Vocabulary) -> tuple[Event, ...]:
    return (("crash",), ("power",)) if may.power else (("crash",),)


# To a silo ----------------------------------------------------------------------------------------


def silo_alphabet(may: Vocabulary, evil: Evil) -> list[Event]:
    """All that a silo can be told."""
    events = list(faults(may))
    for names in may.names:
        for name in names:
            earlier = [each for each in names if each[1] < name[1]]
            for size in range(len(earlier) + 1):
                events += [("ask", name, each) for each in combinations(earlier, size)]
            events.append(("receipt", name))
            events += shown(name, evil, may)
            if may.closings:
                events += closings(name, ended=True)
    return events


def shown(name: Name, evil: Evil, may: Vocabulary) -> Iterator[Event]:
    """Every list of D that a silo can be shown; where no mix is honest, two of each kind."""
    honest = evil.honest
    if may.few_lists:
        yield "list", name, True, MINIMUM - 1, 0, 0, (0, 1)
        yield "list", name, False, MINIMUM, 0, 0, (0, 1)
        return
    for mine in (True, False):
        for others in range(MINIMUM - mine, len(PLACES) + 1 - mine):
            for tag in (0,) if len(honest) == 1 else (0, 1):
                yield "list", name, mine, others, 0, tag, (0, 1)
            for hop in honest if len(honest) > 1 else ():
                yield "list", name, mine, others, 0, UNSIGNED, (hop,)
        if honest:
            yield unsigned(name, mine, evil)
    if not honest:
        yield "list", name, True, MINIMUM - 1, 1, 2, (0, 1)  # a report in it twice


def unsigned(name: Name, mine: bool, evil: Evil) -> Event:
    """A list that nobody signed but who signs anything."""
    return "list", name, mine, MINIMUM, 0, UNSIGNED, evil.signs_anything


def closings(name: Name, *, ended: bool) -> Iterator[Event]:
    yield "closed", name, False, False
    yield "closed", name, True, False
    if ended:
        yield "closed", name, True, True


# To a mix -----------------------------------------------------------------------------------------


def mix_alphabet(may: Vocabulary, mix: MixMachine, number: int) -> Callable[[int], Iterator[Event]]:
    """All that can happen to a mix in a state, as far as this round goes."""
    names = may.names[number - 1]

    def alphabet(state: int) -> Iterator[Event]:
        yield from faults(may)
        for name in names:
            view = mix.view(state, name)
            yield from about(name, view, may)
            if view is not None:
                yield from incoming(name, mix.hop, EVERYBODY, view, may)
            for listed in lists(view, may):
                if _may_be_signed(listed, view):
                    for silos in range(may.colluders, EVERYBODY + 1):
                        if silos & may.colluders == may.colluders:
                            yield "release", name, listed, silos

    return alphabet


def _may_be_signed(listed: Listed, view: View | None) -> bool:
    silos, fakes, doubled = listed
    return (
        view is not None
        and not doubled
        and silos.bit_count() + fakes == view.silos.bit_count() + view.fakes
    )


def about(name: Name, view: View | None, may: Vocabulary) -> Iterator[Event]:
    """What the coordinator may ask whatever silos said; `view` is the mix's batch of D."""
    yield "open", name
    yield "abandon", name
    yield "void", name
    if view is None:
        return
    yield "forward", name
    yield from (("commit", name, each) for each in lists(view, may))
    if may.expiry:
        yield "expire", name


def incoming(name: Name, hop: int, sent: int, view: View, may: Vocabulary) -> Iterator[Event]:
    """What silos, or a mix before that is not honest, may hand in of these silos' reports.

    One colluding silo is as good as another: each comes behind the one before it.  To a later mix
    their reports are as good as nobody's.
    """
    if hop == 0:
        for each in bits(sent):
            if each == 0 or each >= may.colluding or view.silos & 1 << each - 1:
                yield "admit", name, each
        yield "seal", name
        return
    for silos in range(EVERYBODY + 1):
        if not silos & (~sent | may.colluders):
            own = silos.bit_count()
            for fakes in range(max(0, MINIMUM - 1 - own), len(PLACES) - own + 1):
                yield "take", name, silos, fakes


def lists(view: View | None, may: Vocabulary) -> Iterator[Listed]:
    """Lists that the coordinator may want: the true one, shorter, longer, replaced, doubled."""
    if view is None or view.state in (State.OPEN, State.ABORTED):
        return
    silos, fakes = view.silos, view.fakes
    yield silos, fakes, 0
    yield silos, fakes + 1, 0
    yield silos, fakes, 1
    different = bits(silos)
    if may.colluding:
        different = (*bits(silos & ~may.colluders), *bits(silos & may.colluders)[:1])
    for each in different:
        less = silos & ~(1 << each)
        yield less, fakes, 0
        yield less, fakes + 1, 0
        if less:
            yield less, fakes, 1
    if may.colluding and fakes:
        yield silos, fakes - 1, 0
