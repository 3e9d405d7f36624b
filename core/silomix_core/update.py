"""A silo's update: the exact integer sum of its clipped per-record gradients.

Stands between the frozen snapshot and the noise.  Everything is integer arithmetic carried by
float64 matrix products, which are exact below 2⁵³: the bound on what one record can change is
therefore a bound on integers, with no rounding error to argue about.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from math import floor
from operator import iadd

import numpy as np
from numpy.typing import NDArray

from silomix_core.losses import Loss
from silomix_core.task import UNIT

_RESIDUAL_UNIT = 2**20
SUM_UNIT = UNIT * _RESIDUAL_UNIT  # 1, in the units of a sum
_FARTHEST, _NEAREST = 1e200, 1e-200
_ROWS_PER_SUM = 2**16  # 2¹⁶ rows × 2¹⁶ (feature) × 2²⁰ (residual) stays below 2⁵³
# For speed only: blocks of 1 MiB stay in the cache; calls on few rows cost more than they save.
_BLOCK_VALUES = 2**17
_VALUES_BESIDE = 8  # scores, residuals, caps … of a row
_FEWEST_ROWS = 64

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Records:
    """A silo's encoded records: integer features (n, d) as float64, labels ±1 (n,)."""

    features: Floats
    labels: Floats

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.labels.shape != (len(self.features),):
            raise ValueError("features must be (n, d) and labels (n,)")
        if not len(self.features):
            raise ValueError("a silo needs at least one record")
        if not np.abs(self.features).max() <= UNIT:  # also true for NaN
            raise ValueError("a feature lies outside the encoded range")

    def __len__(self) -> int:
        return len(self.features)


class ClippedSum:
    """The function point → Σ_j clip(∇f(point; record j)), for one silo's records and one clip.

    `residual_caps[j]` is the largest integer residual at which record j's integer gradient
    residual·features has norm ≤ clip.  It depends on the record only and is computed once.
    """

    def __init__(self, records: Records, loss: Loss, clip: float) -> None:
        self._records = records
        self._loss = loss
        clip_units = floor(clip * UNIT * _RESIDUAL_UNIT)
        squares = np.einsum("ij,ij->i", records.features, records.features)
        norms = np.maximum(np.floor(np.sqrt(squares)) + 1, 1)  # at least the true norm
        self._caps = np.minimum(
            np.floor(clip_units / norms), floor(loss.largest_residual * _RESIDUAL_UNIT)
        )

    def __len__(self) -> int:
        return len(self._records)

    def at(self, point: Floats, batch: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """The sum in units of 1/(UNIT·2²⁰); one record contributes at most `clip` in L2 norm.

        What a record contributes follows from itself, its place and the point: never from others.

        `batch` (n,) says who takes part in this round, all records if it is not given.  Size and
        members of a random batch are secret, so the work is the same whatever the mask: residuals
        of the others are multiplied by 0, no row is picked out or left out.
        """
        if batch is not None and (batch.shape != (len(self._records),) or batch.dtype != np.bool_):
            raise ValueError("a batch is one truth value for each record")
        # clamped: scores that overflow both ways would be NaN, for some records only
        weights = np.clip(point, -_FARTHEST, _FARTHEST)
        # Subnormal products take many times longer, for records whose value is not 0: then the
        # time would tell.  A feature is 0 or at least 1, so normal weights give normal products.
        weights[np.abs(weights) < _NEAREST] = 0.0
        weights /= UNIT
        sums = (
            # integers below 2⁵³, in whatever order float64 adds them up
            reduce(iadd, self._block_sums(weights, batch, start)).astype(np.int64)
            for start in range(0, len(self._records), _ROWS_PER_SUM)
        )
        total: NDArray[np.int64] = reduce(iadd, sums)
        return total

    def _block_sums(
        self, weights: Floats, batch: NDArray[np.bool_] | None, start: int
    ) -> Iterator[Floats]:
        """Sums over blocks of rows, `_ROWS_PER_SUM` rows in all, beginning with row `start`.

        Both products of a block are formed while it is in the cache: the features, nearly all of a
        silo's memory, are read once and not twice.
        """
        features, labels = self._records.features, self._records.labels
        step = max(_FEWEST_ROWS, _BLOCK_VALUES // (len(weights) + _VALUES_BESIDE))
        stop = min(start + _ROWS_PER_SUM, len(features))
        for first in range(start, stop, step):
            rows = slice(first, min(first + step, stop))
            residuals = self._loss.residual(features[rows] @ weights, labels[rows])
            residuals *= _RESIDUAL_UNIT
            np.trunc(residuals, out=residuals)
            np.clip(residuals, -self._caps[rows], self._caps[rows], out=residuals)
            if batch is not None:
                residuals *= batch[rows]
            yield residuals @ features[rows]


def to_grid(total: NDArray[np.int64], units_per_sum: float) -> NDArray[np.int64]:
    """The weighted mean in grid units, rounded; `Mechanism.units_per_sum` gives the factor.

    Two totals end up at most 1 + 2⁻⁸ farther apart than they are (|values| ≤ 2⁴³, see `Mechanism`):
    each is rounded as an int64 made float64 (≤ 2⁻¹⁰), as a product (≤ 2⁻¹¹) and to an integer (½);
    the error of `factor` is common to both.
    """
    factor = units_per_sum / (UNIT * _RESIDUAL_UNIT)
    rounded: NDArray[np.int64] = np.rint(total * factor).astype(np.int64)
    return rounded
