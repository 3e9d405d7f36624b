"""What a model is to get right, as the command line says it: the loss and what labels are."""

from dataclasses import dataclass, replace

from silomix_core.task.losses import LossName
from silomix_core.task.task import Task
from silomix_protocol.host.failure import Failure


@dataclass(frozen=True, slots=True)
class Goal:
    """A loss by its name, and its parameters as `Task` names them."""

    loss: str = "logistic"
    label_bounds: tuple[float, float] | None = None
    level: float | None = None
    threshold: float | None = None
    classes: int | None = None
    hidden: int | None = None

    def __post_init__(self) -> None:
        known = [each.value for each in LossName]
        if self.loss not in known:
            raise Failure(f"--loss {self.loss!r}: use one of {', '.join(known)}")
        if self.loss_name.is_regression and self.label_bounds is None:
            raise Failure(f"--loss {self.loss} needs --label-bounds LOW,HIGH")

    @property
    def loss_name(self) -> LossName:
        return LossName(self.loss)

    @property
    def radius(self) -> float:
        """The radius of the model's ball; small for a regression, whose scores end at ±1."""
        return 10.0 if self.loss_name.is_regression else 50.0

    def of(self, task: Task) -> Task:
        """The task with the same features and label, and this goal."""
        try:
            return replace(
                task,
                loss=self.loss_name,
                label_bounds=self.label_bounds,
                level=self.level,
                threshold=self.threshold,
                classes=self.classes,
                hidden=self.hidden,
            )
        except ValueError as bad:
            raise Failure(f"--loss {self.loss}: {bad}") from bad


def bounds(text: str | None) -> tuple[float, float] | None:
    """Read the label bounds from `LOW,HIGH`; None if nothing was given."""
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError as bad:
        raise Failure(f"--label-bounds {text!r}: use LOW,HIGH, two numbers") from bad
    return low, high
