"""Multinomial logistic regression: one weight vector per class, the softmax of their scores.

The gradient of a record z of class k is outer(r, z), r = softmax(scores) − e_k, so its norm is
‖r‖·‖z‖: clipping needs no per-record gradient here either.  A label is its class, over UNIT
(`Task.encode_labels`).
"""

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.elementary import exponential, row_sums
from silomix_core.model.clipped_sum import (
    RESIDUAL_UNIT,
    Records,
    Rows,
    check_batch,
    exact_sum,
    open_rows,
)
from silomix_core.model.rounding import exact_product, rounded
from silomix_core.task.task import UNIT

Floats = NDArray[np.float64]

# The float64 error of a norm of at most 2¹⁰ entries is below 2⁻⁴¹ of the norm.
SAFETY = 1 - 2.0**-40
SHORTEST = 1e-30  # stands for a norm of 0, to divide by


def class_residuals(scores: Floats, labels: Floats) -> Floats:
    """softmax(scores) − e_label (n, C), for any finite scores; no entry is larger than 1.

    Fastest where a class's scores lie next to each other in memory (`Weights.scores`): what is
    taken over a record's few classes is then taken over all records at once.  No score counts as
    farther than 60 below the highest: e⁻⁶⁰ is less than any integer residual can show, and its
    square no subnormal number, which would take longer to compute with.
    """
    chances = exponential(scores - scores.max(axis=1, keepdims=True))
    chances /= row_sums(chances)[:, None]
    chances -= _indicators(labels, scores.shape[1])
    return chances


def class_losses(scores: Floats, labels: Floats) -> Floats:
    """−ln of the probability of each record's class (n,)."""
    highest = scores.max(axis=1)
    own = (scores * _indicators(labels, scores.shape[1])).sum(axis=1)
    losses: Floats = highest - own + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    return losses


def _indicators(labels: Floats, classes: int) -> NDArray[np.bool_]:
    """Labels as indicators (n, C), by comparison with every class: equal work for every label."""
    every = np.arange(classes, dtype=np.float64)[:, None]
    same: NDArray[np.bool_] = every == np.rint(labels * UNIT)
    return same.T


class ClassSum:
    """The function point → Σ_j clip(∇f(point; record j)) for the weights (C, d), row by row."""

    def __init__(
        self, records: Records, classes: int, clip: float, *, open_batches: bool = False
    ) -> None:
        self._records, self._classes, self._open_batches = records, classes, open_batches
        self._caps = np.floor(floor(clip * UNIT * RESIDUAL_UNIT) / records.norms())

    def __len__(self) -> int:
        return len(self._records)

    def at(
        self,
        point: Floats,
        batch: NDArray[np.bool_] | None = None,
        _random_bytes: RandomBytes | None = None,
    ) -> NDArray[np.int64]:
        """The sum as `ClippedSum.at` gives it; no record contributes more than `clip`.

        A record's integer residuals are scaled to a norm of at most `caps`, by a factor that allows
        for float64 errors, and truncated towards 0, which makes no entry larger; so the norm of
        their outer product with z is at most caps·‖z‖ ≤ clip in units.  No residual exceeds 2²⁰.
        """
        check_batch(batch, len(self._records))
        chosen = open_rows(batch) if self._open_batches else None
        width, labels = self._records.features.shape[1], self._records.labels
        weights = rounded(point.reshape(self._classes, -1))

        def block(rows: Rows) -> Floats:
            features = self._records.features_of(rows)
            residuals = class_residuals(weights.scores(features), labels[rows])
            lengths = np.sqrt(row_sums(residuals * residuals))
            scales = SAFETY * self._caps[rows] / np.maximum(lengths, SHORTEST)
            np.minimum(scales, RESIDUAL_UNIT, out=scales)
            if batch is not None:
                scales *= batch[rows]
            residuals *= scales[:, None]
            np.trunc(residuals, out=residuals)
            return exact_product(residuals.T, features).ravel()

        return exact_sum(block, len(labels), width + 4 * self._classes, chosen)


@dataclass(frozen=True, slots=True)
class Multiclass:
    """A linear model with one weight vector, and so one score, for each of several classes."""

    classes: int

    def scores(self, point: Floats, features: Floats) -> Floats:
        return rounded(point.reshape(self.classes, -1)).scores(features)

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        return class_losses(scores, labels)

    def gradients(self, records: Records, clip: float, *, open_batches: bool = False) -> ClassSum:
        return ClassSum(records, self.classes, clip, open_batches=open_batches)
