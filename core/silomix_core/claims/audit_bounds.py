"""What an audit's counts and measurements prove: bounds on μ and ε that hold with a stated error.

An attacker who must tell two neighbouring data sets apart errs in two ways: says D′ when it was D
(false positive, rate a) and D when it was D′ (false negative, rate b).  Privacy is a lower bound on
those errors, so an attacker who errs less refutes it:

    μ-GDP   b ≥ Φ(Φ⁻¹(1 − a) − μ)        so  μ ≥ Φ⁻¹(1 − a) − Φ⁻¹(b)
            (Dong, Roth, Su 2022, "Gaussian differential privacy", Def. 4 and eq. 6)
    (ε, δ)  a + e^ε·b ≥ 1 − δ, and with a and b exchanged
            (Kairouz, Oh, Viswanath 2015, "The composition theorem for DP", Thm 2.1)

    pooled  (a + b)/2 ≥ Φ(−μ/2), the best that any threshold reaches   so  μ ≥ −2·Φ⁻¹((a + b)/2)

With Clopper–Pearson upper limits in place of a, b and (a + b)/2 these hold whatever the noise looks
like.  (As many trials with rate a as with rate b have no more chance of few errors than twice as
many with rate (a + b)/2: Hoeffding 1956, Thm 5; so the limit is valid for their sum.)
`gaussian_mu_lower`, `move_lower` and `noise_upper` are sharper and assume that noise is Gaussian.
"""

from bisect import bisect_left
from functools import lru_cache
from math import inf, log, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]

# So large a μ protects nobody any more, and quantiles can still be computed for it.
_FARTHEST_MU = 100.0


def rate_upper(errors: int, trials: int, alpha: float) -> float:
    """The limit by Clopper & Pearson (1934): the true rate is above it with probability ≤ α."""
    _check_counts(errors, trials, alpha)
    return 1.0 if errors == trials else float(stats.beta.isf(alpha, errors + 1, trials - errors))


def mu_lower(false_positives: float, false_negatives: float) -> float:
    """The least μ that two error rates allow; 0 if they refute nothing."""
    if false_positives <= 0 or false_negatives <= 0:
        return inf
    if false_positives >= 1 or false_negatives >= 1:
        return 0.0
    bound = stats.norm.isf(false_positives) - stats.norm.ppf(false_negatives)
    return max(0.0, float(bound))


def mu_lower_pooled(errors: float) -> float:
    """The least μ that the average of the two error rates allows; 0 if it refutes nothing."""
    if errors <= 0:
        return inf
    return max(0.0, -2 * float(stats.norm.ppf(errors))) if errors < 1 else 0.0


def epsilon_lower(false_positives: float, false_negatives: float, delta: float) -> float:
    """The least ε that two error rates allow at `delta`; 0 if they refute nothing."""
    bound = 0.0
    for one, other in (
        (false_positives, false_negatives),
        (false_negatives, false_positives),
    ):
        if 1 - delta - one > 0:
            bound = max(bound, log((1 - delta - one) / other) if other > 0 else inf)
    return bound


def gaussian_mu_lower(first: Floats, second: Floats, alpha: float) -> float:
    """A lower limit of μ = (difference of means)/σ for Gaussian samples of one unknown σ.

    Student's statistic is noncentral t with noncentrality μ·√(n₁n₂/(n₁ + n₂)); the limit is where
    what was seen, or more, has probability α.
    """
    statistic, freedom, root = _student(first, second)

    def excess(mu: float) -> float:
        return float(stats.nct.sf(statistic, freedom, mu * root)) - alpha

    if statistic <= 0 or excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, statistic / root, xtol=1e-9))


def gaussian_mu(first: Floats, second: Floats) -> float:
    """The difference of the samples' means, in standard deviations."""
    statistic, _, root = _student(first, second)
    return statistic / root


def move_lower(values: Floats, chances: Floats, moves: Floats, alpha: float) -> float:
    """A lower limit of c if the values (n,) lie, on average, c times as far from 0 as they should.

    Each should be N(0, 1), or with its chance N(move, 1).  If it were N(c·move, 1) instead, a sum
    as large as that of the values would have probability at most (Chernoff's bound)

        min over λ ≥ 0 of Π e^(−λ·value) · e^(λ²/2)·(1 − chance + chance·e^(λ·c·move))

    and the limit is the c at which this is α.  Drawing more often than declared shows as c > 1 too.
    """
    total = float(values.sum())

    def excess(times: float) -> float:
        def exponent(rate: float) -> float:
            drawn = np.logaddexp(np.log1p(-chances), np.log(chances) + rate * times * moves)
            return float((rate**2 / 2 + drawn).sum()) - rate * total

        farthest = max(total / len(values), 0.0) + 1e-9  # e^(λ²/2 − λ·mean) grows beyond it
        found = optimize.minimize_scalar(exponent, bounds=(0.0, farthest), method="bounded")
        return min(0.0, float(found.fun)) - log(alpha)

    if total <= 0 or excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, move(values, chances, moves), xtol=1e-9))


