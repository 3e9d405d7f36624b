"""One honest silo between two that collude, attempts and rounds: all states of every such world."""

from collections.abc import Iterator

import pytest
from exploration.lab import Lab, quiet
from exploration.worlds import ATTEMPTS_AND_ROUNDS, check_world


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with quiet():
        made = Lab(tmp_path_factory.mktemp("worlds"), rounds=3)
        yield made
        made.close()


@pytest.mark.parametrize("name", ATTEMPTS_AND_ROUNDS)
def test_every_promise_holds(lab: Lab, name: str) -> None:
    check_world(lab, name, ATTEMPTS_AND_ROUNDS[name])
