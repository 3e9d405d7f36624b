"""What a model is: how weights and features give scores, and how records give clipped gradients.

A task names its model, an algorithm may smooth its loss; silos, simulations and whoever shows a
model's error use the same description.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.model.clipped_sum import ClippedSum, Records
from silomix_core.model.multiclass import Multiclass
from silomix_core.model.neural_net import NeuralNet
from silomix_core.model.rounding import rounded
from silomix_core.model.smoothing import Smoothing
from silomix_core.task.losses import Loss
from silomix_core.task.task import Task

Floats = NDArray[np.float64]


class GradientSum(Protocol):
    """The function point → Σ_j clip(∇f(point; record j)), for one silo's records and one clip."""

    def __len__(self) -> int: ...

    def at(
        self,
        point: Floats,
        batch: NDArray[np.bool_] | None = None,
        random_bytes: RandomBytes | None = None,
        /,
    ) -> NDArray[np.int64]: ...


class Model(Protocol):
    def scores(self, point: Floats, features: Floats) -> Floats:
        """The exact scores of encoded integer features (n, ·), at the point as silos round it."""
        ...

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        """The loss of each record (n,), not smoothed; labels as `Task.encode_labels` gives them."""
        ...

    def gradients(
        self, records: Records, clip: float, *, open_batches: bool = False
    ) -> GradientSum:
        """The sum of clipped gradients of these records, as a function of the point.

        With `open_batches` the time tells which records are in a batch: for simulations.
        """
        ...


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear model: one weight per feature, the score being the sum of their products."""

    loss: Loss
    smoothing: Smoothing | None = None

    def scores(self, point: Floats, features: Floats) -> Floats:
        return rounded(point).scores(features)

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        return self.loss.value(scores, labels)

    def gradients(
        self, records: Records, clip: float, *, open_batches: bool = False
    ) -> GradientSum:
        return ClippedSum(records, self.loss, clip, self.smoothing, open_batches=open_batches)


def model_of(task: Task, smoothing: Smoothing | None = None) -> Model:
    """The task's model; `smoothing` is what the study's algorithm does to its loss."""
    if task.hidden is not None:
        return NeuralNet(task.width, task.hidden, task.classes or 1)
    if task.classes is not None:
        return Multiclass(task.classes)
    return Linear(task.loss_function, smoothing)
