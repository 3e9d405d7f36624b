"""From (ε, δ) to noise and back: the promise holds for every silo, by other people's arithmetic."""

from functools import cache
from math import inf, nan, sqrt

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats
from silomix_core.accounting.budget import Budget
from silomix_core.accounting.composition import CalibrationImpossible, epsilon_of
from silomix_core.accounting.events import ADJACENCY, PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.discrete_gaussian import SIGMA_UNITS, one_stream
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.mechanism.report_format import decode_report, encode_report
from silomix_core.model.clipped_sum import Records, to_grid
from silomix_core.model.models import Linear
from silomix_core.reports.reporter import Reporter, RoundQuery
from silomix_core.task.losses import LossName, loss
from support.exact import exact_epsilon
from support.privacy_checks import (
    Neighbours,
    check_fits,
    check_meets_target,
    check_promises,
    clipped_sum,
    difference,
    full_batch,
    hostile_pairs,
    neighbours_encoded,
    participant,
    seeded_bytes,
)

STUDY = PrivacyTarget(3, 3.33e-7)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


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


# Phases: a record is used in one of them


def in_phases(*phases: Phase, silo: Participant = Participant(1000, STUDY)) -> Mechanism:  # noqa: B008
    return Mechanism.calibrate([silo], clip=1.0, dimension=5, phases=phases)


@pytest.mark.parametrize("rounds", [1, 4, 20])
def test_every_phase_of_one_pass_gets_the_whole_promise(rounds: int) -> None:
    """Parallel composition: disjoint records share nothing, so nothing is divided by R."""
    silo = Participant(1000, STUDY)
    made = in_phases(*[Phase(1, 1 / rounds)] * rounds)
    check_promises(made, [silo])
    for transcript in made.transcripts(silo):
        assert 3 - 1e-6 < epsilon_of(transcript, STUDY.delta) <= 3
    alone = full_batch(STUDY, clip=1.0, rounds=1, dimension=5, records=1000 // rounds)
    assert made.grids == pytest.approx(alone.grids * rounds, rel=1e-12)


def test_a_record_spends_only_in_its_phase() -> None:
    """A mechanism whose phases differ costs what its worst phase costs."""
    silo = Participant(1000, STUDY)
    made = in_phases(Phase(9, 0.5), Phase(4, 0.25), Phase(1, 0.25))
    losses = [epsilon_of(transcript, STUDY.delta) for transcript in made.transcripts(silo)]
    assert all(3 - 1e-6 < each <= 3 for each in losses)  # each has its own grid
    coarse = Mechanism(1.0, 5, made.minibatch, made.phases, (max(made.grids),) * 3)
    losses = [epsilon_of(transcript, STUDY.delta) for transcript in coarse.transcripts(silo)]
    assert coarse.epsilon(silo) == max(losses)
    assert len(set(losses)) == 3
    assert sum(losses) > 1.3 * max(losses)


def test_a_phase_costs_what_its_rounds_and_records_cost_alone() -> None:
    made = in_phases(Phase(9, 0.5), Phase(4, 0.25))
    for index, (rounds, records) in enumerate([(9, 500), (4, 250)]):
        alone = full_batch(STUDY, clip=1.0, rounds=rounds, dimension=5, records=records)
        assert made.sigma(index) == pytest.approx(alone.sigma(), rel=1e-8)
        assert made.sigma(index) >= alone.sigma()  # by what the integers of the longest phase take


def test_rounds_belong_to_their_phases_in_order() -> None:
    made = in_phases(Phase(2, 0.5), Phase(1, 0.25), Phase(3, 0.25))
    assert [made.phase_of(number) for number in range(1, 7)] == [0, 0, 1, 2, 2, 2]
    assert made.rounds == 6
    for beyond in (0, -1, 7):
        with pytest.raises(ValueError, match="beyond"):
            made.phase_of(beyond)


def test_skipped_rounds_are_not_charged() -> None:
    silo = Participant(1000, STUDY)
    event = in_phases(Phase(10)).event(silo)
    answered = [epsilon_of([(event, count)], STUDY.delta) for count in range(11)]
    assert answered[0] == 0
    assert answered == sorted(answered)
    assert len(set(answered)) == 11
    mu = sqrt(7) * event.mu
    assert answered[7] == pytest.approx(exact_epsilon(STUDY.delta, mu), rel=1e-4)


@pytest.mark.parametrize(
    ("phases", "reason"),
    [
        ([Phase(1, 0.6), Phase(1, 0.5)], "sum to more than 1"),
        ([Phase(1, 0.9), Phase(1, 0.0009)], "none left"),
    ],
)
def test_phases_that_cannot_be_disjoint_or_are_empty_are_refused(
    phases: list[Phase], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        in_phases(*phases)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.1, nan, inf])
