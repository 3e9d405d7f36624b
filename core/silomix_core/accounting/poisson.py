"""Poisson batches under replace-one adjacency: privacy loss distributions.

A record enters a batch by its own coin (probability q).  Reveal everybody else's coins: the
released vector is then y = s + N(0, σ²I) or s + x + N(0, σ²I), and for the neighbour x' instead of
x, ‖x‖, ‖x'‖ ≤ h·σ.  The pair

    P = (1−q)·N(0, 1) + q·N(h, 1)      Q = (1−q)·N(0, 1) + q·N(−h, 1)

dominates it in every dimension (docs/privacy.md, "Poisson batches"), and dominating pairs compose
adaptively (Zhu, Dong, Wang 2022, Thm 10).  dp-accounting carries the numbers and rounds losses up;
what its Fourier transforms lose is taken out of δ.

Note the trap: under replace-one its PLD measures noise in units of what *one* record adds
(σ/(Δ/2)), its RDP in units of the whole move (σ/Δ).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, sqrt
from typing import Any

from silomix_core.accounting.events import PrivacyEvent, Scheme

_COARSE, _PER_EPSILON = 1e-3, 500  # step of the loss's grid; for a small ε, ε over this
_PER_SPREAD = 4  # for many rounds: so many steps to the standard deviation of one round's loss
_MOST_STEPS = 2**18  # of one round's loss
_LARGEST_MU = 50.0  # beyond: one round costs an ε far above 100
_LARGEST_LOSS = 1e4  # of all rounds, expected; beyond, they cost such an ε, too
LEAST_DELTA = 1e-12
# By how much the Fourier transforms may take δ for smaller than it is, for each round: 10 times
# what we saw against exact Gaussian composition (tests/core/accounting/test_poisson.py).
CONVOLUTION_ERROR = 1e-15


def poisson_epsilon(events: Sequence[tuple[PrivacyEvent, int]], delta: float) -> float:
    """The ε at `delta` of Poisson (and full) events, rounded up; ∞ where the arithmetic ends."""
    events = tuple((event, count) for event, count in events if count and event.mu > 0)
    if not events:
        return 0.0
    rounds, largest = sum(count for _, count in events), max(event.mu for event, _ in events)
    left = delta - CONVOLUTION_ERROR * rounds
    expected = sum(count * event.ratio * event.mu * event.mu / 2 for event, count in events)
    if largest > _LARGEST_MU or expected > _LARGEST_LOSS:
        return inf
    if not (delta >= LEAST_DELTA and left >= delta / 2):
        return inf
    spread = sqrt(sum(count * (event.ratio * event.mu) ** 2 for event, count in events) / rounds)
    least = max(1e-6, (largest**2 / 2 + 10 * largest) / _MOST_STEPS)  # losses reach about so far
    coarse = max(min(_COARSE, spread / _PER_SPREAD), least)
    epsilon = float(_composed(events, coarse).get_epsilon_for_delta(left))
    fine = max(epsilon / _PER_EPSILON, least)
    if fine < coarse:
        epsilon = min(epsilon, float(_composed(events, fine).get_epsilon_for_delta(left)))
    return epsilon * (1 + 1e-9)


def total_variation(events: Sequence[tuple[PrivacyEvent, int]]) -> float:
    """The δ at ε = 0 of the dominating pair in all rounds, rounded up: the best attacker's two
    error rates sum to 1 less this δ.

    Under other schemes it is the δ of a record that a batch holds with the event's ratio, the other
    records being 0.
    """
    pairs = tuple((replace(event, scheme=Scheme.POISSON), count) for event, count in events)
    return min(1.0, float(_composed(pairs, _COARSE).get_delta_for_epsilon(0.0)))


@lru_cache(maxsize=4)
def _composed(events: tuple[tuple[PrivacyEvent, int], ...], step: float) -> Any:
    """The privacy loss distribution of all events, its losses rounded up to multiples of `step`."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, identity

    composed = identity(step)
    for event, count in events:
        single = from_gaussian_mechanism(
            standard_deviation=2 / event.mu,
            sampling_prob=event.ratio if event.scheme is Scheme.POISSON else 1.0,
            value_discretization_interval=step,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
        composed = composed.compose(single.self_compose(count))
    return composed
