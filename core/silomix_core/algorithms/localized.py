"""Localization: phases on fresh records, each nearer to the last model than the one before.

Gao, Lowy, Zhou, Wright (2024), Algorithm 1 (Thm C.1) and, with subgradients, Algorithms 3 and 4
(Thm G.1).  Phase i has ⌊n/2ⁱ⌋ records of each silo that no other phase uses, so each gets the
whole (ε, δ).  It minimizes their mean loss plus λᵢ/2·‖w − wᵢ₋₁‖², in the common part of W and a
ball around wᵢ₋₁; the server adds that public term.

The rounds that the theorem asks for are cut to what the study allows, in proportion, at least one
for each phase; when there are fewer rounds than phases, the last phases (of few records) go.
"""

from dataclasses import dataclass
from math import ceil, floor, log, log2, sqrt

import numpy as np

from silomix_core.algorithms.accelerated import Pull, ac_sa, stages
from silomix_core.algorithms.base import (
    Algorithm,
    AlgorithmPlan,
    Point,
    Setting,
    Steps,
    ask,
)
from silomix_core.algorithms.projections import Ball, Lens
from silomix_core.mechanism.mechanism import Phase


@dataclass(frozen=True, slots=True)
class Local:
    """Phase i of the theorem: its records, its pull λᵢ, the radius Dᵢ, the rounds it asks for."""

    records: int
    modulus: float
    reach: float
    rounds: float


def price(setting: Setting) -> float:
    """√(d·ln(1/δ))/ε, what privacy adds to √n in both theorems."""
    target = setting.target
    return sqrt(setting.dimension * log(1 / target.delta)) / target.epsilon


def _exponent(setting: Setting) -> float:
    """The exponent p by which the pull grows from phase to phase."""
    records = max(2, setting.records)
    return max(0.5 * log(setting.participants) / log(records) + 1, 3.0)


def _count(setting: Setting) -> int:
    """The number of phases: τ, or as many as there may be rounds."""
    return max(1, min(floor(log2(max(2, setting.records))), setting.rounds))


def smooth_locals(setting: Setting) -> list[Local]:
    """The phases of Thm C.1: λ = L/(Dn√M)·max(√n, √(d ln(1/δ))/ε), λᵢ = λ·2^((i−1)p)."""
    n, asked, lipschitz = setting.records, setting.participants, setting.lipschitz
    target, d = setting.target, setting.dimension
    base = lipschitz / (setting.diameter * n * sqrt(asked)) * max(sqrt(n), price(setting))
    found = []
    for index in range(1, _count(setting) + 1):
        modulus = base * 2 ** ((index - 1) * _exponent(setting))
        records, reach = n // 2**index, 2 * lipschitz / modulus
        gap = lipschitz * min(reach, setting.diameter)
        told = gap * modulus * asked * (target.epsilon * records) ** 2 / (lipschitz**2 * d)
        wanted = sqrt((setting.smoothness + modulus) / modulus) * log(max(told, 1.0))
        found.append(Local(records, modulus, reach, max(1.0, wanted)))
    return found


