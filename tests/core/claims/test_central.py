"""Central figures: what is claimed, recomputed by other means, and where nothing is."""

from math import inf, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm
from silomix_core.accounting.bounds.shuffling import one_record_reports
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.claims.central import (
    NO_THEOREM,
    Against,
    Figure,
    TheoremCondition,
    central_figures,
)
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase

ONE_OF_100 = Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.01)


def study(
    *,
    records: int = 1734,
    epsilon: float = 3.0,
    delta: float = 3.33e-7,
    rounds: int = 100,
    dimension: int = 50,
    clip: float = 1.0,
    batch: Minibatch | None = None,
    phases: tuple[Phase, ...] | None = None,
) -> tuple[Mechanism, Participant]:
    participant = Participant(records, PrivacyTarget(epsilon, delta))
    mechanism = Mechanism.calibrate(
        [participant],
        clip=clip,
        dimension=dimension,
        phases=phases or (Phase(rounds),),
        minibatch=batch,
    )
    return mechanism, participant


def figures(
    mechanism: Mechanism, participant: Participant, silos: int, minimum: int
) -> tuple[Figure, Figure, Figure]:
    return central_figures(mechanism, [participant] * silos, minimum_batch=minimum)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang's formula again, with scipy."""

    def excess(epsilon: float) -> float:
        near, far = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return float(norm.cdf(near) - np.exp(epsilon) * norm.cdf(far)) - delta

    return float(brentq(excess, 0.0, 100.0, xtol=1e-12))


def test_what_is_not_a_sum_is_not_claimed_to_hide_reports_in_one() -> None:
    mechanism, participant = study()
    silos = [participant] * 10
    summed = central_figures(mechanism, silos, minimum_batch=8)
    other = central_figures(mechanism, silos, minimum_batch=8, is_mean=False)
    assert other[:2] == summed[:2]
    assert summed[2].epsilon is not None
    assert other[2].epsilon is None
    assert "reports are not summed" in (other[2].reason or "")


# Full batches ------------------------------------------------------------------------------------


def test_shuffling_25_full_batch_reports_amplifies_nothing_and_says_why() -> None:
    local, shuffled, _ = figures(*study(), silos=25, minimum=25)
    assert local.epsilon == pytest.approx(3.0, abs=1e-6)
    assert (local.against, local.delta) == (Against.EVERYBODY, 3.33e-7)
    assert (shuffled.epsilon, shuffled.against) == (None, Against.SERVER)
    assert shuffled.reason is not None
    assert shuffled.reason.startswith("no amplification claimed, because a full-batch report")
    assert shuffled.theorem == NO_THEOREM
    assert not all(condition.holds for condition in shuffled.conditions)


@pytest.mark.parametrize("minimum", [2, 20, 25])
def test_the_figure_of_outsiders_is_a_gaussian_of_mu_over_root_k(minimum: int) -> None:
    mechanism, participant = study()
    _, _, outsiders = figures(mechanism, participant, silos=25, minimum=minimum)
    exact = 2 * 1.0 / 1734 / mechanism.sigma()
    rounded = exact + sqrt(50) * (1 + 2**-8) / 2**20  # to the grid, on both sides
    assert outsiders.epsilon is not None
    assert outsiders.epsilon > gaussian_epsilon(sqrt(100 / minimum) * exact, 3.33e-7)
    expected = gaussian_epsilon(sqrt(100 / minimum) * rounded, 3.33e-7)
    assert outsiders.epsilon == pytest.approx(expected, rel=1e-4)
    assert outsiders.epsilon > expected  # integers cost something, never gain
    assert outsiders.against is Against.OUTSIDERS
    assert "server and mixes are honest" in outsiders.assumption
    assert "not amplification by shuffling" in outsiders.assumption


def test_the_designs_example_of_a_sum_is_met() -> None:
    """ε 4.2 → 0.72 for N = 25 at R = 50, δ = 10⁻⁶."""
    sealed = figures(*study(epsilon=4.2, delta=1e-6, rounds=50), silos=25, minimum=25)[2]
    assert sealed.epsilon == pytest.approx(0.72, abs=0.005)


def test_sums_of_disjoint_phases_cost_as_much_as_the_worst_phase() -> None:
    mechanism, participant = study(phases=(Phase(10, 0.5), Phase(40, 0.25)))
    _, _, outsiders = figures(mechanism, participant, silos=25, minimum=16)
    expected = max(
        gaussian_epsilon(
            sqrt(phase.rounds) * 2 / phase.records(1734) / (4 * mechanism.sigma(index)), 3.33e-7
        )
        for index, phase in enumerate(mechanism.phases)
    )
    assert outsiders.epsilon == pytest.approx(expected, rel=1e-3)


def test_a_sum_of_discrete_gaussians_is_a_discrete_gaussian_but_for_nothing() -> None:
    """The lemma behind the sum, at σ = 3 already: total variation below 10⁻¹⁴ (exact sums)."""

    def discrete_gaussian(variance: float, reach: int) -> NDArray[np.float64]:
        weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
        return np.asarray(weights / weights.sum())

    one, total = discrete_gaussian(9.0, 60), np.array([1.0])
    for _ in range(5):
        total = np.convolve(total, one)
    assert np.abs(total - discrete_gaussian(45.0, 300)).sum() / 2 < 1e-14


def test_nobody_gains_from_batches_that_may_hold_one_report() -> None:
    for silos, minimum in ((25, 1), (1, 1)):
        local, shuffled, outsiders = figures(*study(), silos=silos, minimum=minimum)
        assert local.epsilon is not None
        assert (shuffled.epsilon, outsiders.epsilon) == (None, None)


