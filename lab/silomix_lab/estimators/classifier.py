"""Telling two classes apart."""

from collections.abc import Sequence
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
class FederatedClassifier(Federated):
    """Linear classification of two classes, private for every record of every silo.

    bounds: (low, high) of each feature, or one pair for all.  Public knowledge, agreed before
        anybody looks at records; values beyond are clamped, missing ones (NaN) become the middle.
    epsilon, delta: the guarantee for everything that a silo sends in all rounds together, with one
        record replaced.
    algorithm, rounds: one of `silomix algorithms`, and how many rounds it may take at most; "auto"
        sets rounds, clip and radius itself.
    loss: "logistic", or "hinge" for the algorithms that need no smoothness.
    classes: the two labels, the second being the positive one; public, like the bounds.
    weights: what silos count by, "records" (unless given: all records of all silos alike) or
        "equal" (all silos alike).
    participants: silos that a round asks; all unless given.  draw: how these are drawn, "turns"
        (everybody equally often, and pays only for that) or "independent", as in the papers.
    aggregation: how a round's reports become one: "mean", "bounded-mean" (unless given, where it
        can be), "geometric-median", or "trimmed-mean", which withstands so many `bad_silos`.
    clip: bound on the norm of a record's gradient; radius: that of the ball that the model is kept
        in; ridge: the factor in the public term ridge/2·‖w‖².
    scaling: "unit-ball" divides all records by the same number, "unit-sphere" each by its norm.
    bias: value of the constant feature that stands for the intercept.
    random_state: seed of who is asked and of all noise, to repeat an experiment.  Noise that can
        be repeated protects nobody; without a seed it comes from a cryptographic generator.

    After fitting: weights_ (the model, of scaled features and bias), coef_ (1, features) and
    intercept_ (1,), classes_, n_features_in_, n_iter_ (rounds), history_ (a line per round) and
    privacy_ (what is promised, to whom, on which condition).  Within the bounds
    decision_function(X) = X @ coef_.T + intercept_, up to the 16 bits that features are rounded
    to; with "unit-sphere" the same holds of scaled records.
    """

    losses = (LossName.LOGISTIC, LossName.HINGE)  # of labels −1 and +1
    classes: Sequence[Any] = (0, 1)

    def decision_function(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Scores (n,): above 0 for the second class."""
        return self._scores(X)

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The class of each record (n,)."""
        chosen = (self.decision_function(X) > 0).astype(np.int64)
        return self.classes_[chosen]

    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Probabilities (n, 2) of the two classes; for the logistic loss only."""
        if self.loss != LossName.LOGISTIC.value:
            raise AttributeError(f"the {self.loss} loss has no probabilities; use predict")
        positive = 0.5 + 0.5 * np.tanh(0.5 * self.decision_function(X))
        return np.column_stack([1 - positive, positive])

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803
        """The share of records that are classified correctly."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def _task(self, features: tuple[Feature, ...]) -> Task:
        if len(self.classes) != 2:
            raise ValueError(f"classes: two labels, the positive one second; got {self.classes!r}")
        loss, scaling = named(self.losses, self.loss), named(Scaling, self.scaling)
        return Task(loss, "label", features, scaling, self.bias)

    def _labels(self, outcomes: NDArray[Any], whose: str) -> Floats:
        negative, positive = self.classes
        strange = outcomes[(outcomes != positive) & (outcomes != negative)]
        if len(strange):
            raise ValueError(
                f"y of {whose}: {strange.tolist()[0]!r} is none of classes={self.classes!r}; "
                "labels are public knowledge and are not collected from the silos"
            )
        labels: Floats = (outcomes == positive).astype(np.float64)
        return labels

    def _learned(self, task: Task, weights: Floats) -> None:
        self.classes_ = np.array(list(self.classes))
        if is_linear(task):
            slopes, constant = raw_line(task, weights)
            self.coef_, self.intercept_ = slopes[None, :], np.array([constant])

    @classmethod
    def _about_labels(cls, _: Task) -> dict[str, Any]:
        return {}
