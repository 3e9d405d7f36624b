"""What the integers cost: the theorems add continuous noise, we add discrete noise from tables.

The released centre q is an integer, so q + round(Z) = round(q + Z) is post-processing of the
Gaussian mechanism.  Between rounded and discrete Gaussian noise of σ units lie, over the m
coordinates of a transcript (docs/privacy.md, "Noise that is safe in finite precision"):

distance  a total variation of at most t = 0.03·√(Σσ⁻⁴); it costs (1 + e^ε)·t of δ
ratio     a factor between e^−η and e^η of probability, η = 8.2·Σσ⁻², as far as our noise reaches
          (14.02 σ); it costs 2η of ε and e^η on δ

(sums over the coordinates) and between exact and tabulated discrete noise a total variation of m·τ.
Either of the first two may be used: the first is better for very many coordinates, the second for a
large ε.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log, sqrt

# Total variation of one sample from its exact distribution: 158 000 probabilities (three tables),
# each rounded to 2⁻¹²⁸ (2⁻¹¹³·⁴ in all, tests/core/test_discrete_gaussian.py), and the tails
# beyond 14 σ.
TABLE_ERROR = 2.0**-112
_RATIO = 8.2  # 14.02²/24: sup |ln(rounded/discrete)|·σ² over |x| ≤ 14.02·σ, for σ ≥ 8


@dataclass(frozen=True, slots=True)
class Released:
    """Coordinates that were sent with discrete noise: how many, Σσ⁻² and Σσ⁻⁴ over them."""

    samples: int
    squares: float
    fourths: float

    @classmethod
    def of(cls, samples: int, sigma: float) -> "Released":
        """The release of so many coordinates, all with noise `sigma` in grid units."""
        return cls(samples, samples / sigma**2, samples / sigma**4)

    def __post_init__(self) -> None:
        if not (self.samples >= 0 and self.squares >= 0 and self.fourths >= 0):
            raise ValueError(f"a loss cannot be of {self.samples} coordinates")

    def __add__(self, other: "Released") -> "Released":
        return Released(
            self.samples + other.samples,
            self.squares + other.squares,
            self.fourths + other.fourths,
        )

    def at_least(self, other: "Released") -> "Released":
        """An upper bound of both releases in everything that they cost."""
        return Released(
            max(self.samples, other.samples),
            max(self.squares, other.squares),
            max(self.fourths, other.fourths),
        )


def discretization_delta(epsilon: float, released: Released) -> float:
    """The δ to add because noise is discrete and comes from tables: what the distance costs."""
    distance = 0.03 * sqrt(released.fourths) + released.samples * TABLE_ERROR
    return _price(epsilon) * distance


def discretization_ratio(released: Released) -> float:
    """η: rounded and discrete noise of these coordinates differ by at most e^±η in probability."""
    return _RATIO * released.squares


def continuous_targets(
    epsilon: float, delta: float, released: Released
) -> list[tuple[float, float]]:
    """(ε', δ') pairs: continuous noise that meets any of them meets (ε, δ) as integers."""
    eta = discretization_ratio(released)
    pairs = [
        (epsilon, delta - discretization_delta(epsilon, released)),
        (epsilon - 2 * eta, exp(-eta) * (delta - _tables(epsilon, released))),
    ]
    return [pair for pair in pairs if pair[0] > 0 and pair[1] > 0]


def largest_epsilon(delta: float, released: Released) -> float:
    """The ε from which on the tables alone take all of δ; −∞ if they do so at every ε."""
    left = delta / (released.samples * TABLE_ERROR) - 1
    return log(left) if left > 0 else -inf


def with_integers(curve: Callable[[float], float], released: Released, delta: float) -> float:
    """The ε at `delta` with discrete noise, when `curve` (δ ↦ ε) is that of continuous noise."""
    if not 0 < delta < 1:
        raise ValueError(f"need 0 < delta < 1, got {delta}")
    if released.samples == 0:
        return 0.0
    eta = discretization_ratio(released)
    by_ratio = _least_epsilon(
        lambda epsilon: curve(_positive(exp(-eta) * (delta - _tables(epsilon, released)))) + 2 * eta
    )
    by_distance = _least_epsilon(
        lambda epsilon: curve(_positive(delta - discretization_delta(epsilon, released)))
    )
    return min(by_ratio, by_distance)


class _NothingLeft(Exception):
    """δ is used up by the integers."""


def _least_epsilon(needed: Callable[[float], float]) -> float:
    """The least ε with needed(ε) ≤ ε: approached from below, rounded up only; ∞ if there is none.

    What the integers take of δ grows with ε, so `needed` grows, too.
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


def _tables(epsilon: float, released: Released) -> float:
    return _price(epsilon) * (released.samples * TABLE_ERROR)


def _price(epsilon: float) -> float:
    """The price of a unit of total variation, in δ."""
    return 1 + exp(min(epsilon, 700.0))
