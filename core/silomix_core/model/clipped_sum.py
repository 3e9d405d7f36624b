"""A silo's update: the exact integer sum of its clipped per-record gradients.

Stands between the frozen snapshot and the noise.  Scores and sums are integer arithmetic carried by
float64 matrix products, which are exact below 2⁵³; what is between them is computed from one record
alone (`elementary`).  So one record changes its own contribution and nothing else, and the bound on
that is a bound on integers: docs/privacy.md, "One record changes nothing but its own contribution".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from math import floor
from operator import iadd

import numpy as np
from numpy.typing import NDArray

from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.model.rounding import LONGEST_RECORD, exact_product, rounded
from silomix_core.model.smoothing import Smoothing
from silomix_core.task.losses import Loss
from silomix_core.task.task import UNIT

RESIDUAL_UNIT = 2**20
SUM_UNIT = UNIT * RESIDUAL_UNIT  # 1, in the units of a sum
_ROWS_PER_SUM = 2**16  # 2¹⁶ rows × 2¹⁶ (feature) × 2²⁰ (residual) stays below 2⁵³
# For speed only: blocks of 1 MiB stay in the cache; calls on few rows cost more than they save.
_BLOCK_VALUES = 2**17
_VALUES_BESIDE = 8  # scores, residuals, caps … of a row
_FEWEST_ROWS = 64

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Rows = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Records:
    """A silo's encoded records: integer features (n, d) as float64, labels (n,) in [−1, 1].

    No record is longer than `LONGEST_RECORD`, which exact scores rest on.
    """

    features: Floats
    labels: Floats

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.labels.shape != (len(self.features),):
            raise ValueError("features must be (n, d) and labels (n,)")
        if not len(self.features):
            raise ValueError("a silo needs at least one record")
        if not np.abs(self.features).max() <= UNIT:  # also true for NaN
            raise ValueError("a feature lies outside the encoded range")
        if not np.array_equal(self.features, np.rint(self.features)):
            raise ValueError("a feature is no integer")
        if not self._squares().max() <= LONGEST_RECORD**2:
            raise ValueError("a record is longer than any that encoding gives")
        if not np.abs(self.labels).max() <= 1:
            raise ValueError("a label lies outside the encoded range")

    def __len__(self) -> int:
        return len(self.features)

    def features_of(self, rows: Rows) -> Floats:
        """The features of these rows: of a slice a view, else a copy (`take` beats an index)."""
        return self.features[rows] if isinstance(rows, slice) else self.features.take(rows, axis=0)

    def norms(self) -> Floats:
        """The norm of each record's features as an integer: the true one or at most 1 above it."""
        norms: Floats = np.maximum(np.floor(np.sqrt(self._squares())) + 1, 1)
        return norms

    def _squares(self) -> Floats:
        """The squared norms: sums of integers below 2⁵³, exact in whatever order."""
        squares: Floats = np.einsum("ij,ij->i", self.features, self.features)
        return squares


def check_batch(batch: NDArray[np.bool_] | None, records: int) -> None:
    if batch is not None and (batch.shape != (records,) or batch.dtype != np.bool_):
        raise ValueError("a batch is one truth value for each record")


