"""Noisy minibatch SGD: one projected step along the mean report each round.

Lowy & Razaviyayn (2021), "Private federated learning without a trusted server", Algorithm 1, with
the batches that the study names (full by default).  In its *one-pass* form (the baseline of Gao et
al. 2024, §4) every record is used in one round only: as many disjoint phases as rounds.
Departures, all of them choices that their Algorithm 1 leaves open or post-processing of the same
reports: a heavy-ball average of the gradients; which iterates the output is the average of (both
are the study's to say: `Descent`, by default momentum 0.8 and the last three quarters, in which
iterate r counts r times); the step.  The printed form has none of them: `plain_mb_sgd`.

The step comes from public quantities: with noise σ√(d/M) on the mean report, R steps of size η
wander by about η·σ·√(dR/M); η makes that half the radius of W, so that directions in which noise
exceeds what a model of that size has to say are left early.  It starts at most at 8d/min(β, L), for
records spread over all d directions.  Where they are not, the reports themselves tell: the step is
cut to 4/h whenever two of them show, beyond their noise, a curvature h between the points that were
asked.  On a quadratic of curvature h a heavy ball with momentum m diverges from 2(1 + m)/(1 − m)/h,
18/h at 0.8; below 0.69 the step is cut to ⅜ of that, and starts at twice as much over β/d.

A logistic loss is steep where a study begins and flat beyond its minimizer, all the more if one
label is rare.  So no move is longer than 4/R of the radius: the first ones, along the mean record,
would overshoot to where little calls them back.  And where the loss is no quadratic, a step that
was cut grows again, by 6 over R rounds and never beyond the first.
"""

from math import inf, sqrt

import numpy as np

from silomix_core.algorithms.base import Algorithm, AlgorithmPlan, Point, Setting, Steps, ask
from silomix_core.algorithms.projections import Ball
from silomix_core.mechanism.mechanism import Phase

_BOLDEST = 4.0
_CERTAIN = 3.0  # standard deviations
_PATH = 4.0  # the longest way that all moves together can go, in radii
_REGROWTH = 6.0  # how many times larger a step that was cut can become over all rounds


def step_size(plan: AlgorithmPlan) -> float:
    """The first step, η = min(½·radius·√M/(σ·√(dR)), 8d/min(β, L)); less if momentum is low."""
    known = plan.setting
    noise = max(map(plan.noise, range(len(plan.phases))))
    wander = noise * sqrt(known.dimension * plan.rounds)
    # a residual clipped at L changes by at most about L with the score (logistic: L(1 − L));
    # a hinge, which has no β, by L times the density of scores at the kink
    steepest = min(known.smoothness, known.lipschitz)
    evenly = known.dimension / (steepest + known.ridge)
    return min(known.radius / 2 / wander, 2 * _boldness(known) * evenly)


def _boldness(setting: Setting) -> float:
    """The largest step times curvature: ⅜ of where the heavy ball diverges, and not above 4."""
    momentum = setting.descent.momentum
    return min(_BOLDEST, 3 / 4 * (1 + momentum) / (1 - momentum))


def noisy_mb_sgd(plan: AlgorithmPlan) -> Steps:
    known, largest, doubt = plan.setting, step_size(plan), _doubt(plan)
    momentum, averaging = known.descent.momentum, known.descent.averaging
    ball = Ball(np.zeros(known.dimension), known.radius)
    growth, longest = _caution(plan)
    moves, step = Ball(ball.center, longest), largest
    point = model = ball.center
    velocity = np.zeros(known.dimension)
    last: tuple[Point, Point] | None = None
    weights = 0
    for number in range(1, plan.rounds + 1):
        gradient = yield from ask(known, point, model)
        if gradient is not None:
            step = min(largest, step * growth)
            if last is not None and (seen := _curvature(last, (point, gradient), doubt)) > 0:
                step = min(step, _boldness(known) / seen)
            last = point, gradient
            velocity = momentum * velocity + (1 - momentum) * gradient
            point = ball.nearest(point - moves.nearest(step * velocity))
        weight = averaging.weight(number, plan.rounds)
        weights += weight
        model = model + (point - model) * (weight / weights) if weight else point
    return model


def _caution(plan: AlgorithmPlan) -> tuple[float, float]:
    """By what a step that was cut grows in a round, and the length of the longest move."""
    if plan.setting.numbers:  # their errors are as curved everywhere
        return 1.0, inf
    return _REGROWTH ** (1 / plan.rounds), _PATH * plan.setting.radius / plan.rounds


def _curvature(before: tuple[Point, Point], now: tuple[Point, Point], doubt: float) -> float:
    """The curvature that two points and their gradients surely show: rarely above the true one."""
    moved, changed = now[0] - before[0], now[1] - before[1]
    distance = float(np.linalg.norm(moved))
    if not distance:
        return 0.0
    return float(moved @ changed) / distance**2 - _CERTAIN * doubt / distance


def _doubt(plan: AlgorithmPlan) -> float:
    """A bound on the standard deviation of the difference of two mean reports in one direction.

    The difference comes from their noise, the batches, who takes part (`AlgorithmPlan.variance`)
    and, where there are several phases, from their different records.
    """
    known, worst = plan.setting, 0.0
    for index, phase in enumerate(plan.phases):
        others = plan.variance(index) - (known.dimension - 1) * plan.noise(index) ** 2
        if len(plan.phases) > 1:
            batch = max(1, phase.records(known.records))
            others += known.lipschitz**2 / (batch * known.participants)
        worst = max(worst, others)
    return sqrt(2 * worst)


def every_round(setting: Setting) -> tuple[Phase, ...]:
    """A single phase: all records in all rounds."""
    return (Phase(setting.rounds),)


def one_round_each(setting: Setting) -> tuple[Phase, ...]:
    """A phase for each round: every record is used in one round only."""
    return (Phase(1, 1 / setting.rounds),) * setting.rounds


ALGORITHM = Algorithm(
    name="noisy-mb-sgd",
    summary="Noisy minibatch SGD with heavy ball, steps that reports correct, weighted average",
    theorem="Lowy & Razaviyayn 2021, Alg. 1; momentum, steps and average are ours",
    advice="The default: smooth or not, any ε; 60 rounds are enough.",
    start=noisy_mb_sgd,
    phases=every_round,
    takes_descent=True,
)
ONE_PASS = Algorithm(
    name="one-pass-mb-sgd",
    summary="Noisy minibatch SGD that uses every record once",
    theorem="Gao et al. 2024, §4 (baseline); Lowy & Razaviyayn 2021, Alg. 1; steps are ours",
    advice="When a record may be touched in one round only; the baseline of Gao et al. 2024.",
    start=noisy_mb_sgd,
    phases=one_round_each,
    takes_descent=True,
)
