"""Local updates: between two messages every silo takes K noised steps of its own.

Noble, Bellet, Dieuleveut (2022), "Differentially private federated learning on heterogeneous data",
Algorithm 2 (DP-FedAvg, and DP-FedSGD: as many steps as one pass has batches) and Algorithm 1
(DP-SCAFFOLD); local SGD is the baseline of Lowy & Razaviyayn (2021), short version, §5.  A report
is the sum of a silo's K noised gradients (`silomix_core.reports.reporter`), from which the server
derives where the silo went: Δy = −η(ΣG + K·ridge·x).  The ridge counts with its gradient at x: it
is public, and at the minimizer nothing moves.

*DP-SCAFFOLD* corrects every step by c − cᵢ, cᵢ being the mean gradient of the silo's last used
answer and c the mean of all cᵢ.  The silo sends K·Δcᵢ; cᵢ itself never leaves it.  The server knows
c, so both Δc and Δy = −Kη(Δc + c + ridge·x) follow from one vector: half of what the paper sends.
In its *warm* form the first rounds only set the cᵢ: silos stay at x₀ and so does the server.

Towards the server every local step counts (Theorem 4.1 (2)): K·R privacy events.  Departures: the
clip is the study's (the paper's median of norms is not private); η_g = 1; the output is the average
of the last half of the iterates, local SGD's an average in which later iterates count more.

Step size, which the paper does not print, from public quantities only.  The mean of M walks of KR
noised steps in all wanders by about η·σ·√(dKR/M); η makes that the diameter of W, for numbers half
the radius as in `noisy_mb_sgd`.  A silo on its own wanders by η·σ·√(dK) in a round, its noise being
averaged with nobody's.  Where labels are numbers, scores stay where the loss is as curved as its β
says, and steps beyond 2/β would bounce: silos see no mean reports that could tell them
(`noisy_mb_sgd` cuts its steps by these).  A loss of classes is curved near the score 0 only, which
models leave.
"""

from math import ceil, sqrt

import numpy as np

from silomix_core.algorithms.base import (
    Aggregate,
    Algorithm,
    AlgorithmPlan,
    LocalSteps,
    Point,
    Query,
    Setting,
    Steps,
)
from silomix_core.algorithms.projections import Ball
from silomix_core.mechanism.mechanism import Phase

_LARGEST_STEP = 300.0


# What silos do ------------------------------------------------------------------------------------


def walk(plan: AlgorithmPlan) -> LocalSteps:
    """The local steps of DP-FedAvg and DP-SCAFFOLD: η = min(D·√M/(σ·√(dKR)), 300/K).

    Where labels are numbers, η is also at most a quarter of the first term and, for smooth losses,
    at most 2/β.  Ridge: `_steps`.
    """
    known, (phase,) = plan.setting, plan.phases
    wander = plan.noise() * sqrt(known.dimension * phase.rounds * phase.steps)
    size = min(known.diameter / wander, _LARGEST_STEP / phase.steps)
    if known.numbers:
        size = min(size, known.radius / 2 / wander)
    if known.numbers and known.is_smooth:
        size = min(size, 2 / known.smoothness)
    return _steps(size, plan)


def safe_walk(plan: AlgorithmPlan) -> LocalSteps:
    """The local steps of local SGD, for smooth losses η = min(1/β, D/(V√(KR))).

    For losses with kinks η = D/√((L² + V²)KR).  Ridge: `_steps`.
    """
    known, (phase,), variance = plan.setting, plan.phases, plan.variance()
    taken = phase.rounds * phase.steps
    if known.is_smooth:
        size = min(1 / known.smoothness, known.diameter / sqrt(variance * taken))
    else:
        size = known.diameter / sqrt((known.lipschitz**2 + variance) * taken)
    return _steps(size, plan)


def warm_walk(plan: AlgorithmPlan) -> LocalSteps:
    """The local steps of `walk`, which begin after the warm start."""
    found = walk(plan)
    return LocalSteps(found.size, warm_rounds(plan.setting), found.ridge)


def _steps(size: float, plan: AlgorithmPlan) -> LocalSteps:
    """Local steps of this size, cut to what the ridge allows.

    Its gradient being taken once in a round, the ridge moves x by Kη·ridge of itself: not more than
    all of it.
    """
    (phase,), ridge = plan.phases, plan.setting.ridge
    return LocalSteps(min(size, 1 / (phase.steps * ridge)) if ridge else size, ridge=ridge)


