"""Rényi divergences of single events, against closed forms, other people and slow integrals."""

import tomllib
from math import inf, log, pi, sqrt
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from hypothesis import example, given
from hypothesis import strategies as st
from silomix_core.accounting.events import PrivacyEvent, Scheme
from silomix_core.accounting.gaussian import gaussian_epsilon
from silomix_core.accounting.renyi import (
    ORDERS,
    _log_moments,
    epsilon_at,
    renyi,
    renyi_curve,
    renyi_epsilon,
)

VECTORS = Path(__file__).parents[2] / "vectors"
POISSON, FIXED = Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT
MUS = st.floats(-4, 0.7).map(lambda exponent: 10.0**exponent)
RATIOS = st.floats(0.001, 1)
SOME_ORDERS = st.sampled_from((2, 3, 5, 8, 16, 33 - 1, 64, 256))


def event(scheme: Scheme, ratio: float, mu: float) -> PrivacyEvent:
    return PrivacyEvent(scheme, ratio, mu, 1.0, 1)


def full(mu: float) -> PrivacyEvent:
    return event(Scheme.FULL, 1.0, mu)


# Full batches


@given(MUS)
def test_a_full_batch_has_the_divergence_of_two_gaussians(mu: float) -> None:
    assert renyi_curve(full(mu)) == pytest.approx([order * mu**2 / 2 for order in ORDERS])


@given(MUS, st.integers(1, 100), st.floats(-9, -2).map(lambda exponent: 10.0**exponent))
def test_renyi_is_an_upper_bound_of_the_analytic_formula(
    mu: float, rounds: int, delta: float
) -> None:
    bound = renyi_epsilon([(full(mu), rounds)], delta)
    assert bound >= gaussian_epsilon(delta, mu * sqrt(rounds))


@pytest.mark.parametrize("total", [0.1, 0.5, 1.0])
def test_renyi_loses_little_in_the_range_that_we_use(total: float) -> None:
    bound = renyi_epsilon([(full(total / 10), 100)], 1e-6)
    assert bound <= 1.15 * gaussian_epsilon(1e-6, total)


# Poisson batches


@pytest.mark.parametrize(
    "golden", tomllib.loads((VECTORS / "poisson_divergences.toml").read_text("utf-8"))["divergence"]
)
def test_poisson_divergences_are_those_of_high_precision_quadrature(
    golden: dict[str, float],
) -> None:
    value = renyi(event(POISSON, golden["ratio"], golden["mu"]), int(golden["order"]))
    assert golden["value"] <= value <= golden["value"] * (1 + 2e-9) + 2e-14


@pytest.mark.parametrize(("ratio", "mu", "order"), [(0.3, 0.8, 4), (0.05, 3.0, 5)])
def test_poisson_divergences_meet_an_integral_of_their_own(
    ratio: float, mu: float, order: int
) -> None:
    """From the densities themselves, with 30 digits."""
    context = mpmath.MPContext()
    context.dps = 30
    q, h = context.mpf(ratio), context.mpf(mu) / 2

    def density(y: mpmath.mpf, at: mpmath.mpf) -> mpmath.mpf:
        return (1 - q) * context.npdf(y) + q * context.npdf(y, at)

    def integrand(y: mpmath.mpf) -> mpmath.mpf:
        return density(y, h) ** order * density(y, -h) ** (1 - order)

    total = context.quad(integrand, context.linspace(-12, 2 * order * h + 12, 24))
    exact = float(context.log(total) / (order - 1))
    assert exact <= renyi(event(POISSON, ratio, mu), order) <= exact * (1 + 1e-8)


@example(10**0.1875, 5)  # once nan: ln(1 + (e^move − 1)) far below 0
@given(MUS, SOME_ORDERS)
def test_coins_that_always_win_are_a_full_batch(mu: float, order: int) -> None:
    value = renyi(event(POISSON, 1.0, mu), order)
    exact = order * mu**2 / 2
    assert value == inf or exact <= value <= exact * (1 + 1e-8) + 2e-14


@given(st.floats(0.01, 1), st.floats(-4, -2.5).map(lambda e: 10.0**e), st.sampled_from((2, 8, 64)))
def test_a_faint_poisson_batch_is_a_full_batch_of_ratio_times_mu(
    ratio: float, mu: float, order: int
) -> None:
    """D_α ≈ α·(qμ)²/2; rounding errors of the quadrature stay on the upper side."""
    leading = order * (ratio * mu) ** 2 / 2
    value = renyi(event(POISSON, ratio, mu), order)
    assert leading * (1 - 1e-4) <= value <= leading * 1.01