def test_a_share_outside_the_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        Phase(1, share)


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.1, nan, inf])
@pytest.mark.parametrize("scheme", list(Scheme))
def test_a_ratio_outside_the_range_is_refused(scheme: Scheme, ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio"):
        Minibatch(scheme, ratio)


# Weights and promises of single silos


def weighted(*weights: float, records: int = 1000) -> tuple[Mechanism, list[Participant]]:
    silos = [Participant(records, STUDY, weight) for weight in weights]
    return Mechanism.calibrate(silos, clip=1.0, dimension=5, phases=[Phase(10)]), silos


@given(st.lists(powers(-3, 3), min_size=1, max_size=4))
def test_the_sensitivity_follows_the_weight(weights: list[float]) -> None:
    made, silos = weighted(*weights)
    rounding = sqrt(5)
    for silo in silos:
        moved = 2 * silo.weight / 1000 / made.grids[0]
        assert made.sensitivity_units(silo) == pytest.approx(moved + rounding, rel=1e-2, abs=0.02)
        assert made.sensitivity_units(silo) >= moved + rounding
        assert made.units_per_sum(silo) == pytest.approx(silo.weight / 1000 / made.grids[0])


def test_the_heaviest_silo_decides_and_needs_noise_in_proportion() -> None:
    plain, _ = weighted(1.0)
    made, (light, heavy) = weighted(0.5, 4.0)
    assert made.sigma() == pytest.approx(4 * plain.sigma(), rel=1e-9)
    assert 3 - 1e-6 < made.epsilon(heavy) <= 3
    assert made.epsilon(light) < 0.5


def test_a_heavy_silo_of_many_records_is_like_a_light_one_of_few() -> None:
    made, (one,) = weighted(3.0, records=3000)
    plain, (other,) = weighted(1.0, records=1000)
    assert made.grids == pytest.approx(plain.grids, rel=1e-12)
    assert made.event(one).mu == pytest.approx(plain.event(other).mu)


SILOS = st.lists(
    st.builds(
        Participant,
        st.integers(20, 10**5),
        st.builds(PrivacyTarget, st.floats(0.1, 5), powers(-7, -3)),
        powers(-1, 1),
    ),
    min_size=1,
    max_size=5,
)


@given(SILOS, st.lists(st.integers(1, 300), min_size=1, max_size=3), st.integers(1, 100))
def test_every_silo_keeps_its_own_promise_and_the_tightest_meets_it(
    silos: list[Participant], rounds: list[int], dimension: int
) -> None:
    phases = [Phase(count, 1 / len(rounds)) for count in rounds]
    made = Mechanism.calibrate(silos, clip=1.0, dimension=dimension, phases=phases)
    check_promises(made, silos)
    check_fits(made, silos)
    # the integers take a small part of these δ, so hardly anything is given away
    shown = [made.epsilon(silo) / silo.target.epsilon for silo in silos]
    assert max(shown) <= 1 + 1e-6
    assert max(shown) >= 1 - 1e-5
    for phase in range(len(phases)):
        alone = [
            Mechanism.calibrate(
                [silo], clip=1.0, dimension=dimension, phases=[phases[phase]]
            ).grids[0]
            for silo in silos
        ]
        assert max(alone) <= made.grids[phase] <= max(alone) * (1 + 1e-5)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e7, nan, inf])
def test_a_weight_outside_the_range_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Participant(10, STUDY, weight)


# Batches


HALF = PrivacyTarget(1, 1e-5)


@cache
def drawing(scheme: Scheme, ratio: float, rounds: int, records: int = 400) -> Mechanism:
    return Mechanism.calibrate(
        [Participant(records, HALF)],
        clip=1.0,
        dimension=4,
        phases=[Phase(rounds)],
        minibatch=Minibatch(scheme, ratio),
    )


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("ratio", [0.5, 0.9])
@pytest.mark.parametrize("scheme", [Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT])
def test_a_study_of_drawn_batches_keeps_its_promise(
    scheme: Scheme, ratio: float, rounds: int
) -> None:
    silo = Participant(400, HALF)
    made = drawing(scheme, ratio, rounds)
    check_promises(made, [silo])
    check_fits(made, [silo])
    assert made.epsilon(silo) <= 1


