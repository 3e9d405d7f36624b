"""Private evaluation: how good the final model is on records that were held out at the silos.

Stands after the last training round.  A study may hold out a share of every silo's records, split
off by the same secret as phases are; one more round then asks about the final model, and a silo's
report holds the mean of what its held-out records say, in the first coordinates, noised, charged
and mixed like any other.  The rest of the report carries noise alone.

What a record says keeps to what `Mechanism` relies on: entries that are not negative, a norm of at
most 1, so that two records are at most √2 apart.

- With K classes: in which of the K² cells of the confusion matrix it is, a vector with one 1.
- With a number: (1 − e², e², 1 − e, e)/√2, where e is how far the prediction is off, over the width
  of the label's public bounds, which both lie within.  Each error is there with what it lacks of 1:
  their difference has less noise than either, and two records can be as far apart as is paid for.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from silomix_core.algorithms.base import Aggregate, Algorithm, AlgorithmPlan, Point, Query
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.mechanism.mechanism import Mechanism, PhaseKind
from silomix_core.model.clipped_sum import SUM_UNIT, Records
from silomix_core.model.models import Model
from silomix_core.model.rounding import exact_product
from silomix_core.task.task import UNIT, Task

CELLS = ("true_negative", "false_positive", "false_negative", "true_positive")
_BLOCK_VALUES = 2**17  # as in `clipped_sum`: what fits the cache
_FEWEST_ROWS = 64
_STEPS = 2**13  # of an error from 0 to the width of the bounds, so that sums are those of integers
_SQUARE = _STEPS**2
_PER_SQUARE = 724  # SUM_UNIT/_SQUARE/√2, rounded down: no norm exceeds 1
_ALIKE = 1 + 1e-9  # the heaviest silo's weight, where all weigh the same
_SAID = _PER_SQUARE * _SQUARE / SUM_UNIT  # what stands for 1, nearly 1/√2

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Confusion:
    """Shares of all held-out records in each cell: K rows of labels by K columns of predictions.

    Silos count by their weights.  `standard_error` is that of `error`,
    `cell_standard_error` that of a cell, from the noise alone, whose size is known; the hold-out
    being a sample comes on top.
    """

    cells: Floats  # (K, K)
    standard_error: float
    cell_standard_error: float
    reports: int

    @property
    def error(self) -> float:
        """The share of wrong predictions."""
        return float(self.cells.sum() - np.trace(self.cells))

    def to_json(self) -> dict[str, object]:
        """The figures as JSON; with two classes, 0 and 1, the cells have names."""
        rows = self.cells.tolist()
        named = dict(zip(CELLS, [*rows[0], *rows[-1]], strict=True)) if len(rows) == 2 else rows
        return {
            "error": self.error,
            "standard_error": self.standard_error,
            "confusion": named,
            "cell_standard_error": self.cell_standard_error,
            "reports": self.reports,
        }


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of predictions, in the label's unit; labels count as clamped to their bounds.

    Weights and standard errors are as in a `Confusion`.
    """

    mean_squared_error: float
    standard_error: float
    mean_absolute_error: float
    absolute_standard_error: float
    reports: int

    @property
    def error(self) -> float:
        return self.mean_squared_error

    def to_json(self) -> dict[str, object]:
        return {
            "mean_squared_error": self.mean_squared_error,
            "standard_error": self.standard_error,
            "mean_absolute_error": self.mean_absolute_error,
            "absolute_standard_error": self.absolute_standard_error,
            "reports": self.reports,
        }


Evaluation = Confusion | Errors


class Measure(Protocol):
    """A measure of a model: what held-out records say of it, and what follows from their mean."""

    @property
    def cells(self) -> int:
        """The number of coordinates of a report that the measure takes."""
        ...

    def said(self, scores: Floats, labels: Floats) -> Integers:
        """The sum of what these records say, in the units of an update."""
        ...

    def evaluation(self, aggregate: Aggregate, sigma: float, *, whole: bool = True) -> Evaluation:
        """The evaluation from the mean of reports with noise `sigma` each.

        whole: whether the weights of the silos that sent them are known to be 1 on average, as
        they are if all silos did or all weigh the same.
        """
        ...


@dataclass(frozen=True, slots=True)
class Classes:
    """The measure for labels 0, 1, 2 …: the confusion matrix."""

    count: int

    @property
    def cells(self) -> int:
        return self.count**2

    def said(self, scores: Floats, labels: Floats) -> Integers:
        """The confusion matrix, by comparisons with every class: equal work for every label."""
        if scores.ndim == 1:  # two classes, told apart by the score's sign
            predicted, actual = scores > 0, labels > 0
        else:
            predicted, actual = scores.argmax(axis=1), np.rint(labels * UNIT)
        classes = np.arange(self.count)
        rows = (actual[:, None] == classes).astype(np.float64)
        columns = (predicted[:, None] == classes).astype(np.float64)
        counts: Integers = exact_product(rows.T, columns).ravel().astype(np.int64) * SUM_UNIT
        return counts

    def evaluation(self, aggregate: Aggregate, sigma: float, *, whole: bool = True) -> Confusion:
        """The confusion matrix nearest to the noisy cells among those whose cells sum to 1.

        The true cells do, of the whole, and knowing it takes noise away: with Σ the noisy sum of
        the K² cells, that matrix has cells x + (1 − Σ)/K², and an error of √(K − 1) times the noise
        instead of √(K² − K).  Else they are shares of their sum.
        """
        cells = aggregate.gradient[: self.cells]
        noise = sigma / sqrt(aggregate.reports)
        if not whole:
            return self._shares(cells, noise, aggregate.reports)
        cells = cells + (1 - cells.sum()) / self.cells
        return Confusion(
            cells=cells.reshape(self.count, self.count),
            standard_error=noise * sqrt(self.count - 1),
            cell_standard_error=noise * sqrt(1 - 1 / self.cells),
            reports=aggregate.reports,
        )

    def _shares(self, cells: Floats, noise: float, reports: int) -> Confusion:
        """The cells over their sum; standard errors to first order in the noise."""
        total = max(float(cells.sum()), noise)  # a sum that noise hides says nothing
        cells, noise = cells / total, noise / total
        found = Confusion(cells.reshape(self.count, self.count), 0.0, 0.0, reports)
        wrong, largest = found.error, float(cells.max())
        of_error = self.count * ((self.count - 1) * (1 - wrong) ** 2 + wrong**2)
        of_cell = (1 - largest) ** 2 + (self.cells - 1) * largest**2
        return replace(
            found,
            standard_error=noise * sqrt(of_error),
            cell_standard_error=noise * max(1.0, sqrt(of_cell)),
        )


