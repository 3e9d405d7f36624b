"""What a model is to get right: a loss of the label, and the parameters that losses have.

A loss parameter is declared here, as a field of `Goal` with its checks: a study file has a key of
the field's name in [task], which `study.reader` and `study.writer` know from here.
"""

from dataclasses import KW_ONLY, Field, dataclass, field, fields
from typing import Any

from silomix_core.task.feature import check_bounds
from silomix_core.task.losses import WIDEST_KNEE, Loss, LossName, loss

_MOST_CLASSES, _MOST_HIDDEN = 1000, 1000
_LEAST_THRESHOLD = 1e-6  # of Huber's loss, in ranges of the label


def _parameter(kind: type, belongs: str, *losses: LossName) -> Any:
    """A field for a parameter that all of these losses need and no other has.

    Without a loss the parameter is free to be there or not.
    """
    return field(default=None, metadata={"kind": kind, "belongs": belongs, "losses": losses})


@dataclass(frozen=True, slots=True)
class Goal:
    """A loss and its parameters.

    Labels are 0 and 1, or for regression numbers with public `label_bounds`.  `level` belongs to
    the quantile loss, `threshold` to Huber's: errors beyond it, in the label's own unit, count
    in proportion to their size.  The multinomial loss has `classes` 0, 1, 2 … and as many weights
    for each feature.  With `hidden` units the model is a neural net with one hidden layer.
    """

    loss: LossName
    _: KW_ONLY
    label_bounds: tuple[float, float] | None = None
    level: float | None = _parameter(float, "a level belongs", LossName.QUANTILE)
    threshold: float | None = _parameter(float, "a threshold belongs", LossName.HUBER)
    classes: int | None = _parameter(int, "classes belong", LossName.MULTINOMIAL)
    hidden: int | None = _parameter(int, "hidden units belong")

    def check(self, label: str) -> None:
        """Refuse parameters that the loss of this label has not, or that are out of bounds."""
        self._check_parameters_belong()
        if self.classes is not None and not 2 <= self.classes <= _MOST_CLASSES:
            raise ValueError(f"classes must lie between 2 and {_MOST_CLASSES}")
        if self.hidden is not None:
            self._check_hidden(self.hidden)
        if self.label_bounds is not None:
            check_bounds(f"label {label!r}", *self.label_bounds)
            self._check_threshold(*self.label_bounds)
        if self.level is not None and not 0 < self.level < 1:
            raise ValueError("level must be above 0 and below 1")

    def _check_parameters_belong(self) -> None:
        name = self.loss.value
        if (self.label_bounds is not None) != self.loss.is_regression:
            needs = "needs" if self.loss.is_regression else "has no"
            raise ValueError(f"the {name} loss {needs} bounds of the label (label_low, label_high)")
        for each in PARAMETERS:
            losses: tuple[LossName, ...] = each.metadata["losses"]
            if losses and (getattr(self, each.name) is not None) != (self.loss in losses):
                belongs = f"{each.metadata['belongs']} to the {losses[0].value} loss"
                raise ValueError(f"{belongs}, and to no other: {name}")

    def _check_hidden(self, units: int) -> None:
        if self.loss not in (LossName.LOGISTIC, LossName.MULTINOMIAL):
            name = self.loss.value
            raise ValueError(f"hidden units need the logistic or multinomial loss, not {name}")
        if not 1 <= units <= _MOST_HIDDEN:
            raise ValueError(f"hidden must lie between 1 and {_MOST_HIDDEN}")

    def _check_threshold(self, low: float, high: float) -> None:
        wide = high - low
        if self.threshold is not None and not _LEAST_THRESHOLD <= self.threshold / wide <= 1:
            raise ValueError(
                f"threshold must lie between {_LEAST_THRESHOLD * wide:g} and {wide:g}, the range "
                "of the label"
            )

    @property
    def loss_function(self) -> Loss:
        """The loss of a score and an encoded label."""
        knee = None
        if self.threshold is not None and self.label_bounds is not None:
            low, high = self.label_bounds
            knee = WIDEST_KNEE * self.threshold / (high - low)
        return loss(self.loss, level=self.level, knee=knee)


PARAMETERS: tuple[Field[Any], ...] = tuple(each for each in fields(Goal) if each.metadata)
