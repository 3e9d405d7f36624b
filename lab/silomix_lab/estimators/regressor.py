"""Predicting a number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task

from silomix_lab.datasets.tables import Floats
from silomix_lab.estimators.arguments import named
from silomix_lab.estimators.federated import Federated
from silomix_lab.estimators.linear import is_linear, raw_line


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedRegressor(Federated):
    """Linear prediction of a number, private for every record of every silo.

    label_bounds: (low, high) of the number to predict; public like the bounds of the features.
        Labels beyond count as the bounds, and no prediction lies beyond them.
    loss: "squared" for the mean, "absolute" for the median, "quantile" for the `level` (0.9: nine
        of ten labels lie below), "huber" for the mean without outliers: errors beyond `threshold`,
        in the label's unit, count in proportion to their size.
    clip: bound on the norm of a record's gradient.  An error as large as half of the bounds' width
        has a gradient of norm about ½, so that 0.25 makes errors beyond a quarter of the width
        count in proportion; where labels are very skewed and the mean is wanted, use a larger clip.

    All other arguments are those of `FederatedClassifier`.  After fitting: coef_ (features,) and
    intercept_, in the label's unit; predict(X) = X @ coef_ + intercept_, cut at the bounds.
    """

    losses = (LossName.SQUARED, LossName.HUBER, LossName.ABSOLUTE, LossName.QUANTILE)
    loss: str = LossName.SQUARED.value
    radius: float = 10.0
    label_bounds: tuple[float, float] | None = None
    level: float | None = None
    threshold: float | None = None

    def predict(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The number of each record (n,)."""
        found = self._scores(X)
        return self._fitted_task.predict(found)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803
        """R² on these records: 1 for exact predictions, 0 for what their mean would do.

        Where all labels are alike, 1 if each is predicted exactly and else 0.
        """
        labels, predicted = np.asarray(y, dtype=np.float64), self.predict(X)
        if labels.shape != predicted.shape:
            raise ValueError(f"y: {len(predicted)} labels expected, got {labels.shape}")
        wrong = float(np.sum((labels - predicted) ** 2))
        varies = float(np.sum((labels - labels.mean()) ** 2))
        if varies == 0:
            return float(wrong == 0)
        return 1 - wrong / varies

    def _task(self, features: tuple[Feature, ...]) -> Task:
        if self.label_bounds is None or np.shape(self.label_bounds) != (2,):
            raise ValueError(
                "label_bounds: give the public (low, high) of the number to predict; they are "
                "never measured on the records"
            )
        low, high = map(float, self.label_bounds)
        return Task(
            loss=named(self.losses, self.loss),
            label="label",
            features=features,
            scaling=named(Scaling, self.scaling),
            bias=self.bias,
            label_bounds=(low, high),
            level=self.level,
            threshold=self.threshold,
        )

    def _labels(self, outcomes: NDArray[Any], whose: str) -> Floats:
        labels: Floats = np.asarray(outcomes, dtype=np.float64)
        if not np.isfinite(labels).all():
            raise ValueError(f"y of {whose}: not a finite number; leave such records out")
        return labels

    def _learned(self, task: Task, weights: Floats) -> None:
        if task.label_bounds is None:
            raise ValueError("a number to predict has bounds")
        if not is_linear(task):
            return
        slopes, constant = raw_line(task, weights)
        low, high = task.label_bounds
        half = high / 2 - low / 2
        self.coef_, self.intercept_ = slopes * half, low / 2 + high / 2 + constant * half

    @classmethod
    def _about_labels(cls, task: Task) -> dict[str, Any]:
        return {
            "label_bounds": task.label_bounds,
            "level": task.level,
            "threshold": task.threshold,
        }
