"""The course of a study, a line for each round: what notebooks show while and after it runs."""

from collections.abc import Callable
from math import sqrt

from silomix_core.mechanism.mechanism import Mechanism
from silomix_core.task.task import Task

from silomix_lab.datasets.tables import Floats, SiloTable
from silomix_lab.scoring import error, mean_loss

Line = dict[str, float]
Callback = Callable[[Line], None]


def round_line(number: int, mechanism: Mechanism, reports: int) -> Line:
    """The line of a round: how many reports came, and the noise on their mean.

    `noise` is the standard deviation on each coordinate of the mean.
    """
    sigma = mechanism.sigma(mechanism.phase_of(number))
    return {"round": number, "reports": reports, "noise": sigma / sqrt(max(reports, 1))}


def scored(model: Floats, holdout: SiloTable | None, task: Task) -> Line:
    """The model's loss and error on a public hold-out, if there is one."""
    if holdout is None:
        return {}
    return {"loss": mean_loss(model, holdout, task), "error": error(model, holdout, task)}
