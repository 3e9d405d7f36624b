"""Server-side algorithms: generators that yield queries and receive aggregates.

The interface of every algorithm: `start(plan)` gives a generator; each `Query` it yields is put to
the silos; what comes back is the mean of their reports, or None when the round was void; what it
returns is the model.  An algorithm sees nothing but randomized means, so it cannot spend
privacy; it can only decide what to ask next.  Which records its rounds use, and how often, it
says beforehand, in `phases`: the noise follows from that.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.mechanism.mechanism import Minibatch, Phase
from silomix_core.model.smoothing import Smoothing

Point = NDArray[np.float64]
LOCAL_STEPS = 5  # unless the study says otherwise
_MOST_MOMENTUM = 0.99


@dataclass(frozen=True, slots=True)
class Query:
    """A question to all silos: the gradient at `point`; `model` is the best model so far.

    control: the mean control variate of all silos, for algorithms that have them.
    """

    point: Point
    model: Point
    control: Point | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The mean of the accepted reports of one round, or what the study's rule has in its place, and
    the number of these reports.

    Without any report the mean is 0: in a round with check-ins nobody may have come.
    """

    gradient: Point
    reports: int

    @classmethod
    def of(cls, total: NDArray[np.int64], reports: int, grid: float) -> "Aggregate":
        """The aggregate of so many reports, given the sum of their integers or its substitute."""
        return cls(total.astype(np.float64) * (grid / max(reports, 1)), reports)


Steps = Generator[Query, Aggregate | None, Point]


class Averaging(Enum):
    """The iterates that the model is an average of, and how much each counts."""

    WEIGHTED_TAIL = "weighted-tail"  # the last three quarters; iterate r counts r times
    WEIGHTED = "weighted"  # all; iterate r counts r times
    TAIL = "tail"  # the last half, all alike

    def weight(self, number: int, rounds: int) -> int:
        """The weight of iterate `number` (from 1) among so many rounds; 0 if it does not count."""
        if self is Averaging.TAIL:
            return int(2 * number > rounds)
        return number if self is Averaging.WEIGHTED or 4 * number > rounds else 0


@dataclass(frozen=True, slots=True)
class Descent:
    """A study's choice of momentum and averaging in noisy minibatch SGD: no privacy depends on it.

    momentum: of the heavy ball, by which a step also follows earlier gradients; 0 for none.
    """

    momentum: float = 0.8
    averaging: Averaging = Averaging.WEIGHTED_TAIL

    def __post_init__(self) -> None:
        if not 0 <= self.momentum <= _MOST_MOMENTUM:
            raise ValueError(f"momentum must lie between 0 and {_MOST_MOMENTUM}")


USUAL_DESCENT = Descent()


@dataclass(frozen=True, slots=True)
class Setting:
    """The public numbers of a study, with the letters that the papers have for them.

    rounds: R, at most; dimension: d; silos: N; participants: M, how many silos a round asks;
    records: n of the smallest silo; radius: of the ball W around 0 that the model is kept in;
    lipschitz: L, no record's gradient is longer; smoothness: β of the loss, infinite if it has
    kinks; target: (ε, δ) of the whole transcript, the least that a silo was promised; ridge: of
    the term ridge/2·‖w‖², which is public and added by the server; local_steps: K, of algorithms
    that have them; ratio: the share of its records that a silo draws for a gradient; scatter:
    variance that silos themselves give a record's gradient, by smoothing it at random; descent:
    momentum and averaging of algorithms that leave them to the study; numbers: whether labels are
    numbers, not classes; unevenness: the mean square of the silos' weights, which are 1 on average.
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
    local_steps: int = LOCAL_STEPS
    ratio: float = 1.0
    scatter: float = 0.0
    descent: Descent = USUAL_DESCENT
    numbers: bool = False
    unevenness: float = 1.0

    @property
    def diameter(self) -> float:
        """The diameter D of the ball W."""
        return 2 * self.radius

    @property
    def is_smooth(self) -> bool:
        return self.smoothness < inf


@dataclass(frozen=True, slots=True)
class AlgorithmPlan:
    """A setting, how the rounds use the records, and what noise that needs.

    noises: for each phase, the standard deviation on a coordinate of one noised gradient; share:
    the fraction of a phase's records that a gradient draws (1: all of them); largest_gradient:
    bound on a coordinate of a noised gradient.
    """

    setting: Setting
    phases: tuple[Phase, ...]
    noises: tuple[float, ...]
    share: float = 1.0
    largest_gradient: float = inf

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    def noise(self, phase: int = 0) -> float:
        """Standard deviation of the noise on a coordinate of the mean report."""
        return self.noises[phase] / sqrt(self.setting.participants)

    def variance(self, phase: int = 0) -> float:
        """V², a bound on E‖g̃ − ∇F‖²: what batches, the choice of silos and the noise add up to.

        Lowy & Razaviyayn (2021), long version, App. D.4, with υ ≤ L for how much silos differ.
        """
        known, silos = self.setting, self.setting.silos
        bound, asked = known.lipschitz**2, known.participants
        batch = self.share * self.phases[phase].records(known.records)
        drawn = 4 * bound / (batch * asked) if self.share < 1 else known.scatter / (batch * asked)
        chosen = 0.0
        if asked < silos:
            chosen = (1 - (asked - 1) / (silos - 1)) * known.unevenness * bound / asked
        return drawn + chosen + known.dimension * self.noise(phase) ** 2


def _as_it_is(_: Setting) -> Smoothing | None:
    return None


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """The steps by which a silo goes from one noised gradient of an answer to the next.

    size: of a step; still_rounds: the number of first rounds, in which silos stay at the point that
    they are asked about; ridge: of the public term, whose gradient there belongs to every step.
    """

    size: float
    still_rounds: int = 0
    ridge: float = 0.0

    def size_in(self, round_number: int) -> float:
        return 0.0 if round_number <= self.still_rounds else self.size


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm that a study can name.

    phases: how its rounds use the records (the privacy events); theorem: what it implements and
    where that stands; advice: when to use it; local: the silos' local steps, if they take any;
    takes_local_steps: whether the study chooses how many; takes_descent: whether the study chooses
    momentum and averaging; smoothing: what silos do to a loss with kinks before they differentiate
    it; minibatch: what a round draws, where the study may not choose.
    """

    name: str
    summary: str
    theorem: str
    advice: str
    start: Callable[[AlgorithmPlan], Steps]
    phases: Callable[[Setting], tuple[Phase, ...]]
    needs_smooth: bool = False
    local: Callable[[AlgorithmPlan], LocalSteps] | None = None
    takes_local_steps: bool = False
    takes_descent: bool = False
    smoothing: Callable[[Setting], Smoothing | None] = _as_it_is
    minibatch: Minibatch | None = None

    @property
    def smooths(self) -> bool:
        return self.smoothing is not _as_it_is


def ask(
    setting: Setting, point: Point, model: Point
) -> Generator[Query, Aggregate | None, Point | None]:
    """Ask for the whole objective's gradient at a point: the silos' answer and the public ridge."""
    aggregate = yield Query(point=point, model=model)
    return None if aggregate is None else aggregate.gradient + setting.ridge * point