@dataclass(frozen=True, slots=True)
class Numbers:
    """The measure for labels between public bounds: mean squared and mean absolute error."""

    low: float
    high: float

    @property
    def cells(self) -> int:
        return 4

    def said(self, scores: Floats, labels: Floats) -> Integers:
        """The sums of (1 − e², e², 1 − e, e)/√2; scores are cut as by `Task.predict`, labels as by
        `Task.encode_labels`: at ±1."""
        off = np.abs(np.clip(scores, -1.0, 1.0) - labels) / 2
        steps = np.rint(off * _STEPS).astype(np.int64)
        squared, absolute, most = int((steps * steps).sum()), int(steps.sum()) * _STEPS, len(steps)
        whole = most * _SQUARE
        return _PER_SQUARE * np.array([whole - squared, squared, whole - absolute, absolute])

    def evaluation(self, aggregate: Aggregate, sigma: float, *, whole: bool = True) -> Errors:
        """The mean errors: each is half of 1 plus how far it exceeds what it lacks of 1; where that
        1 is not known, the share that it has of both."""
        lacked_square, square, lacked, absolute = aggregate.gradient[: self.cells] / _SAID
        noise = sigma / sqrt(aggregate.reports) / _SAID
        of = _half if whole else _share
        squared, squared_noise = of(float(square), float(lacked_square), noise)
        mean, mean_noise = of(float(absolute), float(lacked), noise)
        width = self.high - self.low
        return Errors(
            mean_squared_error=squared * width**2,
            standard_error=squared_noise * width**2,
            mean_absolute_error=mean * width,
            absolute_standard_error=mean_noise * width,
            reports=aggregate.reports,
        )


def _half(part: float, other: float, noise: float) -> tuple[float, float]:
    """A part of what is 1 with the other, and its standard error."""
    return (1 + part - other) / 2, noise / sqrt(2)


def _share(part: float, other: float, noise: float) -> tuple[float, float]:
    """The share of a part in both, and its standard error to first order in the noise."""
    both = max(part + other, noise)
    share = part / both
    return share, noise / both * sqrt((1 - share) ** 2 + share**2)


def measure_of(task: Task) -> Measure:
    """The measure by which models of this task are evaluated."""
    return Classes(task.classes or 2) if task.label_bounds is None else Numbers(*task.label_bounds)


def not_measurable(task: Task) -> str | None:
    """The reason why silos cannot evaluate a model of this task, or None."""
    cells = measure_of(task).cells
    if cells <= task.dimension:
        return None
    what = "errors take" if task.loss.is_regression else "a confusion matrix has"
    return (
        f"evaluation: {what} {cells} cells, and a report of this model only {task.dimension} "
        "coordinates; leave the evaluation out"
    )


class HeldOutSum:
    """The function point → Σ of what one silo's held-out records say of the model there.

    The sum is like an update: exact, of integers, the same work for every record, and what a record
    says follows from itself and the point alone.
    """

    def __init__(self, records: Records, model: Model, measure: Measure) -> None:
        self._records, self._model, self._measure = records, model, measure

    def __len__(self) -> int:
        return len(self._records)

    def at(
        self,
        point: Point,
        batch: NDArray[np.bool_] | None = None,
        _: RandomBytes | None = None,
        /,
    ) -> Integers:
        """The sums in the units of an update, then zeros; a hold-out is always used whole."""
        if batch is not None:
            raise ValueError("an evaluation uses all held-out records")
        features, labels = self._records.features, self._records.labels
        total = np.zeros(len(point), dtype=np.int64)
        step = max(_FEWEST_ROWS, _BLOCK_VALUES // features.shape[1])
        for first in range(0, len(features), step):
            rows = slice(first, first + step)
            scores = self._model.scores(point, features[rows])
            total[: self._measure.cells] += self._measure.said(scores, labels[rows])
        return total


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a study; `evaluation` is None if it has none, or if that round was void."""

    model: Point
    evaluation: Evaluation | None = None


StudySteps = Generator[Query, Aggregate | None, Result]


def study_steps(
    algorithm: Algorithm, plan: AlgorithmPlan, mechanism: Mechanism, measure: Measure | None
) -> StudySteps:
    """Run all rounds of a study: the algorithm's, and the one that evaluates its model.

    measure: what the evaluating round measures, if there is one.
    """
    model = yield from algorithm.start(plan)
    last = len(mechanism.phases) - 1
    if mechanism.phases[last].kind is not PhaseKind.EVALUATION:
        return Result(model)
    answer = yield Query(point=model, model=model)
    if answer is None or not answer.reports or measure is None:
        return Result(model)
    whole = answer.reports == plan.setting.silos or mechanism.heaviest <= _ALIKE
    return Result(model, measure.evaluation(answer, mechanism.sigma(last), whole=whole))
