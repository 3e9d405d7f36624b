"""Accelerated minibatch SGD: AC-SA (Ghadimi & Lan 2012) along noisy mean reports.

Lowy & Razaviyayn (2021), Algorithm 2; Gao, Lowy, Zhou, Wright (2024), Algorithms 2 and 5.  Three
sequences: where the gradient is asked (`middle`), where steps are taken (`point`), and their
average (`model`).  With a ridge μ the objective is μ-strongly convex.  *Multi-stage*: AC-SA again
and again, each time from its last model and with half the distance to go; the noise decides how
long a stage lasts.

Both papers print the stage's v with the number of rounds in the denominator, and Gao et al. a
stage's length with L² for V²: misprints, by which steps would ignore the noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Protocol

import numpy as np

from silomix_core.algorithms.base import (
    Algorithm,
    AlgorithmPlan,
    Point,
    Setting,
    Steps,
    ask,
)
from silomix_core.algorithms.noisy_mb_sgd import every_round, one_round_each
from silomix_core.algorithms.projections import Ball


class Region(Protocol):
    def nearest(self, point: Point) -> Point: ...


@dataclass(frozen=True, slots=True)
class Pull:
    """A public term modulus/2·‖w − anchor‖², whose gradient the server adds."""

    modulus: float
    anchor: Point

    def at(self, point: Point) -> Point:
        return self.modulus * (point - self.anchor)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the multi-stage method: `rounds` rounds of AC-SA with steps 4v/(r(r+1))."""

    rounds: int
    v: float


def ac_sa(
    setting: Setting, start: Point, stage: Stage, region: Region, pull: Pull | None = None
) -> Steps:
    """Run AC-SA from `start`; the objective is strongly convex by its ridge and the pull."""
    modulus = setting.ridge + (pull.modulus if pull else 0.0)
    point = model = start
    for number in range(1, stage.rounds + 1):
        alpha, eta = 2 / (number + 1), 4 * stage.v / (number * (number + 1))
        kept = (1 - alpha) * modulus + eta
        middle = ((1 - alpha) * (modulus + eta) * model + alpha * kept * point) / (
            eta + (1 - alpha**2) * modulus
        )
        gradient = yield from ask(setting, middle, model)
        if gradient is None:
            continue
        if pull is not None:
            gradient = gradient + pull.at(middle)
        step = alpha * modulus * middle + kept * point - alpha * gradient
        point = region.nearest(step / (modulus + eta))
        model = alpha * point + (1 - alpha) * model
    return model


def stages(
    rounds: int, smoothness: float, modulus: float, variance: float, gap: float
) -> Iterator[Stage]:
    """The stages of the multi-stage method, `rounds` rounds in all; `gap` bounds F(w₀) − F*."""
    left, number = rounds, 1
    while left:
        halved = gap * 2.0 ** -(number + 1)
        wanted = max(4 * sqrt(2 * smoothness / modulus), 128 * variance / (3 * modulus * halved))
        length = min(left, ceil(min(wanted, left)))
        noisy = modulus * variance * _cube(length) / (3 * gap * 2.0 ** -(number - 1))
        yield Stage(length, max(2 * smoothness, sqrt(noisy)))
        left, number = left - length, number + 1


def accelerated(plan: AlgorithmPlan) -> Steps:
    """Run AC-SA in one stage, not strongly convex: v = max(2β, √(⅔V²R(R+1)(R+2))/‖w₀ − w*‖)."""
    known = plan.setting
    noisy = sqrt(2 / 3 * plan.variance() * _cube(plan.rounds)) / known.radius
    stage = Stage(plan.rounds, max(2 * (known.smoothness + known.ridge), noisy))
    ball = Ball(np.zeros(known.dimension), known.radius)
    return (yield from ac_sa(known, ball.center, stage, ball))


def multi_stage(plan: AlgorithmPlan) -> Steps:
    """Run AC-SA in stages; without a ridge the server adds λ/2·‖w‖², λ = V/(2D√R)."""
    known, variance = plan.setting, plan.variance()
    ball = Ball(np.zeros(known.dimension), known.radius)
    pull = None
    modulus = known.ridge
    if not modulus:
        modulus = sqrt(variance / plan.rounds) / (2 * known.diameter)
        pull = Pull(modulus, ball.center)
    model = ball.center
    gap = known.lipschitz * known.radius
    for stage in stages(plan.rounds, known.smoothness + modulus, modulus, variance, gap):
        model = yield from ac_sa(known, model, stage, ball, pull)
    return model


def _cube(rounds: int) -> float:
    return float(rounds) * (rounds + 1) * (rounds + 2)


_LONG = "Lowy & Razaviyayn 2021, long version"
_PAPERS = "Lowy & Razaviyayn 2021, Alg. 2; Gao et al. 2024, Alg. 2"
ALGORITHM = Algorithm(
    name="accelerated-mb-sgd",
    summary="AC-SA with noisy mean reports, convex or (with a ridge) strongly convex",
    theorem=f"{_PAPERS}; {_LONG}, Thm 2.4 and D.1 (short: 2.3 and D.2)",
    advice="Smooth losses and few rounds.",
    start=accelerated,
    phases=every_round,
    needs_smooth=True,
)
ONE_PASS = Algorithm(
    name="one-pass-accelerated",
    summary="AC-SA that uses every record once",
    theorem=f"{_LONG}, Thm 2.3 (short: 2.2)",
    advice="When a record may be touched in one round only, smooth losses.",
    start=accelerated,
    phases=one_round_each,
    needs_smooth=True,
)
MULTI_STAGE = Algorithm(
    name="multi-stage",
    summary="AC-SA in stages, for strongly convex objectives",
    theorem=f"Gao et al. 2024, Alg. 5; {_LONG}, App. D.4",
    advice="Smooth losses with a ridge.",
    start=multi_stage,
    phases=every_round,
    needs_smooth=True,
)
