"""Noisy minibatch SGD: one projected step along the mean report each round.

Lowy & Razaviyayn (2023), "Private federated learning without a trusted server", Algorithm 1, with
the batches that the study names (full by default).  In its *one-pass* form (Thm 2.2) every record
is used in one round only: as many disjoint phases as rounds.  Departures, both choices of weights
that their Algorithm 1 leaves open or that are post-processing of the same reports: a heavy-ball
average of the gradients (momentum 0.8), and the output is the average of the last half of the
iterates.  The plain form has neither: the theorem's steps, an average in which later iterates count
more.

Step size from public quantities only: with noise σ√(d/M) on the mean report, R steps of size η
wander by about η·σ·√(dR/M); η makes that a fixed part of the diameter of W, and never exceeds 300.
"""

from math import sqrt

import numpy as np

from silomix_core.algorithms.geometry import Ball
from silomix_core.algorithms.seam import Algorithm, AlgorithmPlan, Setting, Steps, ask
from silomix_core.mechanism import Phase

MOMENTUM = 0.8
_LARGEST_STEP = 300.0


def step_size(plan: AlgorithmPlan) -> float:
    """η = min(D·√M/(σ·√(dR)), 300), D the diameter of W; σ ∝ √R makes this D·nμ√M/(2CR√d)."""
    known = plan.setting
    noise = max(map(plan.noise, range(len(plan.phases))))
    wander = noise * sqrt(known.dimension * plan.rounds)
    return min(known.diameter / wander, _LARGEST_STEP)


def noisy_mb_sgd(plan: AlgorithmPlan) -> Steps:
    known, step = plan.setting, step_size(plan)
    ball = Ball(np.zeros(known.dimension), known.radius)
    point = ball.center
    velocity = np.zeros(known.dimension)
    tail_sum, tail_count = np.zeros(known.dimension), 0
    model = point
    for index in range(plan.rounds):
        gradient = yield from ask(known, point, model)
        if gradient is not None:
            velocity = MOMENTUM * velocity + (1 - MOMENTUM) * gradient
            point = ball.nearest(point - step * velocity)
        if 2 * index >= plan.rounds - 1:
            tail_sum, tail_count = tail_sum + point, tail_count + 1
            model = tail_sum / tail_count
        else:
            model = point
    return model


def plain_mb_sgd(plan: AlgorithmPlan) -> Steps:
    """Fixed steps, with a ridge μ at most 2/(μ(r+1)); iterate r counts r times in the average.

    Smooth: η = min(1/β, D/(V√R)); with kinks: η = D/√((L² + V²)R).
    """
    known, variance = plan.setting, plan.variance()
    ball = Ball(np.zeros(known.dimension), known.radius)
    if known.is_smooth:
        fixed = min(1 / known.smoothness, known.diameter / sqrt(variance * plan.rounds))
    else:
        fixed = known.diameter / sqrt((known.lipschitz**2 + variance) * plan.rounds)
    point = model = ball.center
    for number in range(1, plan.rounds + 1):
        gradient = yield from ask(known, point, model)
        if gradient is not None:
            step = fixed
            if known.ridge:
                step = min(step, 2 / (known.ridge * (number + 1)))
            point = ball.nearest(point - step * gradient)
        model = model + (point - model) * (2 / (number + 1))
    return model


def every_round(setting: Setting) -> tuple[Phase, ...]:
    """All records in all rounds."""
    return (Phase(setting.rounds),)


def one_round_each(setting: Setting) -> tuple[Phase, ...]:
    """Every record in one round."""
    return (Phase(1, 1 / setting.rounds),) * setting.rounds


ALGORITHM = Algorithm(
    name="noisy-mb-sgd",
    summary="Noisy minibatch SGD with heavy ball, average of the last half",
    theorem="Lowy & Razaviyayn 2023, Alg. 1; momentum and tail average are ours",
    advice="The default: smooth or not, any ε; 60 rounds are enough.",
    start=noisy_mb_sgd,
    phases=every_round,
)
PLAIN = Algorithm(
    name="plain-mb-sgd",
    summary="Noisy minibatch SGD as it is printed: the theorem's steps, weighted average",
    theorem="Lowy & Razaviyayn 2023, Alg. 1 and Thm 2.1",
    advice="To compare with; takes many more rounds than noisy-mb-sgd.",
    start=plain_mb_sgd,
    phases=every_round,
)
ONE_PASS = Algorithm(
    name="one-pass-mb-sgd",
    summary="Noisy minibatch SGD that uses every record once",
    theorem="Lowy & Razaviyayn 2023, Thm 2.2",
    advice="When a record may be touched in one round only; the baseline of Gao et al. 2024.",
    start=noisy_mb_sgd,
    phases=one_round_each,
)
