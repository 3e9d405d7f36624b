"""Poisson batches under replace-one: the dominating pair, its ε, and what arithmetic adds to it."""

import tomllib
from math import exp, inf, nan, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm
from silomix_core.accounting.events import PrivacyEvent, Scheme
from silomix_core.accounting.gaussian import gaussian_epsilon
from silomix_core.accounting.poisson import (
    CONVOLUTION_ERROR,
    LEAST_DELTA,
    poisson_epsilon,
    total_variation,
)
from silomix_core.accounting.renyi import renyi_epsilon
from support.privacy_checks import Floats, poisson_delta

VECTORS = Path(__file__).parents[2] / "vectors" / "subsampled_gaussian.toml"
REPLACE = NeighboringRelation.REPLACE_ONE


def poisson(ratio: float, mu: float) -> PrivacyEvent:
    return PrivacyEvent(Scheme.POISSON, ratio, mu, 1.0, 1)


def full(mu: float) -> PrivacyEvent:
    return PrivacyEvent(Scheme.FULL, 1.0, mu, 1.0, 1)


# The pair


PLANE_ERROR = 1e-5  # of the quadrature in the plane, where the integrand has a kink


def divergence_in_the_plane(ratio: float, x: Floats, other: Floats, gamma: float) -> float:
    """E_γ of (1−q)·N(0, I) + q·N(x, I) and the same with x', by quadrature in two dimensions.

    The plane is turned so that the densities' ratio changes along the finer axis.
    """
    along = (x - other) / max(float(np.linalg.norm(x - other)), 1e-300)
    across = np.array([-along[1], along[0]])
    fine, coarse = 1 / 128, 1 / 8
    plane = np.stack(np.meshgrid(np.arange(-8.5, 8.5, fine), np.arange(-8.5, 8.5, coarse)))
    weights = np.exp(-(plane**2).sum(axis=0) / 2) / (2 * pi) * fine * coarse
    first, second = (
        1 - ratio + ratio * np.exp((at @ along) * plane[0] + (at @ across) * plane[1] - at @ at / 2)
        for at in (x, other)
    )
    return float((weights * np.maximum(first - gamma * second, 0)).sum())


def pairs_of_records(count: int) -> list[tuple[float, float, Floats, Floats, float]]:
    """(q, h, x, x', γ): norms at most h, most of them near it, γ on both sides of 1."""
    rng = np.random.default_rng(3)
    cases = []
    for _ in range(count):
        half = 10 ** rng.uniform(-1, 0.4)
        x, other = (
            half * (1 - rng.uniform() ** 3) * np.array([np.cos(angle), np.sin(angle)])
            for angle in rng.uniform(0, 2 * pi, size=2)
        )
        cases.append((rng.uniform(0.02, 1), half, x, other, exp(rng.uniform(-2.5, 2.5))))
    return cases


def divergence_on_the_line(ratio: float, half: float, gamma: float) -> float:
    return poisson_delta(np.log(gamma), ratio, half)


def test_the_pair_dominates_any_two_records_in_the_plane() -> None:
    """Any direction and any norm ≤ h, for γ above and below 1; two records span a plane."""
    tight = 0
    for ratio, half, x, other, gamma in pairs_of_records(120):
        in_plane = divergence_in_the_plane(ratio, x, other, gamma)
        bound = divergence_on_the_line(ratio, half, gamma)
        assert in_plane <= bound + PLANE_ERROR, (ratio, half, x, other, gamma)
        tight += in_plane > 0.9 * bound > 1e-4
    assert tight >= 5  # the bound is not simply large


@pytest.mark.parametrize("gamma", [0.3, 0.9, 1.0, 1.1, 3.0])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.95])
def test_the_divergence_grows_as_two_records_turn_away_from_each_other(
    gamma: float, ratio: float
) -> None:
    """Plackett's identity: what is convex in each has a mixed derivative of one sign."""
    x = np.array([1.2, 0.0])
    turned = [
        divergence_in_the_plane(ratio, x, 1.2 * np.array([np.cos(a), np.sin(a)]), gamma)
        for a in np.linspace(0, pi, 9)
    ]
    assert np.all(np.diff(turned) >= -PLANE_ERROR)
    assert turned[-1] == pytest.approx(divergence_on_the_line(ratio, 1.2, gamma), abs=PLANE_ERROR)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 3.0])
def test_the_divergence_grows_with_the_norms_and_the_ratio(gamma: float) -> None:
    longer = [divergence_on_the_line(0.3, half, gamma) for half in np.linspace(0, 3, 9)]
    likelier = [divergence_on_the_line(ratio, 1.0, gamma) for ratio in np.linspace(0, 1, 9)]
    for values in (longer, likelier):
        assert np.all(np.diff(values) >= -1e-12)


