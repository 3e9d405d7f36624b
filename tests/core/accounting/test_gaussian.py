"""Full batches: ε, δ and μ against 256-bit arithmetic and dp-accounting; what the integers cost."""

import tomllib
from math import exp, inf, isfinite, nan
from pathlib import Path

import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.accounting import (
    TABLE_ERROR,
    discretization_delta,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from silomix_core.accounting.integers import Released, continuous_targets, discretization_ratio
from silomix_core.discrete_gaussian import LARGEST_NOISE, SIGMA_UNITS
from support.exact import discrete_gaussian_weights, exact_delta, exact_epsilon
from support.privacy_checks import SIGMA, check_discretization_bound, check_ratio_bound

EPSILONS = st.floats(1e-3, 100)
DELTAS = st.floats(-12, -1.31).map(lambda exponent: 10.0**exponent)
MUS = st.floats(-3, 1.5).map(lambda exponent: 10.0**exponent)
CLOSE = 1e-9  # relative error that we allow float64 in a δ


@given(EPSILONS, MUS)
def test_delta_is_the_analytic_formula(epsilon: float, mu: float) -> None:
    exact = exact_delta(epsilon, mu)
    if exact < 1e-300:
        assert gaussian_delta(epsilon, mu) < 1e-299
    else:
        assert gaussian_delta(epsilon, mu) == pytest.approx(float(exact), rel=1e-8)


VECTORS = Path(__file__).parents[2] / "vectors" / "gaussian_mechanism.toml"


@pytest.mark.parametrize("golden", tomllib.loads(VECTORS.read_text("utf-8"))["mechanism"])
def test_mu_is_the_reciprocal_of_dp_accountings_sigma(golden: dict[str, float]) -> None:
    mu = gaussian_mu(golden["epsilon"], golden["delta"])
    assert mu == pytest.approx(1 / golden["sigma"], rel=1e-3 if golden["delta"] < 1e-9 else 1e-6)


def test_the_golden_numbers_are_those_of_the_installed_dp_accounting() -> None:
    assert gaussian_mechanism.get_sigma_gaussian(3.0, 1e-5) == pytest.approx(
        next(
            golden["sigma"]
            for golden in tomllib.loads(VECTORS.read_text("utf-8"))["mechanism"]
            if (golden["epsilon"], golden["delta"]) == (3.0, 1e-5)
        )
    )


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_epsilon_is_dp_accountings(mu: float, delta: float) -> None:
    expected = gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta)
    assert gaussian_epsilon(delta, mu) == pytest.approx(expected, rel=1e-6)


@given(EPSILONS, DELTAS)
def test_mu_is_rounded_down(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    assert exact_delta(epsilon, mu) <= delta * (1 + CLOSE)


@given(EPSILONS, DELTAS)
def test_mu_is_the_largest(epsilon: float, delta: float) -> None:
    assert exact_delta(epsilon, gaussian_mu(epsilon, delta) * (1 + 1e-8)) > delta


@given(DELTAS, MUS)
def test_epsilon_is_rounded_up(delta: float, mu: float) -> None:
    epsilon = gaussian_epsilon(delta, mu)
    assert gaussian_delta(epsilon, mu) <= delta
    assert exact_delta(epsilon, mu) <= delta * (1 + CLOSE)


@given(DELTAS, MUS)
def test_epsilon_is_the_smallest(delta: float, mu: float) -> None:
    epsilon = gaussian_epsilon(delta, mu)
    if epsilon > 0:
        assert exact_delta(epsilon * (1 - 1e-7), mu) > delta


@given(EPSILONS, DELTAS)
def test_epsilon_undoes_mu(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(delta, mu) == pytest.approx(epsilon, rel=1e-7)


@given(EPSILONS, EPSILONS, MUS)
def test_delta_falls_with_epsilon(first: float, second: float, mu: float) -> None:
    low, high = sorted((first, second))
    assert gaussian_delta(high, mu) <= gaussian_delta(low, mu) * (1 + CLOSE)


@given(EPSILONS, MUS, MUS)
def test_delta_grows_with_mu(epsilon: float, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert gaussian_delta(epsilon, low) <= gaussian_delta(epsilon, high) * (1 + CLOSE)


@given(DELTAS, MUS, MUS)
def test_epsilon_grows_with_mu(delta: float, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert gaussian_epsilon(delta, low) <= gaussian_epsilon(delta, high) * (1 + CLOSE)


@given(EPSILONS, EPSILONS, DELTAS)
def test_mu_grows_with_epsilon(first: float, second: float, delta: float) -> None:
    low, high = sorted((first, second))
    assert gaussian_mu(low, delta) <= gaussian_mu(high, delta) * (1 + CLOSE)


@pytest.mark.parametrize("epsilon", [1e-3, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 0.05])
def test_the_corners_of_the_range_are_exact(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert exact_epsilon(delta, mu) == pytest.approx(epsilon, rel=1e-7)


@pytest.mark.parametrize("mu", [1e-300, 1e-12, 30.0, 1e3, 1e5])
@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 700.0, 1e4, 1e9])
def test_delta_is_a_probability_far_outside_the_range(epsilon: float, mu: float) -> None:
    assert 0 <= gaussian_delta(epsilon, mu) <= 1


def test_no_sensitivity_costs_nothing_and_no_noise_costs_everything() -> None:
    assert gaussian_delta(1.0, 0.0) == 0
    assert gaussian_delta(1.0, inf) == 1
    assert gaussian_epsilon(1e-6, 0.0) == 0
    assert gaussian_epsilon(1e-6, inf) == inf


@pytest.mark.parametrize(("epsilon", "mu"), [(-1.0, 1.0), (1.0, -1.0), (nan, 1.0), (1.0, nan)])
def test_delta_of_a_nonsensical_loss_is_refused(epsilon: float, mu: float) -> None:
    with pytest.raises(ValueError, match="mu"):
        gaussian_delta(epsilon, mu)


@pytest.mark.parametrize("mu", [-1.0, nan])
def test_epsilon_of_a_nonsensical_loss_is_refused(mu: float) -> None:
    with pytest.raises(ValueError, match="mu"):
        gaussian_epsilon(1e-6, mu)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, nan])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        gaussian_mu(1.0, delta)
    with pytest.raises(ValueError, match="delta"):
        gaussian_epsilon(delta, 1.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, nan])
