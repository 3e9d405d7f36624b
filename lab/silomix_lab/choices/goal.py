"""What a model is to get right, as the command line says it."""

from dataclasses import fields, replace

from silomix_core.task.goal import Goal
from silomix_core.task.losses import LossName
from silomix_core.task.task import Task
from silomix_protocol.host.failure import Failure

LOGISTIC = Goal(LossName.LOGISTIC)


def goal_of(loss: str, label_bounds: str | None, **parameters: float | None) -> Goal:
    """The goal that was typed, its bounds as LOW,HIGH; a task says whether it makes sense."""
    known = [each.value for each in LossName]
    if loss not in known:
        raise Failure(f"--loss {loss!r}: use one of {', '.join(known)}")
    if LossName(loss).is_regression and label_bounds is None:
        raise Failure(f"--loss {loss} needs --label-bounds LOW,HIGH")
    return Goal(LossName(loss), label_bounds=_bounds(label_bounds), **parameters)  # type: ignore[arg-type]


def _bounds(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError as bad:
        raise Failure(f"--label-bounds {text!r}: use LOW,HIGH, two numbers") from bad
    return low, high


def usual_radius(goal: Goal) -> float:
    """The radius of the model's ball; small for a regression, whose scores end at ±1."""
    return 10.0 if goal.loss.is_regression else 50.0


def aimed(task: Task, goal: Goal) -> Task:
    """The task with the same features and label, and this goal."""
    try:
        return replace(task, **{each.name: getattr(goal, each.name) for each in fields(Goal)})
    except ValueError as bad:
        raise Failure(f"--loss {goal.loss.value}: {bad}") from bad
