"""Regression without privacy, on everybody's records together: a baseline for a study's model."""

import numpy as np
from numpy.typing import NDArray

from silomix_core.model.multiclass import class_residuals
from silomix_core.task.losses import LossName, loss

_LOGISTIC = loss(LossName.LOGISTIC)
_STEPS = 1000
_ROWS = 2**11  # at a time: what is between features and slope stays in the cache
_RIDGE = 1e-6  # keeps solutions finite: on separable data, for features that repeat others

Floats = NDArray[np.float64]


def least_squares(features: Floats, labels: Floats) -> Floats:
    """Minimizer (d,) of the mean squared error + ridge over features (n, d), labels (n,)."""
    gram = features.T @ features / len(features) + _RIDGE * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ labels / len(features)).astype(np.float64)


def multinomial_regression(features: Floats, labels: Floats, classes: int) -> Floats:
    """A near minimizer (C·d,) of the mean multinomial loss; labels as `Task` encodes them.

    Nesterov's method with the loss's own smoothness.
    """
    step = 2 / float(np.einsum("ij,ij->i", features, features).max())
    model = ahead = np.zeros((classes, features.shape[1]))
    for number in range(_STEPS):
        reached = ahead - step * _multinomial_slope(ahead, features, labels)
        ahead = reached + number / (number + 3) * (reached - model)
        model = reached
    return model.ravel()


def _multinomial_slope(model: Floats, features: Floats, labels: Floats) -> Floats:
    """The gradient (C, d) of the mean loss."""
    total = np.zeros_like(model)
    for first in range(0, len(features), _ROWS):
        mine = features[first : first + _ROWS]
        scores = (model @ mine.T).T
        total += class_residuals(scores, labels[first : first + _ROWS]).T @ mine
    return total / len(features)


def logistic_regression(features: Floats, labels: Floats) -> Floats:
    """Minimizer (d,) of mean loss + ridge over features (n, d), labels ±1 (n,).

    Newton's method with step halving.
    """

    def objective(model: Floats) -> float:
        value = _LOGISTIC.value(features @ model, labels).mean()
        return float(value + _RIDGE / 2 * model @ model)

    model = np.zeros(features.shape[1])
    best = objective(model)
    for _ in range(30):
        residuals = _LOGISTIC.residual(features @ model, labels)
        slope = features.T @ residuals / len(features) + _RIDGE * model
        curvature = np.abs(residuals) * (1 - np.abs(residuals))
        hessian = (features.T * curvature) @ features / len(features)
        step = np.linalg.solve(hessian + _RIDGE * np.eye(len(model)), slope)
        damping = 1.0
        while (reached := objective(model - damping * step)) > best and damping > 1e-6:
            damping /= 2
        model, best = model - damping * step, reached
        if slope @ step < 1e-12:
            break
    return model