def test_an_epsilon_that_is_not_positive_has_no_mu(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        gaussian_mu(epsilon, 1e-6)


def test_discrete_noise_costs_no_more_than_the_accountant_adds() -> None:
    # at ε = 0 a distance t costs 2t
    check_discretization_bound(
        lambda samples, sigma: discretization_delta(0.0, Released.of(samples, sigma)) / 2
    )


@given(st.floats(0, 50), st.integers(1, 10**9), st.integers(1, 10**9))
def test_discretization_grows_with_samples(epsilon: float, first: int, second: int) -> None:
    low, high = sorted((first, second))
    cost = discretization_delta(epsilon, Released.of(low, SIGMA))
    assert 0 < cost <= discretization_delta(epsilon, Released.of(high, SIGMA))


@pytest.mark.parametrize("samples", [1, 5_000, 6 * 10**7])
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 20.0])
def test_a_distance_costs_one_plus_e_to_the_epsilon(epsilon: float, samples: int) -> None:
    zero, costs = (discretization_delta(e, Released.of(samples, SIGMA)) for e in (0.0, epsilon))
    assert costs / zero == pytest.approx((1 + exp(epsilon)) / 2)


def test_discretization_never_overflows() -> None:
    assert isfinite(discretization_delta(1e6, Released.of(10**9, SIGMA)))
    assert discretization_delta(1e6, Released.of(1, SIGMA)) > 1
    assert discretization_delta(3.0, Released.of(0, SIGMA)) == 0


@pytest.mark.parametrize(("variance", "reach"), [(768**2, 14 * 769), (2**24 - 9, 14 * 4096)])
def test_table_error_covers_what_is_cut_off(variance: int, reach: int) -> None:
    weights = discrete_gaussian_weights(variance, reach + 200)
    assert 2 * sum(weights[reach + 1 :]) <= TABLE_ERROR / 4 * sum(weights)


def test_no_probability_of_rounded_noise_is_farther_from_discrete_noise_than_the_ratio_says() -> (
    None
):
    check_ratio_bound(lambda samples, sigma: discretization_ratio(Released.of(samples, sigma)))


def test_the_ratio_covers_as_far_as_our_noise_reaches() -> None:
    assert LARGEST_NOISE < 14.02 * SIGMA_UNITS


@pytest.mark.parametrize(
    ("epsilon", "delta", "samples", "better"),
    [(3, 1e-6, 5000, "ratio"), (18, 3.3e-7, 5000, "ratio"), (0.5, 1e-3, 10**9, "distance")],
)
def test_either_bound_may_be_the_better_one(
    epsilon: float, delta: float, samples: int, better: str
) -> None:
    """For a large ε, or few samples at a small δ, the ratio; for very many samples the distance."""
    pairs = continuous_targets(epsilon, delta, Released.of(samples, SIGMA))
    largest = max(pairs, key=lambda pair: gaussian_mu(*pair))
    assert (largest[0] == epsilon) == (better == "distance")


def test_what_the_tables_alone_exceed_has_no_continuous_target() -> None:
    assert continuous_targets(3.0, 1e-32, Released.of(5000, SIGMA)) == []
    assert continuous_targets(70.0, 1e-6, Released.of(5000, SIGMA)) == []
