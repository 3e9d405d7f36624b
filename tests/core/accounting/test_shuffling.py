"""Clones, sampling and composition against exact enumeration; the order of Theorem 4.1."""

import tomllib
from collections import defaultdict
from fractions import Fraction
from math import comb, exp, inf, log, nan
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from silomix_core.accounting import gaussian_epsilon
from silomix_core.accounting.bounds import OutsideValidity, clones
from silomix_core.accounting.bounds.check_in_theorems import LocalRandomizer, shuffled
from silomix_core.accounting.bounds.clones import clones_delta, clones_epsilon
from silomix_core.accounting.bounds.shuffling import (
    one_record_reports,
)
from silomix_core.accounting.bounds.subsampled_composition import (
    composed_delta,
    composed_epsilon,
    sampled,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "shuffling_clones.toml"
GOLDEN = tomllib.loads(VECTORS.read_text("utf-8"))["shuffle"]
EPSILONS = st.floats(0.01, 5)
REPORTS = st.integers(2, 10**6)
DELTAS = st.floats(-12, -2).map(lambda exponent: 10.0**exponent)

Distribution = dict[tuple[int, ...], Fraction]


def divergence(first: Distribution, second: Distribution, ratio: Fraction) -> Fraction:
    return sum(
        (
            max(Fraction(0), p - ratio * second.get(point, Fraction(0)))
            for point, p in first.items()
        ),
        Fraction(0),
    )


def shuffled_counts(reports: list[dict[int, Fraction]], kinds: int) -> Distribution:
    """Exact law of how often each kind of report occurs."""
    law: Distribution = {(0,) * kinds: Fraction(1)}
    for report in reports:
        grown: Distribution = defaultdict(Fraction)
        for counts, p in law.items():
            for kind, q in report.items():
                grown[(*counts[:kind], counts[kind] + 1, *counts[kind + 1 :])] += p * q
        law = grown
    return law


def clone_pair(reports: int, odds: Fraction) -> list[Distribution]:
    """The pair of Theorem 3.1 for e^ε₀ = odds: a clone of either neighbour, or nothing to see."""
    other = {0: 1 / (2 * odds), 1: 1 / (2 * odds), 2: 1 - 1 / odds}
    truth, lie = odds / (1 + odds), 1 / (1 + odds)
    pair = []
    for own in ({0: truth, 1: lie}, {0: lie, 1: truth}):
        law: Distribution = defaultdict(Fraction)
        for counts, p in shuffled_counts([other] * (reports - 1) + [own], 3).items():
            law[counts[:2]] += p
        pair.append(law)
    return pair


@pytest.mark.parametrize("reports", [2, 3, 7, 12])
@pytest.mark.parametrize("odds", [Fraction(3, 2), Fraction(3), Fraction(20)])
def test_clones_are_the_exact_divergence_of_the_pair(reports: int, odds: Fraction) -> None:
    first, second = clone_pair(reports, odds)
    for ratio in (Fraction(1), Fraction(11, 10), Fraction(7, 5), odds - Fraction(1, 50)):
        exact = divergence(first, second, ratio)
        assert divergence(second, first, ratio) == exact  # one direction is enough
        delta = clones_delta(log(ratio), epsilon_0=log(odds), reports=reports)
        assert float(exact) <= delta <= float(exact) * (1 + 1e-7) + 1e-9


@pytest.mark.parametrize("golden", GOLDEN)
def test_clones_are_rounded_up_from_the_sum_in_fifty_digits(golden: dict[str, float]) -> None:
    delta = clones_delta(
        golden["epsilon"], epsilon_0=golden["epsilon_0"], reports=int(golden["reports"])
    )
    assert golden["delta"] <= delta <= golden["delta"] * (1 + 1e-5)


def test_blocks_of_clones_cost_little_and_are_on_the_safe_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocked = [clones_delta(e, epsilon_0=1.0, reports=10**6) for e in (0.002, 0.005)]
    monkeypatch.setattr(clones, "_BLOCKS", 10**9)
    single = [clones_delta(e, epsilon_0=1.0, reports=10**6) for e in (0.002, 0.005)]
    for fast, slow in zip(blocked, single, strict=True):
        assert slow <= fast <= slow * 1.001


@pytest.mark.parametrize("reports", [2, 4, 7])
@pytest.mark.parametrize("leak", [Fraction(0), Fraction(1, 1000), Fraction(1, 20)])
def test_a_leaking_randomized_response_is_within_the_bound(reports: int, leak: Fraction) -> None:
    """(ε₀, δ₀)-DP exactly: with chance δ₀ the input itself is sent, marked; else a response."""
    odds = Fraction(3)

    def report(bit: int) -> dict[int, Fraction]:
        response = {bit: (1 - leak) * odds / (1 + odds), 1 - bit: (1 - leak) / (1 + odds)}
        return response | {2 + bit: leak}

    for others in ([0] * (reports - 1), [i % 2 for i in range(reports - 1)]):
        first, second = (shuffled_counts([report(own), *map(report, others)], 4) for own in (0, 1))
        for ratio in (Fraction(1), Fraction(3, 2), Fraction(5, 2)):
            bound = clones_delta(
                log(ratio), epsilon_0=log(odds), reports=reports, delta_0=float(leak)
            )
            assert float(divergence(first, second, ratio)) <= bound
            assert float(divergence(second, first, ratio)) <= bound


@pytest.mark.parametrize("leak", [Fraction(0), Fraction(1, 1000), Fraction(1, 20)])
def test_a_larger_batch_is_within_the_bound_for_the_smallest(leak: Fraction) -> None:
    """Reports beyond those that are counted on could be the attacker's own: they cost nothing."""
    odds = Fraction(3)

    def report(bit: int) -> dict[int, Fraction]:
        response = {bit: (1 - leak) * odds / (1 + odds), 1 - bit: (1 - leak) / (1 + odds)}
        return response | {2 + bit: leak}

    for counted, sent in ((2, 5), (3, 7), (4, 6)):
        first, second = (
            shuffled_counts([report(own), *[report(0)] * (sent - 1)], 4) for own in (0, 1)
        )
        for ratio in (Fraction(1), Fraction(3, 2), Fraction(5, 2)):
            bound = clones_delta(
                log(ratio), epsilon_0=log(odds), reports=counted, delta_0=float(leak)
            )
            assert float(divergence(first, second, ratio)) <= bound
            assert float(divergence(second, first, ratio)) <= bound


@pytest.mark.slow
@given(EPSILONS, REPORTS, DELTAS)
@settings(max_examples=60)
def test_clones_never_exceed_epsilon_0_nor_theorem_5_1(
    epsilon_0: float, reports: int, delta: float
) -> None:
    epsilon = clones_epsilon(delta, epsilon_0=epsilon_0, reports=reports)
    assert 0 < epsilon <= epsilon_0
    assert clones_delta(epsilon, epsilon_0=epsilon_0, reports=reports) <= delta
    assert epsilon <= shuffled(LocalRandomizer(epsilon_0), delta, reports=reports).epsilon + 1e-9


@pytest.mark.slow
@given(EPSILONS, REPORTS, REPORTS, DELTAS)
@settings(max_examples=40)
def test_more_reports_hide_better(epsilon_0: float, one: int, two: int, delta: float) -> None:
    few, many = sorted((one, two))
    assert clones_epsilon(delta, epsilon_0=epsilon_0, reports=many) <= 1.001 * clones_epsilon(
        delta, epsilon_0=epsilon_0, reports=few
    )


@given(st.floats(0, 1), st.floats(0, 1), EPSILONS, REPORTS)
@settings(max_examples=60)
def test_delta_falls_as_epsilon_grows(
    one: float, two: float, epsilon_0: float, reports: int
) -> None:
    low, high = sorted((one * epsilon_0, two * epsilon_0))
    larger, smaller = (clones_delta(e, epsilon_0=epsilon_0, reports=reports) for e in (low, high))
    assert smaller <= larger + 1e-9
    assert clones_delta(epsilon_0, epsilon_0=epsilon_0, reports=reports) == 0


@pytest.mark.slow
@given(EPSILONS, REPORTS, DELTAS, st.floats(-6, 0))
@settings(max_examples=40)
def test_a_delta_0_costs_and_leaves_a_valid_bound(
    epsilon_0: float, reports: int, delta: float, exponent: float
) -> None:
    delta_0 = delta * 10.0**exponent / reports
    epsilon = clones_epsilon(delta, epsilon_0=epsilon_0, reports=reports, delta_0=delta_0)
    assert clones_epsilon(delta, epsilon_0=epsilon_0, reports=reports) <= epsilon * (1 + 1e-8)
    assert epsilon <= epsilon_0
    assert clones_delta(epsilon, epsilon_0=epsilon_0, reports=reports, delta_0=delta_0) <= delta


def test_a_delta_0_costs_what_theorem_3_8_prints() -> None:
    pure, leaking = (
        clones_delta(0.3, epsilon_0=1.0, reports=500, delta_0=delta_0) for delta_0 in (0.0, 1e-9)
    )
    assert leaking - pure == pytest.approx((exp(0.3) + 1) * (1 + exp(-1.0) / 2) * 500 * 1e-9)


def test_a_delta_below_delta_0_is_refused() -> None:
    with pytest.raises(OutsideValidity, match="delta >= delta_0"):
        clones_epsilon(1e-9, epsilon_0=1.0, reports=100, delta_0=1e-8)


@pytest.mark.parametrize("reports", [1, 0, -5])
def test_one_report_has_nothing_to_hide_among(reports: int) -> None:
    with pytest.raises(OutsideValidity, match="reports"):
        clones_delta(0.1, epsilon_0=1.0, reports=reports)


@pytest.mark.parametrize("epsilon_0", [0.0, -1.0, nan, inf, 101.0])
def test_an_epsilon_0_out_of_range_is_refused(epsilon_0: float) -> None:
    with pytest.raises(OutsideValidity, match="epsilon_0"):
        clones_delta(0.1, epsilon_0=epsilon_0, reports=100)


@pytest.mark.parametrize("records", [1, 2, 5])
def test_sampling_is_exact_for_a_leaking_randomized_response(records: int) -> None:
    """One of n records answers; the worst neighbours, by enumeration, meet ε′ and δ′ = qδ."""
    odds, leak, q = Fraction(3), Fraction(1, 10), Fraction(1, records)
    one = {0: (1 - leak) * odds / 4, 1: (1 - leak) / 4, 2: leak}
    two = {0: (1 - leak) / 4, 1: (1 - leak) * odds / 4, 3: leak}
    mixed = {k: q * one.get(k, 0) + (1 - q) * two.get(k, 0) for k in range(4)}
    epsilon, delta = sampled(log(odds), float(leak), ratio=1 / records)
    ratio = Fraction(exp(epsilon))
    worst = sum(max(Fraction(0), Fraction(mixed[k]) - ratio * two.get(k, 0)) for k in range(4))
    assert float(worst) <= delta * (1 + 1e-12)
    assert float(worst) == pytest.approx(delta)


@pytest.mark.parametrize("releases", [1, 2, 5, 20])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.01])
def test_composition_is_the_printed_theorem(releases: int, delta: float) -> None:
    """Kairouz, Oh, Viswanath 2015, Theorem 3.3, its δ_i in exact arithmetic, e^ε = 5/4."""
    grow = Fraction(5, 4)
    for i in range(releases // 2 + 1):
        ours = composed_delta(
            (releases - 2 * i) * log(grow), epsilon=log(grow), delta=delta, releases=releases
        )
        inner = (
            sum(
                (
                    comb(releases, m) * (grow ** (releases - m) - grow ** (releases - 2 * i + m))
                    for m in range(i)
                ),
                Fraction(0),
            )
            / (1 + grow) ** releases
        )
        expected = 1 - (1 - Fraction(delta)) ** releases * (1 - inner)
        assert float(expected) * (1 - 1e-12) <= ours <= float(expected) * (1 + 1e-8) + 1e-9


@given(st.floats(1e-4, 1), st.integers(1, 10**4), DELTAS)
@settings(max_examples=60)
def test_composition_is_between_nothing_and_the_sum(
    epsilon: float, releases: int, delta: float
) -> None:
    total = composed_epsilon(
        delta, epsilon=epsilon, delta_each=delta / (2 * releases), releases=releases
    )
    assert total <= releases * epsilon
    assert (
        composed_delta(total, epsilon=epsilon, delta=delta / (2 * releases), releases=releases)
        <= delta
    )
    assume(releases > 1)
    advanced = epsilon * (2 * releases * log(2 / delta)) ** 0.5 + releases * epsilon * (
        exp(epsilon) - 1
    )
    assert total <= advanced * (1 + 1e-6)  # Dwork, Rothblum, Vadhan 2010 is never better


def test_releases_whose_deltas_are_too_large_are_refused() -> None:
    with pytest.raises(OutsideValidity, match="give each release a smaller delta"):
        composed_epsilon(1e-6, epsilon=0.1, delta_each=1e-6, releases=10)


def test_a_study_of_one_record_reports_is_amplified_by_a_thousand_silos() -> None:
    figure = one_record_reports(
        silos=1000, records=100, rounds=100, noise_multiplier=3.0, delta=1e-6
    )
    assert not figure.vacuous
    assert figure.epsilon == pytest.approx(0.3308, abs=2e-4)  # ours, to notice a change
    assert figure.epsilon < figure.epsilon_local < gaussian_epsilon(1e-6, 10 / 3)
    assert "3.8" in figure.theorem
    assert "honest" in figure.trust


def test_each_step_of_the_study_is_the_theorem_it_names() -> None:
    figure = one_record_reports(silos=2000, records=10, rounds=50, noise_multiplier=3.0, delta=1e-6)
    reached = min(
        composed_epsilon(
            1e-6,
            epsilon=sampled(
                clones_epsilon(
                    10 * share * 1e-6 / 50,
                    epsilon_0=figure.epsilon_0,
                    reports=2000,
                    delta_0=figure.delta_0,
                ),
                0.0,
                ratio=0.1,
            )[0],
            delta_each=share * 1e-6 / 50,
            releases=50,
        )
        for share in (0.1, 0.5, 0.9)
        if figure.delta_0 <= 10 * share * 1e-6 / 50
    )
    assert figure.epsilon == pytest.approx(reached, rel=1e-6)


def test_twenty_five_silos_gain_nothing_from_shuffling() -> None:
    figure = one_record_reports(
        silos=25, records=1734, rounds=100, noise_multiplier=1.0, delta=1e-6
    )
    assert figure.vacuous
    assert figure.epsilon == figure.epsilon_local
    assert "mix" not in figure.trust


@pytest.mark.parametrize(("more", "less"), [((4000, 3.0), (500, 3.0)), ((1000, 4.0), (1000, 2.0))])
def test_more_silos_or_more_noise_protect_better(
    more: tuple[int, float], less: tuple[int, float]
) -> None:
    better, worse = (
        one_record_reports(
            silos=silos, records=50, rounds=20, noise_multiplier=noise, delta=1e-6
        ).epsilon
        for silos, noise in (more, less)
    )
    assert better < worse
