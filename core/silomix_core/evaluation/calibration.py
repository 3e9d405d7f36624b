"""How well the probabilities of a model agree with what happened: on labels that anybody may see.

A model for two classes gives a record with score s the probability 1/(1 + e⁻ˢ) of the label 1.  As
`public`, for where models are shown; nothing here touches a silo's records.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silomix_core.evaluation.pooled_baseline import logistic_regression

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What scores (n,) and labels 0 and 1 (n,) show; None where the labels do not determine it."""

    brier: float
    log_loss: float
    prevalence_ratio: float | None
    slope: float | None

    @classmethod
    def of(cls, scores: Floats, labels: Floats) -> "Calibration":
        return cls(
            brier=brier(scores, labels),
            log_loss=log_loss(scores, labels),
            prevalence_ratio=prevalence_ratio(scores, labels),
            slope=slope(scores, labels),
        )


def probabilities(scores: Floats) -> Floats:
    """The probabilities (n,) of the label 1."""
    chances: Floats = 0.5 + 0.5 * np.tanh(0.5 * scores)
    return chances


def brier(scores: Floats, labels: Floats) -> float:
    """The mean squared difference of probability and label (Brier 1950): from 0 to 1."""
    return float(np.mean((probabilities(scores) - labels) ** 2))


def log_loss(scores: Floats, labels: Floats) -> float:
    """The mean of −log of the probability that the label's own class had."""
    return float(np.mean(np.logaddexp(0.0, np.where(labels > 0, -scores, scores))))


def prevalence_ratio(scores: Floats, labels: Floats) -> float | None:
    """The mean probability over the share of labels 1 (calibration in the large): best 1."""
    return float(probabilities(scores).mean() / labels.mean()) if labels.any() else None


def slope(scores: Floats, labels: Floats) -> float | None:
    """The slope of a logistic regression of the label on the score (Cox 1958): best 1.

    Below 1 probabilities are too extreme, above 1 too moderate.  None if no finite slope fits best:
    all labels are alike, or some score tells them apart.
    """
    of_ones, of_zeros = scores[labels > 0], scores[labels <= 0]
    if not (len(of_ones) and len(of_zeros)):
        return None
    if of_zeros.max() <= of_ones.min() or of_ones.max() <= of_zeros.min():
        return None
    unit = float(scores.std())
    columns = np.column_stack([scores / unit, np.ones(len(scores))])
    return float(logistic_regression(columns, 2 * labels - 1)[0]) / unit
