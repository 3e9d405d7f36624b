"""What the integers cost: the theorems add continuous noise, we add discrete noise from tables.

The released centre q is an integer, so q + round(Z) = round(q + Z) is post-processing of the
Gaussian mechanism.  Between rounded and discrete Gaussian noise of σ units lie, over the m
coordinates of a transcript (docs/privacy.md, "Noise that is safe in finite precision"):

distance  a total variation of at most t = 0.03·√m/σ²; it costs (1 + e^ε)·t of δ
ratio     a factor between e^−η and e^η of probability, η = 8.2·m/σ², as far as our noise reaches
          (14.02 σ); it costs 2η of ε and e^η on δ

and between exact and tabulated discrete noise a total variation of m·τ.  Either of the first two
may be used: the first is better for very many coordinates, the second for a large ε.
"""

from collections.abc import Callable
from math import exp, inf, sqrt

from silomix_core.noise import SIGMA_UNITS

# Total variation of one sample from its exact distribution: 136 000 probabilities (both tables),
# each rounded to 2⁻¹²⁸ (2⁻¹¹³·⁶ in all, tests/core/test_noise.py), and the tails beyond 14 σ.
TABLE_ERROR = 2.0**-112
_RATIO = 8.2  # 14.02²/24: sup |ln(rounded/discrete)|·σ² over |x| ≤ 14.02·σ, for σ ≥ 8


def discretization_delta(epsilon: float, samples: int, sigma_units: float) -> float:
    """δ to add because the noise is discrete and comes from tables: what the distance costs."""
    if samples == 0:
        return 0.0
    distance = 0.03 * sqrt(samples) / sigma_units**2 + samples * TABLE_ERROR
    return _price(epsilon) * distance


def discretization_ratio(samples: int, sigma_units: float) -> float:
    """η: rounded and discrete noise of so many samples differ by at most e^±η in probability."""
    return _RATIO * samples / sigma_units**2


def continuous_targets(epsilon: float, delta: float, samples: int) -> list[tuple[float, float]]:
    """(ε', δ') pairs: continuous noise that meets any of them meets (ε, δ) as integers."""
    eta = discretization_ratio(samples, SIGMA_UNITS)
    pairs = [
        (epsilon, delta - discretization_delta(epsilon, samples, SIGMA_UNITS)),
        (epsilon - 2 * eta, exp(-eta) * (delta - _tables(epsilon, samples))),
    ]
    return [pair for pair in pairs if pair[0] > 0 and pair[1] > 0]


def with_integers(curve: Callable[[float], float], samples: int, delta: float) -> float:
    """ε at `delta` when `curve` (δ ↦ ε) is that of continuous noise and ours is discrete."""
    if not 0 < delta < 1:
        raise ValueError(f"need 0 < delta < 1, got {delta}")
    if samples == 0:
        return 0.0
    eta = discretization_ratio(samples, SIGMA_UNITS)
    by_ratio = _least_epsilon(
        lambda epsilon: curve(_positive(exp(-eta) * (delta - _tables(epsilon, samples)))) + 2 * eta
    )
    by_distance = _least_epsilon(
        lambda epsilon: curve(
            _positive(delta - discretization_delta(epsilon, samples, SIGMA_UNITS))
        )
    )
    return min(by_ratio, by_distance)


class _NothingLeft(Exception):
    """δ is used up by the integers."""


def _least_epsilon(needed: Callable[[float], float]) -> float:
    """The least ε with needed(ε) ≤ ε: approached from below, left only upwards; ∞ if none.

    What the integers take of δ grows with ε, so `needed` does.
    """
    epsilon = 0.0
    try:
        for _ in range(200):
            refined = needed(epsilon)
            if refined <= epsilon:
                return epsilon
            epsilon = refined * (1 + 1e-10)
    except _NothingLeft:
        return inf
    return inf


def _positive(delta: float) -> float:
    if delta <= 0:
        raise _NothingLeft
    return delta


def _tables(epsilon: float, samples: int) -> float:
    return _price(epsilon) * (samples * TABLE_ERROR)


def _price(epsilon: float) -> float:
    """Of total variation, in δ."""
    return 1 + exp(min(epsilon, 700.0))
