"""Random check-ins against numbers from 30 digits, the paper's own corollaries and exact cases."""

from collections import defaultdict
from fractions import Fraction
from itertools import product
from math import comb, e, exp, expm1, inf, log, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.accounting.bounds import OutsideValidity
from silomix_core.accounting.bounds.check_in_theorems import (
    LocalRandomizer,
    averaged,
    closeness_to_pure,
    fixed_window,
    shuffled,
    sliding_window,
)

EPSILONS = st.floats(1e-3, 1)
DELTAS = st.floats(-12, -2).map(lambda exponent: 10.0**exponent)
COUNTS = st.integers(2, 10**8)


# Expected: the statements as printed, in 30 digits of the `decimal` module.
def test_the_bounds_are_the_printed_formulas() -> None:
    one = LocalRandomizer(1.0)
    assert fixed_window(one, 1e-6, window=100, check_in_probability=0.5).bound == pytest.approx(
        0.754609978783, abs=1e-11
    )
    assert sliding_window(one, 1e-6, window=100, silos=100).bound == pytest.approx(
        1.529284223951, abs=1e-11
    )
    assert shuffled(one, 1e-6, reports=10**4).bound == pytest.approx(0.407759605307, abs=1e-11)
    assert averaged(one, 1e-6, delta_loads=1e-6, slots=10**4, silos=10**6).bound == pytest.approx(
        0.934062584357, abs=1e-11
    )


@given(EPSILONS, DELTAS, COUNTS, st.floats(1e-3, 1))
def test_the_fixed_window_obeys_the_papers_simple_bound(
    epsilon_0: float, delta: float, window: int, p: float
) -> None:
    # "for ε₀ ≤ 1 and δ ≤ 1/100, ε ≤ 7p₀ε₀√(ln(1/δ)/m)"
    result = fixed_window(LocalRandomizer(epsilon_0), delta, window=window, check_in_probability=p)
    assert result.bound <= 7 * p * epsilon_0 * sqrt(log(1 / delta) / window)


@given(st.floats(0.1, 4), COUNTS)
def test_shuffling_improves_on_the_older_bound(epsilon_0: float, reports: int) -> None:
    # Figure 2: Theorem 5.1 below Erlingsson et al. 2019, Theorem 7, at δ = 10⁻⁶
    grow = 2 * exp(2 * epsilon_0) * expm1(epsilon_0)
    older = grow * (expm1(min(grow / reports, 700))) + grow * sqrt(2 * log(1e6) / reports)
    assert shuffled(LocalRandomizer(epsilon_0), 1e-6, reports=reports).bound <= older


@given(st.floats(1e-3, 300), DELTAS, COUNTS)
def test_nothing_is_ever_above_the_local_guarantee(
    epsilon_0: float, delta: float, count: int
) -> None:
    local = LocalRandomizer(epsilon_0)
    for result in (
        fixed_window(local, delta, window=count),
        sliding_window(local, delta, window=count, silos=count),
        shuffled(local, delta, reports=count),
        averaged(local, delta / 2, delta_loads=delta / 2, slots=count, silos=count),
    ):
        assert result.epsilon == min(result.bound, epsilon_0)
        assert result.vacuous == (result.bound >= epsilon_0)
        assert result.delta <= delta


@pytest.mark.parametrize("reports", [2, 5, 12])
@pytest.mark.parametrize("ratio", [1.5, e])
def test_shuffled_randomized_response_is_within_the_bound(reports: int, ratio: float) -> None:
    """All others say 0; one silo's 0 becomes a 1; only the number of ones is seen."""
    truth, lie = ratio / (1 + ratio), 1 / (1 + ratio)

    def ones(total: int, own: float) -> float:
        def others(k: int) -> float:
            rest = reports - 1
            return comb(rest, k) * lie**k * truth ** (rest - k) if 0 <= k <= rest else 0.0

        return own * others(total - 1) + (1 - own) * others(total)

    for delta in (1e-3, 0.1, 0.3):
        claim = shuffled(LocalRandomizer(log(ratio)), delta, reports=reports)
        exact = sum(
            max(0.0, ones(k, truth) - exp(claim.epsilon) * ones(k, lie)) for k in range(reports + 1)
        )
        assert exact <= delta + 1e-12


