"""The privacy filter of a ledger: what it holds, refuses and adds up, with either accountant."""

from math import inf, nan, sqrt

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from silomix_core.accounting.budget import NOTHING, Accountant, Budget, PrivacyLoss, fixed_order
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.accounting.gaussian import gaussian_epsilon, gaussian_mu
from silomix_core.accounting.integers import (
    TABLE_ERROR,
    Released,
    discretization_delta,
    discretization_ratio,
)
from silomix_core.accounting.renyi import ORDERS, epsilon_at, renyi
from silomix_core.discrete_gaussian import SIGMA_UNITS
from support.exact import exact_delta
from support.privacy_checks import discrete_delta

STUDY = PrivacyTarget(3, 3.33e-7)
EITHER = pytest.mark.parametrize("accountant", list(Accountant))


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


def wholes(high: float) -> st.SearchStrategy[int]:
    return powers(0, high).map(round)


def full(mu: float, samples: int = 10) -> PrivacyEvent:
    return PrivacyEvent(Scheme.FULL, 1.0, mu * SIGMA_UNITS, SIGMA_UNITS, samples)


def spent(value: float, samples: int) -> PrivacyLoss:
    return PrivacyLoss(value, Released.of(samples, SIGMA_UNITS))


def epsilon_gaussian(loss: PrivacyLoss, delta: float) -> float:
    return Budget(PrivacyTarget(1, 1e-6)).epsilon(loss, delta)


# What is within


@given(powers(-4, 1), wholes(6), powers(-9, -1.5))
def test_a_budget_holds_at_the_epsilon_that_is_shown(
    mu_squared: float, samples: int, delta: float
) -> None:
    loss = spent(mu_squared, samples)
    epsilon = epsilon_gaussian(loss, delta)
    assume(0 < epsilon <= 99)
    assert Budget(PrivacyTarget(epsilon * (1 + 1e-9), delta)).holds(loss)
    assert not Budget(PrivacyTarget(epsilon * (1 - 1e-6), delta)).holds(loss)


@given(powers(-6, 1), powers(-6, 1), wholes(6), wholes(6), powers(-7, -2))
def test_spending_never_lowers_epsilon(
    first: float, second: float, samples: int, more: int, delta: float
) -> None:
    for accountant in Accountant:
        budget = Budget(PrivacyTarget(1, 1e-6), accountant)
        before = budget.epsilon(spent(first, samples), delta)
        assert budget.epsilon(spent(first + second, samples + more), delta) >= before


