"""Simulations of what a study of a given shape would lose to noise, on synthetic records.

Only public numbers enter: how many silos, records and coordinates, the mechanism's noise, and the
study's algorithm itself.  The records are made up: features uniform within their bounds, scaled
into the unit ball as `Task` does it, labels drawn from a logistic model whose scores have standard
deviation 3.  Each round the algorithm gets the exact mean of the clipped gradients plus what
becomes of the noise of N reports: with the mean, Gaussian σ/√N; with another rule, its outcome for
N silos that say the same but for noise (with more than `LARGEST_ROUND` silos, the mean's).  With
check-ins, the records and reports are of those silos that chose the round.  (Floating-point noise
from a seeded generator: nobody's privacy depends on it.)

Errors are *excess* errors: expected error on fresh records, less that of logistic regression
without privacy on the same records.  What too few rounds lose is in it, what too few records lose
is not.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.accounting.events import Scheme
from silomix_core.algorithms.base import Aggregate, Algorithm, Setting
from silomix_core.evaluation.pooled_baseline import logistic_regression
from silomix_core.mechanism.attendance import attend
from silomix_core.mechanism.mechanism import Mechanism
from silomix_core.reports.reception import Reception
from silomix_core.study.derive import plan_of
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT, Feature, Scaling, Task

Floats = NDArray[np.float64]
Rows = NDArray[np.int64] | slice

LARGEST_DIMENSION = 500  # beyond, records that fit into memory are too few to learn from
LARGEST_ROUND = 100  # reports that are simulated one by one
_MOST_RECORDS, _MOST_VALUES = 60_000, 12_000_000
_TEST_RECORDS, _TEST_VALUES = 20_000, 4_000_000
_BIAS = 0.3
_SCORE_DEVIATION = 3.0
_LOGISTIC = loss(LossName.LOGISTIC)


@dataclass(frozen=True, slots=True)
class Shape:
    """N silos of n records each, and the coordinates of the model, its bias included."""

    silos: int
    records: int
    dimension: int

    @property
    def simulated_records(self) -> int:
        """The number of simulated records: all, or as many as a quick simulation holds; σ/√N stays
        as it is."""
        return min(self.silos * self.records, _MOST_RECORDS, _MOST_VALUES // self.dimension)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Made-up records of all silos together, fresh ones to test on, and what can be had from them.

    features (m, d), labels ±1 (m,), test_features (t, d); test_chances (t,) are the probabilities
    of the label +1.
    """

    features: Floats
    labels: Floats
    test_features: Floats
    test_chances: Floats
    baseline_error: float

    def error(self, model: Floats) -> float:
        """Expected share of wrong labels on the fresh records; over the labels it is exact."""
        positive = self.test_features @ model > 0
        return float(np.mean(np.where(positive, 1 - self.test_chances, self.test_chances)))


@dataclass(frozen=True, slots=True)
class Case:
    """A study to simulate: its mechanism, the setting of its algorithm, and how reports become one:
    without a reception, by their mean."""

    mechanism: Mechanism
    setting: Setting
    reception: Reception | None = None


def simulated_task(dimension: int) -> Task:
    """Logistic regression on features within [−1, 1], scaled into the unit ball."""
    return Task(
        loss=LossName.LOGISTIC,
        label="label",
        features=(Feature("x", -1.0, 1.0, 0.0, count=dimension - 1),),
        scaling=Scaling.UNIT_BALL,
        bias=_BIAS,
    )