def test_a_poisson_study_gives_nothing_away() -> None:
    silo = Participant(400, HALF)
    assert drawing(Scheme.POISSON, 0.5, 2).epsilon(silo) > 1 - 2e-3
    assert drawing(Scheme.POISSON, 0.5, 100).epsilon(silo) > 1 - 2e-3


@pytest.mark.parametrize("rounds", [2, 100])
def test_half_batches_need_the_noise_of_full_ones(rounds: int) -> None:
    """Drawing saves computing, not noise: 0.98 to 1.04 times the full batch's at K = n/2."""
    full = drawing(Scheme.FULL, 1.0, rounds).sigma()
    assert 0.97 <= drawing(Scheme.POISSON, 0.5, rounds).sigma() / full <= 1.04


def test_the_event_of_a_batch_names_its_scheme_and_counts_the_drawn() -> None:
    silo = Participant(400, HALF)
    for scheme, ratio in ((Scheme.POISSON, 0.5), (Scheme.WITHOUT_REPLACEMENT, 0.5)):
        made = drawing(scheme, ratio, 2)
        event = made.event(silo)
        assert (event.scheme, event.ratio, event.samples) == (scheme, 0.5, 4)
        rounding = 2 * sqrt(4) if scheme is Scheme.POISSON else sqrt(4)
        assert event.sensitivity == pytest.approx(2 / 200 / made.grids[0] + rounding, rel=1e-3)
        assert event.sensitivity >= 2 / 200 / made.grids[0] + rounding


def test_the_divisor_of_a_batch_is_public() -> None:
    """The expected size for coin tosses, the size itself where that is fixed; never what came."""
    assert Minibatch().size(401) == 401
    assert Minibatch(Scheme.POISSON, 0.5).size(401) == 200.5
    assert Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.5).size(401) == 200
    assert Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.1).size(30) == 3
    assert Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.01).size(99) == 0


@pytest.mark.parametrize("scheme", list(Scheme))
def test_one_record_moves_a_drawn_mean_by_at_most_the_sensitivity(scheme: Scheme) -> None:
    """Any mask: where the record is drawn, and for Poisson against the batch without it."""
    rng = np.random.default_rng(5)
    ratio = 1.0 if scheme is Scheme.FULL else 0.5
    for case in hostile_pairs(150):
        n = len(case.values)
        if int(ratio * n) < 1:
            continue
        made = coarse(case.clip, n, Minibatch(scheme, ratio))
        silo, mask = participant(n), rng.uniform(size=n) < 0.7
        mask[case.replaced] = True
        if scheme is Scheme.FULL:
            mask[:] = True
        without = mask.copy()
        without[case.replaced] = False
        first, second = means(case, made, silo, mask)
        limit = made.sensitivity_units(silo)
        assert norm(difference(first, second)) <= limit
        if scheme is Scheme.POISSON:
            empty, same = means(case, made, silo, without)
            assert np.array_equal(empty, same)
            assert norm(difference(first, empty)) <= limit / 2
            assert norm(difference(second, empty)) <= limit / 2
            for mean in (first, second, empty):
                assert np.abs(mean).max() <= made.largest_signal


def coarse(clip: float, records: int, batch: Minibatch) -> Mechanism:
    """A grid so coarse that rounding is a good part of the sensitivity."""
    return Mechanism(clip, 4, batch, (Phase(1),), (clip / records / 7,))


