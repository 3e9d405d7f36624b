"""How good a model is on records that anybody may see: mean loss, and error in everyday terms.

Used where models are shown (the server's public hold-out, the demo, simulations); nothing here
touches a silo's records.
"""

import numpy as np
from numpy.typing import NDArray

from silomix_core.model.models import model_of
from silomix_core.task.task import Task

Floats = NDArray[np.float64]


class PublicRecords:
    """Raw values (n, columns) and labels (n,) that need no protection."""

    def __init__(self, task: Task, values: Floats, labels: Floats) -> None:
        self._task, self._model = task, model_of(task)
        self._features = task.encode(values)
        self._labels = labels
        self._encoded_labels = task.encode_labels(labels)

    def mean_loss(self, weights: Floats) -> float:
        """The task's own loss, in its scaled units."""
        scores = self._model.scores(weights, self._features)
        return float(self._model.losses(scores, self._encoded_labels).mean())

    def error(self, weights: Floats) -> float:
        """The share of wrong labels; for regression the mean squared error over mean(y²)."""
        scores = self._model.scores(weights, self._features)
        return error(self._task, self._task.predict(scores), self._labels)


def predict(task: Task, weights: Floats, values: Floats) -> Floats:
    """Labels (n,) that a study's model gives raw values (n, columns)."""
    return task.predict(model_of(task).scores(weights, task.encode(values)))


def error(task: Task, predicted: Floats, labels: Floats) -> float:
    """The share of wrong predictions; for regression the mean squared error over mean(y²)."""
    if not task.loss.is_regression:
        return float(np.mean(predicted != labels))
    unit = max(float(np.abs(labels).max()), 1e-300)  # so that no square overflows
    return float(np.mean(((predicted - labels) / unit) ** 2) / np.mean((labels / unit) ** 2))


def constant_error(task: Task, labels: Floats) -> float:
    """The error of the best answer that looks at no feature: the commonest label, or the mean."""
    if task.loss.is_regression:
        return error(task, np.full(len(labels), labels.mean()), labels)
    _, counts = np.unique(labels, return_counts=True)
    return float(1 - counts.max() / len(labels))
