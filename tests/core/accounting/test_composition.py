"""ε of whole transcripts: which accountant applies, what composes, and the noise that is needed."""

from itertools import product
from math import inf, nan, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.accounting.composition import (
    CalibrationImpossible,
    epsilon_of,
    largest_mu,
)
from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.accounting.gaussian import gaussian_epsilon, gaussian_mu
from silomix_core.accounting.integers import Released, with_integers
from silomix_core.accounting.poisson import poisson_epsilon
from silomix_core.accounting.renyi import renyi_epsilon
from silomix_core.discrete_gaussian import SIGMA_UNITS
from support.exact import exact_delta, exact_epsilon
from support.privacy_checks import discrete_delta, poisson_delta

POISSON, FIXED = Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT
SMALL = PrivacyTarget(1, 1e-5)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


def event(mu: float, scheme: Scheme = Scheme.FULL, ratio: float = 1.0) -> PrivacyEvent:
    return PrivacyEvent(scheme, ratio, mu * SIGMA_UNITS, SIGMA_UNITS, 10)


PARTS = st.lists(st.tuples(powers(-4, -1.3), st.integers(0, 50)), min_size=1, max_size=4)


@settings(max_examples=40)
@given(PARTS, powers(-7, -2))
def test_full_batches_compose_exactly(parts: list[tuple[float, int]], delta: float) -> None:
    """Different events too: μ² adds up.  The integers take a small part of these δ's."""
    total = sqrt(sum(count * mu * mu for mu, count in parts))
    epsilon = epsilon_of([(event(mu), count) for mu, count in parts], delta)
    if total == 0:
        assert epsilon == 0
        return
    exact = exact_epsilon(delta, total)
    assert exact <= epsilon * (1 + 1e-9)
    samples = 10 * sum(count for _, count in parts)
    assert discrete_delta(lambda e: exact_delta(e, total), epsilon, samples) <= delta * (1 + 1e-8)
    assert epsilon <= exact * (1 + 1e-3) + 1e-6


@pytest.mark.parametrize(("mu", "rounds"), [(0.1, 30), (0.02, 400)])
def test_the_analytic_formula_distributions_and_divergences_agree_in_order(
    mu: float, rounds: int
) -> None:
    """One transcript of full batches, three accountants: exact ≤ PLD ≤ 1.01·exact, RDP above."""
    transcript = [(event(mu), rounds)]
    exact = gaussian_epsilon(1e-6, mu * sqrt(rounds))
    assert exact <= poisson_epsilon(transcript, 1e-6) <= 1.01 * exact
    assert exact < renyi_epsilon(transcript, 1e-6) < 1.15 * exact


def test_the_accountant_follows_from_the_events() -> None:
    whole, drawn, fixed = (
        (event(0.1), 5),
        (event(0.2, POISSON, 0.5), 5),
        (event(0.2, FIXED, 0.2), 5),
    )
    for transcript, curve in (
        ([whole, drawn], poisson_epsilon),
        ([drawn], poisson_epsilon),
        ([whole, fixed], renyi_epsilon),
        ([drawn, fixed, whole], renyi_epsilon),
    ):
        # the integers' share of δ is below 1e-11 here
        assert epsilon_of(transcript, 1e-6) == pytest.approx(curve(transcript, 1e-6), rel=1e-4)
        assert epsilon_of(transcript, 1e-6) >= curve(transcript, 1e-6)


@pytest.mark.parametrize("rest", [[], [(event(0.3), 4)], [(event(0.3, POISSON, 0.5), 4)]])
def test_events_that_did_not_happen_are_not_charged(rest: list[tuple[PrivacyEvent, int]]) -> None:
    """Skipped rounds; they do not even choose the accountant."""
    skipped = [(event(5.0), 0), (event(5.0, POISSON, 0.5), 0), (event(5.0, FIXED, 0.5), 0)]
    assert epsilon_of([*skipped, *rest], 1e-6) == epsilon_of(rest, 1e-6)


def test_an_answered_round_more_never_costs_less() -> None:
    for scheme, ratio in ((Scheme.FULL, 1.0), (POISSON, 0.5), (FIXED, 0.2)):
        losses = [epsilon_of([(event(0.1, scheme, ratio), count)], 1e-6) for count in (1, 2, 9, 10)]
        assert losses == sorted(losses)


def test_nothing_costs_nothing() -> None:
    assert epsilon_of([], 1e-6) == 0
    assert epsilon_of([(event(0.0), 5)], 1e-6) == 0
    assert epsilon_of([(event(0.0, POISSON, 0.5), 5)], 1e-6) == 0
    # divergences at orders up to 256 cannot tell nothing from very little
    assert epsilon_of([(event(0.0, FIXED, 0.5), 5)], 1e-6) < 0.03


def test_a_negative_number_of_events_gives_nothing_back() -> None:
    with pytest.raises(ValueError, match="never"):
        epsilon_of([(event(0.1), 5), (event(0.1), -4)], 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, nan])
@pytest.mark.parametrize("scheme", list(Scheme))
def test_a_delta_that_is_no_probability_is_refused(scheme: Scheme, delta: float) -> None:
    one = event(0.1, scheme, 1.0 if scheme is Scheme.FULL else 0.5)
    with pytest.raises(ValueError, match="delta"):
        epsilon_of([(one, 1)], delta)


