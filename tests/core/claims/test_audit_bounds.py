"""Bounds of an audit: against independent formulas, and how often they are wrong."""

from math import exp, inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats
from silomix_core.accounting.gaussian import gaussian_delta
from silomix_core.claims.audit_bounds import (
    correlation,
    detection,
    difference,
    epsilon_lower,
    gaussian_detection,
    gaussian_mu,
    gaussian_mu_lower,
    move,
    move_detection,
    move_lower,
    mu_lower,
    mu_lower_pooled,
    noise_upper,
    rate_upper,
)

# Clopper–Pearson ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("errors", "trials"), [(0, 10), (1, 10), (9, 10), (57, 250), (249, 250)])
@pytest.mark.parametrize("alpha", [0.05, 0.00025])
def test_the_limits_of_a_rate_are_those_of_scipy(errors: int, trials: int, alpha: float) -> None:
    exact = stats.binomtest(errors, trials).proportion_ci(1 - 2 * alpha, method="exact")
    assert rate_upper(errors, trials, alpha) == pytest.approx(exact.high, rel=1e-9)
    assert 1 - rate_upper(trials - errors, trials, alpha) == pytest.approx(
        exact.low, rel=1e-9, abs=1e-12
    )


@given(
    trials=some.integers(1, 400),
    part=some.floats(0, 1),
    alpha=some.sampled_from([0.05, 0.001, 0.00025]),
)
def test_at_the_limit_so_few_errors_have_probability_alpha(
    trials: int, part: float, alpha: float
) -> None:
    errors = min(round(part * trials), trials - 1)
    limit = rate_upper(errors, trials, alpha)
    assert stats.binom.cdf(errors, trials, limit) == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.255, 0.5, 0.9])
def test_a_rate_lies_above_its_limit_at_most_as_often_as_stated(rate: float) -> None:
    """Exactly, over all outcomes of 250 trials."""
    limits = np.array([rate_upper(errors, 250, 0.01) for errors in range(251)])
    mass = stats.binom.pmf(np.arange(251), 250, rate)
    assert mass[limits < rate].sum() <= 0.01


@pytest.mark.parametrize(("one", "other"), [(0.01, 0.29), (0.1, 0.2), (0.02, 0.98), (0.0, 0.5)])
def test_the_limit_of_a_sum_is_valid_for_two_different_rates(one: float, other: float) -> None:
    """Exactly, over all outcomes of 125 trials of each."""
    counts = np.arange(126)
    sums = np.convolve(stats.binom.pmf(counts, 125, one), stats.binom.pmf(counts, 125, other))
    limits = np.array([rate_upper(errors, 250, 0.01) for errors in range(251)])
    assert sums[limits < (one + other) / 2].sum() <= 0.01


def test_nothing_but_errors_refutes_nothing() -> None:
    assert rate_upper(10, 10, 0.01) == 1
    assert mu_lower(1.0, 0.2) == 0
    assert mu_lower(0.5, 0.5) == 0
    assert mu_lower_pooled(0.5) == mu_lower_pooled(0.7) == mu_lower_pooled(1.0) == 0
    assert epsilon_lower(0.6, 0.6, 1e-5) == 0


@pytest.mark.parametrize("counts", [(-1, 10), (11, 10), (0, 0)])
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="errors"):
        rate_upper(*counts, 0.01)


# From error rates to μ and ε ---------------------------------------------------------------------


@given(mu=some.floats(0.05, 6), threshold=some.floats(-3, 3))
def test_the_best_attack_on_gaussian_noise_gives_its_mu_at_every_threshold(
    mu: float, threshold: float
) -> None:
    false_positives = float(stats.norm.sf(threshold + mu / 2))
    false_negatives = float(stats.norm.cdf(threshold - mu / 2))
    assert mu_lower(false_positives, false_negatives) == pytest.approx(mu, rel=1e-6)
    pooled = mu_lower_pooled((false_positives + false_negatives) / 2)
    assert pooled <= mu * (1 + 1e-9)
    if abs(threshold) < 1e-3:
        assert pooled == pytest.approx(mu, rel=1e-3)


@given(mu=some.floats(0.05, 6), threshold=some.floats(-8, 8), delta=some.sampled_from([1e-5, 0.01]))
def test_no_attack_on_gaussian_noise_gives_more_than_its_epsilon(
    mu: float, threshold: float, delta: float
) -> None:
    false_positives = float(stats.norm.sf(threshold + mu / 2))
    false_negatives = float(stats.norm.cdf(threshold - mu / 2))
    epsilon = epsilon_lower(false_positives, false_negatives, delta)
    if epsilon > 0:
        assert gaussian_delta(epsilon, mu) >= delta * (1 - 1e-6)


def test_randomized_response_gives_exactly_its_epsilon() -> None:
    lie = 1 / (1 + exp(1.7))
    assert epsilon_lower(lie, lie, 0.0) == pytest.approx(1.7)
    assert epsilon_lower(0.0, 0.3, 1e-5) == inf
    assert epsilon_lower(0.2, 0.1, 0.05) == pytest.approx(log(0.75 / 0.1))


# If the noise is Gaussian ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_gaussian_limit_is_wrong_as_often_as_stated() -> None:
    """4000 draws at α = 5 %, fixed seed: 200 ± 4.4 standard deviations (false alarm 10⁻⁵)."""
    rng = np.random.default_rng(3)
    wrong = sum(
        gaussian_mu_lower(rng.normal(5, 2, 12), rng.normal(7, 2, 15), 0.05) > 1.0
        for _ in range(4000)
    )
    assert 140 < wrong < 261


