"""Slow and exact counterparts of what silomix_core computes fast, from the definitions alone.

Nothing here imports silomix_core: tests compare it with ourselves through these.
"""

from collections.abc import Iterator
from functools import lru_cache
from random import Random

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy import stats

_CONTEXT = mpmath.MPContext()
_CONTEXT.prec = 256


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """δ(ε) of μ-GDP in 256 bits (Balle & Wang 2018, Theorem 8)."""
    e, m = _CONTEXT.mpf(epsilon), _CONTEXT.mpf(mu)
    near, far = _normal_cdf(-e / m + m / 2), _normal_cdf(-e / m - m / 2)
    return near - _CONTEXT.exp(e) * far


def exact_epsilon(delta: float, mu: float) -> float:
    """The ε at which δ(ε) = `delta`, by bisection in 256 bits; 0 when δ(0) is smaller."""
    if exact_delta(0.0, mu) <= delta:
        return 0.0
    low, high = _CONTEXT.mpf(0), _CONTEXT.mpf(1)
    while exact_delta(high, mu) > delta:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exact_delta(middle, mu) > delta else (low, middle)
    return float(high)


def _normal_cdf(x: mpmath.mpf) -> mpmath.mpf:
    return _CONTEXT.erfc(-x / _CONTEXT.sqrt(2)) / 2


@lru_cache(maxsize=4)
def discrete_gaussian_weights(variance: int, reach: int) -> tuple[int, ...]:
    """e^{−x²/2v}·2²⁵⁶ for x = 0 … reach, each from its own exponential."""
    scale = _CONTEXT.mpf(2) ** 256
    return tuple(
        int(_CONTEXT.exp(_CONTEXT.mpf(-x * x) / (2 * variance)) * scale) for x in range(reach + 1)
    )


@lru_cache(maxsize=4)
def discrete_gaussian_cdf(variance: int, reach: int) -> tuple[int, ...]:
    """2¹²⁸·P[X ≤ x], rounded down, for x = −reach … reach, X discrete Gaussian cut at ±reach."""
    weights = discrete_gaussian_weights(variance, reach)
    total = 2 * sum(weights) - weights[0]
    result, cumulative = [], 0
    for x in range(-reach, reach + 1):
        cumulative += weights[abs(x)]
        result.append((cumulative << 128) // total)
    return tuple(result)


def rounded_gaussian(sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(rounded, discrete) Gaussian probabilities on the same integers, ±12 standard deviations."""
    x = np.arange(-int(12 * sigma), int(12 * sigma) + 1)
    # from the nearer tail, so that small probabilities keep their digits
    rounded = stats.norm.sf((np.abs(x) - 0.5) / sigma) - stats.norm.sf((np.abs(x) + 0.5) / sigma)
    discrete = np.exp(-(x**2) / (2 * sigma**2))
    return rounded, discrete / discrete.sum()


def canonne_kamath_steinke(sigma: int, rng: Random) -> Iterator[int]:
    """Exact discrete Gaussian samples (Canonne, Kamath, Steinke 2020, Algorithms 1–3).

    Only uniform integers and comparisons of integers: no floating point at all.
    """
    scale = sigma + 1
    while True:
        candidate = _discrete_laplace(scale, rng)
        # accept with probability e^{−(|y| − σ²/t)²/2σ²}
        gap = abs(candidate) * scale - sigma * sigma
        if _bernoulli_exp(gap * gap, 2 * sigma * sigma * scale * scale, rng):
            yield candidate


def _discrete_laplace(scale: int, rng: Random) -> int:
    while True:
        rest = rng.randrange(scale)
        if not _bernoulli_exp(rest, scale, rng):
            continue
        whole = 0
        while _bernoulli_exp(1, 1, rng):
            whole += 1
        magnitude, negative = rest + scale * whole, rng.randrange(2) == 1
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def _bernoulli_exp(numerator: int, denominator: int, rng: Random) -> bool:
    """True with probability e^{−numerator/denominator}."""
    while numerator > denominator:
        if not _bernoulli_exp(1, 1, rng):
            return False
        numerator -= denominator
    k = 1
    while rng.randrange(denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def log_rounded_over_discrete(place: int, sigma: int) -> float:
    """ln of P[round(N(0, σ²)) = x] / P[discrete Gaussian = x], in 256 bits."""
    near, far = ((place + _CONTEXT.mpf(s)) / (sigma * _CONTEXT.sqrt(2)) for s in (-0.5, 0.5))
    rounded = (_CONTEXT.erfc(near) - _CONTEXT.erfc(far)) / 2
    others = 2 * sum(_CONTEXT.exp(-2 * (_CONTEXT.pi * sigma * k) ** 2) for k in range(1, 4))
    discrete = _CONTEXT.npdf(place, 0, sigma) / (1 + others)  # Poisson summation
    return float(_CONTEXT.log(rounded / discrete))