def test_two_orders_have_a_closed_form() -> None:
    """α = 2, ratio 1/2 against the sum that the definition becomes on a fine grid."""
    y = np.linspace(-30, 30, 2**16)
    base = np.exp(-y * y / 2) / sqrt(2 * pi)
    for mu in (0.1, 1.0, 4.0):
        upper = 0.5 + 0.5 * np.exp(y * mu / 2 - mu**2 / 8)
        lower = 0.5 + 0.5 * np.exp(-y * mu / 2 - mu**2 / 8)
        exact = log(float((base * upper**2 / lower).sum() * (y[1] - y[0])))
        assert renyi(event(POISSON, 0.5, mu), 2) == pytest.approx(exact, rel=1e-7)


@given(RATIOS, RATIOS, MUS, SOME_ORDERS)
def test_a_larger_ratio_never_costs_less(
    first: float, second: float, mu: float, order: int
) -> None:
    low, high = sorted((first, second))
    for scheme in (POISSON, FIXED):
        less, more = (renyi(event(scheme, ratio, mu), order) for ratio in (low, high))
        assert less <= more * (1 + 3e-9) + 2e-14


@given(RATIOS, MUS, SOME_ORDERS)
def test_drawing_never_costs_more_than_the_full_batch(ratio: float, mu: float, order: int) -> None:
    whole = renyi(full(mu), order)
    assert renyi(event(FIXED, ratio, mu), order) <= whole
    drawn = renyi(event(POISSON, ratio, mu), order)
    assert drawn == inf or drawn <= whole * (1 + 2e-9) + 2e-14


# Fixed size


