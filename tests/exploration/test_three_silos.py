"""Three silos, one round: every state of every such world is looked at."""

from collections.abc import Iterator

import pytest
from exploration.lab import Lab, quiet
from exploration.worlds import THREE_SILOS, check_world


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with quiet():
        made = Lab(tmp_path_factory.mktemp("worlds"), rounds=3)
        yield made
        made.close()


@pytest.mark.parametrize("name", THREE_SILOS)
def test_every_promise_holds(lab: Lab, name: str) -> None:
    check_world(lab, name, THREE_SILOS[name])
