"""From one release to a study: sampling records, and composing R releases.

Two theorems about (ε, δ)-DP mechanisms of which nothing else is known.  Both hold for any
neighbouring relation of replacement and against whoever sees the releases; sampling in addition
needs that nobody learns which record was drawn.
"""

from math import exp, expm1, floor, log, log1p

from silomix_core.accounting.bounds.binomial import TAIL_ERROR, upper_tail
from silomix_core.accounting.bounds.bisection import smallest_holding
from silomix_core.accounting.bounds.validity import require, require_count, require_delta


def sampled(epsilon: float, delta: float, *, ratio: float) -> tuple[float, float]:
    """The (ε′, δ′) when an (ε, δ)-DP mechanism runs on a sample of m = ratio·n of n records.

    ε′ = ln(1 + q(e^ε − 1)), δ′ = qδ  (Balle, Barthe, Gaboardi 2018, Theorem 9: without replacement,
    neighbours differ by replacing one record).
    """
    require(epsilon >= 0, f"need epsilon >= 0, got epsilon={epsilon}")
    require(0 <= delta <= 1, f"need 0 <= delta <= 1, got delta={delta}")
    require(0 < ratio <= 1, f"need 0 < ratio <= 1, got ratio={ratio}")
    if epsilon > 700:  # e^ε overflows
        return epsilon, ratio * delta
    return log1p(ratio * expm1(epsilon)), ratio * delta


def composed_delta(total: float, *, epsilon: float, delta: float, releases: int) -> float:
    """The δ at which k adaptive (ε, δ)-DP releases are (`total`, δ)-DP together; rounded up.

    1 − (1 − δ)^k·(1 − δ_k), with δ_k the divergence of k randomized responses
    (Kairouz, Oh, Viswanath 2015, Theorem 3.3; optimal).  We evaluate it at any `total`, where the
    theorem prints the totals (k − 2i)ε: its proof reduces to randomized response for every total.
    """
    require_count(releases=releases)
    require(epsilon >= 0, f"need epsilon >= 0, got epsilon={epsilon}")
    require(0 <= delta < 1, f"need 0 <= delta < 1, got delta={delta}")
    require(total >= 0, f"need total >= 0, got total={total}")
    responses = _response_delta(total, epsilon, releases)
    if responses >= 1:
        return 1.0
    return -expm1(releases * log1p(-delta) + log1p(-responses))


def composed_epsilon(delta: float, *, epsilon: float, delta_each: float, releases: int) -> float:
    """The smallest total ε at which k adaptive (ε, δ_each)-DP releases are (·, `delta`)-DP."""
    require_delta(delta)
    plain = releases * epsilon
    least = composed_delta(plain, epsilon=epsilon, delta=delta_each, releases=releases)
    require(
        least <= delta,
        f"{releases} releases of delta={delta_each} need delta >= {least:.4g}, got {delta}; "
        "give each release a smaller delta",
    )
    if plain == 0:
        return 0.0
    return smallest_holding(
        lambda total: (
            composed_delta(total, epsilon=epsilon, delta=delta_each, releases=releases) <= delta
        ),
        0.0,
        plain,
    )


def _response_delta(total: float, epsilon: float, releases: int) -> float:
    """The divergence at `total` of k randomized responses that are ε-DP each, rounded up.

    With j of k truthful the loss is (2j − k)ε; J ~ Bin(k, e^ε/(1 + e^ε)) under one input and
    Bin(k, 1/(1 + e^ε)) under the other.
    """
    if total >= releases * epsilon:
        return 0.0
    truthful = floor((total / epsilon + releases) / 2) + 1
    gain = float(upper_tail(releases, truthful, 1 / (1 + exp(-epsilon))))
    other = float(upper_tail(releases, truthful, exp(-epsilon - log1p(exp(-epsilon)))))
    loss = exp(total + log(other)) if other > 0 else 0.0
    return min(1.0, max(gain - loss, 0.0) + TAIL_ERROR * (gain + loss))