def move(values: Floats, chances: Floats, moves: Floats) -> float:
    """An estimate of c if the values lie c times as far from 0 as they should; see `move_lower`."""
    return float(values.sum() / (chances @ moves))


def noise_upper(samples: Floats, alpha: float) -> float:
    """An upper limit of the standard deviation of centred Gaussian samples, by χ²."""
    values = samples.ravel()
    return sqrt(float(values @ values) / float(stats.chi2.ppf(alpha, len(values))))


def correlation(first: Floats, second: Floats) -> tuple[float, float]:
    """The correlation of centred samples that should be independent, and Student's p-value."""
    x, y = first.ravel(), second.ravel()
    r = float(x @ y / sqrt(float(x @ x) * float(y @ y)))
    if abs(r) >= 1:
        return r, 0.0
    t = r * sqrt((len(x) - 1) / (1 - r * r))
    return r, float(2 * stats.t.sf(abs(t), len(x) - 1))


def difference(first: Floats, second: Floats) -> float:
    """The p-value of Student's two-sided test that two Gaussian samples of one σ have one mean."""
    statistic, freedom, _ = _student(first, second)
    return float(2 * stats.t.sf(abs(statistic), freedom))


# How much an audit can see, before it is run ------------------------------------------------------


def detection(mu_claimed: float, mu_true: float, trials: int, alpha: float) -> float:
    """Probability that `mu_lower_pooled` exceeds the claim, with its limit of error α.

    Half of the trials are for each data set, and the threshold is in the middle.
    """

    def stands(errors: int) -> bool:
        return mu_lower_pooled(rate_upper(errors, trials, alpha)) <= mu_claimed

    refuting = bisect_left(range(trials + 1), True, key=stands)  # with fewer errors the claim falls
    return float(stats.binom.cdf(refuting - 1, trials, stats.norm.sf(mu_true / 2)))


def gaussian_detection(mu_claimed: float, mu_true: float, trials: int, alpha: float) -> float:
    """Probability that `gaussian_mu_lower` exceeds the claim."""
    half = trials // 2
    root, freedom = sqrt(half / 2), 2 * half - 2
    critical = stats.nct.isf(alpha, freedom, mu_claimed * root)
    return float(stats.nct.sf(critical, freedom, mu_true * root))


def move_detection(chance: float, move: float, times: float, values: int, alpha: float) -> float:
    """Probability that `move_lower` exceeds 1 if each move is `times` as far as it should be.

    The critical sum is exact, its probability that of a Gaussian of the same variance.
    """
    critical = _critical_mean(chance, move, values, alpha)
    deviation = sqrt((1 + chance * (1 - chance) * (times * move) ** 2) / values)
    return float(stats.norm.sf((critical - times * chance * move) / deviation))


@lru_cache(maxsize=64)
def _critical_mean(chance: float, move: float, values: int, alpha: float) -> float:
    """The mean of the values at which `move_lower` is 1."""
    chances, moves = np.full(values, chance), np.full(values, move)

    def excess(mean: float) -> float:
        return move_lower(np.full(values, mean), chances, moves, alpha) - 1

    highest = chance * move
    while excess(highest) < 0:
        highest *= 2
    return float(optimize.brentq(excess, 0.0, highest, xtol=1e-6))


def noise_detection(divided: float, values: int, alpha: float) -> float:
    """Probability that `noise_upper` is below 1 if noise is 1/`divided` of what it should be."""
    return float(stats.chi2.cdf(stats.chi2.ppf(alpha, values) * divided**2, values))


def _student(first: Floats, second: Floats) -> tuple[float, int, float]:
    """The statistic, degrees of freedom and √(n₁n₂/(n₁ + n₂)) of the two-sample test.

    Samples without spread (a silo that adds no noise) count as `_FARTHEST_MU` apart: the limits
    that follow from a smaller statistic hold all the more.
    """
    n, m = len(first), len(second)
    if n < 2 or m < 2:
        raise ValueError("two samples of at least two values each are needed")
    freedom, root = n + m - 2, sqrt(n * m / (n + m))
    squares = float(((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum())
    difference = float(second.mean() - first.mean())
    spread = max(sqrt(squares / freedom), abs(difference) / _FARTHEST_MU)
    return (root * difference / spread if spread else 0.0), freedom, root


def _check_counts(errors: int, trials: int, alpha: float) -> None:
    if not (0 <= errors <= trials and trials > 0 and 0 < alpha < 1):
        raise ValueError(f"need 0 <= errors <= trials and 0 < alpha < 1, got {errors}/{trials}")
