"""Server-side algorithms: generators that yield queries and receive aggregates.

The seam that every algorithm fits: `start(plan)` gives a generator; each `Query` it yields is put
to the silos; what comes back is the mean of their reports, or None when the round was void; what
it returns is the model.  An algorithm sees nothing but randomized means, so it cannot spend
privacy; it can only decide what to ask next.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silomix_core.mechanism import Phase

Point = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Query:
    """A question to all silos: the gradient at `point`; `model` is the best model so far."""

    point: Point
    model: Point


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The mean of the accepted reports of one round, and how many they were."""

    gradient: Point
    reports: int


Steps = Generator[Query, Aggregate | None, Point]


@dataclass(frozen=True, slots=True)
class AlgorithmPlan:
    """Public quantities from which an algorithm derives its parameters.

    noise: largest standard deviation of the noise on a coordinate of one report; silos: how many
    are enrolled; radius: of the ball W around 0 that the model is kept in.
    """

    rounds: int
    dimension: int
    silos: int
    radius: float
    noise: float


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What a study can name; `phases` says how its rounds use the records (the privacy events)."""

    name: str
    summary: str
    start: Callable[[AlgorithmPlan], Steps]
    phases: Callable[[int], tuple[Phase, ...]]
