"""Smoothing algorithms for losses with kinks: localized accelerated SGD on a smooth loss nearby.

The silos answer with gradients of the smoothed loss (`silomix_core.model.smoothing`); how much it
is smoothed balances what the noise loses anyway, from public numbers:

- Moreau (Gao, Lowy, Zhou, Wright 2024, Thm 3.1 and E.2; Lowy & Razaviyayn 2021, long version,
  Thm 2.2, 2.1 of the short one):
  β = (L√M/D)·min(√n, εn/√(d ln(1/δ)));
- convolution (Gao et al. 2024, Alg. 6 and 7, Thm D.5): balls of radius
  s = (D/√M)·(1/√n + √(d ln(1/δ))/(εn)), β = L√d/s.

The theorem's batches are Poisson; the study names them, and a full batch is its K = n.  With it the
random points alone make a record's gradient vary, by at most L² (Lemma D.2).  A loss without kinks
is left as it is: then both are `localized-accelerated`.
"""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

from silomix_core.algorithms.base import Algorithm, AlgorithmPlan, Setting, Steps
from silomix_core.algorithms.localized import (
    localized_accelerated,
    phases_of,
    price,
    smooth_locals,
)
from silomix_core.mechanism.mechanism import Phase
from silomix_core.model.smoothing import Convolution, Moreau


def moreau(setting: Setting) -> Moreau | None:
    """The Moreau envelope that the silos use; None for a loss without kinks."""
    if setting.is_smooth:
        return None
    gained = min(sqrt(setting.records), setting.records / price(setting))
    steep = setting.lipschitz * sqrt(setting.participants) / setting.diameter
    return Moreau(steep * gained)


def convolution(setting: Setting) -> Convolution | None:
    """The ball in which the silos draw their points; None for a loss without kinks."""
    if setting.is_smooth:
        return None
    lost = 1 / sqrt(setting.records) + price(setting) / setting.records
    radius = setting.diameter / sqrt(setting.participants) * lost
    return Convolution(radius, setting.dimension)


def under_moreau(setting: Setting) -> Setting:
    """The setting with the smoothness that the silos' answers have under `moreau`."""
    found = moreau(setting)
    return setting if found is None else replace(setting, smoothness=found.smoothness)


def under_convolution(setting: Setting) -> Setting:
    found = convolution(setting)
    if found is None:
        return setting
    smoothness = setting.lipschitz * sqrt(setting.dimension) / found.radius
    return replace(setting, smoothness=smoothness, scatter=setting.lipschitz**2)


def moreau_phases(setting: Setting) -> tuple[Phase, ...]:
    known = under_moreau(setting)
    return phases_of(known, smooth_locals(known))


def convolution_phases(setting: Setting) -> tuple[Phase, ...]:
    """The phases of localization, with the rounds that Thm D.5 asks for even if all silos answer.

    These are ε²nᵢ²/(Kᵢ·d·ln(1/δ)), here with Kᵢ = nᵢ.
    """
    known = under_convolution(setting)
    found = [
        replace(each, rounds=max(each.rounds, each.records / price(known) ** 2))
        for each in smooth_locals(known)
    ]
    return phases_of(known, found)


def _localized(under: Callable[[Setting], Setting]) -> Callable[[AlgorithmPlan], Steps]:
    def start(plan: AlgorithmPlan) -> Steps:
        return localized_accelerated(replace(plan, setting=under(plan.setting)))

    return start


MOREAU = Algorithm(
    name="moreau-smoothing",
    summary="Localized accelerated SGD on the Moreau envelope of a loss with kinks",
    theorem="Gao et al. 2024, Thm 3.1 and E.2; Lowy & Razaviyayn 2021, long version, Thm 2.2 "
    "(short: 2.1)",
    advice="Losses with kinks: fewest rounds.  For others it is localized-accelerated.",
    start=_localized(under_moreau),
    phases=moreau_phases,
    smoothing=moreau,
)
CONVOLUTION = Algorithm(
    name="convolution-smoothing",
    summary="Localized accelerated SGD on gradients at random points nearby",
    theorem="Gao et al. 2024, Alg. 6 and 7, Thm D.5",
    advice="To compare with moreau-smoothing, which needs no random points.",
    start=_localized(under_convolution),
    phases=convolution_phases,
    smoothing=convolution,
)
