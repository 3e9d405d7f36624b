"""Private evaluation: how good the final model is on records that were held out at the silos.

Stands after the last training round.  A study may hold out a share of every silo's records, split
off by the same secret as phases are; one more round then asks about the final model, and a silo's
report holds the mean of what its held-out records say, in the first coordinates, noised, charged
and mixed like any other.  The rest of the report carries noise alone.

For labels 0 and 1 a record says in which cell of the confusion matrix it is: a vector with one 1.
Whatever is measured later must keep to what `Mechanism` relies on: entries that are not negative, a
norm of at most 1, so that two records are at most √2 apart.
"""

from collections.abc import Generator
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.algorithms.seam import Aggregate, Algorithm, AlgorithmPlan, Point, Query
from silomix_core.mechanism import Kind, Mechanism
from silomix_core.noise import RandomBytes
from silomix_core.update import SUM_UNIT, Records

CELLS = ("true_negative", "false_positive", "false_negative", "true_positive")
_NEAREST = 1e-200


class ConfusionSum:
    """The function point → how many records fall into each cell, of one silo's hold-out.

    As an update is: an exact integer sum, the same work for every record.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def at(
        self,
        point: Point,
        batch: NDArray[np.bool_] | None = None,
        _: RandomBytes | None = None,
        /,
    ) -> NDArray[np.int64]:
        """The counts in the units of an update, then zeros; a hold-out is always used whole."""
        if batch is not None:
            raise ValueError("an evaluation uses all held-out records")
        # as for an update: subnormal weights would take a time that depends on the record
        weights = np.where(np.abs(point) < _NEAREST, 0.0, point)
        predicted = self._records.features @ weights > 0
        positive = self._records.labels > 0
        cell = 2 * positive.astype(np.int64) + predicted
        total = np.zeros(len(point), dtype=np.int64)
        for place in range(len(CELLS)):
            total[place] = np.count_nonzero(cell == place) * SUM_UNIT
        return total


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the silos' held-out records say of a model: shares of all of them, in `CELLS`' order.

    Silos count by their weights, not by their records.  `standard_error` is that of `error`,
    `cell_standard_error` that of a cell, from the noise alone, whose size is known; the hold-out
    being a sample comes on top.
    """

    confusion: tuple[float, ...]
    error: float
    standard_error: float
    cell_standard_error: float
    reports: int

    @classmethod
    def of(cls, aggregate: Aggregate, sigma: float) -> "Evaluation":
        """From the mean of reports with noise `sigma` each.

        The cells sum to 1 (if silos have different weights: if all of them report), which takes
        away a quarter of a cell's noise, and half of the error's: with Σ the noisy sum, the nearest
        point at which they do has cells x + (1 − Σ)/4, and (wrong − right + 1)/2 is its error.
        """
        cells = aggregate.gradient[: len(CELLS)]
        cells = cells + (1 - cells.sum()) / len(CELLS)
        noise = sigma / sqrt(aggregate.reports)
        return cls(
            confusion=tuple(float(cell) for cell in cells),
            error=float(cells[1] + cells[2]),
            standard_error=noise,
            cell_standard_error=noise * sqrt(3) / 2,
            reports=aggregate.reports,
        )

    def to_json(self) -> dict[str, object]:
        return {
            "error": self.error,
            "standard_error": self.standard_error,
            "confusion": dict(zip(CELLS, self.confusion, strict=True)),
            "cell_standard_error": self.cell_standard_error,
            "reports": self.reports,
        }


@dataclass(frozen=True, slots=True)
class Result:
    """What a study ends with; no evaluation if it has none, or if that round was void."""

    model: Point
    evaluation: Evaluation | None = None


StudySteps = Generator[Query, Aggregate | None, Result]


def study_steps(algorithm: Algorithm, plan: AlgorithmPlan, mechanism: Mechanism) -> StudySteps:
    """All rounds of a study: the algorithm's, and the one that evaluates its model."""
    model = yield from algorithm.start(plan)
    last = len(mechanism.phases) - 1
    if mechanism.phases[last].kind is not Kind.EVALUATION:
        return Result(model)
    answer = yield Query(point=model, model=model)
    if answer is None or not answer.reports:
        return Result(model)
    return Result(model, Evaluation.of(answer, mechanism.sigma(last)))