def kinked_locals(setting: Setting) -> list[Local]:
    """The phases of Thm G.1: η = (D√M/L)·min(1/√n, ε/√(d ln(1/δ))), λᵢ = 2^(ip)/(η·nᵢ)."""
    n, asked, lipschitz = setting.records, setting.participants, setting.lipschitz
    target, d = setting.target, setting.dimension
    step = setting.diameter * sqrt(asked) / lipschitz * min(1 / sqrt(n), 1 / price(setting))
    found = []
    for index in range(1, _count(setting) + 1):
        records = max(1, n // 2**index)
        modulus = 2 ** (index * _exponent(setting)) / (step * records)
        rounds = min(asked * records, asked * (target.epsilon * records) ** 2 / d) + 1
        found.append(Local(records, modulus, 2 * lipschitz / modulus, rounds))
    return found


def phases_of(setting: Setting, found: list[Local]) -> tuple[Phase, ...]:
    asked = sum(each.rounds for each in found)
    share = min(1.0, (setting.rounds - len(found)) / max(asked - len(found), 1e-9))
    counts = [1 + floor((ceil(each.rounds) - 1) * share) for each in found]
    return tuple(Phase(count, 2.0**-index) for index, count in enumerate(counts, start=1))


def smooth_phases(setting: Setting) -> tuple[Phase, ...]:
    return phases_of(setting, smooth_locals(setting))


def kinked_phases(setting: Setting) -> tuple[Phase, ...]:
    return phases_of(setting, kinked_locals(setting))


def localized_accelerated(plan: AlgorithmPlan) -> Steps:
    """Solve every phase by the multi-stage method."""
    known, model = plan.setting, np.zeros(plan.setting.dimension)
    for index, (phase, local) in enumerate(zip(plan.phases, smooth_locals(known), strict=True)):
        modulus, region = known.ridge + local.modulus, _region(known, model, local)
        pull = Pull(local.modulus, model)
        gap = known.lipschitz * min(local.reach, known.diameter)
        smoothness = known.smoothness + modulus
        for stage in stages(phase.rounds, smoothness, modulus, plan.variance(index), gap):
            model = yield from ac_sa(known, model, stage, region, pull)
    return model


def localized_mb_sgd(plan: AlgorithmPlan) -> Steps:
    """Solve every phase by minibatch SGD, the average of its iterates being the next start."""
    known, model = plan.setting, np.zeros(plan.setting.dimension)
    for index, (phase, local) in enumerate(zip(plan.phases, smooth_locals(known), strict=True)):
        wander = sqrt(plan.variance(index) * phase.rounds)
        steep = known.smoothness + known.ridge + local.modulus
        step = min(min(local.reach, known.diameter) / wander, 1 / steep)
        model = yield from _descend(known, model, local, [step] * phase.rounds, heavier=False)
    return model


def localized_subgradient(plan: AlgorithmPlan) -> Steps:
    """Solve every phase by subgradient steps 2/(λᵢ(r+1)); the average counts iterate r r times."""
    known, model = plan.setting, np.zeros(plan.setting.dimension)
    for phase, local in zip(plan.phases, kinked_locals(known), strict=True):
        modulus = known.ridge + local.modulus
        sizes = [2 / (modulus * (number + 1)) for number in range(1, phase.rounds + 1)]
        model = yield from _descend(known, model, local, sizes, heavier=True)
    return model


def _descend(
    setting: Setting, start: Point, local: Local, sizes: list[float], *, heavier: bool
) -> Steps:
    region, pull = _region(setting, start, local), Pull(local.modulus, start)
    point = model = start
    for number, size in enumerate(sizes, start=1):
        gradient = yield from ask(setting, point, model)
        if gradient is not None:
            point = region.nearest(point - size * (gradient + pull.at(point)))
        weight = 2 / (number + 1) if heavier else 1 / number
        model = model + (point - model) * weight
    return model


def _region(setting: Setting, center: Point, local: Local) -> Lens:
    whole = Ball(np.zeros(setting.dimension), setting.radius)
    return Lens(whole, Ball(center, local.reach))


ACCELERATED = Algorithm(
    name="localized-accelerated",
    summary="Phases on fresh records, each solved by multi-stage AC-SA",
    theorem="Gao et al. 2024, Alg. 1, Thm C.1",
    advice="Smooth losses; optimal rates with few rounds, at large N and n.",
    start=localized_accelerated,
    phases=smooth_phases,
    needs_smooth=True,
)
MB_SGD = Algorithm(
    name="localized-mb-sgd",
    summary="Phases on fresh records, each solved by minibatch SGD",
    theorem="Gao et al. 2024, §4: the practical variant of Alg. 1",
    advice="To compare with Gao et al. 2024, §4.",
    start=localized_mb_sgd,
    phases=smooth_phases,
    needs_smooth=True,
)
SUBGRADIENT = Algorithm(
    name="localized-subgradient",
    summary="Phases on fresh records, each solved by subgradient steps",
    theorem="Gao et al. 2024, Alg. 3 and 4, Thm G.1",
    advice="Losses with kinks (hinge, absolute).",
    start=localized_subgradient,
    phases=kinked_phases,
)
