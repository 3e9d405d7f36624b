"""The papers' σ: the printed numbers, the proofs' conditions, and what happens beyond them."""

from math import log, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.accounting import gaussian_delta
from silomix_core.accounting.bounds import OutsideValidity
from silomix_core.accounting.bounds.noise_formulas import (
    multi_pass_sigma,
    one_pass_sigma,
    smallest_batch,
)

DELTAS = st.floats(-12, -1.5).map(lambda exponent: 10.0**exponent)
COUNTS = st.integers(1, 10**5)


def test_the_sigma_of_the_mnist_experiment() -> None:
    # 25 silos of 1734 records, δ = 1/n² (Gao, Lowy, Zhou, Wright 2024, Section 4)
    sigma = multi_pass_sigma(
        lipschitz=1.0, records=1734, batch=1734, rounds=100, epsilon=3.0, delta=3.33e-7
    )
    assert sigma == pytest.approx(0.549, abs=5e-4)


def test_the_formula_is_the_one_that_the_proof_assembles() -> None:
    # Gaussian mechanism of sensitivity 2L/K at (ε₁, δ̃); sampling: 2Kε₁/n = ε̃; R-fold composition
    n, k, rounds, epsilon, delta = 1000, 400, 30, 1.5, 1e-5
    each = epsilon / (2 * sqrt(2 * rounds * log(2 / delta)))
    before = each * n / (2 * k)
    expected = (2 * 7.0 / k) * sqrt(2 * log(1.25 / (delta / (2 * rounds)))) / before
    assert multi_pass_sigma(
        lipschitz=7.0, records=n, batch=k, rounds=rounds, epsilon=epsilon, delta=delta
    ) == pytest.approx(expected)


@given(COUNTS, COUNTS, st.floats(1e-3, 25), DELTAS)
def test_multi_pass_noise_is_enough_for_full_batches(
    records: int, rounds: int, epsilon: float, delta: float
) -> None:
    try:
        sigma = multi_pass_sigma(
            lipschitz=1.0,
            records=records,
            batch=records,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
        )
    except OutsideValidity:
        return
    assert gaussian_delta(epsilon, sqrt(rounds) * 2 / (records * sigma)) <= delta


@given(COUNTS, st.floats(1e-3, 1), DELTAS)
def test_one_pass_noise_is_enough_up_to_epsilon_one(
    batch: int, epsilon: float, delta: float
) -> None:
    sigma = one_pass_sigma(lipschitz=2.0, batch=batch, epsilon=epsilon, delta=delta)
    assert gaussian_delta(epsilon, 2 * 2.0 / (batch * sigma)) <= delta


@pytest.mark.parametrize(("epsilon", "factor"), [(12.0, 4.0), (18.0, 60.0)])
def test_the_one_pass_formula_is_refused_where_it_breaks_its_delta(
    epsilon: float, factor: float
) -> None:
    delta = 3.33e-7
    with pytest.raises(OutsideValidity, match=rf"epsilon <= 1, got epsilon={epsilon}"):
        one_pass_sigma(lipschitz=1.0, batch=1, epsilon=epsilon, delta=delta)
    sigma = sqrt(8 * log(1.25 / delta)) / epsilon  # what it would say
    assert gaussian_delta(epsilon, 2 / sigma) > factor * delta


def test_epsilon_above_the_smaller_of_the_two_printed_ranges_is_refused() -> None:
    delta = 1e-6
    limit = log(2 / delta)
    assert smallest_batch(records=1000, rounds=1000, epsilon=limit, delta=delta) <= 1000
    with pytest.raises(OutsideValidity, match=r"epsilon <= ln\(2/delta\)"):
        smallest_batch(records=1000, rounds=1000, epsilon=limit * 1.01, delta=delta)


def test_a_batch_below_the_condition_is_refused() -> None:
    smallest = smallest_batch(records=1000, rounds=10, epsilon=3.0, delta=1e-6)
    assert smallest == 45  # 3000/(4·√(20·14.5087)) = 44.03
    with pytest.raises(OutsideValidity, match="45 <= batch"):
        multi_pass_sigma(lipschitz=1.0, records=1000, batch=44, rounds=10, epsilon=3.0, delta=1e-6)
    with pytest.raises(OutsideValidity, match="batch <= records"):
        multi_pass_sigma(
            lipschitz=1.0, records=1000, batch=1001, rounds=10, epsilon=3.0, delta=1e-6
        )


def test_too_few_rounds_for_any_batch_are_refused() -> None:
    with pytest.raises(OutsideValidity, match="use more rounds"):
        smallest_batch(records=100, rounds=1, epsilon=60.0, delta=1e-30)


@pytest.mark.parametrize("value", [0.0, -1.0, nan, float("inf")])
def test_nonsense_is_refused(value: float) -> None:
    with pytest.raises(OutsideValidity):
        one_pass_sigma(lipschitz=value, batch=1, epsilon=0.5, delta=1e-6)
    with pytest.raises(OutsideValidity):
        one_pass_sigma(lipschitz=1.0, batch=1, epsilon=value, delta=1e-6)
    with pytest.raises(OutsideValidity):
        one_pass_sigma(lipschitz=1.0, batch=1, epsilon=0.5, delta=value)
