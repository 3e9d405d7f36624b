"""The course of a study, a line for each round: what notebooks show while and after it runs."""

from collections.abc import Callable
from math import sqrt

from silomix_core.mechanism import Mechanism
from silomix_core.task import Task

from silomix.demo.evaluate import error, mean_loss
from silomix.demo.tables import Floats, Table

Line = dict[str, float]
Callback = Callable[[Line], None]


def round_line(number: int, mechanism: Mechanism, reports: int) -> Line:
    """How many reports came; `noise` is the standard deviation on each coordinate of their mean."""
    sigma = mechanism.sigma(mechanism.phase_of(number))
    return {"round": number, "reports": reports, "noise": sigma / sqrt(max(reports, 1))}


def scored(model: Floats, holdout: Table | None, task: Task) -> Line:
    """Loss and error on a public hold-out, if there is one."""
    if holdout is None:
        return {}
    return {"loss": mean_loss(model, holdout, task), "error": error(model, holdout, task)}
