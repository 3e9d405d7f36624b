"""A coordinator that is killed anywhere, with honest mixes and a silo with control variates."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from exploration.coordinator import Coordination
from exploration.lab import quiet
from exploration.mutants import COORDINATOR_MUTANTS, changed
from exploration.questions import Questions
from exploration.silo import SiloMachine
from support.consortia import make_consortium
from support.controls import ONE_STEP
from support.silos import altered

_POINTS = {
    "open",
    "collect",
    "commit",
    "release",
    "void",
    "abandon",
    "prepare",
    "between",
    "before",
}
_FAULTS = {"kill", "power", "kill after", "power after", "away 0", "away 1", "lost 0", "lost 1"}
Build = Callable[[int], Coordination]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """A coordinator's world with so many rounds."""
    made = make_consortium(tmp_path / "consortium", rounds=3, tokens=False)
    questions = Questions(altered(made, ONE_STEP))
    with quiet():
        silo, worlds = SiloMachine(questions), []

        def built(rounds: int) -> Coordination:
            worlds.append(Coordination(questions, silo, tmp_path, rounds))
            return worlds[-1]

        yield built
        for each in worlds:
            each.close()
        silo.close()


@pytest.mark.parametrize(("rounds", "faults", "fewest"), [(3, 1, 700), (2, 2, 4000)])
def test_a_study_goes_on_after_any_fault(
    build: Build, rounds: int, faults: int, fewest: int
) -> None:
    looked = build(rounds).look(faults)
    print(f"{rounds} rounds, {faults} faults: {looked}")
    assert looked.broken is None, str(looked)
    assert looked.states >= fewest
    assert {each.split()[0] for each in looked.kinds} >= _POINTS
    for point in ("open", "collect", "commit", "release"):
        assert {each.removeprefix(f"{point} ") for each in looked.kinds} >= _FAULTS
    assert {"silo opened crash", "silo committed power", "silo closed crash"} <= set(looked.kinds)


@pytest.mark.parametrize("name", COORDINATOR_MUTANTS)
def test_a_mutant_is_found(build: Build, name: str) -> None:
    changes, wrong = COORDINATOR_MUTANTS[name]
    with changed(changes):
        looked = build(2).look(faults=2)
    assert looked.broken is not None, str(looked)
    assert wrong in looked.broken