def synthetic(shape: Shape, radius: float, rng: np.random.Generator) -> Synthetic:
    """Records whose best model lies well inside the ball of that radius."""
    task = simulated_task(shape.dimension)
    columns = shape.dimension - 1
    direction = rng.standard_normal(columns)
    norm = min(_SCORE_DEVIATION * sqrt(3 * columns), 0.8 * radius)  # a coordinate varies by 1/3
    truth = np.append(direction * (norm / np.linalg.norm(direction)), 0.0)

    def draw(count: int) -> tuple[Floats, Floats]:
        encoded = task.encode(rng.uniform(-1.0, 1.0, (count, columns)))
        encoded /= UNIT
        return encoded, 0.5 + 0.5 * np.tanh(0.5 * (encoded @ truth))

    features, chances = draw(shape.simulated_records)
    labels = np.where(rng.random(len(chances)) < chances, 1.0, -1.0)
    test = draw(min(_TEST_RECORDS, _TEST_VALUES // shape.dimension))
    made = Synthetic(features, labels, *test, baseline_error=0.0)
    fitted = made.error(logistic_regression(features, labels))
    return Synthetic(features, labels, *test, baseline_error=fitted)


def excess_errors(
    data: Synthetic,
    shape: Shape,
    algorithm: Algorithm,
    cases: Sequence[Case],
    rng: np.random.Generator,
    advance: Callable[[], None] = lambda: None,
) -> list[float]:
    """Excess error of one run for each case; mechanisms may differ in clip and noise only.

    The runs go side by side through the same rounds, with the same batches and, up to its scale,
    the same noise: their differences say more than each alone.
    """
    mechanisms = [case.mechanism for case in cases]
    first = mechanisms[0]
    if any((each.minibatch, each.phases) != (first.minibatch, first.phases) for each in mechanisms):
        raise ValueError("runs side by side need the same batches and phases")
    runs = [algorithm.start(plan_of(case.setting, case.mechanism)) for case in cases]
    queries = [next(run) for run in runs]
    models: list[Floats] = []
    clips = np.array([each.clip for each in mechanisms])
    caps = clips / np.linalg.norm(data.features, axis=1)[:, None]
    pools = _pools(first, len(data.labels), rng)
    coming = _coming(first, shape.silos, rng)
    for number in range(1, first.rounds + 1):
        phase = first.phase_of(number)
        points = np.stack([query.point for query in queries], axis=1)
        silos, reports = coming(number)
        rows = _batch_rows(first, shape, phase, pools[phase], rng)
        if silos < shape.silos:
            rows = _of_some(rows, silos / shape.silos, len(data.labels), rng)
        means = _clipped_means(data, caps, points, rows) * bool(silos)
        noises = _noises(cases, number, (reports, shape.dimension), rng)
        for index, run in enumerate(runs):
            gradient = means[:, index] + mechanisms[index].sigma(phase) * noises[index]
            try:
                queries[index] = run.send(Aggregate(gradient, reports))
            except StopIteration as end:
                models.append(end.value)
        advance()
    return [data.error(model) - data.baseline_error for model in models]


def _noises(
    cases: Sequence[Case], number: int, size: tuple[int, int], rng: np.random.Generator
) -> list[Floats]:
    """The noise in each case's outcome, in its σ; `size` is (reports, coordinates)."""
    reports, dimension = size
    if all(case.reception is None for case in cases):
        noise = rng.standard_normal(dimension) / sqrt(max(reports, 1)) * bool(reports)
        return [noise] * len(cases)
    drawn = rng.standard_normal(size)
    return [_outcome(case, number, drawn) for case in cases]


def _outcome(case: Case, number: int, drawn: Floats) -> Floats:
    if case.reception is None:
        mean: Floats = drawn.mean(axis=0)
        return mean
    gathering, units = case.reception.gathering(number, len(drawn)), case.mechanism.sigma_units
    for report in np.rint(units * drawn).astype(np.int64):
        gathering.add(report)
    one = gathering.close().sum
    outcome: Floats = one.total / (one.reports * units)
    return outcome


def _coming(
    mechanism: Mechanism, silos: int, rng: np.random.Generator
) -> Callable[[int], tuple[int, int]]:
    """A function from a round to how many silos' records count and how many reports are used."""
    chosen: Counter[int | None] = Counter()
    if any(phase.check_in for phase in mechanism.phases):
        for place in range(silos):
            chosen.update(attend(mechanism, place, rng.bytes).chosen.values())

    def coming(number: int) -> tuple[int, int]:
        check_in = mechanism.phases[mechanism.phase_of(number)].check_in
        if check_in is None:
            return silos, silos
        return (min(1, chosen[number]), 1) if check_in.lone else (chosen[number],) * 2

    return coming


def _of_some(rows: Rows, share: float, records: int, rng: np.random.Generator) -> Rows:
    """The part of the rows that belongs to some of the silos."""
    candidates = np.arange(records) if isinstance(rows, slice) else rows
    size = max(1, round(share * len(candidates)))
    return rng.choice(candidates, size, replace=False)


def _pools(mechanism: Mechanism, records: int, rng: np.random.Generator) -> list[Rows]:
    """The simulated records of each phase, disjoint as long as there are enough."""
    if [phase.share for phase in mechanism.phases] == [1.0]:
        return [slice(None)]
    order = rng.permutation(records)
    ends = np.cumsum([phase.share * records for phase in mechanism.phases])
    starts = [0.0, *ends[:-1]]
    return [
        order[int(start) : max(int(end), int(start) + 1)]
        for start, end in zip(np.minimum(starts, records - 1), ends, strict=True)
    ]


def _batch_rows(
    mechanism: Mechanism, shape: Shape, phase: int, pool: Rows, rng: np.random.Generator
) -> Rows:
    """Draw as many rows as all silos do together, all of the pool if it has fewer."""
    if mechanism.minibatch.scheme is Scheme.FULL:
        return pool
    drawn = shape.silos * mechanism.minibatch.size(mechanism.phases[phase].records(shape.records))
    candidates = np.arange(shape.simulated_records) if isinstance(pool, slice) else pool
    size = max(1, min(round(drawn), len(candidates)))
    return rng.choice(candidates, size, replace=False)


def _clipped_means(data: Synthetic, caps: Floats, points: Floats, rows: Rows) -> Floats:
    """Means (d, c) over these rows of gradients at the points (d, c), clipped at caps (m, c)."""
    features, limits = data.features[rows], caps[rows]
    residuals = _LOGISTIC.residual(features @ points, data.labels[rows, None])
    np.clip(residuals, -limits, limits, out=residuals)
    means: Floats = features.T @ residuals / len(features)
    return means
