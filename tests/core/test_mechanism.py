"""From (ε, δ) to noise and back: the promise holds for every silo, by other people's arithmetic."""

from math import inf, nan, sqrt

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, example, given
from hypothesis import strategies as st
from silomix_core.mechanism import (
    ADJACENCY,
    CalibrationImpossible,
    Mechanism,
    PrivacyTarget,
    epsilon_of,
    within,
)
from silomix_core.noise import LARGEST_NOISE, SIGMA_UNITS
from support.privacy_checks import check_meets_target

STUDY = PrivacyTarget(3, 3.33e-7)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


def wholes(high: float) -> st.SearchStrategy[int]:
    return powers(0, high).map(round)


TARGETS = st.builds(PrivacyTarget, powers(-2, 1.3), powers(-10, -1.5))


def reference(records: int = 1734) -> Mechanism:
    return Mechanism.calibrate(STUDY, clip=1.0, rounds=100, dimension=50, records=records)


def calibrated(
    target: PrivacyTarget, rounds: int, dimension: int, records: int, clip: float = 1.0
) -> Mechanism:
    try:
        return Mechanism.calibrate(
            target, clip=clip, rounds=rounds, dimension=dimension, records=records
        )
    except CalibrationImpossible:
        assume(False)
        raise


def spent(mechanism: Mechanism, records: int, rounds: int) -> tuple[float, int]:
    event = mechanism.event(records)
    return rounds * event.mu_squared, rounds * event.samples


def test_golden_noise_of_the_reference_study() -> None:
    """σ = (2C/n)·√R·s(3, 3.33e-7); s from dp_accounting 0.6.0 get_sigma_gaussian = 1.61294"""
    assert reference().sigma == pytest.approx(0.0186, abs=5e-5)


def test_noise_is_two_clip_over_n_times_root_rounds_times_the_analytic_factor() -> None:
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    expected = 2 / 1734 * sqrt(100) * get_sigma_gaussian(3, 3.33e-7)
    # rounding √50 units to the grid and the integers' share of δ cost less than 0.1 %
    assert expected < reference().sigma < 1.001 * expected


