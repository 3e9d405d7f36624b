"""Random check-ins: every silo gives one report in all, in a round that only it knows.

Balle, Kairouz, McMahan, Thakkar, Thakurta (2020), "Privacy amplification via random check-ins":

fixed     Algorithm 1: of the silos that come in a slot one is used, noise alone if none came
averaged  Algorithm 2: all that came are averaged, empty slots skipped
sliding   Section 4.2: as fixed, but the silos' windows follow one another

A slot is a round.  The steps are those of Theorems 3.5 and 4.2, η_i = D/√(G²·i) with
G² ≥ E‖g‖², and the last point is the model.  Theorem 3.5 multiplies reports by 1/q and steps by q,
q the chance that a slot is not empty; the two cancel, so neither is done here.  Instead, a step is
made of b slots together, as many as bring one report on average: the same bound, and no steps along
noise alone when slots are many and silos few.

How often a silo comes is public, so its noise is that of one report.
"""

from math import floor, sqrt

import numpy as np

from silomix_core.algorithms.base import Algorithm, AlgorithmPlan, Query, Setting, Steps
from silomix_core.algorithms.projections import Ball
from silomix_core.mechanism.mechanism import CheckIn, Phase

# Chance of coming c·m/n with c = 2 leaves a slot empty in e⁻² of the cases (Proposition 3.4); silos
# that come beyond that are rarely used, and spend their budget for nothing.
_SILOS_PER_SLOT = 2.0


def fixed_window(setting: Setting) -> tuple[Phase, ...]:
    """A single phase; every silo picks one of all rounds, if it comes at all."""
    comes = min(1.0, _SILOS_PER_SLOT * setting.rounds / setting.silos)
    return (Phase(setting.rounds, check_in=CheckIn(probability=comes, lone=True)),)


def averaged_window(setting: Setting) -> tuple[Phase, ...]:
    """A single phase; every silo picks one of all rounds (Theorem 4.1 wants everybody to come)."""
    return (Phase(setting.rounds, check_in=CheckIn()),)


def sliding_window(setting: Setting) -> tuple[Phase, ...]:
    """A single phase of n − m + 1 rounds for windows of m slots; m is at least half of the silos.

    A short window would hide little, and m follows from the rounds: the more, the shorter.
    """
    rounds = min(setting.rounds, setting.silos // 2 + 1)
    return (Phase(rounds, check_in=CheckIn(sliding=setting.silos - rounds + 1, lone=True)),)


def lone_reports(plan: AlgorithmPlan) -> Steps:
    """Use one report, or noise alone, of each slot; step after every b slots and after the last."""
    known, (phase,) = plan.setting, plan.phases
    used = _chance_of_a_report(known, phase)
    batch = max(1, floor(1 / used))
    bound = _gradient_bound(known) ** 2 + batch * known.dimension * plan.noises[0] ** 2
    ball = Ball(np.zeros(known.dimension), known.radius)
    point, held, step = ball.center, np.zeros(known.dimension), 0
    for slot in range(1, phase.rounds + 1):
        answer = yield Query(point=point, model=point)
        if answer is not None:  # the ridge counts as often as a report is expected
            held = held + answer.gradient + used * known.ridge * point
        if slot % batch == 0 or slot == phase.rounds:
            step += 1
            point = ball.nearest(point - _step_size(known, bound, step) * held)
            held = np.zeros(known.dimension)
    return point


def averaged_reports(plan: AlgorithmPlan) -> Steps:
    """Step along the mean of the reports that came in a slot; do not step if none came."""
    known, (phase,) = plan.setting, plan.phases
    together = max(1.0, known.participants / phase.rounds)
    bound = _gradient_bound(known) ** 2 + known.dimension * plan.noises[0] ** 2 / together
    ball = Ball(np.zeros(known.dimension), known.radius)
    point, step = ball.center, 0
    for _ in range(phase.rounds):
        answer = yield Query(point=point, model=point)
        if answer is not None and answer.reports:
            step += 1
            gradient = answer.gradient + known.ridge * point
            point = ball.nearest(point - _step_size(known, bound, step) * gradient)
    return point


def _step_size(setting: Setting, bound: float, step: int) -> float:
    """The step size η_i = D/√(G²·i)."""
    return setting.diameter / sqrt(bound * step)


def _gradient_bound(setting: Setting) -> float:
    """A bound on the norm of the gradient of the loss and its ridge, within W."""
    return setting.lipschitz + setting.ridge * setting.radius


def _chance_of_a_report(setting: Setting, phase: Phase) -> float:
    """The probability q that at least one of the silos that a round asks takes part in it."""
    check_in = phase.check_in
    if check_in is None:
        return 1.0
    if check_in.sliding is not None:
        asked = check_in.sliding * setting.participants / setting.silos
        return 1 - (1 - 1 / check_in.sliding) ** asked if check_in.sliding > 1 else 1.0
    return 1 - (1 - check_in.probability / phase.rounds) ** setting.participants


FIXED = Algorithm(
    name="check-ins-fixed",
    summary="Every silo reports once, in a secret round; one report of each round is used",
    theorem="Balle et al. 2020, Alg. 1, Thm 3.2 and 3.5",
    advice="Thousands of silos; nobody can tell from the models when a silo took part.",
    start=lone_reports,
    phases=fixed_window,
)
AVERAGED = Algorithm(
    name="check-ins-averaged",
    summary="Every silo reports once, in a secret round; a round's reports are averaged",
    theorem="Balle et al. 2020, Alg. 2, Thm 4.1 and 4.2",
    advice="Many more silos than rounds; every report counts.",
    start=averaged_reports,
    phases=averaged_window,
)
SLIDING = Algorithm(
    name="check-ins-sliding",
    summary="As check-ins-fixed, with windows that follow one another through the roster",
    theorem="Balle et al. 2020, §4.2, Thm 4.3",
    advice="To compare with; silos whose slot lies before or after the rounds are not used.",
    start=lone_reports,
    phases=sliding_window,
)
