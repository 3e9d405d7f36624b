"""From (ε, δ) to noise and back: the promise holds for every silo, by other people's arithmetic."""

from math import inf, nan, sqrt

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, example, given
from hypothesis import strategies as st
from silomix_core.accounting.budget import Budget
from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import ADJACENCY, PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.discrete_gaussian import SIGMA_UNITS
from silomix_core.mechanism.mechanism import Mechanism, Participant, Phase
from support.mechanisms import STUDY, powers
from support.privacy_checks import check_meets_target, full_batch, participant


def wholes(high: float) -> st.SearchStrategy[int]:
    return powers(0, high).map(round)


TARGETS = st.builds(PrivacyTarget, powers(-2, 1.3), powers(-10, -1.5))


def reference(records: int = 1734) -> Mechanism:
    return full_batch(STUDY, clip=1.0, rounds=100, dimension=50, records=records)


def epsilon(mechanism: Mechanism, records: int) -> float:
    return mechanism.epsilon(Participant(records, STUDY))


def calibrated(
    target: PrivacyTarget, rounds: int, dimension: int, records: int, clip: float = 1.0
) -> Mechanism:
    try:
        return full_batch(target, clip=clip, rounds=rounds, dimension=dimension, records=records)
    except CalibrationImpossible:
        assume(False)
        raise


def within(mechanism: Mechanism, records: int, rounds: int, target: PrivacyTarget) -> bool:
    budget = Budget(target)
    return budget.holds(budget.loss(mechanism.event(participant(records)), rounds))


def test_golden_noise_of_the_reference_study() -> None:
    """σ = (2C/n)·√R·s(3, 3.33e-7); s from dp_accounting 0.6.0 get_sigma_gaussian = 1.61294"""
    assert reference().sigma() == pytest.approx(0.0186, abs=5e-5)


def test_noise_is_two_clip_over_n_times_root_rounds_times_the_analytic_factor() -> None:
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    expected = 2 / 1734 * sqrt(100) * get_sigma_gaussian(3, 3.33e-7)
    # rounding √50 units to the grid and the integers' share of δ cost less than 0.1 %
    assert expected < reference().sigma() < 1.001 * expected


