"""A silo's update: the exact integer sum of its clipped per-record gradients.

Stands between the frozen snapshot and the noise.  Everything is integer arithmetic carried by
float64 matrix products, which are exact below 2⁵³: the bound on what one record can change is
therefore a bound on integers, with no rounding error to argue about.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from math import floor
from operator import iadd

import numpy as np
from numpy.typing import NDArray

from silomix_core.losses import Loss
from silomix_core.noise import RandomBytes
from silomix_core.smoothing import Smoothing
from silomix_core.task import UNIT

RESIDUAL_UNIT = 2**20
SUM_UNIT = UNIT * RESIDUAL_UNIT  # 1, in the units of a sum
_FARTHEST, _NEAREST = 1e200, 1e-200
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
    """A silo's encoded records: integer features (n, d) as float64, labels (n,) in [−1, 1]."""

    features: Floats
    labels: Floats

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.labels.shape != (len(self.features),):
            raise ValueError("features must be (n, d) and labels (n,)")
        if not len(self.features):
            raise ValueError("a silo needs at least one record")
        if not np.abs(self.features).max() <= UNIT:  # also true for NaN
            raise ValueError("a feature lies outside the encoded range")
        if not np.abs(self.labels).max() <= 1:
            raise ValueError("a label lies outside the encoded range")

    def __len__(self) -> int:
        return len(self.features)

    def features_of(self, rows: Rows) -> Floats:
        """A view of a slice; of other rows a copy, for which `take` is faster than an index."""
        return self.features[rows] if isinstance(rows, slice) else self.features.take(rows, axis=0)

    def norms(self) -> Floats:
        """Of each record's features, as integers: at least the true norm, at most 1 above it."""
        squares = np.einsum("ij,ij->i", self.features, self.features)
        norms: Floats = np.maximum(np.floor(np.sqrt(squares)) + 1, 1)
        return norms


def tame(point: Floats, farthest: float = _FARTHEST, nearest: float = _NEAREST) -> Floats:
    """The point as weights that every record can be multiplied by in the same time.

    Clamped: scores that overflow both ways would be NaN, for some records only.  Subnormal
    products take many times longer, for records whose value is not 0: then the time would tell.  A
    feature is 0 or at least 1, so normal weights give normal products.
    """
    weights: Floats = np.clip(point, -farthest, farthest)
    weights[np.abs(weights) < nearest] = 0.0
    return weights


def check_batch(batch: NDArray[np.bool_] | None, records: int) -> None:
    if batch is not None and (batch.shape != (records,) or batch.dtype != np.bool_):
        raise ValueError("a batch is one truth value for each record")


def exact_sum(
    block: Callable[[Rows], Floats],
    records: int,
    row_values: int,
    chosen: NDArray[np.intp] | None = None,
) -> Integers:
    """Σ block(rows) over blocks of rows, each of about `row_values` float64.

    Of all records; with `chosen`, of these alone.

    A block is a sum over its rows of products of an integer ≤ 2¹⁶ and one ≤ 2²⁰: float64 adds up
    2¹⁶ rows of them exactly, in whatever order; int64 the rest.
    """
    step = max(_FEWEST_ROWS, _BLOCK_VALUES // row_values)
    count = records if chosen is None else len(chosen)

    def blocks(start: int) -> Iterator[Floats]:
        stop = min(start + _ROWS_PER_SUM, count)
        for first in range(start, max(stop, 1), step):  # nobody chosen: a block of no rows, 0
            rows = slice(first, min(first + step, stop))
            yield block(rows if chosen is None else chosen[rows])

    sums = (
        reduce(iadd, blocks(start)).astype(np.int64)
        for start in range(0, max(count, 1), _ROWS_PER_SUM)
    )
    total: Integers = reduce(iadd, sums)
    return total


def open_rows(batch: NDArray[np.bool_] | None) -> NDArray[np.intp] | None:
    """The rows that an open batch has, for `exact_sum`."""
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

        What a record contributes follows from itself, its place and the point: never from others.

        `batch` (n,) says who takes part in this round, all records if it is not given.  Size and
        members of a random batch are secret, so the work is the same whatever the mask: residuals
        of the others are multiplied by 0, no row is picked out or left out.  With `open_batches`,
        where nobody is there to measure the time, the others' rows are left out: the same sum.
        `random_bytes` are the round's, for a smoothing that draws.
        """
        check_batch(batch, len(self._records))
        weights = tame(point) / UNIT
        shifts = None
        if self._smoothing is not None:
            shifts = self._smoothing.shifts(len(self._records), random_bytes)
        chosen = open_rows(batch) if self._open_batches else None

        def block(rows: Rows) -> Floats:
            """Both products are formed while the rows are in the cache: a silo's memory, nearly
            all of which are its features, is read once and not twice."""
            features = self._records.features_of(rows)
            residuals = self._residuals(features @ weights, rows, shifts)
            residuals *= RESIDUAL_UNIT
            np.trunc(residuals, out=residuals)
            np.clip(residuals, -self._caps[rows], self._caps[rows], out=residuals)
            if batch is not None:
                residuals *= batch[rows]
            return residuals @ features

        return exact_sum(block, len(self._records), len(weights) + _VALUES_BESIDE, chosen)

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
