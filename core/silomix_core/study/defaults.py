"""The default algorithm, rounds, clip and radius of a study whose author does not want to choose.

"auto" is no algorithm but a choice that is made once, when a study is written: the file then has
the numbers, and its operator approves those.  Nothing is measured on records.  The step follows
from these numbers and n, N, M, d, ε and δ (`noisy_mb_sgd.step_size`), as does the noise.

Why these, on odd and even digits of MNIST (Gao, Lowy, Zhou, Wright 2024, §4: 25 silos of 1734
records, 50 coordinates, public principal components) and generated cohorts; `silomix reproduce loc`
repeats it:
- *Full batches, 60 rounds.*  With exact calibration R rounds on all records have, averaged, the
  noise of one; more rounds cost messages, not privacy; beyond 60 they gain little.
- *Clip L, below q = 500 that times q/500, and never less than L/8.*  With noise of 2·clip/(nμ√M) on
  each coordinate of the mean of all rounds (μ: what (ε, δ) allow), q = nμ√M/d says how loud records
  are beside it.  Where they are faint, an eighth of the loss's own bound has an eighth of the noise
  and classifies best: the clipped loss is another convex loss, linear for all records but those far
  on the right side, flatter by less than an eighth.  But its models grow, and its probabilities are
  not those of the records: it hears the rarer label less than the commoner one.  The more is to be
  heard, the larger the clip, so far as misclassification does not rise by a tenth of a point.  The
  hinge loss gives no probabilities and keeps the eighth.
- *Radius 50.*  Models of records of norm 1 have norms of 15 to 45; the step makes noise wander half
  the radius, so 25, which at a small ε leaves directions early in which noise would be all.

For labels that are numbers, clip and radius follow from the same q.  Chosen on generated
regressions (5 to 30 features, 200 to 1000 records) and medical charges (Lowy, Razaviyayn 2021,
short version, §5: 3 silos of 356 records, 10 coordinates; `silomix reproduce lr`):
- *Clip L/8, below q = 40 that times √(q/40).*  Errors beyond an eighth of the label's range then
  count in proportion, as with Huber's loss: predictions lie between mean and median.  The louder
  the noise, the nearer the median, which needs less of it.  Where labels are so skewed that these
  are far apart, and the mean is wanted, a study must name a larger clip.
- *Radius 1.5·√d, below q = 20 that times √(q/20).*  Scores end at ±1 and d features share a norm
  of 1: if each varies by a third of its bounds, labels that they explain need a model as large.
  Where noise hides them, a smaller model errs less.
- *60 rounds* here too; 120 and 200 gain little.  *Momentum 0.5* below q = 20: models are small then
  and reached soon, and with less of it the average has less noise.  Above, it would arrive late.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, sqrt

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.accounting.gaussian import gaussian_mu
from silomix_core.algorithms import noisy_mb_sgd
from silomix_core.algorithms.base import Descent
from silomix_core.algorithms.catalogue import AUTO
from silomix_core.mechanism.mechanism import Participant
from silomix_core.study.schedule import Draw
from silomix_core.study.specification import Specification
from silomix_core.task.losses import LossName
from silomix_core.task.task import Task

SUMMARY = "Picks algorithm, rounds, clip, radius, momentum; the study file has the numbers"
ADVICE = "The default when nobody wants to tune: any loss, any ε."
ROUNDS, RADIUS = 60, 50.0
_CLIPPED = 1 / 8  # the clip, as a share of L
_LOUD_ENOUGH_FOR_ALL = 500.0  # of L
_LOUD_ENOUGH_FOR_CLIP, _LOUD_ENOUGH = 40.0, 20.0
_BELOW = Descent(momentum=0.5)


def automatic(target: PrivacyTarget) -> Specification:
    """A specification that leaves its numbers to `chosen`."""
    return Specification(algorithm=AUTO, most_rounds=ROUNDS, radius=RADIUS, clip=1.0, target=target)


def usual_minimum(asked: int) -> int:
    """The fewest reports that a batch may have, unless somebody says otherwise."""
    return min(asked, max(2, ceil(0.8 * asked)))


def loudness(participants: Sequence[Participant], specification: Specification) -> float:
    """The number nμ√N: the signal of all records of a round, in units of what hides one of them.

    It is that of the silo that needs the most noise for its weight.  Where a round asks M of the N
    silos in turns, each has N/M times as much room for each answer: M drops out.  Where it draws
    them independently, M stands for N.
    """
    least = min(
        each.records / each.weight * gaussian_mu(each.target.epsilon, each.target.delta)
        for each in participants
    )
    asked = specification.participants if specification.draw is Draw.INDEPENDENT else None
    return least * sqrt(asked or len(participants))


def chosen(named: Specification, task: Task, loud: float) -> Specification:
    """The specification; for "auto" with the numbers that fit the task and its `loudness`."""
    if named.algorithm != AUTO:
        return named
    each = loud / task.dimension
    clip = _share(task.loss, each) * replace(task, hidden=None).lipschitz  # a net's has no bound
    auto = replace(
        named,
        algorithm=noisy_mb_sgd.ALGORITHM.name,
        most_rounds=ROUNDS,
        clip=clip,
        radius=RADIUS,
        descent=None,
    )
    if not task.loss.is_regression:
        return auto
    clip *= sqrt(min(1.0, each / _LOUD_ENOUGH_FOR_CLIP))
    radius = 1.5 * sqrt(task.dimension) * sqrt(min(1.0, each / _LOUD_ENOUGH))
    descent = _BELOW if each < _LOUD_ENOUGH else None
    return replace(auto, clip=_short(clip), radius=_short(radius), descent=descent)


def _share(loss: LossName, each: float) -> float:
    """The share of L to clip at; losses that give no probabilities lose none by a small one."""
    if not loss.gives_probabilities:
        return _CLIPPED
    return max(_CLIPPED, min(1.0, each / _LOUD_ENOUGH_FOR_ALL))


def _short(number: float) -> float:
    """The number to three digits: somebody reads the study file."""
    return float(f"{number:.3g}")