def warm_rounds(setting: Setting) -> int:
    """The number of warm rounds: ⌈N/M⌉, so that each silo is asked, but at most a fifth of all."""
    return min(ceil(setting.silos / setting.participants), setting.rounds // 5)


# What the server does -----------------------------------------------------------------------------


def fed_avg(plan: AlgorithmPlan) -> Steps:
    """Go to where the silos went on average; return the mean of the last half of the iterates."""
    local, ball = walk(plan), _ball(plan)
    iterates = _LastHalf(plan.rounds, ball.center)
    point = ball.center
    for _ in range(plan.rounds):
        aggregate = yield Query(point, iterates.mean)
        if aggregate is not None:
            point = _moved(plan, local, ball, point, aggregate.gradient)
        iterates.add(point)
    return iterates.mean


def local_sgd(plan: AlgorithmPlan) -> Steps:
    """Go as `fed_avg`, by the steps of `safe_walk`; return a mean that counts iterate r r times."""
    local, ball = safe_walk(plan), _ball(plan)
    point = model = ball.center
    for number in range(1, plan.rounds + 1):
        aggregate = yield Query(point, model)
        if aggregate is not None:
            point = _moved(plan, local, ball, point, aggregate.gradient)
        model = model + (point - model) * (2 / (number + 1))
    return model


def scaffold(plan: AlgorithmPlan) -> Steps:
    return (yield from _scaffold(plan, walk(plan)))


def warm_scaffold(plan: AlgorithmPlan) -> Steps:
    return (yield from _scaffold(plan, warm_walk(plan)))


def _scaffold(plan: AlgorithmPlan, local: LocalSteps) -> Steps:
    """Run DP-SCAFFOLD with these local steps.

    The mean control variate c moves by the reports of those who answered, over all N silos; no
    report can move c to where no mean of noised gradients is.
    """
    (phase,), bound, ball = plan.phases, plan.largest_gradient, _ball(plan)
    iterates = _LastHalf(plan.rounds, ball.center)
    point, control = ball.center, np.zeros(plan.setting.dimension)
    for number in range(1, plan.rounds + 1):
        aggregate = yield Query(point, iterates.mean, control)
        if aggregate is not None:
            if number > local.still_rounds:
                gradient = aggregate.gradient + phase.steps * control
                point = _moved(plan, local, ball, point, gradient)
            control = np.clip(control + _change(plan, aggregate), -bound, bound)
        iterates.add(point)
    return iterates.mean


def _ball(plan: AlgorithmPlan) -> Ball:
    return Ball(np.zeros(plan.setting.dimension), plan.setting.radius)


def _moved(
    plan: AlgorithmPlan, local: LocalSteps, ball: Ball, point: Point, gradient: Point
) -> Point:
    """The point where the silos went on average, `gradient` being the mean of their K-step sums."""
    (phase,) = plan.phases
    return ball.nearest(point - local.size * (gradient + phase.steps * local.ridge * point))


def _change(plan: AlgorithmPlan, aggregate: Aggregate) -> Point:
    """The change of c, the mean of all silos' control variates."""
    (phase,), silos = plan.phases, plan.setting.silos
    return aggregate.gradient * (aggregate.reports / (phase.steps * silos))


class _LastHalf:
    """The mean of the last half of the iterates; before it begins, the last iterate."""

    def __init__(self, rounds: int, start: Point) -> None:
        self._rounds, self._added, self._counted = rounds, 0, 0
        self.mean = start

    def add(self, point: Point) -> None:
        if 2 * self._added >= self._rounds - 1:
            self._counted += 1
        self.mean = self.mean + (point - self.mean) / max(1, self._counted)
        self._added += 1


# What a study can name ----------------------------------------------------------------------------


def steps_as_told(setting: Setting) -> tuple[Phase, ...]:
    return (Phase(setting.rounds, steps=setting.local_steps),)


def one_pass_each(setting: Setting) -> tuple[Phase, ...]:
    """A single phase, with as many steps in every round as batches make up all records."""
    return (Phase(setting.rounds, steps=ceil((1 - 1e-12) / setting.ratio)),)


def controlled(setting: Setting) -> tuple[Phase, ...]:
    return (Phase(setting.rounds, steps=setting.local_steps, control=True),)


_PAPER = "Noble, Bellet, Dieuleveut 2022"
LOCAL_SGD = Algorithm(
    name="local-sgd",
    summary="Every silo takes several noised steps between two messages; safe steps",
    theorem="Lowy & Razaviyayn 2021, short version, §5 (baseline, no theorem)",
    advice="To compare with.",
    start=local_sgd,
    phases=steps_as_told,
    local=safe_walk,
    takes_local_steps=True,
)
FED_AVG = Algorithm(
    name="dp-fedavg",
    summary="Every silo takes several noised steps between two messages",
    theorem=f"{_PAPER}, Alg. 2",
    advice="Few rounds, silos whose records are alike.",
    start=fed_avg,
    phases=steps_as_told,
    local=walk,
    takes_local_steps=True,
)
FED_SGD = Algorithm(
    name="dp-fedsgd",
    summary="DP-FedAvg with one pass over the records in every round",
    theorem=f"{_PAPER}, §5: Alg. 2 with Ks = 1",
    advice="To compare with; with full batches every round is one step.",
    start=fed_avg,
    phases=one_pass_each,
    local=walk,
)
SCAFFOLD = Algorithm(
    name="dp-scaffold",
    summary="Local steps corrected by control variates that stay at the silos",
    theorem=f"{_PAPER}, Alg. 1, Thm 4.1 and 4.2",
    advice="Few rounds, silos whose records differ.",
    start=scaffold,
    phases=controlled,
    local=walk,
    takes_local_steps=True,
)
WARM_SCAFFOLD = Algorithm(
    name="dp-scaffold-warm",
    summary="DP-SCAFFOLD whose first rounds only set the control variates",
    theorem=f"{_PAPER}, §3.3, Thm 4.2 and C.1",
    advice="As printed in the theorem; costs a round or more.",
    start=warm_scaffold,
    phases=controlled,
    local=warm_walk,
    takes_local_steps=True,
)
