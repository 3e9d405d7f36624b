"""Theorems on random check-ins: what it gains that nobody knows in which round a silo took part.

From Balle, Kairouz, McMahan, Thakkar, Thakurta 2020, "Privacy amplification via random check-ins":
Theorem 3.2 (fixed window), 4.1 (averaged), 4.3 (sliding window) and 5.1 (shuffling).  A silo sends
one report in all; the report is made by a local randomizer that is ε₀-DP, or (ε₀, δ₀)-DP, in the
silo's **whole input**: its only record, or the silo's data set replaced by any other.  A guarantee
per record of a silo with many records is not enough, and then none of these theorems applies.

Neighbouring inputs: the whole input of one silo replaced.  Each result carries its trust
assumption as text.  A bound that exceeds ε₀ gains nothing: the result is then the local guarantee
itself, and says so (`vacuous`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log, log1p, sqrt

from silomix_core.accounting.bounds.validity import (
    require,
    require_count,
    require_delta,
    require_positive,
)

_WHOLE_INPUT = "the whole input of a silo is locally private; a silo sends one report in all"
_OUTSIDERS = "protects the released models against outsiders, not against the server"


@dataclass(frozen=True, slots=True)
class LocalRandomizer:
    """The randomizer that makes a report: (ε₀, δ₀)-DP in everything that the silo holds."""

    epsilon_0: float
    delta_0: float = 0.0

    def __post_init__(self) -> None:
        require_positive(epsilon_0=self.epsilon_0)
        require(0 <= self.delta_0 < 1, f"need 0 <= delta_0 < 1, got delta_0={self.delta_0}")


@dataclass(frozen=True, slots=True)
class Amplified:
    """(ε, δ) towards those whom `trust` names; `bound` is the theorem's ε before min(·, ε₀)."""

    epsilon: float
    delta: float
    theorem: str
    trust: str
    bound: float
    vacuous: bool


def fixed_window(
    local: LocalRandomizer, delta: float, *, window: int, check_in_probability: float = 1.0
) -> Amplified:
    """The guarantee when each slot uses one silo that checked in; m slots are open to every silo.

    Theorem 3.2: ε = p₀(e^ε₀ − 1)√(2e^ε₀ ln(1/δ)/m) + p₀²e^ε₀(e^ε₀ − 1)²/(2m).  (Its proof in the
    appendix prints m outside the root; re-derived from Theorem A.4, the statement is right.)
    """
    require_count(window=window)
    p = check_in_probability
    require(0 < p <= 1, f"need 0 < check_in_probability <= 1, got {p}")
    require_delta(delta)

    def bound(e: float) -> float:
        return _advanced(p * _expm1(e) * exp(min(e / 2, 350)) / sqrt(window), delta)

    return _amplified(
        local,
        bound,
        delta,
        calls=window,
        theorem="Balle et al. 2020, Theorem 3.2",
        trust=f"{_OUTSIDERS}; {_WHOLE_INPUT}; check-ins are secret and a slot without a silo "
        "gets a dummy report",
    )


def averaged(
    local: LocalRandomizer,
    delta: float,
    *,
    delta_loads: float,
    slots: int,
    silos: int,
    present: int | None = None,
) -> Amplified:
    """The guarantee when all silos that checked into a slot are averaged: n silos, m slots, no
    abstentions.

    The theorem's n silos are there in every slot.  Where some of `silos` may be away throughout
    and at least `present` are there, n is a number between the two: the loads, which hide less the
    fewer there are, are those of `present`; the randomizers that are replaced are at most `silos`.

    Theorem 4.1: ε₁ = √(1/n + 1/m) + √(ln(1/δ₂)/n),
    ε = e^{4ε₀}(e^ε₀ − 1)²ε₁²/2 + e^{2ε₀}(e^ε₀ − 1)ε₁√(2 ln(1/δ)) at δ + δ₂ (`delta_loads`).

    For δ₀ > 0 the theorem adds m(e^ε′ + 1)δ₁, one Lemma A.3 per *slot*; but the lemma is about one
    randomizer and one input, and a slot averages many.  Replacing each of the n randomizers costs
    n·δ₁, so we add max(m, n)(e^ε′ + 1)δ₁.
    """
    fewest = silos if present is None else present
    require_count(slots=slots, silos=silos, present=fewest)
    require(fewest <= silos, f"need present <= silos, got {fewest} > {silos}")
    require_delta(delta)
    require_delta(delta_loads, "delta_loads")
    load = sqrt(1 / fewest + 1 / slots) + sqrt(log(1 / delta_loads) / fewest)

    def bound(e: float) -> float:
        return _advanced(exp(min(2 * e, 700)) * _expm1(e) * load, delta)

    return _amplified(
        local,
        bound,
        delta + delta_loads,
        calls=max(slots, silos),
        theorem="Balle et al. 2020, Theorem 4.1",
        trust=f"{_OUTSIDERS}; {_WHOLE_INPUT}; check-ins are secret, every silo takes part (p = 1) "
        "or is away in all slots, and no silos collude",
    )