def test_a_small_delta_of_the_report_goes_through_lemma_a3() -> None:
    local = LocalRandomizer(0.05, 1e-16)
    delta_1 = closeness_to_pure(local)
    result = fixed_window(local, 1e-6, window=10**5)
    pure = fixed_window(LocalRandomizer(8 * 0.05), 1e-6, window=10**5)
    assert not result.vacuous
    assert result.epsilon == pytest.approx(pure.bound)
    assert result.delta == pytest.approx(1e-6 + 1e5 * (exp(result.epsilon) + 1) * delta_1)
    assert result.theorem.endswith("through Lemma A.3")


@given(st.floats(0.01, 2), st.floats(-30, -8))
def test_delta_1_meets_the_condition_of_lemma_a3(epsilon_0: float, exponent: float) -> None:
    local = LocalRandomizer(epsilon_0, 10.0**exponent)
    try:
        delta_1 = closeness_to_pure(local)
    except OutsideValidity:
        return
    repetitions = log(2 / delta_1) / log(1 / (1 - exp(-5 * epsilon_0)))
    allowed = (1 - exp(-epsilon_0)) * delta_1 / (4 * exp(epsilon_0) * (2 + repetitions))
    assert local.delta_0 <= allowed * (1 + 1e-9)
    assert local.delta_0 >= allowed / 2  # and not wastefully: whole repetitions cost little


def test_averaging_pays_for_every_randomizer_and_not_for_every_slot() -> None:
    local = LocalRandomizer(0.01, 1e-18)
    result = averaged(local, 1e-6, delta_loads=1e-6, slots=10**5, silos=10**6)
    assert not result.vacuous
    assert result.delta == pytest.approx(
        2e-6 + 1e6 * (exp(result.epsilon) + 1) * closeness_to_pure(local)
    )


def test_silos_that_may_be_away_hide_nobody_and_their_randomizers_count() -> None:
    """Theorem 4.1 as printed with n = 8·10⁵ in ε′, and n·δ₁ for all 10⁶ that may have reported."""
    epsilon_0, delta_0, slots, silos, present = 0.01, 1e-18, 10**5, 10**6, 8 * 10**5
    local = LocalRandomizer(epsilon_0, delta_0)
    result = averaged(local, 1e-6, delta_loads=2e-6, slots=slots, silos=silos, present=present)
    load = sqrt(1 / present + 1 / slots) + sqrt(log(1 / 2e-6) / present)
    grown = exp(16 * epsilon_0) * (exp(8 * epsilon_0) - 1) * load
    assert result.bound == pytest.approx(grown**2 / 2 + grown * sqrt(2 * log(1e6)), rel=1e-9)
    replaced = silos * (exp(result.bound) + 1) * closeness_to_pure(local)
    assert result.delta == pytest.approx(3e-6 + replaced, rel=1e-9)
    with pytest.raises(OutsideValidity, match="present <= silos"):
        averaged(local, 1e-6, delta_loads=1e-6, slots=10, silos=10, present=11)


Slots = tuple[tuple[int, ...], ...]  # of each slot, how many reports of each kind


def checked_in(reports: list[dict[int, Fraction]], slots: int, kinds: int) -> dict[Slots, Fraction]:
    """Exact law of what averages show at most: how often each slot got each kind of report."""
    law: dict[Slots, Fraction] = {((0,) * kinds,) * slots: Fraction(1)}
    for report in reports:
        grown: dict[Slots, Fraction] = defaultdict(Fraction)
        for counts, p in law.items():
            for slot, (kind, q) in product(range(slots), report.items()):
                more = list(counts[slot])
                more[kind] += 1
                grown[(*counts[:slot], tuple(more), *counts[slot + 1 :])] += p * q / slots
        law = grown
    return law


