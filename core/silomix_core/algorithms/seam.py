"""Server-side algorithms: generators that yield queries and receive aggregates.

The seam that every algorithm fits: `start(plan)` gives a generator; each `Query` it yields is put
to the silos; what comes back is the mean of their reports, or None when the round was void; what
it returns is the model.  An algorithm sees nothing but randomized means, so it cannot spend
privacy; it can only decide what to ask next.  Which records its rounds use, and how often, it
says beforehand, in `phases`: the noise follows from that.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.mechanism import Minibatch, Phase

Point = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Query:
    """A question to all silos: the gradient at `point`; `model` is the best model so far."""

    point: Point
    model: Point


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The mean of the accepted reports of one round, and how many they were.

    Of none, it is 0: in a round with check-ins nobody may have come.
    """

    gradient: Point
    reports: int

    @classmethod
    def of(cls, total: NDArray[np.int64], reports: int, grid: float) -> "Aggregate":
        """From the sum of the reports' integers."""
        return cls(total.astype(np.float64) * (grid / max(reports, 1)), reports)


Steps = Generator[Query, Aggregate | None, Point]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a study says in public, in the letters of the papers.

    rounds: R, at most; dimension: d; silos: N; participants: M, how many of them a round asks;
    records: n of the smallest silo; radius: of the ball W around 0 that the model is kept in;
    lipschitz: L, no record's gradient is longer; smoothness: β of the loss, infinite if it has
    kinks; target: (ε, δ) of the whole transcript, the least that a silo was promised; ridge: of
    the term ridge/2·‖w‖², which is public and added by the server.
    """

    rounds: int
    dimension: int
    silos: int
    participants: int
    records: int
    radius: float
    lipschitz: float
    smoothness: float
    target: PrivacyTarget
    ridge: float = 0.0

    @property
    def diameter(self) -> float:
        """D of the ball W."""
        return 2 * self.radius

    @property
    def is_smooth(self) -> bool:
        return self.smoothness < inf


@dataclass(frozen=True, slots=True)
class AlgorithmPlan:
    """A setting, how the rounds use the records, and what noise that needs.

    noises: of each phase, the standard deviation on a coordinate of one report; shares: of a
    phase's records, how many a round draws (1: all of them).
    """

    setting: Setting
    phases: tuple[Phase, ...]
    noises: tuple[float, ...]
    share: float = 1.0

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    def noise(self, phase: int = 0) -> float:
        """Standard deviation of a coordinate of the mean report."""
        return self.noises[phase] / sqrt(self.setting.participants)

    def variance(self, phase: int = 0) -> float:
        """V², a bound on E‖g̃ − ∇F‖²: of the batches, of who takes part, of the noise.

        Lowy & Razaviyayn (2023), App. D.4, with υ ≤ L for how much silos differ.
        """
        known, silos = self.setting, self.setting.silos
        bound, asked = known.lipschitz**2, known.participants
        batch = self.share * self.phases[phase].records(known.records)
        drawn = 4 * bound / (batch * asked) if self.share < 1 else 0.0
        chosen = (1 - (asked - 1) / (silos - 1)) * bound / asked if asked < silos else 0.0
        return drawn + chosen + known.dimension * self.noise(phase) ** 2


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What a study can name; `phases` says how its rounds use the records (the privacy events).

    theorem: what it implements and where that stands; advice: when to use it; minibatch: what a
    round draws, where the study may not choose.
    """

    name: str
    summary: str
    theorem: str
    advice: str
    start: Callable[[AlgorithmPlan], Steps]
    phases: Callable[[Setting], tuple[Phase, ...]]
    needs_smooth: bool = False
    minibatch: Minibatch | None = None


def ask(
    setting: Setting, point: Point, model: Point
) -> Generator[Query, Aggregate | None, Point | None]:
    """The gradient of the whole objective at a point: the silos' answer and the public ridge."""
    aggregate = yield Query(point=point, model=model)
    return None if aggregate is None else aggregate.gradient + setting.ridge * point