def test_the_figures_of_a_study_hold_for_its_worst_silo() -> None:
    small, large = (Participant(n, PrivacyTarget(2.0, 1e-6)) for n in (300, 3000))
    lax = Participant(600, PrivacyTarget(2.0, 1e-5))
    mechanism = Mechanism.calibrate([small, large, lax], clip=1.0, dimension=10, phases=[Phase(20)])
    local, _, outsiders = central_figures(mechanism, [small, large, lax], minimum_batch=3)
    assert local.delta == outsiders.delta == 1e-5
    assert local.epsilon == max(mechanism.epsilon(each, 1e-5) for each in (small, large, lax))
    mu = sqrt(20 / 3) * (2 / 300) / mechanism.sigma()
    assert outsiders.epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)


# One record per report ---------------------------------------------------------------------------


def test_one_record_reports_of_1000_silos_are_amplified_at_a_small_epsilon() -> None:
    mechanism, participant = study(
        records=100, epsilon=0.2, delta=1e-6, rounds=20, dimension=20, batch=ONE_OF_100
    )
    local, shuffled, outsiders = figures(mechanism, participant, silos=1000, minimum=1000)
    assert local.epsilon is not None
    assert shuffled.epsilon is not None
    assert 0 < shuffled.epsilon < local.epsilon <= 0.2
    assert all(condition.holds for condition in shuffled.conditions)
    assert "honest" in shuffled.assumption
    assert outsiders.epsilon is None
    # without the cost of integers the bound is a little smaller, never larger
    multiplier = mechanism.sigma() / 2.0
    ideal = one_record_reports(
        silos=1000, records=100, rounds=20, noise_multiplier=multiplier, delta=1e-6
    )
    assert ideal.epsilon <= shuffled.epsilon <= 1.01 * ideal.epsilon


def test_where_the_bound_is_no_better_than_the_local_figure_nothing_is_claimed() -> None:
    mechanism, participant = study(
        records=100, epsilon=4.0, delta=1e-6, rounds=20, dimension=20, batch=ONE_OF_100
    )
    _, shuffled, _ = figures(mechanism, participant, silos=1000, minimum=1000)
    assert shuffled.epsilon is None
    assert shuffled.reason is not None
    assert shuffled.reason.endswith("no bound for 1000 reports is below the local epsilon")


def test_fewer_reports_hide_less() -> None:
    mechanism, participant = study(
        records=1, epsilon=1.0, delta=1e-6, rounds=1, dimension=5, batch=Minibatch()
    )
    found = [
        figures(mechanism, participant, silos=3000, minimum=minimum)[1].epsilon
        for minimum in (3000, 1000, 300)
    ]
    assert all(each is not None for each in found)
    assert found == sorted(found, key=lambda each: each or inf)


def test_a_poisson_batch_of_one_record_on_average_is_no_one_record_report() -> None:
    participant = Participant(100, PrivacyTarget(1.0, 1e-6))
    mechanism = Mechanism(1.0, 5, Minibatch(Scheme.POISSON, 0.01), (Phase(2),), (1e-5,))
    local, shuffled, outsiders = figures(mechanism, participant, silos=1000, minimum=1000)
    assert local.epsilon is not None
    assert (shuffled.epsilon, outsiders.epsilon) == (None, None)


def test_one_silo_with_larger_batches_spoils_it_for_all() -> None:
    one, two = (Participant(n, PrivacyTarget(0.2, 1e-6)) for n in (100, 200))
    mechanism = Mechanism.calibrate(
        [one, two], clip=1.0, dimension=5, phases=[Phase(20)], minibatch=ONE_OF_100
    )
    shuffled = central_figures(mechanism, [one] * 999 + [two], minimum_batch=900)[1]
    assert shuffled.epsilon is None


# Never a false claim -----------------------------------------------------------------------------


def test_a_delta_below_the_cost_of_integers_claims_nothing() -> None:
    mechanism, _ = study(delta=1e-6)
    participant = Participant(1734, PrivacyTarget(3.0, 1e-31))
    for figure in figures(mechanism, participant, silos=25, minimum=20):
        assert figure.epsilon is None
        assert figure.reason


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 10_000),
    st.floats(0.05, 8),
    st.floats(1e-7, 1e-3),
    st.integers(1, 500),
    st.integers(1, 40),
)
def test_claims_are_finite_and_never_above_the_local_one(
    records: int, epsilon: float, delta: float, rounds: int, silos: int
) -> None:
    mechanism, participant = study(records=records, epsilon=epsilon, delta=delta, rounds=rounds)
    local, *central = figures(mechanism, participant, silos, minimum=(silos + 1) // 2)
    assert local.epsilon is not None
    assert local.epsilon <= epsilon
    for figure in central:
        assert (figure.epsilon is None) == bool(figure.reason)
        assert figure.epsilon is None or 0 <= figure.epsilon < local.epsilon


@pytest.mark.parametrize(
    ("epsilon", "holds", "reason"),
    [(inf, True, None), (nan, True, None), (1.0, False, None), (None, True, None), (1.0, True, "")],
)
def test_a_figure_that_claims_too_much_cannot_exist(
    epsilon: float | None, holds: bool, reason: str | None
) -> None:
    with pytest.raises(ValueError, match=r"claim|reason"):
        Figure(
            "sum",
            Against.OUTSIDERS,
            epsilon,
            1e-6,
            "-",
            "-",
            (TheoremCondition("it", holds),),
            reason,
        )


@pytest.mark.parametrize(("silos", "minimum"), [(0, 1), (5, 0), (5, 6)])
def test_a_minimum_batch_must_be_possible(silos: int, minimum: int) -> None:
    mechanism, participant = study()
    with pytest.raises(ValueError, match=r"silo|minimum"):
        central_figures(mechanism, [participant] * silos, minimum_batch=minimum)
