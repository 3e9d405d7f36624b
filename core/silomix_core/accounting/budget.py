"""The privacy filter: what a ledger may still answer, whatever it was asked before.

Studies are approved one after the other, and which ones may depend on what earlier ones found out.
Adding up (ε, δ) pairs would waste most of the budget, and a numerical composition of events that
were not fixed beforehand is no theorem.  A *filter* is: give every event an additive loss, and
answer iff the total stays within a limit that was fixed at the start.

gaussian  loss μ² = (Δ/σ)², limit μ²(ε, δ); exact, for full batches only
          (Koskela, Tobaben, Honkela 2023, Thm 3.3)
renyi     loss D_α at one order α that follows from (ε, δ) alone; for every kind of batch
          (Feldman, Zrnic 2021, Thm 4.3)

The operator chooses, beforehand.  A filter that took the better of two after the fact would cost
up to twice δ.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import sqrt

from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.accounting.gaussian import gaussian_delta, gaussian_epsilon
from silomix_core.accounting.integers import Released, continuous_targets, with_integers
from silomix_core.accounting.renyi import ORDERS, epsilon_at, renyi


class Accountant(Enum):
    GAUSSIAN = "gaussian"
    RENYI = "renyi"


@dataclass(frozen=True, slots=True)
class PrivacyLoss:
    """An additive privacy loss in an accountant's own unit, and the coordinates released."""

    value: float
    released: Released

    def __post_init__(self) -> None:
        if not self.value >= 0:  # also refuses NaN, which `max` would lose
            raise ValueError(f"a loss cannot be {self.value}")

    def __add__(self, other: "PrivacyLoss") -> "PrivacyLoss":
        return PrivacyLoss(self.value + other.value, self.released + other.released)

    def at_least(self, other: "PrivacyLoss") -> "PrivacyLoss":
        """An upper bound of both: a record was in one of two disjoint phases, we know not which."""
        return PrivacyLoss(max(self.value, other.value), self.released.at_least(other.released))


NOTHING = PrivacyLoss(0.0, Released(0, 0.0, 0.0))


@dataclass(frozen=True, slots=True)
class Budget:
    """A lifetime (ε, δ), and the accountant that keeps account of it."""

    target: PrivacyTarget
    accountant: Accountant = Accountant.GAUSSIAN

    def covers(self, scheme: Scheme) -> bool:
        return self.accountant is Accountant.RENYI or scheme is Scheme.FULL

    def loss(self, event: PrivacyEvent, times: int = 1) -> PrivacyLoss:
        if not self.covers(event.scheme):
            raise ValueError(f"the Gaussian accountant does not cover {event.scheme.value} batches")
        gaussian = self.accountant is Accountant.GAUSSIAN
        value = event.mu * event.mu if gaussian else renyi(event, fixed_order(self.target))
        return PrivacyLoss(times * value, Released.of(times * event.samples, event.noise))

    def holds(self, total: PrivacyLoss) -> bool:
        """Return whether a total loss is inside the budget: the filter's only question."""
        if self.accountant is Accountant.GAUSSIAN:
            target, mu = self.target, sqrt(total.value)
            pairs = continuous_targets(target.epsilon, target.delta, total.released)
            if any(gaussian_delta(epsilon, mu) <= delta for epsilon, delta in pairs):
                return True
        # The integers cost more at a larger ε; what holds at a smaller one holds here too.
        return self.epsilon(total) <= self.target.epsilon

    def epsilon(self, total: PrivacyLoss, delta: float | None = None) -> float:
        """The ε of a total loss, at the budget's δ or another one."""
        delta = self.target.delta if delta is None else delta
        if self.accountant is Accountant.GAUSSIAN:
            mu = sqrt(total.value)
            return with_integers(lambda left: gaussian_epsilon(left, mu), total.released, delta)
        order = fixed_order(self.target)
        return with_integers(
            lambda left: epsilon_at(order, total.value, left), total.released, delta
        )


@cache
def fixed_order(target: PrivacyTarget) -> int:
    """The order that leaves most room for Gaussian events; a function of (ε, δ) alone."""

    def room(order: int) -> float:
        return (target.epsilon - epsilon_at(order, 0.0, target.delta)) / order

    best: int = max(ORDERS, key=room)
    return best
