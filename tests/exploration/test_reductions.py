"""What makes the searches small leaves nothing out: the same is said and signed without it."""

from collections import deque
from collections.abc import Iterator
from itertools import permutations

import pytest
from exploration.lab import Lab, quiet
from exploration.mix import PLACES
from exploration.vocabulary import Evil, Vocabulary
from exploration.world import Here, Known, SmallWorld


class _Unsorted(SmallWorld):
    """Which silo is which matters."""

    def _sorted(self, rows: tuple[int, ...], states: tuple[int, ...], known: int) -> Here:
        return (*rows, *states, known)

    def _has_twin_before(self, here: Here, place: int) -> bool:
        return False


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with quiet():
        made = Lab(tmp_path_factory.mktemp("worlds"), rounds=3)
        yield made
        made.close()


@pytest.mark.parametrize("evil", [Evil.LAST, Evil.FIRST])
def test_states_that_nobody_can_tell_apart_are_one(lab: Lab, evil: Evil) -> None:
    may = Vocabulary(colluding=2)
    assert _said(lab.world(evil, may)) == _said(lab.raw_world(evil, may))


@pytest.mark.parametrize("evil", [Evil.LAST, Evil.FIRST])
def test_worlds_that_differ_in_who_is_who_are_one(lab: Lab, evil: Evil) -> None:
    may = Vocabulary(power=False)
    assert _said(lab.world(evil, may)) == _said(lab.world(evil, may, _Unsorted))


def _said(world: SmallWorld) -> set[tuple[object, ...]]:
    """All that silos and mixes come to have said, whoever is who."""
    found, waiting = {world.start()}, deque([world.start()])
    while waiting:
        for _, there in world.moves(waiting.popleft()):
            if there not in found:
                found.add(there)
                waiting.append(there)
    return {_anonymous(*world.said(here)) for here in found}


def _anonymous(histories: tuple[object, ...], known: Known) -> tuple[object, ...]:
    every = []
    for places in permutations(PLACES):
        moved = [repr(histories[places.index(each)]) for each in PLACES]
        every.append((*moved, _plain(known.renamed(places))))
    return min(every)


def _plain(known: Known) -> str:
    parts = (getattr(known, each) for each in known.__dataclass_fields__)
    return repr([sorted(part) if isinstance(part, frozenset) else part for part in parts])