def sliding_window(local: LocalRandomizer, delta: float, *, window: int, silos: int) -> Amplified:
    """The guarantee when silo j checks into one of the slots j, …, j + m − 1: m of n at a time.

    Theorem 4.3 is Theorem 3.2 with p₀ = 1, for m ≤ n.  (Its proof prints δ + mδ₀, a leftover of an
    earlier (ε₀, δ₀) form; the statement's δ′ is the one that Theorem A.4 gives.)
    """
    require_count(silos=silos)
    whole = fixed_window(local, delta, window=window)
    require(
        window <= silos, f"Theorem 4.3 needs window <= silos, got {window} > {silos}; shorten it"
    )
    return Amplified(
        epsilon=whole.epsilon,
        delta=whole.delta,
        theorem="Balle et al. 2020, Theorem 4.3",
        trust=f"{_OUTSIDERS}; {_WHOLE_INPUT}; check-ins are secret, silos arrive in a fixed order "
        "and a slot without a silo gets a dummy report",
        bound=whole.bound,
        vacuous=whole.vacuous,
    )


def shuffled(local: LocalRandomizer, delta: float, *, reports: int) -> Amplified:
    """The guarantee of n reports in random order.

    Theorem 5.1: ε = e^{3ε₀}(e^ε₀ − 1)²/(2n) + e^{3ε₀/2}(e^ε₀ − 1)√(2 ln(1/δ)/n).
    The numerical bound in `clones` is smaller throughout; this one is kept for comparison.
    """
    require_count(reports=reports)
    require_delta(delta)

    def bound(e: float) -> float:
        return _advanced(exp(min(1.5 * e, 350)) * _expm1(e) / sqrt(reports), delta)

    return _amplified(
        local,
        bound,
        delta,
        calls=reports,
        theorem="Balle et al. 2020, Theorem 5.1",
        trust=f"protects against everybody behind an honest shuffler, the server included; "
        f"{_WHOLE_INPUT}; all {reports} reports come from silos that keep their order secret",
    )


def closeness_to_pure(local: LocalRandomizer) -> float:
    """The smallest δ₁ so that an 8ε₀-DP randomizer is within total variation δ₁ (Lemma A.3).

    The condition is δ₀ ≤ (1 − e^−ε₀)δ₁ / (4e^ε₀(2 + T)), T = ln(2/δ₁)/ln(1/(1 − e^{−5ε₀})).  T
    counts repetitions in the proof, so we round it up; the paper does not.
    """
    if local.delta_0 == 0:
        return 0.0
    low, high = log(local.delta_0), 0.0  # δ₁ > δ₀ always; bisect in log δ₁
    require(
        _lemma_delta_0(local.epsilon_0, 1.0) >= local.delta_0,
        f"Lemma A.3 needs delta_0 <= {_lemma_delta_0(local.epsilon_0, 1.0):.3g} at "
        f"epsilon_0={local.epsilon_0}, got delta_0={local.delta_0}; make the report's delta_0 "
        "smaller, or use the clones bound",
    )
    for _ in range(100):
        middle = (low + high) / 2
        if _lemma_delta_0(local.epsilon_0, exp(middle)) >= local.delta_0:
            high = middle
        else:
            low = middle
    return exp(high)


def _lemma_delta_0(epsilon_0: float, delta_1: float) -> float:
    """The largest δ₀ that Lemma A.3 allows for δ₁."""
    rate = -log1p(-exp(-5 * epsilon_0))
    repetitions = ceil(log(2 / delta_1) / rate) if rate > 0 else inf
    return -expm1(-epsilon_0) * delta_1 / (4 * exp(min(epsilon_0, 700)) * (2 + repetitions))


def _amplified(
    local: LocalRandomizer,
    bound: Callable[[float], float],
    delta: float,
    *,
    calls: int,
    theorem: str,
    trust: str,
) -> Amplified:
    """The theorem's bound, or the local guarantee where that is smaller.

    δ₀ > 0: ε₀ → 8ε₀ and δ′ = δ + calls·(e^ε′ + 1)·δ₁, `calls` the randomizers that are replaced.
    """
    if local.delta_0 == 0:
        epsilon = bound(local.epsilon_0)
    else:
        delta_1 = closeness_to_pure(local)
        epsilon = bound(8 * local.epsilon_0)
        delta += calls * (exp(min(epsilon, 700)) + 1) * delta_1
        theorem += " through Lemma A.3"
    if epsilon >= local.epsilon_0 or delta >= 1:
        return Amplified(local.epsilon_0, local.delta_0, theorem, trust, epsilon, vacuous=True)
    return Amplified(epsilon, delta, theorem, trust, epsilon, vacuous=False)


def _advanced(root: float, delta: float) -> float:
    """The ε root²/2 + root·√(2 ln(1/δ)) of heterogeneous composition (Kairouz, Oh, Viswanath
    2015)."""
    return root * root / 2 + root * sqrt(2 * log(1 / delta))


def _expm1(x: float) -> float:
    return expm1(min(x, 350.0))  # beyond it the bound is vacuous anyway, and finite