@pytest.mark.parametrize("mu", [1e10, 1e160])
@pytest.mark.parametrize("scheme", list(Scheme))
def test_hardly_any_noise_costs_more_than_anybody_promises(scheme: Scheme, mu: float) -> None:
    one = event(mu, scheme, 1.0 if scheme is Scheme.FULL else 0.5)
    assert epsilon_of([(one, 1)], 1e-6) > 1000


def integers(samples: int) -> Released:
    return Released.of(samples, SIGMA_UNITS)


def test_the_integers_are_paid_at_the_epsilon_that_comes_out() -> None:
    """Nothing is found where the tables' errors alone exceed δ."""
    for samples, delta in product((1000, 10**6, 10**9), (1e-9, 1e-6)):
        epsilon = with_integers(lambda left: gaussian_epsilon(left, 1.0), integers(samples), delta)
        found = discrete_delta(lambda e: exact_delta(e, 1.0), epsilon, samples)
        assert found <= delta * (1 + 1e-9)
        assert epsilon > gaussian_epsilon(delta, 1.0)
    assert with_integers(lambda left: 0.0, integers(10**9), 1e-26) == inf
    assert with_integers(lambda left: nan, integers(1), 1e-6) == inf


# The noise that is needed


@given(st.floats(0.05, 5), powers(-7, -2), st.integers(1, 1000), st.integers(1, 100))
def test_the_largest_mu_of_full_batches_is_the_analytic_one(
    epsilon: float, delta: float, rounds: int, dimension: int
) -> None:
    mu = largest_mu(PrivacyTarget(epsilon, delta), Scheme.FULL, 1.0, rounds, dimension)
    analytic = gaussian_mu(epsilon, delta) / sqrt(rounds)
    assert analytic * (1 - 1e-2) <= mu <= analytic

    def needed(factor: float) -> float:
        total = mu * sqrt(rounds) * factor
        return discrete_delta(lambda e: exact_delta(e, total), epsilon, rounds * dimension)

    assert needed(1.0) <= delta
    assert needed(1 + 1e-5) > delta


@pytest.mark.parametrize(
    ("scheme", "ratio", "rounds"),
    [(POISSON, 0.5, 1), (POISSON, 0.1, 50), (FIXED, 0.5, 1), (FIXED, 0.1, 50), (FIXED, 0.9, 1000)],
)
def test_the_largest_mu_meets_the_target_and_a_slightly_larger_one_does_not(
    scheme: Scheme, ratio: float, rounds: int
) -> None:
    mu = largest_mu(SMALL, scheme, ratio, rounds, 10)
    meets, beyond = (
        epsilon_of([(event(value, scheme, ratio), rounds)], SMALL.delta)
        for value in (mu, mu * 1.0006)
    )
    assert meets <= SMALL.epsilon < beyond
    assert meets > 0.99 * SMALL.epsilon


def test_the_largest_mu_of_one_poisson_round_is_that_of_the_definition() -> None:
    mu = largest_mu(SMALL, POISSON, 0.5, 1, 10)
    assert poisson_delta(1.0, 0.5, mu / 2) <= 1e-5 < poisson_delta(1.0, 0.5, mu / 2 * 1.002)


def test_rounding_of_the_largest_mu_does_not_lead_beyond_the_target() -> None:
    """What comes back from a mechanism differs in the last bits."""
    for scheme, ratio in ((POISSON, 0.5), (FIXED, 0.3)):
        mu = largest_mu(SMALL, scheme, ratio, 50, 10)
        for factor in (1 - 1e-15, 1 + 1e-15, 1 + 1e-12):
            one = event(mu * factor, scheme, ratio)
            assert epsilon_of([(one, 50)], SMALL.delta) <= SMALL.epsilon


@pytest.mark.parametrize("rounds", [50, 1000])
def test_half_batches_by_coins_need_the_noise_of_full_ones(rounds: int) -> None:
    """σ = Δ/μ, and Δ is 1/q times as large for a batch of q·n: 0.98 to 1.04 at q = 1/2."""
    drawn, whole = (
        largest_mu(SMALL, scheme, ratio, rounds, 10)
        for scheme, ratio in ((POISSON, 0.5), (Scheme.FULL, 1.0))
    )
    assert 0.98 <= whole / (0.5 * drawn) <= 1.04


@pytest.mark.slow
def test_small_batches_in_few_rounds_need_more_noise() -> None:
    drawn, whole = (
        largest_mu(SMALL, scheme, ratio, 5, 10)
        for scheme, ratio in ((POISSON, 0.1), (Scheme.FULL, 1.0))
    )
    assert whole / (0.1 * drawn) > 1.04


def test_the_fixed_size_bound_is_no_better_than_coins() -> None:
    """Its theorem is about a factor 4 in D_α from tight, a factor 2 in noise."""
    fixed, coins = (largest_mu(SMALL, scheme, 0.1, 50, 10) for scheme in (FIXED, POISSON))
    assert coins / 3 < fixed < coins


@pytest.mark.parametrize("scheme", [POISSON, FIXED])
def test_a_target_that_no_noise_meets_is_refused(scheme: Scheme) -> None:
    """Orders end at 256, distributions at δ = 1e-12: refused, with the reason."""
    target = PrivacyTarget(0.01, 1e-7) if scheme is FIXED else PrivacyTarget(1, 9e-13)
    with pytest.raises(CalibrationImpossible, match=r"no noise meets|integer noise"):
        largest_mu(target, scheme, 0.5, 10, 10)
