"""Multinomial logistic regression: one weight vector per class, the softmax of their scores.

The gradient of a record z of class k is outer(r, z), r = softmax(scores) − e_k, so its norm is
‖r‖·‖z‖: clipping needs no per-record gradient here either.  A label is its class, over UNIT
(`Task.encode_labels`).
"""

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from silomix_core.noise import RandomBytes
from silomix_core.task import UNIT
from silomix_core.update import (
    RESIDUAL_UNIT,
    Records,
    Rows,
    check_batch,
    exact_sum,
    open_rows,
    tame,
)

Floats = NDArray[np.float64]

# e⁻⁶⁰ is less than any integer residual can show, and its square no subnormal number, which would
# take longer to compute with.
_FARTHEST_BELOW = 60.0
# What float64 may get wrong of a norm of at most 2¹⁰ entries is below 2⁻⁴¹ of it.
SAFETY = 1 - 2.0**-40
SHORTEST = 1e-30  # stands for a norm of 0, to divide by


def class_residuals(scores: Floats, labels: Floats) -> Floats:
    """softmax(scores) − e_label (n, C), for any finite scores; no entry is larger than 1.

    Fastest where a class's scores lie next to each other in memory (`class_scores`): what is taken
    over a record's few classes is then taken over all records at once.
    """
    chances: Floats = scores.max(axis=1, keepdims=True) - scores
    np.minimum(chances, _FARTHEST_BELOW, out=chances)
    np.exp(np.negative(chances, out=chances), out=chances)
    chances /= chances.sum(axis=1, keepdims=True)
    chances -= _indicators(labels, scores.shape[1])
    return chances


def class_scores(weights: Floats, features: Floats) -> Floats:
    """Of weights (C, d) and features (n, d): (n, C), class by class in memory."""
    scores: Floats = (weights @ features.T).T
    return scores


def class_losses(scores: Floats, labels: Floats) -> Floats:
    """−ln of the probability of each record's class (n,)."""
    highest = scores.max(axis=1)
    own = (scores * _indicators(labels, scores.shape[1])).sum(axis=1)
    losses: Floats = highest - own + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    return losses


def _indicators(labels: Floats, classes: int) -> NDArray[np.bool_]:
    """(n, C), by a comparison with every class: the same work whatever the label."""
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
        """As `ClippedSum.at`.  No record contributes more than `clip`:

        its integer residuals are scaled to a norm of at most `caps`, by a factor that allows for
        what float64 gets wrong, and truncated towards 0, which makes no entry larger; so the norm
        of their outer product with z is at most caps·‖z‖ ≤ clip in units.  None exceeds 2²⁰.
        """
        check_batch(batch, len(self._records))
        chosen = open_rows(batch) if self._open_batches else None
        width, labels = self._records.features.shape[1], self._records.labels
        weights = tame(point).reshape(self._classes, -1) / UNIT

        def block(rows: Rows) -> Floats:
            features = self._records.features_of(rows)
            residuals = class_residuals(class_scores(weights, features), labels[rows])
            lengths = np.sqrt(np.einsum("ij,ij->i", residuals, residuals))
            scales = SAFETY * self._caps[rows] / np.maximum(lengths, SHORTEST)
            np.minimum(scales, RESIDUAL_UNIT, out=scales)
            if batch is not None:
                scales *= batch[rows]
            residuals *= scales[:, None]
            np.trunc(residuals, out=residuals)
            return (residuals.T @ features).ravel()

        return exact_sum(block, len(labels), width + 4 * self._classes, chosen)


@dataclass(frozen=True, slots=True)
class Multiclass:
    """Linear scores of several classes."""

    classes: int

    def scores(self, point: Floats, features: Floats) -> Floats:
        return features @ point.reshape(self.classes, -1).T

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        return class_losses(scores, labels)

    def gradients(self, records: Records, clip: float, *, open_batches: bool = False) -> ClassSum:
        return ClassSum(records, self.classes, clip, open_batches=open_batches)
