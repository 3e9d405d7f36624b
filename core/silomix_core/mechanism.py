"""The one description of what a silo does to its records; everything else is derived from it.

A silo's answer to a query is

    mean of its clipped per-record gradients  →  rounded to the grid  →  + discrete Gaussian noise

for `rounds` rounds.  From clip, rounds, dimension and the target (ε, δ) follow sensitivity, grid,
noise and the events that a ledger charges.  Nobody can type a σ or a sensitivity next to a clip.

Neighbouring data sets: one record replaced by another, the number of records being public.
Guarantee: inter-silo record-level DP (Gao, Lowy, Zhou, Wright 2024, Def. 1.2): it holds for the
whole transcript of a silo, against the server, all mixes and all other silos together.
"""

from dataclasses import dataclass
from math import ceil, inf, isfinite, sqrt

from silomix_core.accounting import (
    discretization_delta,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from silomix_core.noise import LARGEST_NOISE, SIGMA_UNITS

ADJACENCY = "replace-one-record"

# Rounding the mean to the grid moves every coordinate by at most ½, on either side of a
# neighbouring pair; 2⁻⁸ covers the float64 product before it (see `update.to_grid`).
_ROUNDING = 1 + 2.0**-8
_LARGEST_SIGNAL = 2**43  # grid units; beyond it that product would lose bits


class CalibrationImpossible(ValueError):
    """No noise scale gives the wanted guarantee within the range that the integers can carry."""


@dataclass(frozen=True, slots=True)
class PrivacyTarget:
    """(ε, δ), to be met by everything that a silo sends in a study."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (isfinite(self.epsilon) and 0 < self.epsilon <= 100):
            raise ValueError(f"epsilon must be above 0 and at most 100, got {self.epsilon}")
        if not 0 < self.delta < 0.1:
            raise ValueError(f"delta must be above 0 and below 0.1, got {self.delta}")


@dataclass(frozen=True, slots=True)
class PrivacyEvent:
    """One answered round, as a ledger records it."""

    mu_squared: float
    samples: int


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Full-batch noisy means: clip C, R rounds, d coordinates, one grid for all silos of a study.

    `grid` is the size of one integer step on the wire; the noise has standard deviation
    `SIGMA_UNITS` steps at every silo, so reports look alike whoever sent them.
    """

    clip: float
    rounds: int
    dimension: int
    grid: float

    @classmethod
    def calibrate(
        cls, target: PrivacyTarget, *, clip: float, rounds: int, dimension: int, records: int
    ) -> "Mechanism":
        """The mechanism with the least noise that meets `target` for a silo of `records` records.

        Give the smallest silo's number: all larger ones then lose less.
        """
        if not (clip > 0 and rounds > 0 and dimension > 0 and records > 0):
            raise ValueError("clip, rounds, dimension and records must all be positive")
        slack = discretization_delta(target.epsilon, dimension * rounds, SIGMA_UNITS)
        if slack >= target.delta:
            raise CalibrationImpossible(
                f"delta={target.delta} is below the cost of integer noise ({slack:.2e}); "
                "use a larger delta or fewer rounds"
            )
        mu_round = gaussian_mu(target.epsilon, target.delta - slack) / sqrt(rounds)
        # 1e-9: rounding errors, of `gaussian_delta` too, fall on the safe side
        allowed = mu_round * SIGMA_UNITS * (1 - 1e-9) - sqrt(dimension) * _ROUNDING
        if allowed <= 0:
            raise CalibrationImpossible(
                f"epsilon={target.epsilon} over {rounds} rounds leaves no room for "
                f"{dimension} coordinates; use a larger epsilon or fewer rounds"
            )
        grid = 2 * clip / records / allowed
        mechanism = cls(clip=clip, rounds=rounds, dimension=dimension, grid=grid)
        if mechanism.largest_signal > _LARGEST_SIGNAL:
            raise CalibrationImpossible(
                f"{records} records at epsilon={target.epsilon} need more than 43 bits per value"
            )
        return mechanism

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on each coordinate of the mean."""
        return self.grid * SIGMA_UNITS

    @property
    def largest_signal(self) -> int:
        """Bound on a coordinate of the mean, in grid units, before noise."""
        return ceil(self.clip / self.grid) + 1

    @property
    def largest_value(self) -> int:
        """Bound on an integer of a report; anything beyond was not made by this mechanism."""
        return self.largest_signal + LARGEST_NOISE

    @property
    def width(self) -> int:
        """Bytes of one integer on the wire."""
        return 4 if self.largest_value < 2**31 else 8

    def sensitivity_units(self, records: int) -> float:
        """L2 distance, in grid units, by which replacing one record can move the rounded mean."""
        return 2 * self.clip / records / self.grid + sqrt(self.dimension) * _ROUNDING

    def event(self, records: int) -> PrivacyEvent:
        """What one answered round costs a silo of `records` records."""
        mu = self.sensitivity_units(records) / SIGMA_UNITS
        return PrivacyEvent(mu_squared=mu * mu, samples=self.dimension)

    def epsilon(self, records: int, delta: float) -> float:
        """ε of the whole study at `delta` for a silo of `records` records."""
        event = self.event(records)
        return epsilon_of(self.rounds * event.mu_squared, self.rounds * event.samples, delta)


def epsilon_of(mu_squared: float, samples: int, delta: float) -> float:
    """ε at `delta` after events that sum to `mu_squared` and `samples`; ∞ if δ is too small for it.

    The discretization term grows with ε: this is the least fixed point, approached from below and
    left only upwards.
    """
    if samples == 0:
        return 0.0
    mu, epsilon = sqrt(mu_squared), 0.0
    for _ in range(200):
        slack = discretization_delta(epsilon, samples, SIGMA_UNITS)
        if slack >= delta:
            return inf
        refined = gaussian_epsilon(delta - slack, mu)
        if refined <= epsilon:
            return epsilon
        epsilon = refined * (1 + 1e-10)
    return inf


def within(mu_squared: float, samples: int, target: PrivacyTarget) -> bool:
    """Whether events that sum to `mu_squared` and `samples` are inside `target`: the filter."""
    slack = discretization_delta(target.epsilon, samples, SIGMA_UNITS)
    if gaussian_delta(target.epsilon, sqrt(mu_squared)) + slack <= target.delta:
        return True
    # The integers cost more at a larger ε; what holds at a smaller one holds here too.
    return epsilon_of(mu_squared, samples, target.delta) <= target.epsilon
