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

For numbers, on medical charges (Lowy, Razaviyayn 2023, §5: 3 silos of 356 records, 10 coordinates;
`silomix reproduce lr`):
- *The same clip.*  Errors beyond an eighth of the label's range then count in proportion, as with
  Huber's loss: predictions lie between mean and median.  Where labels are so skewed that these are
  far apart, and the mean is wanted, a study must name a larger clip.
- *Radius 1.5·√d.*  Scores end at ±1 and d features share a norm of 1: if each varies by a third of
  its bounds, labels that they explain need a model as large.  A smaller radius does better at a
  small ε, and badly where labels are steep.
- *60 rounds* here too; 120 and 200 do no better.
"""

from dataclasses import dataclass, replace
from math import sqrt

from silomix_core.algorithms import noisy_mb_sgd
from silomix_core.task import Task

NAME = "auto"
SUMMARY = "Picks algorithm, rounds, clip and radius; the study file has the numbers"
ADVICE = "The default when nobody wants to tune: any loss, any ε."
ROUNDS, RADIUS = 60, 50.0
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
    clip = _CLIPPED * replace(task, hidden=None).lipschitz  # a network's loss has no bound itself
    radius = round(1.5 * sqrt(task.dimension), 1) if task.loss.is_regression else RADIUS
    return Choice(name, ROUNDS, clip, radius)
