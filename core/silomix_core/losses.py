"""Losses of linear models: how a score and a label give a residual.

The gradient of f(w; z, y) is residual(w·z, y)·z, so its norm is |residual|·‖z‖: per-record
clipping needs no per-record gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class LossName(Enum):
    LOGISTIC = "logistic"
    HINGE = "hinge"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of a linear score; labels are −1 and +1, |residual| never exceeds `largest_residual`.

    `smoothness` bounds how fast the residual changes with the score; infinite at a kink.

    Both functions are total: any float64 scores (infinite ones too) give finite residuals.
    """

    value: Callable[[Floats, Floats], Floats]
    residual: Callable[[Floats, Floats], Floats]
    largest_residual: float
    smoothness: float


def loss(name: LossName) -> Loss:
    return _LOSSES[name]


def _logistic_value(scores: Floats, labels: Floats) -> Floats:
    return np.logaddexp(0.0, -labels * scores)


def _logistic_residual(scores: Floats, labels: Floats) -> Floats:
    # −y/(1 + e^{y·s}) through tanh: no overflow, the same work for every value
    result: Floats = -labels * (0.5 - 0.5 * np.tanh(0.5 * labels * scores))
    return result


def _hinge_value(scores: Floats, labels: Floats) -> Floats:
    return np.maximum(0.0, 1.0 - labels * scores)


def _hinge_residual(scores: Floats, labels: Floats) -> Floats:
    """A subgradient: 0 at the kink."""
    result: Floats = -labels * (labels * scores < 1.0)
    return result


_LOSSES = {
    LossName.LOGISTIC: Loss(_logistic_value, _logistic_residual, 1.0, 0.25),
    LossName.HINGE: Loss(_hinge_value, _hinge_residual, 1.0, inf),
}
