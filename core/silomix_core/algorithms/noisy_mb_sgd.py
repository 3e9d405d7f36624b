"""Noisy minibatch SGD: one projected step along the mean report each round.

Lowy & Razaviyayn (2023), "Private federated learning without a trusted server", Algorithm 1, with
the batches that the study names (full by default).  In its *one-pass* form (Thm 2.2) every record
is used in one round only: as many disjoint phases as rounds.  Departures, both choices of weights
that their Algorithm 1 leaves open or that are post-processing of the same reports: a heavy-ball
average of the gradients (momentum 0.8), and the output is the average of the last half of the
iterates.

Step size from public quantities only: with noise σ√(d/N) on the mean report, R steps of size η
wander by about η·σ·√(dR/N); η makes that a fixed part of the diameter of W, and never exceeds 300.
"""

from math import sqrt

import numpy as np

from silomix_core.algorithms.seam import Aggregate, Algorithm, AlgorithmPlan, Point, Query, Steps
from silomix_core.mechanism import Phase

MOMENTUM = 0.8
_LARGEST_STEP = 300.0


def step_size(plan: AlgorithmPlan) -> float:
    """η = min(D·√N/(σ·√(dR)), 300), D the diameter of W; σ ∝ √R makes this D·nμ√N/(2CR√d)."""
    diameter = 2 * plan.radius
    wander = plan.noise * sqrt(plan.dimension * plan.rounds / plan.silos)
    return min(diameter / wander, _LARGEST_STEP)


def noisy_mb_sgd(plan: AlgorithmPlan) -> Steps:
    step = step_size(plan)
    point = np.zeros(plan.dimension)
    velocity = np.zeros(plan.dimension)
    tail_sum, tail_count = np.zeros(plan.dimension), 0
    model = point
    for index in range(plan.rounds):
        aggregate: Aggregate | None = yield Query(point=point, model=model)
        if aggregate is not None:
            velocity = MOMENTUM * velocity + (1 - MOMENTUM) * aggregate.gradient
            point = project(point - step * velocity, plan.radius)
        if 2 * index >= plan.rounds - 1:
            tail_sum, tail_count = tail_sum + point, tail_count + 1
            model = tail_sum / tail_count
        else:
            model = point
    return model


def project(point: Point, radius: float) -> Point:
    """The nearest point of the ball of that radius around 0."""
    norm = float(np.linalg.norm(point))
    return point if norm <= radius else point * (radius / norm)


def every_round(rounds: int) -> tuple[Phase, ...]:
    """All records in all rounds."""
    return (Phase(rounds),)


def one_round_each(rounds: int) -> tuple[Phase, ...]:
    """Every record in one round."""
    return (Phase(1, 1 / rounds),) * rounds


ALGORITHM = Algorithm(
    name="noisy-mb-sgd",
    summary="Noisy minibatch SGD, averaged output (Lowy & Razaviyayn, Alg. 1)",
    start=noisy_mb_sgd,
    phases=every_round,
)
ONE_PASS = Algorithm(
    name="one-pass-mb-sgd",
    summary="Noisy minibatch SGD that uses every record once (Lowy & Razaviyayn, Thm 2.2)",
    start=noisy_mb_sgd,
    phases=one_round_each,
)