@EITHER
@given(
    target=st.builds(PrivacyTarget, st.floats(0.05, 20), powers(-9, -2)),
    value=powers(-6, 1),
    samples=wholes(7),
    parts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_what_is_less_than_what_a_budget_holds_is_held(
    accountant: Accountant,
    target: PrivacyTarget,
    value: float,
    samples: int,
    parts: tuple[float, float],
) -> None:
    budget = Budget(target, accountant)
    less = spent(value * parts[0], round(samples * parts[1]))
    assert budget.holds(less) or not budget.holds(spent(value, samples))


@EITHER
def test_nothing_answered_costs_nothing(accountant: Accountant) -> None:
    budget = Budget(STUDY, accountant)
    assert budget.epsilon(NOTHING) == 0
    assert budget.holds(NOTHING)


@EITHER
def test_without_noise_epsilon_is_infinite(accountant: Accountant) -> None:
    budget = Budget(STUDY, accountant)
    assert budget.epsilon(spent(inf, 1)) == inf
    assert not budget.holds(spent(inf, 1))


@pytest.mark.parametrize("value", [nan, -1.0, -inf])
def test_a_loss_that_is_no_number_does_not_exist(value: float) -> None:
    with pytest.raises(ValueError, match="loss"):
        spent(value, 1)
    with pytest.raises(ValueError, match="loss"):
        spent(1.0, 1) + spent(value, 1)


def test_a_negative_number_of_rounds_gives_nothing_back() -> None:
    with pytest.raises(ValueError, match="loss"):
        Budget(STUDY).loss(full(0.1), -1)


@EITHER
@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, nan])
def test_a_delta_that_is_no_probability_is_refused(accountant: Accountant, delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        Budget(STUDY, accountant).epsilon(spent(0.1, 1), delta)


@EITHER
def test_a_delta_smaller_than_the_integers_cost_has_no_epsilon(accountant: Accountant) -> None:
    assert Budget(STUDY, accountant).epsilon(spent(0.01, 10**16), 1e-16) == inf
    assert not Budget(PrivacyTarget(3, 1e-16), accountant).holds(spent(0.01, 10**16))


# Two accountants


@given(st.floats(0.05, 8), powers(-9, -2), wholes(4))
def test_the_gaussian_filter_holds_what_exact_composition_holds(
    epsilon: float, delta: float, rounds: int
) -> None:
    """Up to the integers: R rounds of μ/√R, not 1 % more."""
    budget, mu = Budget(PrivacyTarget(epsilon, delta)), gaussian_mu(epsilon, delta)
    held = budget.loss(full(mu * (1 - 2e-3) / sqrt(rounds)), rounds)
    assert held.value == pytest.approx((mu * (1 - 2e-3)) ** 2)
    assert held.released.samples == 10 * rounds
    exact = discrete_delta(
        lambda e: exact_delta(e, sqrt(held.value)), epsilon, held.released.samples
    )
    assert budget.holds(held) == (exact <= delta)
    assert not budget.holds(budget.loss(full(mu * 1.01 / sqrt(rounds)), rounds))


@pytest.mark.parametrize("scheme", [Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_the_gaussian_filter_refuses_drawn_batches(scheme: Scheme, ratio: float) -> None:
    event = PrivacyEvent(scheme, ratio, 1.0, 100.0, 1)
    budget = Budget(STUDY)
    assert not budget.covers(scheme)
    with pytest.raises(ValueError, match=f"does not cover {scheme.value}"):
        budget.loss(event)


@pytest.mark.parametrize("scheme", list(Scheme))
def test_the_renyi_filter_covers_every_scheme(scheme: Scheme) -> None:
    ratio = 1.0 if scheme is Scheme.FULL else 0.25
    event = PrivacyEvent(scheme, ratio, SIGMA_UNITS / 20, SIGMA_UNITS, 7)
    budget = Budget(STUDY, Accountant.RENYI)
    assert budget.covers(scheme)
    order = fixed_order(STUDY)
    assert budget.loss(event, 3) == spent(3 * renyi(event, order), 21)
    assert budget.epsilon(budget.loss(event, 3)) == pytest.approx(
        epsilon_at(order, 3 * renyi(event, order), STUDY.delta), rel=1e-4
    )


@given(st.floats(0.05, 20), powers(-9, -2), powers(-3, 0), st.integers(1, 500))
def test_the_renyi_filter_never_shows_less_than_exact_composition(
    epsilon: float, delta: float, mu: float, rounds: int
) -> None:
    target = PrivacyTarget(epsilon, delta)
    exact, filtered = Budget(target), Budget(target, Accountant.RENYI)
    event = full(mu)
    losses = exact.loss(event, rounds), filtered.loss(event, rounds)
    assert filtered.epsilon(losses[1]) >= exact.epsilon(losses[0])
    assert exact.holds(losses[0]) or not filtered.holds(losses[1])


@given(st.floats(0.05, 20), powers(-9, -2))
def test_the_order_follows_from_the_target_alone_and_is_the_best_for_full_batches(
    epsilon: float, delta: float
) -> None:
    target = PrivacyTarget(epsilon, delta)
    order = fixed_order(target)
    assert order in ORDERS
    assert fixed_order(PrivacyTarget(epsilon, delta)) == order
    room = {each: (epsilon - epsilon_at(each, 0.0, delta)) / each for each in ORDERS}
    assert room[order] == max(room.values())


def test_the_order_does_not_move_with_what_was_spent() -> None:
    """A filter's order is fixed at the start: the loss of an event is the same at any time."""
    budget, event = Budget(STUDY, Accountant.RENYI), full(0.01)
    before = budget.loss(event)
    budget.epsilon(spent(2.0, 10**6), 1e-3)
    budget.holds(spent(5.0, 1))
    assert budget.loss(event) == before


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1, 1e-6), (3, 3.33e-7), (10, 1e-5)])
def test_the_renyi_filter_needs_at_most_a_fifth_more_noise(epsilon: float, delta: float) -> None:
    target = PrivacyTarget(epsilon, delta)
    budget = Budget(target, Accountant.RENYI)
    assert budget.holds(budget.loss(full(gaussian_mu(epsilon, delta) / 1.2)))


