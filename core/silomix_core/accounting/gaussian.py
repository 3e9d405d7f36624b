"""What a sequence of Gaussian releases costs: the trade-off between ε, δ and μ.

A silo's transcript is a composition of Gaussian mechanisms.  R releases with noise-to-sensitivity
ratio σ/Δ compose to exactly one Gaussian mechanism with

    μ = √R · Δ/σ                      (Dong, Roth, Su 2022, "Gaussian differential privacy", Cor. 2)

and a μ-GDP mechanism is (ε, δ)-DP for

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε · Φ(−ε/μ − μ/2)       (Balle, Wang 2018, Theorem 8)

for the neighbouring relation that Δ was measured with (in silomix: **replace one record**).
The sum over adaptively chosen releases is a privacy filter: stop when Σ μ² would exceed μ²_total
(Koskela, Tobaben, Honkela 2023, "Individual privacy accounting with Gaussian DP", Thm 3.3).

Here noise is continuous; what discrete noise costs on top: `integers`.
"""

from collections.abc import Callable
from math import erfc, exp, expm1, inf, log, log1p, sqrt


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The smallest δ for which a μ-GDP mechanism is (ε, δ)-DP."""
    if not (epsilon >= 0 and mu >= 0):  # also refuses NaN, which would else look like no loss
        raise ValueError(f"need epsilon >= 0 and mu >= 0, got epsilon={epsilon}, mu={mu}")
    if mu == 0:
        return 0.0
    if mu == inf:
        return 1.0
    near, far = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    log_far = epsilon + _log_normal_cdf(far)  # in logs: e^ε alone may overflow
    log_near = _log_normal_cdf(near)
    return exp(log_near) * -expm1(log_far - log_near) if log_far < log_near else 0.0


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ whose mechanism is (ε, δ)-DP, rounded down."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise ValueError(f"need epsilon > 0 and 0 < delta < 1, got {epsilon} and {delta}")
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    return _bisect_down(lambda mu: gaussian_delta(epsilon, mu) <= delta, low, high)


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest ε for which a μ-GDP mechanism is (ε, δ)-DP, rounded up; ∞ when there is none."""
    if not 0 < delta < 1:
        raise ValueError(f"need 0 < delta < 1, got {delta}")
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    if mu == inf:
        return inf
    low, high = 0.0, 1.0
    while gaussian_delta(high, mu) > delta:
        low, high = high, 2 * high
    return -_bisect_down(lambda e: gaussian_delta(-e, mu) <= delta, -high, -low)


def _log_normal_cdf(x: float) -> float:
    """log Φ(x), accurate in both tails."""
    if x > -30:
        upper = 0.5 * erfc(x / sqrt(2))
        return log1p(-upper) if upper < 0.5 else log(0.5 * erfc(-x / sqrt(2)))
    # Mills-ratio continued fraction: erfc underflows beyond about −38.
    fraction = -x
    for k in range(60, 0, -1):
        fraction = -x + k / fraction
    return -0.5 * x * x - 0.918938533204672741780329736406 - log(fraction)


def _bisect_down(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest float found in [low, high] at which `holds`, given that it holds at `low`."""
    for _ in range(200):
        middle = low + (high - low) / 2
        if middle in (low, high):
            break
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
