"""A silo's update: the exact integer sum of its clipped per-record gradients.

Stands between the frozen snapshot and the noise.  Everything is integer arithmetic carried by
float64 matrix products, which are exact below 2⁵³: the bound on what one record can change is
therefore a bound on integers, with no rounding error to argue about.
"""

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from silomix_core.losses import Loss
from silomix_core.mechanism import Mechanism
from silomix_core.task import UNIT

_RESIDUAL_UNIT = 2**20
_FARTHEST = 1e200
_ROWS_PER_SUM = 2**16  # 2¹⁶ rows × 2¹⁶ (feature) × 2²⁰ (residual) stays below 2⁵³

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

    def at(self, point: Floats) -> NDArray[np.int64]:
        """The sum in units of 1/(UNIT·2²⁰); one record contributes at most `clip` in L2 norm."""
        features, labels = self._records.features, self._records.labels
        # clamped: scores that overflow both ways would be NaN, for some records only
        scores = features @ (np.clip(point, -_FARTHEST, _FARTHEST) / UNIT)
        residuals = np.trunc(self._loss.residual(scores, labels) * _RESIDUAL_UNIT)
        np.clip(residuals, -self._caps, self._caps, out=residuals)
        total = np.zeros(features.shape[1], dtype=np.int64)
        for start in range(0, len(features), _ROWS_PER_SUM):
            rows = slice(start, start + _ROWS_PER_SUM)
            total += (residuals[rows] @ features[rows]).astype(np.int64)
        return total


def to_grid(total: NDArray[np.int64], records: int, mechanism: Mechanism) -> NDArray[np.int64]:
    """The mean in grid units, rounded.

    Two totals end up at most 1 + 2⁻⁸ farther apart than they are (|values| ≤ 2⁴³, see `Mechanism`):
    each is rounded as an int64 made float64 (≤ 2⁻¹⁰), as a product (≤ 2⁻¹¹) and to an integer (½);
    the error of `factor` is common to both.
    """
    factor = 1.0 / (UNIT * _RESIDUAL_UNIT * records * mechanism.grid)
    rounded: NDArray[np.int64] = np.rint(total * factor).astype(np.int64)
    return rounded
