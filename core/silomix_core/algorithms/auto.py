"""What a study says when nobody wants to choose: algorithm, rounds, clip and radius, all concrete.

"auto" is no algorithm but a choice that is made once, when a study is written: the file then has
the numbers, and its operator approves those.  Nothing is measured on records.  The step follows
from these numbers and n, N, M, d, ε and δ (`noisy_mb_sgd.step_size`), as does the noise.

Why these, on odd and even digits of MNIST (Gao, Lowy, Zhou, Wright 2024, §4: 25 silos of 1734
records, 50 coordinates, public principal components) and generated cohorts; `silomix reproduce loc`
repeats it:
- *Full batches, 60 rounds.*  With exact calibration R rounds on all records have, averaged, the
  noise of one; more rounds cost messages, not privacy; beyond 60 they gain little.
- *An eighth of the loss's own bound as clip.*  The clipped loss is another convex loss, linear for
  all records but those far on the right side.  It needs an eighth of the noise and is flatter by
  less than that; its minimizer classifies no worse.  Below, little is gained and models grow.
- *Radius 50.*  Models of records of norm 1 have norms of 15 to 45; the step makes noise wander half
  the radius, so 25, which at a small ε stops directions early in which noise would be all.
"""

from dataclasses import dataclass

from silomix_core.algorithms import noisy_mb_sgd
from silomix_core.task import Task

NAME = "auto"
SUMMARY = "Picks algorithm, rounds, clip and radius; the study file has the numbers"
ADVICE = "The default when nobody wants to tune: any loss, any ε."
ROUNDS, RADIUS, REGRESSION_RADIUS = 60, 50.0, 10.0
_CLIPPED = 1 / 8  # of L


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a study decides how well it learns at a given (ε, δ)."""

    algorithm: str
    rounds: int
    clip: float
    radius: float


def chosen(asked: Choice, task: Task) -> Choice:
    """As asked for; where that is "auto", its own numbers for the task's loss."""
    if asked.algorithm != NAME:
        return asked
    name = noisy_mb_sgd.ALGORITHM.name
    if task.loss.is_regression:
        return Choice(name, ROUNDS, task.lipschitz / 2, REGRESSION_RADIUS)
    return Choice(name, ROUNDS, _CLIPPED * task.lipschitz, RADIUS)
