"""What we use or change of the inside of Flower; tests/system/test_flower_contract.py holds it.

Made for flwr 1.41 and 1.42.  Also of Flower: flower_state.py reads its database, flower_run.py
makes its headers and bundle.  The insides of all libraries: docs/decisions/0002-dependencies.md.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

_HALF_SENT_S, _LOOK_S = 2.0, 0.15


def superlink_app(arguments: list[str]) -> "FastAPI":
    """Make Flower's server application, as `flower-superlink` with these arguments would."""
    with uncollected():
        from flwr.superlink.cli.flower_superlink import (
            SuperLinkLifespan,
            _parse_superlink_lifespan_config,
        )
        from flwr.superlink.main import create_app

    sys.argv = ["flower-superlink", *arguments]  # it reads them from nowhere else
    return create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)


def wait_seconds_for_half_a_reply() -> None:
    """Patch the grid: Flower would wait two hours for a reply whose sender broke off."""
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.superlink.grid import http_grid

    vars(http_grid)["pull_objects"] = partial(
        pull_objects, max_time=_HALF_SENT_S, initial_backoff=_LOOK_S
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """Load modules without Python's garbage collector, a fifth of the time that Flower takes.

    It would look again and again through what stays anyway.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
