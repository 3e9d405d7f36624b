"""A neural net with one hidden layer: for tasks that no linear model can do, without convexity.

Weights are V (H, d) and U (O, H + 1); a = tanh(V·z), scores = U·(a, 1), one of them for two
classes.  With δ₂ the residuals of the scores and δ₁ = (Uᵀδ₂)·(1 − a²), a record's gradient is
outer(δ₁, z) and outer(δ₂, (a, 1)), its squared norm ‖δ₁‖²‖z‖² + ‖δ₂‖²(‖a‖² + 1) in closed form.

Everything is exact or computed from one record alone: V and U are rounded to integers (`rounding`),
a to multiples of 2⁻²⁴ and δ₂ to multiples of 2⁻²⁸, so that products are sums of integers below 2⁵³.

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

from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.elementary import row_sums, tanh
from silomix_core.model.clipped_sum import (
    RESIDUAL_UNIT,
    Records,
    Rows,
    check_batch,
    exact_sum,
    open_rows,
)
from silomix_core.model.multiclass import SAFETY, SHORTEST, class_losses, class_residuals
from silomix_core.model.rounding import Weights, exact_product, rounded
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT

Floats = NDArray[np.float64]

_LOGISTIC = loss(LossName.LOGISTIC)
_START = 3.0  # V is uniform in ±3: records in the unit ball use the bend of tanh
# 1, in the units of a and δ₂: (a, 1) of at most 1001 entries and δ₂ have a norm below 2²⁹
_ACTIVE_UNIT, _OUTER_UNIT = 2**24, 2**28
_UPPER_BITS = 24  # of ‖U‖: its products with (a, 1) and with δ₂ are exact


@dataclass(frozen=True, slots=True)
class NeuralNet:
    """A neural net of `width` features (with the bias), `hidden` units and `outputs` scores: 1 with
    labels ±1, or one per class."""

    width: int
    hidden: int
    outputs: int

    def layers(self, point: Floats) -> tuple[Floats, Floats]:
        """The weights V and U at this difference from the public start."""
        weights = point + _start(self)
        first = self.hidden * self.width
        return weights[:first].reshape(self.hidden, -1), weights[first:].reshape(self.outputs, -1)

    def rounded_layers(self, point: Floats) -> tuple[Weights, Weights]:
        """The weights V and U rounded, as silos use them."""
        lower, upper = self.layers(point)
        whole = rounded(upper.ravel(), _UPPER_BITS)
        return rounded(lower), Weights(whole.integers.reshape(upper.shape), whole.unit)

    def scores(self, point: Floats, features: Floats) -> Floats:
        lower, upper = self.rounded_layers(point)
        found = upper.scores(_activations(lower, features), _ACTIVE_UNIT)
        return found if self.outputs > 1 else found[:, 0]

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        return (class_losses if self.outputs > 1 else _LOGISTIC.value)(scores, labels)

    def gradients(
        self, records: Records, clip: float, *, open_batches: bool = False
    ) -> "NetworkSum":
        return NetworkSum(records, self, clip, open_batches=open_batches)


@lru_cache(maxsize=4)
def _start(network: NeuralNet) -> Floats:
    """The public start, the same on every machine: 53-bit numbers from SHAKE-256."""
    shape = (network.hidden, network.width)
    name = f"silomix network {shape[0]} x {shape[1]}".encode()
    octets = shake_256(name).digest(8 * shape[0] * shape[1])
    uniform = (np.frombuffer(octets, dtype="<u8") >> np.uint64(11)) * 2.0**-53
    return np.concatenate(
        [_START * (2 * uniform - 1), np.zeros(network.outputs * (network.hidden + 1))]
    )


class NetworkSum:
    """The function point → Σ_j clip(∇f(point; record j)): first for V, then U, row by row."""

    def __init__(
        self, records: Records, network: NeuralNet, clip: float, *, open_batches: bool = False
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
        """The sum as `ClippedSum.at` gives it; no record contributes more than `clip`.

        (a, 1) is cut to multiples of 1/UNIT; δ₁ and δ₂ are multiplied by one factor c and truncated
        towards 0, which makes no entry larger.  So the squared norm of the integer outer products
        is at most c²·(‖δ₁‖²·norm² + ‖δ₂‖²(‖a‖² + 1)·UNIT²), and c is such that this is at most
        clip² in units, with room for float64 errors.  c also keeps |c·δ₁| and |c·δ₂| to
        2²⁰, so that sums are exact.
        """
        check_batch(batch, len(self._records))
        chosen = open_rows(batch) if self._open_batches else None
        lower, upper = self._network.rounded_layers(point)

        def block(rows: Rows) -> Floats:
            features = self._records.features_of(rows)
            active = _activations(lower, features)
            outer = self._outer(upper.scores(active, _ACTIVE_UNIT), rows)
            inner = _inner(upper, outer, active)
            active *= UNIT / _ACTIVE_UNIT
            np.trunc(active, out=active)
            factors = self._factors(rows, outer, inner, active)
            if batch is not None:
                factors *= batch[rows]
            outer *= factors[:, None]
            inner *= factors[:, None]
            first = exact_product(np.trunc(inner).T, features)
            second = exact_product(np.trunc(outer).T, active)
            return np.concatenate([first.ravel(), second.ravel()])

        width, hidden = self._network.width, self._network.hidden
        row_values = width + 6 * hidden + 4 * self._network.outputs
        return exact_sum(block, len(self._records), row_values, chosen)

    def _outer(self, scores: Floats, rows: Rows) -> Floats:
        """The residuals δ₂ (n, O) of the scores, in multiples of 1/_OUTER_UNIT."""
        labels = self._records.labels[rows]
        if self._network.outputs > 1:
            outer = class_residuals(scores, labels)
        else:
            outer = _LOGISTIC.residual(scores[:, 0], labels)[:, None]
        outer *= _OUTER_UNIT
        np.rint(outer, out=outer)
        outer /= _OUTER_UNIT
        return outer

    def _factors(self, rows: Rows, outer: Floats, inner: Floats, active: Floats) -> Floats:
        squares = row_sums(inner * inner) * self._norms[rows] ** 2
        squares += row_sums(outer * outer) * row_sums(active * active)
        factors = SAFETY * self._clip_units / np.maximum(np.sqrt(squares), SHORTEST)
        largest = np.maximum(np.abs(inner).max(axis=1), 1.0)
        result: Floats = np.minimum(factors, SAFETY * RESIDUAL_UNIT / largest)
        return result


def _activations(lower: Weights, features: Floats) -> Floats:
    """The activations (a, 1) as integers (n, H + 1), unit by unit in memory."""
    found = np.empty((len(lower.integers) + 1, len(features))).T
    np.rint(tanh(lower.scores(features)) * _ACTIVE_UNIT, out=found[:, :-1])
    found[:, -1] = _ACTIVE_UNIT
    return found


def _inner(upper: Weights, outer: Floats, active: Floats) -> Floats:
    """The residuals δ₁ (n, H) of the hidden units, unit by unit in memory; the product Uᵀδ₂ in them
    is exact, δ₂ being multiples of 1/_OUTER_UNIT."""
    found = exact_product(upper.integers[:, :-1].T, outer.T).T
    squares = active[:, :-1] * active[:, :-1]
    found *= upper.unit
    found *= 1.0 - squares / _ACTIVE_UNIT**2
    return found