# Adding up


@EITHER
def test_two_studies_cost_the_sum_of_their_losses(accountant: Accountant) -> None:
    """Not the sum of their ε: μ = √(μ₁² + μ₂²) is what both together are."""
    budget = Budget(STUDY, accountant)
    first, second = budget.loss(full(0.05, 4), 20), budget.loss(full(0.1, 6), 10)
    both = first + second
    assert both.released.samples == 140
    assert both.value == first.value + second.value
    together = budget.epsilon(both)
    assert max(budget.epsilon(first), budget.epsilon(second)) < together
    assert together < budget.epsilon(first) + budget.epsilon(second)
    if accountant is Accountant.GAUSSIAN:
        exact = gaussian_epsilon(STUDY.delta, sqrt(20 * 0.05**2 + 10 * 0.1**2))
        assert together == pytest.approx(exact, rel=1e-4)
        assert together == pytest.approx(
            epsilon_of([(full(0.05, 4), 20), (full(0.1, 6), 10)], STUDY.delta), rel=1e-12
        )


@EITHER
def test_a_study_that_fits_twice_does_not_fit_three_times(accountant: Accountant) -> None:
    budget = Budget(STUDY, accountant)
    mu = 0.62 if accountant is Accountant.GAUSSIAN else 0.55
    study = budget.loss(full(mu / sqrt(2.2) / 10), 100)
    assert budget.holds(study + study)
    assert not budget.holds(study + study + study)


LOSSES = st.builds(spent, powers(-6, 1), wholes(6))


@given(LOSSES, LOSSES)
def test_the_worse_of_two_phases_bounds_both(first: PrivacyLoss, second: PrivacyLoss) -> None:
    worse = first.at_least(second)
    assert worse == second.at_least(first)
    for loss in (first, second):
        assert worse.value >= loss.value
        assert worse.released.samples >= loss.released.samples
        assert epsilon_gaussian(worse, 1e-5) >= epsilon_gaussian(loss, 1e-5)
    assert worse.at_least(NOTHING) == worse
    assert worse.value in (first.value, second.value)
    assert worse.released.samples in (first.released.samples, second.released.samples)


# Integers of different grids


@given(wholes(9), wholes(9))
def test_coordinates_of_different_grids_cost_what_each_of_them_costs(
    coarse: int, fine: int
) -> None:
    """Kullback–Leibler divergences add up, and so do the logarithms of ratios."""
    first, second = Released.of(coarse, SIGMA_UNITS), Released.of(fine, 16 * SIGMA_UNITS)
    both = first + second
    assert both.samples == coarse + fine
    assert discretization_ratio(both) == pytest.approx(
        discretization_ratio(first) + discretization_ratio(second)
    )
    tables = both.samples * TABLE_ERROR
    distance = discretization_delta(0.0, both) / 2 - tables
    apart = [discretization_delta(0.0, each) / 2 for each in (first, second)]
    assert max(apart) - tables <= distance * (1 + 1e-9) <= sum(apart) * (1 + 1e-9)


@EITHER
def test_a_finer_grid_costs_a_lifetime_less(accountant: Accountant) -> None:
    budget = Budget(STUDY, accountant)
    coarse, fine = (
        budget.loss(PrivacyEvent(Scheme.FULL, 1.0, sigma / 1e4, sigma, 10**6), 10**4)
        for sigma in (SIGMA_UNITS, 16 * SIGMA_UNITS)
    )
    assert coarse.value == fine.value
    assert budget.epsilon(fine) < budget.epsilon(coarse)
    assert budget.epsilon(fine + coarse) > budget.epsilon(coarse)
