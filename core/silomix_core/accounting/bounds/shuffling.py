"""The central figure of shuffled studies whose reports hold one record, and what it needs.

Each round every silo draws one of its n records, clips its gradient to norm C, adds Gaussian noise
σ and sends it; the mixes shuffle the N reports (Lowy, Razaviyayn 2021, Section 4, with K = 1).

Neighbouring data sets: one record of one silo replaced.  Trust: an honest mix in every round; the
result says it in full.  With full batches (K = n) a report is private per record and not
in the silo's whole input, so nothing here applies and the central figure is the local one.
"""

from dataclasses import dataclass
from math import inf, sqrt

from silomix_core.accounting import gaussian_delta, gaussian_epsilon
from silomix_core.accounting.bounds.clones import clones_epsilon
from silomix_core.accounting.bounds.subsampled_composition import composed_epsilon, sampled
from silomix_core.accounting.bounds.validity import (
    require_count,
    require_delta,
    require_positive,
)

_SAMPLING = "Balle, Barthe, Gaboardi 2018, Theorem 9; then Kairouz, Oh, Viswanath 2015, Theorem 3.3"
_LOCAL = "the smaller of exact Gaussian composition (Dong, Roth, Su 2022, Cor. 2) and "
_SHUFFLING = "Feldman, McMillan, Talwar 2021, Theorems 3.1 and 3.8; then "
_DRAW = "every silo draws its record afresh, uniformly and in secret"
_HONEST_MIX = (
    "at least one mix is honest in every round; the reports counted come from silos that tell "
    "nobody which is theirs; "
)


@dataclass(frozen=True, slots=True)
class CentralFigure:
    """(ε, δ) of a whole study towards those who see only shuffled reports.

    `epsilon_local` is the figure without any trust in the mixes, from the same tools.  `vacuous`:
    shuffling gained nothing over it.  `epsilon_0`, `delta_0` describe one report, as chosen.
    """

    epsilon: float
    delta: float
    epsilon_local: float
    epsilon_0: float
    delta_0: float
    vacuous: bool
    theorem: str
    trust: str


def one_record_reports(
    *, silos: int, records: int, rounds: int, noise_multiplier: float, delta: float
) -> CentralFigure:
    """The ε at `delta` of a study: N silos, n records each, R rounds; noise_multiplier = σ/(2C).

    N is the fewest reports of honest silos in any round, n the fewest records of any silo.

    Per report: (ε₀, δ₀) of the Gaussian mechanism with μ = 2C/σ, one point of its exact curve
    (Balle, Wang 2018, Theorem 8) for each of a grid of ε₀.  Per round: clones for the report that
    holds the replaced record, which is drawn with probability q = 1/n; given that it is drawn, the
    neighbours, and the draw of another record, differ in one report's whole input, so sampling
    amplifies.  Over rounds: optimal composition.  The smallest ε of the grid is returned; each is
    a valid bound.  Integer noise costs `accounting.discretization_delta` on top.
    """
    require_count(smallest=2, silos=silos)
    require_count(records=records, rounds=rounds)
    require_positive(noise_multiplier=noise_multiplier)
    require_delta(delta)
    mu = 1 / noise_multiplier
    local = (gaussian_epsilon(delta, sqrt(rounds) * mu), gaussian_epsilon(delta, mu), delta)
    central = local
    for share in (0.1, 0.5, 0.9):  # of δ that is for the rounds' own δ; the rest: composition
        delta_mixed = min(0.5, records * share * delta / rounds)
        for epsilon_0 in _report_epsilons(delta_mixed, silos, mu):
            delta_0 = gaussian_delta(epsilon_0, mu) * (1 + 1e-8)
            if not (0 < epsilon_0 <= 100 and delta_0 <= delta_mixed):
                continue
            alone = _study_epsilon(epsilon_0, delta_mixed, records, rounds, delta)
            mixed = clones_epsilon(delta_mixed, epsilon_0=epsilon_0, reports=silos, delta_0=delta_0)
            shuffled = _study_epsilon(mixed, delta_mixed, records, rounds, delta)
            local = min(local, (alone, epsilon_0, delta_0))
            central = min(central, (shuffled, epsilon_0, delta_0))
    gained = central[0] < local[0]
    epsilon, epsilon_0, delta_0 = central if gained else local
    return CentralFigure(
        epsilon=epsilon,
        delta=delta,
        epsilon_local=local[0],
        epsilon_0=epsilon_0,
        delta_0=delta_0,
        vacuous=not gained,
        theorem=_SHUFFLING + _SAMPLING if gained else _LOCAL + _SAMPLING,
        trust=_HONEST_MIX + _DRAW if gained else _DRAW,
    )


def _study_epsilon(
    epsilon: float, delta_mixed: float, records: int, rounds: int, delta: float
) -> float:
    """The ε at `delta` of R rounds, each (ε, δ_mixed)-DP in the one record that it draws."""
    epsilon_round, delta_round = sampled(epsilon, delta_mixed, ratio=1 / records)
    return composed_epsilon(delta, epsilon=epsilon_round, delta_each=delta_round, releases=rounds)


def _report_epsilons(delta_mixed: float, silos: int, mu: float) -> list[float]:
    """The ε₀ to try: from where δ₀ leaves room for N reports upwards, and one without shuffling."""
    least = gaussian_epsilon(delta_mixed / (6 * silos), mu)
    alone = gaussian_epsilon(delta_mixed / (1 + 1e-7), mu)
    return [alone] + [least * (1 + 0.06 * step) for step in range(8)] if least < inf else [alone]