def test_the_smallest_silo_is_at_epsilon_and_larger_ones_below() -> None:
    mechanism = reference()
    assert 3 - 1e-6 < epsilon(mechanism, 1734) <= 3
    losses = [epsilon(mechanism, n) for n in (1734, 1735, 2000, 10_000, 10**6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[1] < losses[0]
    assert epsilon(mechanism, 1733) > 3


@given(TARGETS, wholes(4), wholes(5), wholes(6))
@example(PrivacyTarget(0.013828298098208512, 9.863289758410612e-08), 894, 15377, 751985)
@example(PrivacyTarget(0.012210984032582623, 1.6266051970338372e-09), 138, 54826, 979962)
def test_a_calibrated_study_fits_its_target_but_not_one_round_more(
    target: PrivacyTarget, rounds: int, dimension: int, records: int
) -> None:
    mechanism = calibrated(target, rounds, dimension, records)
    assert within(mechanism, records, rounds, target)
    assert not within(mechanism, records, rounds + 1, target)


@given(TARGETS, wholes(4), wholes(5), wholes(6))
@example(PrivacyTarget(7.80213512647316, 9.063136187205817e-09), 217, 27, 476863)
@example(PrivacyTarget(3.4524232686750573, 5.582127395473345e-10), 498, 660, 7964)
def test_the_epsilon_that_is_shown_is_the_one_that_was_agreed(
    target: PrivacyTarget, rounds: int, dimension: int, records: int
) -> None:
    mechanism = calibrated(target, rounds, dimension, records)
    shown = mechanism.epsilon(Participant(records, target))
    assert shown <= target.epsilon * (1 + 1e-6)
    # as long as the integers take a small part of δ, nothing is given away
    if dimension * rounds < 1e6 and target.delta > 1e-6 and target.epsilon < 3:
        assert shown >= target.epsilon * (1 - 1e-5)


@given(TARGETS, wholes(4), wholes(5), wholes(6))
def test_a_calibrated_study_keeps_its_promise_in_exact_arithmetic(
    target: PrivacyTarget, rounds: int, dimension: int, records: int
) -> None:
    check_meets_target(calibrated(target, rounds, dimension, records), target, records)


def test_pld_accountants_bracket_the_epsilon_of_the_events() -> None:
    """The same composition in google/differential-privacy: optimistic ≤ ours ≤ pessimistic + ε'."""
    mechanism = reference()
    event = mechanism.event(participant(1734))
    ours = epsilon(mechanism, 1734)
    bounds = [
        from_gaussian_mechanism(
            standard_deviation=1 / event.mu,
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
    event = GaussianDpEvent(reference().sigma() * 1734)
    accountant.compose(SelfComposedDpEvent(event, 100))
    assert accountant.get_epsilon(STUDY.delta) == pytest.approx(3, rel=2e-3)


def test_renyi_accountant_bounds_the_epsilon_of_the_events_from_above() -> None:
    """Under replace-one its noise multiplier is σ/Δ with Δ = 2C/n."""
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    event = GaussianDpEvent(1 / reference().event(participant(1734)).mu)
    accountant.compose(SelfComposedDpEvent(event, 100))
    assert 3 <= accountant.get_epsilon(STUDY.delta) < 3.4


@given(TARGETS, wholes(3), wholes(3), wholes(5), powers(-3, 3))
def test_noise_scales_with_the_clip(
    target: PrivacyTarget, rounds: int, dimension: int, records: int, clip: float
) -> None:
    one = calibrated(target, rounds, dimension, records)
    scaled = calibrated(target, rounds, dimension, records, clip=clip)
    assert scaled.sigma() == pytest.approx(clip * one.sigma(), rel=1e-9)
    silo = participant(records)
    assert scaled.event(silo).mu == pytest.approx(one.event(silo).mu)


@given(TARGETS, wholes(3), wholes(3), wholes(6))
def test_a_report_has_room_for_signal_and_noise(
    target: PrivacyTarget, rounds: int, dimension: int, records: int
) -> None:
    mechanism = calibrated(target, rounds, dimension, records)
    assert mechanism.largest_signal * mechanism.grids[0] >= mechanism.clip
    assert mechanism.largest_signal <= 2**43 + 2
    assert mechanism.largest_value == mechanism.largest_signal + mechanism.largest_noise
    assert mechanism.largest_value < 2 ** (8 * mechanism.width - 1)


def test_narrow_integers_are_used_when_they_suffice() -> None:
    assert reference().width == 4
    assert full_batch(STUDY, clip=1, rounds=1, dimension=1, records=10**6).width == 8


def test_an_event_is_the_sensitivity_in_units_of_the_noise() -> None:
    mechanism = reference()
    event = mechanism.event(participant(2000))
    assert (event.scheme, event.ratio, event.samples) == (Scheme.FULL, 1.0, 50)
    assert event.mu == pytest.approx(
        (2 / 2000 / mechanism.grids[0] + sqrt(50)) / SIGMA_UNITS, rel=1e-4
    )


def test_neighbours_are_data_sets_with_one_record_replaced() -> None:
    assert ADJACENCY == "replace-one-record"


@pytest.mark.parametrize(
    ("target", "choices", "reason"),
    [
        (PrivacyTarget(3, 1e-32), {}, r"integer noise on 5000 values .*: use a larger delta$"),
        (PrivacyTarget(3, 1e-29), {}, r"use an epsilon of at most 2\.2, or a larger delta"),
        (PrivacyTarget(60, 1e-6), {}, r"use an epsilon of at most 55\.2, or a larger delta"),
        (
            PrivacyTarget(0.001, 1e-6),
            {"dimension": 2**21, "rounds": 10**5},
            "leaves no room for 2097152 coordinates; use a larger epsilon or fewer rounds",
        ),
        (
            PrivacyTarget(0.001, 1e-12),
            {"dimension": 2**21, "rounds": 10**7},
            "use a larger epsilon or delta, or fewer rounds",
        ),
        (
            PrivacyTarget(10, 1e-3),
            {"records": 10**8, "rounds": 1},
            "so little noise for so large an epsilon .* 43 bits; use a smaller epsilon",
        ),
    ],
)
def test_what_the_integers_cannot_carry_is_refused(
    target: PrivacyTarget, choices: dict[str, int], reason: str
) -> None:
    options = {"rounds": 100, "dimension": 50, "records": 1734} | choices
    with pytest.raises(CalibrationImpossible, match=reason):
        full_batch(target, clip=1.0, **options)


def test_the_epsilon_that_a_refusal_advises_can_be_had() -> None:
    options = {"rounds": 100, "dimension": 50, "records": 1734}
    for delta, advised in ((1e-29, 2.2), (1e-6, 55.2)):
        assert full_batch(PrivacyTarget(advised, delta), clip=1.0, **options).sigma() > 0
        with pytest.raises(CalibrationImpossible, match=f"at most {advised}"):
            full_batch(PrivacyTarget(advised + 0.2, delta), clip=1.0, **options)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("clip", "clip, dimension"),
        ("rounds", "at least one round"),
        ("dimension", "clip, dimension"),
        ("records", "at least one record"),
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_mechanism_of_nothing_is_refused(key: str, reason: str, value: int) -> None:
    options = {"clip": 1, "rounds": 100, "dimension": 50, "records": 1734} | {key: value}
    with pytest.raises(ValueError, match=reason):
        full_batch(STUDY, **options)


def test_a_mechanism_for_nobody_or_for_no_round_is_refused() -> None:
    with pytest.raises(ValueError, match="participants"):
        Mechanism.calibrate([], clip=1.0, dimension=1, phases=[Phase(1)])
    with pytest.raises(ValueError, match="phases"):
        Mechanism.calibrate([participant(5)], clip=1.0, dimension=1, phases=[])


@pytest.mark.parametrize("clip", [nan, inf])
def test_a_clip_that_is_no_number_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="clip"):
        full_batch(STUDY, clip=clip, rounds=1, dimension=1, records=10)


@pytest.mark.parametrize("epsilon", [0, -1, 100.1, inf, nan])
def test_an_epsilon_outside_the_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        PrivacyTarget(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0, -1e-9, 0.1, 1, nan])
def test_a_delta_outside_the_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        PrivacyTarget(1, delta)


@pytest.mark.parametrize("value", [-1.0, nan, inf])
def test_an_event_without_a_finite_sensitivity_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="sensitivity"):
        PrivacyEvent(Scheme.FULL, 1.0, value, 1.0, 1)


@pytest.mark.parametrize("value", [0.0, -1.0, nan, inf])
def test_an_event_without_finite_noise_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="noise"):
        PrivacyEvent(Scheme.FULL, 1.0, 1.0, value, 1)


def test_an_event_whose_loss_overflows_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        PrivacyEvent(Scheme.FULL, 1.0, 1e300, 1e-300, 1)


@pytest.mark.parametrize(("scheme", "ratio"), [(Scheme.FULL, 0.5), (Scheme.POISSON, 0.0)])
def test_an_event_with_another_ratio_than_its_scheme_has_is_refused(
    scheme: Scheme, ratio: float
) -> None:
    with pytest.raises(ValueError, match="ratio"):
        PrivacyEvent(scheme, ratio, 1.0, 1.0, 1)
