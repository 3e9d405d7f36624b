"""A network with one hidden layer: for tasks that no linear model can do, without convexity.

Weights are V (H, d) and U (O, H + 1); a = tanh(V·z), scores = U·(a, 1), one of them for two
classes.  With δ₂ the residuals of the scores and δ₁ = (Uᵀδ₂)·(1 − a²), a record's gradient is
outer(δ₁, z) and outer(δ₂, (a, 1)), its squared norm ‖δ₁‖²‖z‖² + ‖δ₂‖²(‖a‖² + 1) in closed form.

At 0 all hidden units are alike and stay so.  Hence the *point* that algorithms move is the
difference to a public start: V drawn from a fixed stream, U = 0.  Ball, ridge and the first
query are around that start.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_256
from math import floor

import numpy as np
from numpy.typing import NDArray

from silomix_core.losses import LossName, loss
from silomix_core.multiclass import SAFETY, SHORTEST, class_losses, class_residuals, class_scores
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

_LOGISTIC = loss(LossName.LOGISTIC)
_START = 3.0  # V is uniform in ±3: records in the unit ball use the bend of tanh
_FARTHEST, _NEAREST = 1e60, 1e-60  # of a weight: squares of products of two stay normal numbers


@dataclass(frozen=True, slots=True)
class Network:
    """`width` features, bias included; `outputs` scores: 1 with labels ±1, or one per class."""

    width: int
    hidden: int
    outputs: int

    def layers(self, point: Floats) -> tuple[Floats, Floats]:
        """V and U at this distance from the start."""
        weights = tame(point + _start(self), _FARTHEST, _NEAREST)
        first = self.hidden * self.width
        return weights[:first].reshape(self.hidden, -1), weights[first:].reshape(self.outputs, -1)

    def scores(self, point: Floats, features: Floats) -> Floats:
        lower, upper = self.layers(point)
        found: Floats = np.tanh(features @ lower.T) @ upper[:, :-1].T + upper[:, -1]
        return found if self.outputs > 1 else found[:, 0]

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        return (class_losses if self.outputs > 1 else _LOGISTIC.value)(scores, labels)

    def gradients(
        self, records: Records, clip: float, *, open_batches: bool = False
    ) -> "NetworkSum":
        return NetworkSum(records, self, clip, open_batches=open_batches)


@lru_cache(maxsize=4)
def _start(network: Network) -> Floats:
    """The same on every machine: 53-bit numbers from SHAKE-256."""
    shape = (network.hidden, network.width)
    name = f"silomix network {shape[0]} x {shape[1]}".encode()
    octets = shake_256(name).digest(8 * shape[0] * shape[1])
    uniform = (np.frombuffer(octets, dtype="<u8") >> np.uint64(11)) * 2.0**-53
    return np.concatenate(
        [_START * (2 * uniform - 1), np.zeros(network.outputs * (network.hidden + 1))]
    )


class NetworkSum:
    """The function point → Σ_j clip(∇f(point; record j)): V, then U, row by row."""

    def __init__(
        self, records: Records, network: Network, clip: float, *, open_batches: bool = False
    ) -> None:
        self._records, self._network, self._open_batches = records, network, open_batches
        self._norms = records.norms()
        self._clip_units = floor(clip * UNIT * RESIDUAL_UNIT)

    def __len__(self) -> int:
        return len(self._records)

    def at(
        self,
        point: Floats,
        batch: NDArray[np.bool_] | None = None,
        _random_bytes: RandomBytes | None = None,
    ) -> NDArray[np.int64]:
        """As `ClippedSum.at`.  No record contributes more than `clip`:

        δ₁ and δ₂ are multiplied by one factor c and truncated towards 0, as is a in units of
        1/UNIT; truncation makes no entry larger.  So the squared norm of the integer outer products
        is at most c²·(‖δ₁‖²·norm² + ‖δ₂‖²(‖a‖² + 1)·UNIT²), and c is such that this is at most
        clip² in units, with room for what float64 gets wrong.  c also keeps |c·δ₁| and |c·δ₂| to
        2²⁰, so that sums are exact.
        """
        check_batch(batch, len(self._records))
        chosen = open_rows(batch) if self._open_batches else None
        lower, upper = self._network.layers(point)

        def block(rows: Rows) -> Floats:
            features = self._records.features_of(rows)
            outer, inner, active = self._deltas(features, rows, lower, upper)
            factors = self._factors(rows, outer, inner, active)
            if batch is not None:
                factors *= batch[rows]
            outer *= factors[:, None]
            inner *= factors[:, None]
            ones = np.full((len(active), 1), float(UNIT))
            above = np.hstack([np.trunc(active * UNIT), ones])
            first, second = np.trunc(inner).T @ features, np.trunc(outer).T @ above
            return np.concatenate([first.ravel(), second.ravel()])

        row_values = lower.shape[1] + 6 * self._network.hidden + 4 * self._network.outputs
        return exact_sum(block, len(self._records), row_values, chosen)

    def _deltas(
        self, features: Floats, rows: Rows, lower: Floats, upper: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """δ₂ (n, O), δ₁ (n, H) and a (n, H)."""
        labels = self._records.labels[rows]
        active = np.tanh(features @ (lower.T / UNIT))
        scores = class_scores(upper[:, :-1], active) + upper[:, -1]
        if self._network.outputs > 1:
            outer = class_residuals(scores, labels)
        else:
            outer = _LOGISTIC.residual(scores[:, 0], labels)[:, None]
        inner = (outer @ upper[:, :-1]) * (1.0 - active**2)
        return outer, inner, active

    def _factors(self, rows: Rows, outer: Floats, inner: Floats, active: Floats) -> Floats:
        squares = _squares(inner) * self._norms[rows] ** 2
        squares += _squares(outer) * (_squares(active) + 1) * float(UNIT) ** 2
        factors = SAFETY * self._clip_units / np.maximum(np.sqrt(squares), SHORTEST)
        largest = np.maximum(np.abs(inner).max(axis=1), 1.0)
        result: Floats = np.minimum(factors, SAFETY * RESIDUAL_UNIT / largest)
        return result


def _squares(rows: Floats) -> Floats:
    squares: Floats = np.einsum("ij,ij->i", rows, rows)
    return squares
