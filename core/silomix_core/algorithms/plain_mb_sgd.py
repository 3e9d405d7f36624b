"""Noisy minibatch SGD as its paper prints it, with the theorem's steps and average, to compare.

Lowy & Razaviyayn (2021), long version, Algorithm 1 with the complete statement of Theorem 2.1
(App. D.2; Theorem D.1 of the short version).  Output: the mean of w_0 … w_{R−1}, the points that
were asked, with weights γ_r.

convex           η = min(1/(4β), η̃), γ_r = 1/R,
                 η̃ = (D√M/(LR))·min(√n, L/√(dψ)), ψ = L²·ln(2.5R/δ)·ln(2/δ)/(nε)²
strongly convex  with a ridge μ: γ_r = (1 − μη)^−(r+1),
                 η = min(1/(4β), ln(max(2, μ²D²R²/(2·(4L²/(MK) + dσ²/M))))/(μR))

D bounds ‖w‖, so it is our radius; β is that of loss and ridge together; n and (ε, δ) are the least
of any silo.  Theirs is M̃ = √M where we have M: with it the bound would not be that of their main
text.  Ours are the noise σ (the least that keeps (ε, δ), not 16√(Rψ)), the batches (the study's;
they draw with replacement) and the number of rounds (the study's).
"""

from collections.abc import Callable
from math import log, sqrt

import numpy as np

from silomix_core.algorithms.base import Algorithm, AlgorithmPlan, Steps, ask
from silomix_core.algorithms.noisy_mb_sgd import every_round
from silomix_core.algorithms.projections import Ball

Weight = Callable[[int], float]  # γ_r, up to a factor


def plain_mb_sgd(plan: AlgorithmPlan) -> Steps:
    known = plan.setting
    step, weight = _strongly_convex(plan) if known.ridge else (_convex_step(plan), _alike)
    ball = Ball(np.zeros(known.dimension), known.radius)
    point = model = ball.center
    total = 0.0
    for number in range(plan.rounds):
        total += weight(number)
        model = model + (point - model) * (weight(number) / total)
        gradient = yield from ask(known, point, model)
        if gradient is not None:
            point = ball.nearest(point - step * gradient)
    return model


def _alike(_: int) -> float:
    return 1.0


def _convex_step(plan: AlgorithmPlan) -> float:
    known = plan.setting
    target, rounds = known.target, plan.rounds
    logs = log(2.5 * rounds / target.delta) * log(2 / target.delta)
    psi = (known.lipschitz / (known.records * target.epsilon)) ** 2 * logs
    fastest = known.radius * sqrt(known.participants) / (known.lipschitz * rounds)
    slowed = fastest * min(sqrt(known.records), known.lipschitz / sqrt(known.dimension * psi))
    return min(1 / (4 * known.smoothness), slowed)


def _strongly_convex(plan: AlgorithmPlan) -> tuple[float, Weight]:
    known, ridge, rounds = plan.setting, plan.setting.ridge, plan.rounds
    batch = plan.share * known.records
    drawn = 4 * known.lipschitz**2 / (known.participants * batch)
    spread = 2 * (drawn + known.dimension * plan.noise() ** 2)
    gained = log(max(2.0, (ridge * known.radius * rounds) ** 2 / spread))
    step = min(1 / (4 * (known.smoothness + ridge)), gained / (ridge * rounds))
    return step, lambda number: (1 - ridge * step) ** -(number + 1)


ALGORITHM = Algorithm(
    name="plain-mb-sgd",
    summary="Noisy minibatch SGD with the theorem's steps and average; the noise is ours",
    theorem="Lowy & Razaviyayn 2021, Alg. 1; Thm 2.1 of the long version (D.1 of the short one)",
    advice="To compare with; takes many more rounds than noisy-mb-sgd.",
    start=plain_mb_sgd,
    phases=every_round,
    needs_smooth=True,
)