def test_one_of_the_records_alone_is_not_the_worst() -> None:
    """Why add/remove figures do not do: the neighbour's record pulls the other way."""
    ratio, half = 0.5, 1.0
    removed = divergence_in_the_plane(ratio, np.array([half, 0]), np.zeros(2), exp(0.5))
    assert divergence_on_the_line(ratio, half, exp(0.5)) > 2 * removed


# ε


@pytest.mark.parametrize(
    ("ratio", "mu"), [(0.5, 1.0), (0.1, 2.0), (0.02, 0.3), (0.9, 0.01), (1.0, 3.0)]
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_of_one_round_is_that_of_the_definition(
    ratio: float, mu: float, delta: float
) -> None:
    epsilon = poisson_epsilon([(poisson(ratio, mu), 1)], delta)
    assert poisson_delta(epsilon, ratio, mu / 2) <= delta * (1 + 1e-9)
    if epsilon > 0:
        assert poisson_delta(epsilon * (1 - 1e-3) - 1e-5, ratio, mu / 2) > delta


@pytest.mark.parametrize(("ratio", "mu"), [(0.5, 1.0), (0.1, 2.0)])
def test_epsilon_of_two_rounds_is_that_of_the_definition(ratio: float, mu: float) -> None:
    epsilon = poisson_epsilon([(poisson(ratio, mu), 2)], 1e-5)
    assert poisson_delta(epsilon, ratio, mu / 2, rounds=2) <= 1e-5
    assert poisson_delta(epsilon * (1 - 1e-3), ratio, mu / 2, rounds=2) > 1e-5


@pytest.mark.parametrize("golden", tomllib.loads(VECTORS.read_text("utf-8"))["poisson"])
def test_epsilon_is_dp_accountings(golden: dict[str, float]) -> None:
    event = poisson(golden["ratio"], 2 / golden["noise_multiplier"])
    epsilon = poisson_epsilon([(event, int(golden["rounds"]))], golden["delta"])
    assert epsilon == pytest.approx(golden["epsilon"], rel=3e-3)


@pytest.mark.parametrize("rounds", [1, 100, 10_000])
@pytest.mark.parametrize("total", [0.1, 2.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_privacy_loss_distributions_of_full_batches_are_the_analytic_formula(
    rounds: int, total: float, delta: float
) -> None:
    exact = gaussian_epsilon(delta, total)
    mu = total / sqrt(rounds)
    event = full(mu) if delta == 1e-5 else poisson(1.0, mu)
    assert exact <= poisson_epsilon([(event, rounds)], delta) <= exact * 1.01


@pytest.mark.parametrize(("rounds", "least"), [(1, 1e-12), (100, 1e-12), (10_000, 3e-11)])
def test_the_smallest_delta_that_is_answered_is_answered_from_above(
    rounds: int, least: float
) -> None:
    """Fourier transforms lose about rounds·1e-16 of δ, in either direction."""
    for total in (0.1, 2.0):
        epsilon = poisson_epsilon([(full(total / sqrt(rounds)), rounds)], least)
        assert gaussian_epsilon(least, total) <= epsilon < inf


@pytest.mark.parametrize("rounds", [10, 10_000, 100_000])
def test_convolutions_lose_less_than_a_tenth_of_what_is_taken_out_of_delta(rounds: int) -> None:
    for total in (0.5, 2.0):
        composed = from_gaussian_mechanism(
            standard_deviation=2 * sqrt(rounds) / total,
            value_discretization_interval=min(1e-3, total / sqrt(rounds) / 4),
            neighboring_relation=REPLACE,
        ).self_compose(rounds)
        for delta in (1e-6, 1e-9, 1e-11, 1e-13):
            lost = delta - composed.get_delta_for_epsilon(gaussian_epsilon(delta, total))
            assert lost <= CONVOLUTION_ERROR * rounds / 10


@pytest.mark.parametrize(
    ("ratio", "mu", "rounds"), [(0.5, 0.1, 100), (0.1, 1.0, 10), (0.01, 2.0, 200), (0.3, 2.0, 1)]
)
def test_renyi_is_an_upper_bound(ratio: float, mu: float, rounds: int) -> None:
    events = [(poisson(ratio, mu), rounds)]
    exact, bound = poisson_epsilon(events, 1e-6), renyi_epsilon(events, 1e-6)
    assert exact <= bound < 1.6 * exact


def test_coins_never_cost_more_than_the_full_batch() -> None:
    for mu, rounds in ((0.1, 100), (1.0, 3)):
        losses = [
            poisson_epsilon([(poisson(ratio, mu), rounds)], 1e-6) for ratio in (0.01, 0.1, 0.5, 1)
        ]
        assert losses == sorted(losses)
        assert losses[-1] <= gaussian_epsilon(1e-6, mu * sqrt(rounds)) * 1.001


def test_full_and_drawn_rounds_compose() -> None:
    """Mixed transcripts: more than either part, and both orders alike."""
    drawn, whole = (poisson(0.5, 0.2), 20), (full(0.1), 20)
    both = poisson_epsilon([drawn, whole], 1e-6)
    assert both == pytest.approx(poisson_epsilon([whole, drawn], 1e-6), rel=1e-9)
    assert both > max(poisson_epsilon([part], 1e-6) for part in (drawn, whole))
    # to first order a drawn round is a full one of q·μ
    assert both == pytest.approx(gaussian_epsilon(1e-6, 0.1 * sqrt(40)), rel=0.02)


def test_a_million_rounds_are_not_ruined_by_the_grid() -> None:
    epsilon = poisson_epsilon([(poisson(0.5, 1e-3), 10**6)], 1e-6)
    assert epsilon == pytest.approx(gaussian_epsilon(1e-6, 0.5), rel=0.02)


def test_a_rare_but_loud_record_is_answered_without_a_huge_grid() -> None:
    """μ = 50 with q = 1e-6: losses reach 1700, ε is tiny."""
    epsilon = poisson_epsilon([(poisson(1e-6, 50.0), 3)], 1e-5)
    assert 0 <= epsilon < 0.01


def test_where_the_arithmetic_ends_epsilon_is_infinite() -> None:
    event = poisson(0.5, 0.1)
    assert poisson_epsilon([(event, 1)], LEAST_DELTA / 2) == inf
    assert poisson_epsilon([(event, 10**4)], 1e-11) == inf
    assert poisson_epsilon([(event, 10**6)], 1e-9) == inf
    assert poisson_epsilon([(poisson(0.5, 51.0), 1)], 1e-5) == inf
    assert poisson_epsilon([(event, 1)], nan) == inf
    # a loss of 10⁵, whose grid would not fit into memory
    assert poisson_epsilon([(poisson(0.5, 1.0), 10**6)], 1e-5) == inf


def test_what_moves_nothing_costs_nothing() -> None:
    assert poisson_epsilon([], 1e-6) == 0
    assert poisson_epsilon([(poisson(0.5, 0.0), 10)], 1e-6) == 0
    some = [(poisson(0.5, 0.3), 2)]
    assert poisson_epsilon([*some, (full(0.0), 5)], 1e-6) == poisson_epsilon(some, 1e-6)


# The trap


@pytest.mark.parametrize("noise", [1.0, 5.0])
def test_the_same_event_means_another_noise_to_each_of_dp_accountings_accountants(
    noise: float,
) -> None:
    """Under replace-one GaussianDpEvent(z) is z = σ/Δ to RDP, but z = σ/(Δ/2) to PLD.

    The analytic formula, with μ = Δ/σ, is the judge.  A change here is a change of our accounting.
    """
    delta, order = 1e-6, 4
    pld = PLDAccountant(REPLACE).compose(GaussianDpEvent(noise))
    assert pld.get_epsilon(delta) == pytest.approx(gaussian_epsilon(delta, 2 / noise), rel=1e-3)
    rdp = RdpAccountant([order], REPLACE).compose(GaussianDpEvent(noise))
    assert rdp._rdp[0] == pytest.approx(order * (1 / noise) ** 2 / 2)
    assert rdp.get_epsilon(delta) >= gaussian_epsilon(delta, 1 / noise)


def test_the_trap_is_the_same_inside_sampled_events() -> None:
    pld = PLDAccountant(REPLACE).compose(PoissonSampledDpEvent(0.5, GaussianDpEvent(4.0)))
    assert pld.get_epsilon(1e-5) == pytest.approx(
        poisson_epsilon([(poisson(0.5, 2 / 4.0), 1)], 1e-5), rel=1e-3
    )
    everybody = SampledWithoutReplacementDpEvent(10, 10, GaussianDpEvent(4.0))
    rdp = RdpAccountant([8], REPLACE).compose(everybody)
    assert rdp._rdp[0] == pytest.approx(8 * (1 / 4.0) ** 2 / 2)


@pytest.mark.parametrize(("ratio", "mu"), [(1.0, 1.3), (0.5, 2.0), (0.1, 5.0)])
def test_the_total_variation_of_one_round_is_that_of_the_definition(
    ratio: float, mu: float
) -> None:
    """q·(N(h) − N(−h)): q(2Φ(h) − 1), h = μ/2; rounded up, by less than the grid of losses."""
    event = PrivacyEvent(Scheme.WITHOUT_REPLACEMENT, ratio, mu, 1.0, 1)
    exact = ratio * (2 * norm.cdf(mu / 2) - 1)
    assert exact <= total_variation([(event, 1)]) <= exact + 1e-3
