"""A mutant of every rule is found, in the world that is named with it."""

from collections.abc import Iterator

import pytest
from exploration.lab import Lab, quiet
from exploration.mutants import MIX_MUTANTS, SILO_MUTANTS, changed
from exploration.search import search

_MUTANTS = MIX_MUTANTS | SILO_MUTANTS
_STATES = 20_000  # far more than any of them takes


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with quiet():
        made = Lab(tmp_path_factory.mktemp("worlds"), rounds=3)
        yield made
        made.close()


@pytest.mark.parametrize("name", _MUTANTS)
def test_a_mutant_is_found(lab: Lab, name: str) -> None:
    mutant = _MUTANTS[name]
    with changed(mutant.changes):
        found = search(lab.raw_world(mutant.evil, mutant.may), most_states=_STATES)
    assert found.broken is not None, str(found)
    assert mutant.wrong in found.broken