def test_the_smallest_silo_is_at_epsilon_and_larger_ones_below() -> None:
    mechanism = reference()
    assert 3 - 1e-6 < mechanism.epsilon(1734, STUDY.delta) <= 3
    losses = [mechanism.epsilon(n, STUDY.delta) for n in (1734, 1735, 2000, 10_000, 10**6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[1] < losses[0]
    assert mechanism.epsilon(1733, STUDY.delta) > 3


@given(TARGETS, wholes(4), wholes(5), wholes(6))
@example(PrivacyTarget(0.013828298098208512, 9.863289758410612e-08), 894, 15377, 751985)
@example(PrivacyTarget(0.012210984032582623, 1.6266051970338372e-09), 138, 54826, 979962)
def test_a_calibrated_study_fits_its_target_but_not_one_round_more(
    target: PrivacyTarget, rounds: int, dimension: int, records: int
) -> None:
    mechanism = calibrated(target, rounds, dimension, records)
    assert within(*spent(mechanism, records, rounds), target)
    assert not within(*spent(mechanism, records, rounds + 1), target)


@given(TARGETS, wholes(4), wholes(5), wholes(6))
@example(PrivacyTarget(7.80213512647316, 9.063136187205817e-09), 217, 27, 476863)
@example(PrivacyTarget(3.4524232686750573, 5.582127395473345e-10), 498, 660, 7964)
def test_the_epsilon_that_is_shown_is_the_one_that_was_agreed(
    target: PrivacyTarget, rounds: int, dimension: int, records: int
) -> None:
    mechanism = calibrated(target, rounds, dimension, records)
    shown = mechanism.epsilon(records, target.delta)
    assert shown <= target.epsilon * (1 + 1e-6)
    # as long as the integers take a small part of δ, nothing is given away
    if dimension * rounds < 1e6 and target.delta > 1e-6 and target.epsilon < 3:
        assert shown >= target.epsilon * (1 - 1e-5)


@given(TARGETS, wholes(4), wholes(5), wholes(6))
def test_a_calibrated_study_keeps_its_promise_in_exact_arithmetic(
    target: PrivacyTarget, rounds: int, dimension: int, records: int
) -> None:
    check_meets_target(calibrated(target, rounds, dimension, records), target, records)


@given(powers(-4, 1), wholes(6), powers(-9, -1.5))
def test_within_holds_at_the_epsilon_that_is_shown(
    mu_squared: float, samples: int, delta: float
) -> None:
    epsilon = epsilon_of(mu_squared, samples, delta)
    assume(0 < epsilon <= 99)
    assert within(mu_squared, samples, PrivacyTarget(epsilon * (1 + 1e-9), delta))
    assert not within(mu_squared, samples, PrivacyTarget(epsilon * (1 - 1e-6), delta))


@given(powers(-6, 1), powers(-6, 1), wholes(6), wholes(6), powers(-7, -2))
def test_spending_never_lowers_epsilon(
    first: float, second: float, samples: int, more: int, delta: float
) -> None:
    before = epsilon_of(first, samples, delta)
    assert epsilon_of(first + second, samples + more, delta) >= before


def test_nothing_answered_costs_nothing() -> None:
    assert epsilon_of(0.0, 0, 1e-6) == 0
    assert within(0.0, 0, STUDY)


def test_without_noise_epsilon_is_infinite() -> None:
    assert epsilon_of(inf, 1, 1e-6) == inf
    assert not within(inf, 1, STUDY)


def test_a_loss_that_is_no_number_is_never_within_a_target() -> None:
    with pytest.raises(ValueError, match="mu"):
        within(nan, 1, STUDY)


def test_a_delta_smaller_than_the_integers_cost_has_no_epsilon() -> None:
    assert epsilon_of(0.01, 10**9, 1e-12) == inf


def test_pld_accountants_bracket_the_epsilon_of_the_events() -> None:
    """The same composition in google/differential-privacy: optimistic ≤ ours ≤ pessimistic + ε'."""
    mechanism = reference()
    event = mechanism.event(1734)
    ours = mechanism.epsilon(1734, STUDY.delta)
    bounds = [
        from_gaussian_mechanism(
            standard_deviation=1 / sqrt(event.mu_squared),
            value_discretization_interval=1e-3,
            pessimistic_estimate=pessimistic,
        )
        .self_compose(100)
        .get_epsilon_for_delta(STUDY.delta)
        for pessimistic in (False, True)
    ]
    assert bounds[0] <= ours <= bounds[1] + 1e-3
    assert bounds[1] - bounds[0] < 0.1


def test_replace_one_pld_accountant_agrees_from_noise_and_clip_alone() -> None:
    """Under replace-one its noise multiplier is σ/(C/n), not σ/(2C/n)."""
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    event = GaussianDpEvent(reference().sigma * 1734)
    accountant.compose(SelfComposedDpEvent(event, 100))
    assert accountant.get_epsilon(STUDY.delta) == pytest.approx(3, rel=2e-3)


def test_renyi_accountant_bounds_the_epsilon_of_the_events_from_above() -> None:
    """Under replace-one its noise multiplier is σ/Δ with Δ = 2C/n."""
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    event = GaussianDpEvent(1 / sqrt(reference().event(1734).mu_squared))
    accountant.compose(SelfComposedDpEvent(event, 100))
    assert 3 <= accountant.get_epsilon(STUDY.delta) < 3.4


@given(TARGETS, wholes(3), wholes(3), wholes(5), powers(-3, 3))
def test_noise_scales_with_the_clip(
    target: PrivacyTarget, rounds: int, dimension: int, records: int, clip: float
) -> None:
    one = calibrated(target, rounds, dimension, records)
    scaled = calibrated(target, rounds, dimension, records, clip=clip)
    assert scaled.sigma == pytest.approx(clip * one.sigma, rel=1e-9)
    assert scaled.event(records).mu_squared == pytest.approx(one.event(records).mu_squared)


@given(TARGETS, wholes(3), wholes(3), wholes(6))
def test_a_report_has_room_for_signal_and_noise(
    target: PrivacyTarget, rounds: int, dimension: int, records: int
) -> None:
    mechanism = calibrated(target, rounds, dimension, records)
    assert mechanism.largest_signal * mechanism.grid >= mechanism.clip
    assert mechanism.largest_signal <= 2**43 + 2
    assert mechanism.largest_value == mechanism.largest_signal + LARGEST_NOISE
    assert mechanism.largest_value < 2 ** (8 * mechanism.width - 1)


def test_narrow_integers_are_used_when_they_suffice() -> None:
    assert reference().width == 4
    assert Mechanism.calibrate(STUDY, clip=1, rounds=1, dimension=1, records=10**6).width == 8


def test_an_event_is_the_squared_sensitivity_in_units_of_the_noise() -> None:
    mechanism = reference()
    event = mechanism.event(2000)
    assert event.samples == 50
    assert event.mu_squared == pytest.approx(
        ((2 / 2000 / mechanism.grid + sqrt(50)) / SIGMA_UNITS) ** 2, rel=1e-4
    )


def test_neighbours_are_data_sets_with_one_record_replaced() -> None:
    assert ADJACENCY == "replace-one-record"


@pytest.mark.parametrize(
    ("target", "choices", "reason"),
    [
        (PrivacyTarget(3, 1e-13), {}, "below the cost of integer noise"),
        (PrivacyTarget(60, 1e-6), {}, "below the cost of integer noise"),
        (PrivacyTarget(0.001, 1e-6), {"dimension": 2**21}, "leaves no room"),
        (PrivacyTarget(10, 1e-3), {"records": 10**8, "rounds": 1}, "more than 43 bits"),
    ],
)
def test_what_the_integers_cannot_carry_is_refused(
    target: PrivacyTarget, choices: dict[str, int], reason: str
) -> None:
    options = {"rounds": 100, "dimension": 50, "records": 1734} | choices
    with pytest.raises(CalibrationImpossible, match=reason):
        Mechanism.calibrate(target, clip=1.0, **options)


@pytest.mark.parametrize("key", ["clip", "rounds", "dimension", "records"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_mechanism_of_nothing_is_refused(key: str, value: int) -> None:
    options = {"clip": 1, "rounds": 100, "dimension": 50, "records": 1734} | {key: value}
    with pytest.raises(ValueError, match="positive"):
        Mechanism.calibrate(STUDY, **options)


@pytest.mark.parametrize("epsilon", [0, -1, 100.1, inf, nan])
def test_an_epsilon_outside_the_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        PrivacyTarget(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0, -1e-9, 0.1, 1, nan])
def test_a_delta_outside_the_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        PrivacyTarget(1, delta)