def theorem_27(ratio: float, mu: float, order: int) -> float:
    """Wang, Balle, Kasiviswanathan 2019, as it stands there: alternating sums, with 600 digits."""
    context = mpmath.MPContext()
    context.dps = 600
    q, square = context.mpf(ratio), context.mpf(mu) ** 2

    def moment(power: int) -> mpmath.mpf:
        terms = (
            (-1) ** i * context.binomial(power, i) * context.exp(i * (i - 1) * square / 2)
            for i in range(power + 1)
        )
        return context.fsum(terms)

    moments = {power: moment(power) for power in range(2, order + 2, 2)}
    least = min(4 * (context.exp(square) - 1), 2 * context.exp(square))
    total = 1 + q**2 * context.binomial(order, 2) * least
    for j in range(3, order + 1):
        paired = 4 * context.sqrt(moments[j // 2 * 2] * moments[(j + 1) // 2 * 2])
        least = min(paired, 2 * context.exp(j * (j - 1) * square / 2))
        total += q**j * context.binomial(order, j) * least
    return float(context.log(total) / (order - 1))


@pytest.mark.parametrize("mu", [1e-8, 1e-5, 1e-2, 0.3, 0.99, 1.01, 3.0])
@pytest.mark.parametrize(("ratio", "order"), [(0.001, 32), (0.1, 2), (0.1, 3), (0.4, 17)])
def test_batches_of_fixed_size_cost_what_the_theorem_says(
    ratio: float, mu: float, order: int
) -> None:
    exact = min(theorem_27(ratio, mu, order), order * mu**2 / 2)
    value = renyi(event(FIXED, ratio, mu), order)
    assert exact * (1 - 1e-13) <= value <= exact * (1 + 2e-9)


@pytest.mark.parametrize(("ratio", "mu"), [(0.01, 0.05), (0.1, 0.3), (0.3, 1.5)])
def test_batches_of_fixed_size_cost_what_dp_accounting_says(ratio: float, mu: float) -> None:
    orders = (2, 3, 4, 8, 16, 32)
    theirs = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    sampled = SampledWithoutReplacementDpEvent(1000, round(1000 * ratio), GaussianDpEvent(1 / mu))
    theirs.compose(sampled)
    ours = renyi_curve(event(FIXED, ratio, mu), orders)
    capped = [min(a, order * mu**2 / 2) for a, order in zip(theirs._rdp, orders, strict=True)]
    assert ours == pytest.approx(capped, rel=1e-6)


@pytest.mark.parametrize(
    "golden",
    tomllib.loads((VECTORS / "subsampled_gaussian.toml").read_text("utf-8"))["without_replacement"],
)
def test_epsilon_without_replacement_is_at_most_dp_accountings(golden: dict[str, float]) -> None:
    """Equal where theirs is not cut by the full batch's bound, and digits do not cancel."""
    drawn = event(FIXED, golden["ratio"], 1 / golden["noise_multiplier"])
    epsilon = renyi_epsilon([(drawn, int(golden["rounds"]))], golden["delta"])
    assert epsilon <= golden["epsilon"] * (1 + 1e-6)
    if golden["ratio"] < 0.2:
        assert epsilon == pytest.approx(golden["epsilon"], rel=1e-3)


def test_the_golden_numbers_are_those_of_the_installed_dp_accounting() -> None:
    sampled = SampledWithoutReplacementDpEvent(10**6, 10**5, GaussianDpEvent(3))
    theirs = RdpAccountant(range(2, 65), NeighboringRelation.REPLACE_ONE)
    theirs.compose(SelfComposedDpEvent(sampled, 100))
    rows = tomllib.loads((VECTORS / "subsampled_gaussian.toml").read_text("utf-8"))
    golden = next(
        row["epsilon"]
        for row in rows["without_replacement"]
        if (row["ratio"], row["delta"]) == (0.1, 1e-5)
    )
    assert theirs.get_epsilon(1e-5) == pytest.approx(golden, rel=1e-9)


@pytest.mark.parametrize("mu", [0.05, 0.4, 0.75, 1.0, 1.4])
def test_the_moments_bound_any_three_gaussians(mu: float) -> None:
    """E_r[|p/r − q/r|^j] in the plane, p, q, r at most μ apart: the step of the theorem that
    sampling without replacement stands on, and where its factor 4 comes from."""
    rng = np.random.default_rng(8)
    corners = [(mu, mu, pi / 3), (mu, mu, 0.3), (mu / 2, mu / 2, pi), (mu, 0.0, 0.0)]
    corners += [(*mu * rng.uniform(size=2), rng.uniform(0, pi)) for _ in range(12)]
    bounds = _log_moments(mu, np.arange(2, 13))
    for first, second, angle in corners:
        p, q = np.array([first, 0.0]), second * np.array([np.cos(angle), np.sin(angle)])
        if np.linalg.norm(p - q) > mu * (1 + 1e-9):
            continue
        for power in (2, 3, 4, 5, 8, 12):
            assert log(moment_in_the_plane(p, q, power)) <= bounds[power - 2]


def moment_in_the_plane(p: np.ndarray, q: np.ndarray, power: int) -> float:
    step = 1 / 8
    reach = 10 + power * max(float(np.linalg.norm(p)), float(np.linalg.norm(q)))
    side = np.arange(-reach, reach, step)
    plane = np.stack(np.meshgrid(side, side))
    base = -(plane**2).sum(axis=0) / 2 - log(2 * pi) + 2 * log(step)
    upper, lower = (np.tensordot(at, plane, 1) - at @ at / 2 for at in (p, q))
    gap = np.maximum(upper, lower) + np.log(-np.expm1(-np.abs(upper - lower)) + 1e-300)
    return float(np.exp(base + power * gap).sum())


# From divergences to ε


@given(SOME_ORDERS, st.floats(0, 10), st.floats(-9, -2).map(lambda e: 10.0**e))
def test_the_conversion_is_better_than_mironovs_and_grows_with_the_divergence(
    order: int, divergence: float, delta: float
) -> None:
    epsilon = epsilon_at(order, divergence, delta)
    assert 0 <= epsilon <= divergence + log(1 / delta) / (order - 1)  # Mironov 2017, Prop. 3
    assert epsilon <= epsilon_at(order, divergence + 0.1, delta)
    assert epsilon_at(order, inf, delta) == inf


def test_divergences_add_up_before_the_best_order_is_taken() -> None:
    events = [(full(0.1), 20), (event(POISSON, 0.5, 0.3), 10), (event(FIXED, 0.2, 0.3), 5)]
    totals = [sum(count * renyi(each, order) for each, count in events) for order in ORDERS]
    best = min(epsilon_at(order, total, 1e-6) for order, total in zip(ORDERS, totals, strict=True))
    assert renyi_epsilon(events, 1e-6) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("scheme", [POISSON, FIXED])
def test_what_moves_nothing_costs_nothing(scheme: Scheme) -> None:
    assert renyi_curve(event(scheme, 0.5, 0.0)) == (0.0,) * len(ORDERS)


@pytest.mark.parametrize("scheme", [POISSON, FIXED])
@pytest.mark.parametrize("mu", [1e-300, 1e-9, 60.0, 1e4, 1e150])
def test_divergences_are_no_less_than_zero_and_numbers_everywhere(
    scheme: Scheme, mu: float
) -> None:
    curve = renyi_curve(event(scheme, 0.3, mu), (2, 64, 256))
    assert all(value >= 0 for value in curve)
    assert mu < 1 or curve[0] > 100