def test_the_gaussian_limit_is_where_noncentral_t_says() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.normal(0, 1, 250), rng.normal(2.6, 1, 250)
    limit = gaussian_mu_lower(first, second, 0.00025)
    statistic = stats.ttest_ind(second, first).statistic
    assert stats.nct.sf(statistic, 498, limit * np.sqrt(125)) == pytest.approx(0.00025, rel=1e-5)
    assert limit < gaussian_mu(first, second)
    assert gaussian_mu_lower(second, first, 0.00025) == 0


def test_samples_without_any_spread_are_far_apart_or_the_same() -> None:
    first, second = np.full(10, 1.0), np.full(10, 2.0)
    assert gaussian_mu(first, second) == pytest.approx(100.0)
    assert 50.0 < gaussian_mu_lower(first, second, 0.0025) < 100.0
    assert gaussian_mu(first, first) == gaussian_mu_lower(first, first, 0.0025) == 0.0


def test_the_limit_of_the_noise_is_wrong_as_often_as_stated() -> None:
    """4000 draws at α = 5 %, fixed seed, as above."""
    rng = np.random.default_rng(5)
    wrong = sum(noise_upper(rng.normal(0, 1, 20), 0.05) < 1 for _ in range(4000))
    assert 140 < wrong < 261


def test_correlation_is_seen_and_its_absence_too() -> None:
    rng = np.random.default_rng(6)
    first, second = rng.normal(0, 1, 5000), rng.normal(0, 1, 5000)
    assert correlation(first, second)[1] > 1e-3
    assert correlation(first, second + 0.2 * first)[1] < 1e-20
    assert correlation(first, first)[1] == 0


def mixture(rng: np.random.Generator, count: int, chance: float, move: float) -> np.ndarray:
    return move * (rng.random(count) < chance) + rng.normal(0, 1, count)


@pytest.mark.slow
@pytest.mark.parametrize(("chance", "far"), [(0.5, 1.5), (0.1, 4.0)])
def test_the_limit_of_the_move_is_wrong_no_more_often_than_stated(
    chance: float, far: float
) -> None:
    """2000 draws at α = 5 %, fixed seed; a bound by Chernoff is wrong less often than it may."""
    rng, chances, moves = np.random.default_rng(8), np.full(60, chance), np.full(60, far)
    wrong = sum(
        move_lower(mixture(rng, 60, chance, far), chances, moves, 0.05) > 1 for _ in range(2000)
    )
    assert 4 < wrong < 100


def test_moves_that_are_farther_or_more_frequent_are_found_and_measured() -> None:
    rng, chances, moves = np.random.default_rng(9), np.full(2000, 0.25), np.full(2000, 1.0)
    for values in (mixture(rng, 2000, 0.25, 2.0), mixture(rng, 2000, 0.5, 1.0)):
        assert move(values, chances, moves) == pytest.approx(2, abs=0.5)
        assert 1.2 < move_lower(values, chances, moves, 0.00025) < 2
    assert move_lower(-mixture(rng, 2000, 0.25, 2.0), chances, moves, 0.00025) == 0


def test_a_difference_of_means_is_seen_and_its_absence_as_often_as_stated() -> None:
    """4000 pairs at p < 5 %, fixed seed."""
    rng = np.random.default_rng(10)
    found = sum(difference(rng.normal(3, 2, 9), rng.normal(3, 2, 12)) < 0.05 for _ in range(4000))
    assert 140 < found < 261
    assert difference(rng.normal(0, 1, 100), rng.normal(1.3, 1, 100)) < 1e-6


# Power -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_power_is_that_of_simulated_audits() -> None:
    """2000 audits of 200 trials; the estimates differ by at most 5 standard errors (10⁻⁶)."""
    rng = np.random.default_rng(7)
    claimed, true, alpha = 1.3, 2.6, 0.00025
    anyhow = gaussian = 0
    for _ in range(2000):
        first, second = rng.normal(-true / 2, 1, 100), rng.normal(true / 2, 1, 100)
        errors = int((first > 0).sum() + (second <= 0).sum())
        anyhow += mu_lower_pooled(rate_upper(errors, 200, alpha)) > claimed
        gaussian += gaussian_mu(first, second) > claimed and (
            gaussian_mu_lower(first, second, alpha) > claimed
        )
    power = detection(claimed, true, 200, alpha)
    assert abs(anyhow / 2000 - power) < 5 * np.sqrt(power * (1 - power) / 2000)
    assert gaussian / 2000 > 0.998
    assert gaussian_detection(claimed, true, 200, alpha) > 0.9999


@pytest.mark.slow
def test_the_power_to_see_a_move_is_that_of_simulated_audits() -> None:
    """500 audits of 300 reports, fixed seed; a Gaussian tail stands in for the exact one."""
    rng, chances, moves = np.random.default_rng(11), np.full(300, 0.3), np.full(300, 0.9)
    found = sum(
        move_lower(mixture(rng, 300, 0.3, 1.8), chances, moves, 0.01) > 1 for _ in range(500)
    )
    assert found / 500 == pytest.approx(move_detection(0.3, 0.9, 2, 300, 0.01), abs=0.08)


def test_a_silo_that_keeps_its_promise_is_hardly_ever_refuted() -> None:
    assert detection(1.31, 1.31, 500, 0.00025) <= 0.00025
    assert gaussian_detection(1.31, 1.31, 500, 0.00025) == pytest.approx(0.00025, rel=1e-3)
