"""Losses of linear models: how a score and a label give a residual.

The gradient of f(w; z, y) is residual(w·z, y)·z, so its norm is |residual|·‖z‖: per-record
clipping needs no per-record gradient.

Labels are numbers in [−1, 1]: −1 and +1 for classification; for regression the label between its
public bounds (`Task.encode_labels`).  Every loss is multiplied by a public constant, which moves no
minimizer, such that |residual| never exceeds 1.  Three families are enough:

- logistic;
- with a kink at s = y: slope −below left of it and +above right of it.  Absolute: (1, 1).  Quantile
  of level τ: (τ, 1 − τ).  Hinge: (1, 0) for the label +1, (0, 1) for −1;
- with a knee of width κ: residual (s − y)/κ, cut at ±1.  Huber.  Squared is the one with κ = 2: an
  error of 2 is the largest that a prediction within the label's bounds can have, so only scores
  that no one would predict reach the cut.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf

import numpy as np
from numpy.typing import NDArray

from silomix_core.elementary import falling

Floats = NDArray[np.float64]
Slopes = Callable[[Floats], tuple[Floats | float, Floats | float]]  # of labels: (below, above)

WIDEST_KNEE = 2.0  # the range of scaled labels; there Huber's loss is the squared one


class LossName(Enum):
    LOGISTIC = "logistic"
    HINGE = "hinge"
    SQUARED = "squared"
    HUBER = "huber"
    ABSOLUTE = "absolute"
    QUANTILE = "quantile"
    MULTINOMIAL = "multinomial"  # of several classes and their scores: `model.multiclass`

    @property
    def gives_probabilities(self) -> bool:
        """Whether a model's scores are probabilities of labels."""
        return self in (LossName.LOGISTIC, LossName.MULTINOMIAL)

    @property
    def is_regression(self) -> bool:
        """Return whether labels are numbers between public bounds, and not classes."""
        return self not in (LossName.LOGISTIC, LossName.HINGE, LossName.MULTINOMIAL)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of a linear score; |residual| never exceeds `largest_residual`, at most 1.

    `smoothness` bounds how fast the residual changes with the score; infinite at a kink.
    `slopes`, for losses with a kink: how steep they are on its two sides.

    All functions are total: any float64 scores (infinite ones too) give finite residuals.  A
    residual is computed from one score and one label alone, by operations that IEEE 754 defines to
    the last bit (`elementary`): it is the same wherever a record stands.
    """

    value: Callable[[Floats, Floats], Floats]
    residual: Callable[[Floats, Floats], Floats]
    largest_residual: float
    smoothness: float
    slopes: Slopes | None = None


def loss(name: LossName, *, level: float | None = None, knee: float | None = None) -> Loss:
    """The loss of that name; quantile needs its level, Huber the width of its knee."""
    if name is LossName.HUBER and knee is not None:
        return _kneed(knee)
    if name is LossName.QUANTILE and level is not None:
        return _quantile(level)
    if name not in _LOSSES:
        raise ValueError(f"the {name.value} loss is none of one score, or lacks its parameter")
    return _LOSSES[name]


def _logistic_value(scores: Floats, labels: Floats) -> Floats:
    return np.logaddexp(0.0, -labels * scores)


def _logistic_residual(scores: Floats, labels: Floats) -> Floats:
    """The residual −y/(1 + e^{y·s}), without overflow, by the same work for every value."""
    result = falling(labels * scores)
    result *= -labels
    return result


def _hinge_value(scores: Floats, labels: Floats) -> Floats:
    return np.maximum(0.0, 1.0 - labels * scores)


def _hinge_residual(scores: Floats, labels: Floats) -> Floats:
    """A subgradient: 0 at the kink."""
    result: Floats = -labels * (labels * scores < 1.0)
    return result


def _hinge_slopes(labels: Floats) -> tuple[Floats, Floats]:
    return (1.0 + labels) / 2, (1.0 - labels) / 2


def _absolute_value(scores: Floats, labels: Floats) -> Floats:
    return np.abs(scores - labels)


def _absolute_residual(scores: Floats, labels: Floats) -> Floats:
    """A subgradient: 0 at the kink."""
    return np.sign(scores - labels)


def _quantile(level: float) -> Loss:
    """The quantile loss: its mean is least where a share `level` of labels is below the score."""
    if not 0 < level < 1:
        raise ValueError(f"the level of a quantile must lie between 0 and 1, got {level}")

    def value(scores: Floats, labels: Floats) -> Floats:
        short = labels - scores
        return np.maximum(level * short, (level - 1) * short)

    def residual(scores: Floats, labels: Floats) -> Floats:
        """A subgradient: 0 at the kink."""
        result: Floats = (1 - level) * (scores > labels) - level * (scores < labels)
        return result

    return Loss(value, residual, max(level, 1 - level), inf, lambda _: (level, 1 - level))


def _kneed(width: float) -> Loss:
    """The loss with a knee: (s − y)²/(2·width) near the label, |s − y| − width/2 farther away."""
    if not 0 < width <= WIDEST_KNEE:
        raise ValueError(f"a knee is above 0 and at most {WIDEST_KNEE:g} wide, got {width}")

    def value(scores: Floats, labels: Floats) -> Floats:
        far = np.abs(scores - labels)
        near = np.minimum(far, width)
        result: Floats = near / width * (far - near / 2)
        return result

    def residual(scores: Floats, labels: Floats) -> Floats:
        result: Floats = np.clip(scores - labels, -width, width) / width
        return result

    return Loss(value, residual, 1.0, 1 / width)


_LOSSES = {
    LossName.LOGISTIC: Loss(_logistic_value, _logistic_residual, 1.0, 0.25),
    LossName.HINGE: Loss(_hinge_value, _hinge_residual, 1.0, inf, _hinge_slopes),
    LossName.SQUARED: _kneed(WIDEST_KNEE),
    LossName.ABSOLUTE: Loss(_absolute_value, _absolute_residual, 1.0, inf, lambda _: (1.0, 1.0)),
}
