"""A record spends in its phase alone, and the heaviest silo decides the noise."""

from math import inf, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from support.exact import exact_epsilon
from support.mechanisms import STUDY, powers
from support.privacy_checks import check_fits, check_promises, full_batch

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