def exact_sum(
    block: Callable[[Rows], Floats],
    records: int,
    row_values: int,
    chosen: NDArray[np.intp] | None = None,
) -> Integers:
    """The exact sum of block(rows) over all records, or with `chosen` over these rows alone.

    `row_values`: about how many float64 a row takes; blocks of rows are made to fit the cache.

    A block is a sum over its rows of products of an integer ≤ 2¹⁶ and one ≤ 2²⁰: float64 adds up
    2¹⁶ rows of them exactly, in whatever order; int64 the rest.
    """
    step = max(_FEWEST_ROWS, _BLOCK_VALUES // row_values)
    count = records if chosen is None else len(chosen)

    def blocks(start: int) -> Iterator[Floats]:
        stop = min(start + _ROWS_PER_SUM, count)
        for first in range(start, max(stop, 1), step):  # no row chosen: an empty block, 0
            rows = slice(first, min(first + step, stop))
            yield block(rows if chosen is None else chosen[rows])

    sums = (
        reduce(iadd, blocks(start)).astype(np.int64)
        for start in range(0, max(count, 1), _ROWS_PER_SUM)
    )
    total: Integers = reduce(iadd, sums)
    return total


def open_rows(batch: NDArray[np.bool_] | None) -> NDArray[np.intp] | None:
    """The numbers of the rows in an open batch, for `exact_sum`; None for all."""
    return None if batch is None else np.flatnonzero(batch)


class ClippedSum:
    """The function point → Σ_j clip(∇f(point; record j)), for one silo's records and one clip.

    `residual_caps[j]` is the largest integer residual at which record j's integer gradient
    residual·features has norm ≤ clip.  It depends on the record only and is computed once.

    `open_batches`: see `at`.
    """

    def __init__(
        self,
        records: Records,
        loss: Loss,
        clip: float,
        smoothing: Smoothing | None = None,
        *,
        open_batches: bool = False,
    ) -> None:
        self._records, self._open_batches = records, open_batches
        self._loss = loss
        self._smoothing = smoothing
        clip_units = floor(clip * UNIT * RESIDUAL_UNIT)
        norms = records.norms()
        self._caps = np.minimum(
            np.floor(clip_units / norms), floor(loss.largest_residual * RESIDUAL_UNIT)
        )
        self._widths = None if smoothing is None else smoothing.widths(norms / UNIT)

    def __len__(self) -> int:
        return len(self._records)

    def at(
        self,
        point: Floats,
        batch: NDArray[np.bool_] | None = None,
        random_bytes: RandomBytes | None = None,
    ) -> NDArray[np.int64]:
        """The sum in units of 1/(UNIT·2²⁰); one record contributes at most `clip` in L2 norm.

        What a record contributes follows from itself and the point (and, where a smoothing draws,
        from a random number of its own): neither from others nor from where it stands.

        `batch` (n,) says which records take part in this round, all if it is not given.  Size and
        members of a random batch are secret, so the work is the same whatever the mask: residuals
        of the others are multiplied by 0, no row is picked out or left out.  With `open_batches`,
        where nobody is there to measure the time, the others' rows are left out: the same sum.
        `random_bytes` are the round's, for a smoothing that draws.
        """
        check_batch(batch, len(self._records))
        weights = rounded(point)
        shifts = None
        if self._smoothing is not None:
            shifts = self._smoothing.shifts(len(self._records), random_bytes)
        chosen = open_rows(batch) if self._open_batches else None

        def block(rows: Rows) -> Floats:
            """The sum over these rows.  Both products are formed while the rows are in the cache:
            a silo's features, nearly all of its memory, are read once and not twice."""
            features = self._records.features_of(rows)
            residuals = self._residuals(weights.scores(features), rows, shifts)
            residuals *= RESIDUAL_UNIT
            np.trunc(residuals, out=residuals)
            np.clip(residuals, -self._caps[rows], self._caps[rows], out=residuals)
            if batch is not None:
                residuals *= batch[rows]
            return exact_product(residuals, features)

        return exact_sum(block, len(self._records), len(point) + _VALUES_BESIDE, chosen)

    def _residuals(self, scores: Floats, rows: Rows, shifts: Floats | None) -> Floats:
        labels = self._records.labels[rows]
        if self._smoothing is None or self._widths is None:
            return self._loss.residual(scores, labels)
        widths = self._widths[rows]
        if shifts is not None:
            scores = scores + widths * shifts[rows]
        return self._smoothing.residual(self._loss, scores, labels, widths)


def to_grid(total: NDArray[np.int64], units_per_sum: float) -> NDArray[np.int64]:
    """The weighted mean in grid units, rounded; `Mechanism.units_per_sum` gives the factor.

    Two totals end up at most 1 + 2⁻⁸ farther apart than they are (|values| ≤ 2⁴³, see `Mechanism`):
    each is rounded as an int64 made float64 (≤ 2⁻¹⁰), as a product (≤ 2⁻¹¹) and to an integer (½);
    the error of `factor` is common to both.
    """
    factor = units_per_sum / (UNIT * RESIDUAL_UNIT)
    rounded: NDArray[np.int64] = np.rint(total * factor).astype(np.int64)
    return rounded
