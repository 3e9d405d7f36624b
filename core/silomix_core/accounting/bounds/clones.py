"""The numerical bound for shuffling: how far a report hides among its clones.

Feldman, McMillan, Talwar 2021, "Hiding among the clones", Theorem 3.1: its
proof reduces to a pair of distributions, which Section 5 evaluates.  If n reports are made by
ε₀-DP local randomizers and shuffled, then no hockey-stick divergence exceeds that of

    (A + Δ, C − A + 1 − Δ)   from   (A + 1 − Δ, C − A + Δ),
    C ~ Bin(n − 1, e^−ε₀),  A ~ Bin(C, ½),  Δ ~ Bernoulli(e^ε₀/(1 + e^ε₀)).

What is returned is an upper bound on δ(ε) although it is computed in floating point: tails of C
that are cut off count in full, blocks of values of C count as their smallest (fewer clones hide
less), and rounding errors are covered by `TAIL_ERROR`.

Neighbouring inputs: the whole input of one report replaced.  Trust: an honest shuffler, and n
counts only reports whose makers tell nobody which is theirs.  Of the later bounds, the "stronger"
one of 2023 has an erratum and the Gaussian one of Liew and Takahashi is not for the worst case.
"""

from collections.abc import Callable
from math import ceil, exp, expm1, floor, log, sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.accounting.bounds.binomial import TAIL_ERROR, upper_tail
from silomix_core.accounting.bounds.bisection import smallest_holding
from silomix_core.accounting.bounds.validity import (
    require,
    require_count,
    require_delta,
    require_positive,
)

_Floats = NDArray[np.float64]

# Log of the mass of C that is cut off on either side, by Bernstein's inequality.
_LOG_TAIL = -60.0
_BLOCKS = 1000
_LARGEST_EPSILON_0 = 100.0
_LARGEST_REPORTS = 10**7  # `TAIL_ERROR` was measured up to here


def clones_delta(epsilon: float, *, epsilon_0: float, reports: int, delta_0: float = 0.0) -> float:
    """The δ at which n shuffled reports of (ε₀, δ₀)-DP randomizers are (ε, δ)-DP; at most 1.

    For δ₀ > 0 (their Theorem 3.8): δ = δ_clones(ε) + (e^ε + 1)(1 + e^−ε₀/2)·n·δ₀.
    Derivation of a smaller term, which this one covers: the two reports that the neighbours differ
    in are within total variation δ₀/(1 + e^ε₀) of an ε₀-DP pair (write the pair as
    processed randomized response, Kairouz, Oh, Viswanath 2015, and share out the δ₀);
    every other report is within e^−ε₀·δ₀ of one that contains e^−ε₀ times the mean of the two, and
    exchanging those two costs it e^−ε₀·δ₀/(1 + e^ε₀) more.  Total variation t costs (e^ε + 1)·t.
    """
    require(epsilon >= 0, f"need epsilon >= 0, got epsilon={epsilon}")
    return _shuffled_delta(epsilon_0, reports, delta_0)(epsilon)


def clones_epsilon(delta: float, *, epsilon_0: float, reports: int, delta_0: float = 0.0) -> float:
    """The smallest ε found at which `clones_delta` is at most `delta`; never above ε₀."""
    require_delta(delta)
    at = _shuffled_delta(epsilon_0, reports, delta_0)
    require(
        delta >= delta_0,
        f"need delta >= delta_0 of one report, got {delta} < {delta_0}; "
        "describe the report by a larger epsilon_0 and a smaller delta_0",
    )
    # With δ₀ > 0 the bound holds on an interval of ε that need not reach ε₀: come down a ladder.
    held, failed = epsilon_0, 0.0
    for rung in range(1, 60):
        candidate = epsilon_0 * 0.8**rung
        if at(candidate) <= delta:
            held = candidate
        elif held < epsilon_0 or delta_0 == 0:
            failed = candidate
            break
    if held == epsilon_0 and delta_0 > 0:
        return epsilon_0
    return smallest_holding(lambda epsilon: at(epsilon) <= delta, failed, held)


def _shuffled_delta(epsilon_0: float, reports: int, delta_0: float) -> Callable[[float], float]:
    """The δ as a function of ε, the distribution of C being computed once."""
    require_positive(epsilon_0=epsilon_0)
    require_count(smallest=2, reports=reports)
    require(0 <= delta_0 < 1, f"need 0 <= delta_0 < 1, got delta_0={delta_0}")
    require(
        epsilon_0 <= _LARGEST_EPSILON_0 and reports <= _LARGEST_REPORTS,
        f"computed for epsilon_0 <= {_LARGEST_EPSILON_0} and reports <= {_LARGEST_REPORTS}, got "
        f"{epsilon_0} and {reports}; give a smaller number of reports: it bounds more of them too",
    )
    counts, weights = _clone_counts(reports - 1, epsilon_0)
    distance = (1 + exp(-epsilon_0) / 2) * reports * delta_0
    cut_off = 2 * exp(_LOG_TAIL)

    def at(epsilon: float) -> float:
        if epsilon >= epsilon_0:
            return delta_0
        hidden = float(weights @ _delta_among(counts, epsilon, epsilon_0))
        return min(1.0, hidden * (1 + 1e-9) + cut_off + (exp(epsilon) + 1) * distance)

    return at


def _clone_counts(trials: int, epsilon_0: float) -> tuple[_Floats, _Floats]:
    """Values of C ~ Bin(trials, e^−ε₀) and their weights, blocked to at most `_BLOCKS` values.

    The values kept have |C − mean| ≤ w with exp(−w²/(2(variance + w/3))) = e^_LOG_TAIL.  The
    weights are conditional on that, hence sum to 1, and none is too small.
    """
    chance, other, log_mass = exp(-epsilon_0), -expm1(-epsilon_0), -_LOG_TAIL
    mean, variance = trials * chance, trials * chance * other
    reach = log_mass / 3 + sqrt(log_mass * log_mass / 9 + 2 * variance * log_mass)
    first, last = max(0, floor(mean - reach)), min(trials, ceil(mean + reach))
    counts = np.arange(first, last + 1, dtype=np.float64)
    steps = np.log((trials - counts[:-1]) / counts[1:]) - epsilon_0 - log(other)
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    starts = np.arange(0, counts.size, ceil(counts.size / _BLOCKS))
    return counts[starts], np.add.reduceat(weights, starts)


def _delta_among(counts: _Floats, epsilon: float, epsilon_0: float) -> _Floats:
    """The divergence given C = c, for each c of `counts`, rounded up.

    The likelihood ratio of the first coordinate a grows with a and passes e^ε at
    a = (c + 1)·(1 − e^−(ε+ε₀)) / ((1 − e^−ε₀)(1 + e^−ε)); the worst event is "a is above it", and
    with S(k) = Pr[Bin(c, ½) ≥ k] its excess is
    [(e^ε₀ − e^ε)·S(a − 1) − (e^{ε+ε₀} − 1)·S(a)] / (1 + e^ε₀).
    """
    share = expm1(-epsilon - epsilon_0) / expm1(-epsilon_0) / (1 + exp(-epsilon))
    threshold = np.minimum(np.floor((counts + 1) * share) + 1, counts + 1)
    gain = (
        -expm1(epsilon - epsilon_0) / (1 + exp(-epsilon_0)) * upper_tail(counts, threshold - 1, 0.5)
    )
    loss = (
        (exp(epsilon) - exp(-epsilon_0))
        / (1 + exp(-epsilon_0))
        * upper_tail(counts, threshold, 0.5)
    )
    return np.maximum(gain - loss, 0.0) + TAIL_ERROR * (gain + loss)
