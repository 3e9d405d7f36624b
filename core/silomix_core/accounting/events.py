"""Privacy events: what was done to records, as values that accountants consume and ledgers keep."""

from dataclasses import dataclass
from enum import Enum
from math import isfinite

ADJACENCY = "replace-one-record"
LEAST_EPSILON = 1e-3


class Scheme(Enum):
    """Which of its records a silo uses in a round."""

    FULL = "full"  # all
    POISSON = "poisson"  # each with probability q, by its own coin
    WITHOUT_REPLACEMENT = "without-replacement"  # a uniformly random subset of fixed size


@dataclass(frozen=True, slots=True)
class PrivacyTarget:
    """(ε, δ), to be met by everything that a silo sends in a study, or in its lifetime.

    Below `LEAST_EPSILON` a study would learn nothing, and accountants take ever finer steps.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (isfinite(self.epsilon) and 0 < self.epsilon <= 100):
            raise ValueError(f"epsilon must be above 0 and at most 100, got {self.epsilon}")
        if self.epsilon < LEAST_EPSILON:
            raise ValueError(f"epsilon must be at least {LEAST_EPSILON}, got {self.epsilon}")
        if not 0 < self.delta < 0.1:
            raise ValueError(f"delta must be above 0 and below 0.1, got {self.delta}")


@dataclass(frozen=True, slots=True)
class PrivacyEvent:
    """A noisy sum over a batch, as a ledger records it: an answered round, or a local step of it.

    ratio: the share of its records that a silo draws; sensitivity: how far, in grid units and
    L2 norm, replacing one *drawn* record can move the released vector (twice what one record can
    add); noise: standard deviation in the same units; samples: coordinates released.
    """

    scheme: Scheme
    ratio: float
    sensitivity: float
    noise: float
    samples: int

    def __post_init__(self) -> None:
        if not (0 < self.ratio <= 1 and (self.scheme is not Scheme.FULL or self.ratio == 1)):
            raise ValueError(f"a {self.scheme.value} batch cannot have the ratio {self.ratio}")
        if not (self.sensitivity >= 0 and self.noise > 0 and self.samples > 0):
            raise ValueError("an event needs a sensitivity, noise above 0 and at least one sample")
        if not (isfinite(self.noise) and isfinite(self.mu)):  # ∞/∞ would look like no number at all
            raise ValueError("an event's sensitivity and noise must be finite")

    @property
    def mu(self) -> float:
        """The μ = Δ/σ of the Gaussian mechanism that releases the whole batch's sum."""
        return self.sensitivity / self.noise