def means(
    case: Neighbours, made: Mechanism, silo: Participant, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    one, other = (
        to_grid(clipped_sum(records, case.clip).at(case.point, mask), made.units_per_sum(silo))
        for records in neighbours_encoded(case)
    )
    return one, other


def norm(vector: list[int]) -> float:
    return sqrt(sum(entry * entry for entry in vector))


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


# Finer grids, where rounding many coordinates to 2²⁰ steps would cost noise


MILLION = 10**6


@pytest.mark.parametrize("rounds", [1, 10, 100, 1000])
@pytest.mark.parametrize("target", [PrivacyTarget(0.1, 1e-6), PrivacyTarget(3, 1e-9)])
def test_a_million_coordinates_cost_less_than_one_percent_of_noise(
    target: PrivacyTarget, rounds: int
) -> None:
    """At ε = 0.1 steps of σ/2²⁰ would take 53 % more noise in 100 rounds, and be none in 1000."""
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    made = full_batch(target, clip=1.0, rounds=rounds, dimension=MILLION, records=1000)
    needed = 2 / 1000 * sqrt(rounds) * get_sigma_gaussian(target.epsilon, target.delta)
    assert 0.999 * needed < made.sigma() < 1.01 * needed
    check_meets_target(made, target, 1000)


def test_a_finer_grid_is_taken_only_where_it_saves_noise() -> None:
    target = PrivacyTarget(0.1, 1e-6)
    fineness = {
        dimension: full_batch(
            target, clip=1.0, rounds=100, dimension=dimension, records=1000
        ).fineness
        for dimension in (50, 500, 1000, MILLION // 10, MILLION)
    }
    assert fineness == {50: 1, 500: 1, 1000: 16, MILLION // 10: 16, MILLION: 256}


@pytest.mark.parametrize("scheme", [Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT])
def test_drawn_batches_of_many_coordinates_keep_their_promise(scheme: Scheme) -> None:
    silo = Participant(400, PrivacyTarget(1, 1e-5))
    made = Mechanism.calibrate(
        [silo],
        clip=1.0,
        dimension=100 * MILLION,
        phases=[Phase(1)],
        minibatch=Minibatch(scheme, 0.5),
    )
    assert made.fineness > 1
    check_promises(made, [silo])
    assert made.epsilon(silo) <= 1


@pytest.mark.parametrize(
    ("choices", "grid"),
    [
        ((3, 3.33e-7, 100, 50, 1734), "0x1.30d5f32f8e8e2p-26"),
        ((0.1, 1e-6, 1000, 50, 1000), "0x1.283459bb9e7d0p-19"),
        ((2, 1e-6, 40, 30, 200), "0x1.20ed93d9cd257p-23"),
        ((1, 1e-5, 20, 7850, 500), "0x1.11bc81650c04ep-24"),
    ],
)
def test_a_study_of_few_coordinates_keeps_the_grid_that_it_always_had(
    choices: tuple[float, float, int, int, int], grid: str
) -> None:
    """To the last bit: parties of different releases must agree on it."""
    epsilon, delta, rounds, dimension, records = choices
    made = full_batch(
        PrivacyTarget(epsilon, delta), clip=1.0, rounds=rounds, dimension=dimension, records=records
    )
    assert made.grids[0] == pytest.approx(float.fromhex(grid), rel=1e-12)
    assert made.fineness == 1


def test_a_grid_too_fine_for_a_report_gives_way_to_a_coarser_one() -> None:
    """So many records leave no bits for a finer grid; more noise is better than a refusal."""
    target = PrivacyTarget(0.5, 1e-6)
    made = full_batch(target, clip=1.0, rounds=20, dimension=MILLION, records=10**8)
    assert made.fineness == 1
    assert full_batch(target, clip=1.0, rounds=20, dimension=MILLION, records=10**6).fineness > 1
    check_meets_target(made, target, 10**8)


def test_a_mechanism_has_one_of_the_finenesses_that_there_is_noise_for() -> None:
    with pytest.raises(ValueError, match="fineness"):
        Mechanism(1.0, 5, Minibatch(), (Phase(1),), (1e-6,), fineness=2)


def test_reports_on_a_finer_grid_have_its_noise_and_fit() -> None:
    """What a silo sends: false alarm 10⁻⁶ for the variance of 4000 coordinates."""
    target, dimension = PrivacyTarget(0.01, 1e-6), 4000
    made = full_batch(target, clip=1.0, rounds=100, dimension=dimension, records=10)
    assert made.fineness > 1
    records = Records(np.zeros((10, dimension)), np.ones(10))
    model = Linear(loss(LossName.LOGISTIC))
    silo = Reporter(made, Participant(10, target), records, model, seeded_bytes(1))
    values = silo.values(RoundQuery(1, np.zeros(dimension)), one_stream(seeded_bytes(2)))
    assert np.array_equal(decode_report(encode_report(values, made), made), values)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], dimension)
    assert low < ((values / (made.fineness * 2.0**20)) ** 2).sum() < high