def excess(
    first: dict[Slots, Fraction], second: dict[Slots, Fraction], ratio: Fraction
) -> Fraction:
    """The hockey-stick divergence at e^ε = ratio; the total variation at 1."""
    nothing = Fraction(0)
    return sum(
        (max(nothing, p - ratio * second.get(seen, nothing)) for seen, p in first.items()), nothing
    )


def answer(bit: int, leak: Fraction) -> dict[int, Fraction]:
    """A response with odds 3, or with chance `leak` the bit itself, marked."""
    response = {bit: (1 - leak) * Fraction(3, 4), 1 - bit: (1 - leak) / 4}
    return response | ({2 + bit: leak} if leak else {})


def test_every_silos_randomizer_is_replaced_however_few_slots_and_silos_are_counted_on() -> None:
    """Lemma A.3 exchanges randomizers; here those that leak with chance δ₁ for those that do not.

    Of six silos four are counted on, in two slots; the two worlds are 1 − (1 − δ₁)⁶ apart."""
    leak, silos, present, slots = Fraction(1, 100), 6, 4, 2
    real, ideal = (checked_in([answer(0, each)] * silos, slots, 3) for each in (leak, Fraction(0)))
    apart = excess(real, ideal, Fraction(1))
    assert apart == 1 - (1 - leak) ** silos
    assert max(present, slots) * leak < apart <= silos * leak


@pytest.mark.parametrize("leak", [Fraction(0), Fraction(1, 50)])
@pytest.mark.parametrize("slots", [2, 3])
def test_the_fewest_silos_of_averaged_check_ins_are_the_worst(slots: int, leak: Fraction) -> None:
    """Why the loads are those of the silos that are there at least: exact, for up to five."""
    for ratio in (Fraction(1), Fraction(5, 4), Fraction(2)):
        found = []
        for silos in range(1, 6):
            others = [answer(0, leak)] * (silos - 1)
            first, second = (checked_in([answer(own, leak), *others], slots, 4) for own in (0, 1))
            found.append(excess(first, second, ratio))
        assert found == sorted(found, reverse=True)


def test_a_vacuous_bound_returns_the_local_guarantee() -> None:
    result = shuffled(LocalRandomizer(2.0, 1e-12), 1e-6, reports=1000)
    assert result.vacuous
    assert (result.epsilon, result.delta) == (2.0, 1e-12)
    assert result.bound > 1e10


def test_each_result_says_whom_it_trusts() -> None:
    local = LocalRandomizer(0.5)
    window = fixed_window(local, 1e-6, window=1000)
    assert "not against the server" in window.trust
    average = averaged(local, 1e-6, delta_loads=1e-6, slots=1000, silos=1000)
    assert "p = 1" in average.trust
    assert "no silos collude" in average.trust
    for result in (window, average, shuffled(local, 1e-6, reports=1000)):
        assert "whole input" in result.trust


def test_a_delta_0_beyond_lemma_a3_is_refused() -> None:
    with pytest.raises(OutsideValidity, match=r"Lemma A\.3 needs delta_0 <="):
        fixed_window(LocalRandomizer(1.0, 0.1), 1e-6, window=1000)


def test_a_window_longer_than_the_list_of_silos_is_refused() -> None:
    with pytest.raises(OutsideValidity, match="window <= silos"):
        sliding_window(LocalRandomizer(1.0), 1e-6, window=11, silos=10)


@pytest.mark.parametrize("p", [0.0, 1.1, nan])
def test_a_check_in_probability_outside_zero_to_one_is_refused(p: float) -> None:
    with pytest.raises(OutsideValidity, match="check_in_probability"):
        fixed_window(LocalRandomizer(1.0), 1e-6, window=10, check_in_probability=p)


@pytest.mark.parametrize("epsilon_0", [0.0, -1.0, nan, inf])
def test_a_nonsensical_randomizer_cannot_be_made(epsilon_0: float) -> None:
    with pytest.raises(OutsideValidity, match="epsilon_0"):
        LocalRandomizer(epsilon_0)
