"""AC-SA and its stages: known minimizers, with and without noise; lengths and steps by hand."""

from dataclasses import replace
from itertools import pairwise
from math import ceil, log, sqrt

import numpy as np
import pytest
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms import accelerated, localized, noisy_mb_sgd, plain_mb_sgd
from silomix_core.algorithms.accelerated import Stage, stages
from silomix_core.algorithms.base import Aggregate, Algorithm, AlgorithmPlan, Setting
from silomix_core.algorithms.catalogue import ALGORITHMS, algorithm
from silomix_core.algorithms.localized import kinked_locals, kinked_phases, smooth_locals
from silomix_core.mechanism.mechanism import Phase
from support.privacy_checks import Floats

PAPER = Setting(
    rounds=10**6,
    dimension=50,
    silos=25,
    participants=25,
    records=1734,
    radius=25.0,
    lipschitz=1.0,
    smoothness=0.27,
    target=PrivacyTarget(1.5, 1 / 1734**2),
)
SMALL = Setting(
    rounds=200,
    dimension=4,
    silos=9,
    participants=9,
    records=4096,
    radius=4.0,
    lipschitz=4.0,
    smoothness=1.0,
    target=PrivacyTarget(4.0, 1e-5),
)
CURVATURES = np.array([1.0, 0.5, 0.1, 0.02])
MINIMIZER = np.array([1.0, -1.5, 0.5, 0.5])


def gap(point: Floats, ridge: float = 0.0) -> float:
    """F(w) − F* for F(w) = ½Σ cᵢ(wᵢ − mᵢ)² + ridge/2·‖w‖²."""

    def value(at: Floats) -> float:
        return float(0.5 * CURVATURES @ (at - MINIMIZER) ** 2 + ridge / 2 * at @ at)

    return value(point) - value(CURVATURES * MINIMIZER / (CURVATURES + ridge))


def run(entry: Algorithm, known: Setting, noise: float, seed: int = 0) -> Floats:
    """The model after all rounds; `noise` is that of a report."""
    phases = entry.phases(known)
    plan = AlgorithmPlan(known, phases, (noise,) * len(phases))
    rng = np.random.default_rng(seed)
    steps = entry.start(plan)
    query = next(steps)
    while True:
        gradient = CURVATURES * (query.point - MINIMIZER) + plan.noise() * rng.normal(size=4)
        try:
            query = steps.send(Aggregate(gradient, known.silos))
        except StopIteration as end:
            model: Floats = end.value
            return model


# Local updates do not ask for gradients: test_local_updates.
STABLE = sorted(name for name, entry in ALGORITHMS.items() if entry.local is None)
LOCALIZED = [name for name in STABLE if name.startswith(("localized", "moreau", "convolution"))]


@pytest.mark.parametrize("name", sorted(set(STABLE) - set(LOCALIZED)))
@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_without_noise_the_minimizer_is_found(name: str, ridge: float) -> None:
    known = replace(SMALL, rounds=2000, ridge=ridge)
    entry = replace(algorithm(name), phases=noisy_mb_sgd.every_round)
    found = run(entry, known, noise=1e-9)
    slow = name == "plain-mb-sgd"
    assert gap(found, ridge) < (5e-2 if slow else 1e-3)
    assert gap(np.zeros(4), ridge) > 0.5


@pytest.mark.parametrize("name", LOCALIZED)
def test_without_noise_localized_phases_come_near_the_minimizer(name: str) -> None:
    """Each phase is pulled to the one before it, so near and no nearer."""
    assert gap(run(algorithm(name), replace(SMALL, rounds=2000), noise=1e-9)) < 0.05


@pytest.mark.parametrize("name", STABLE)
def test_with_noise_the_model_is_better_than_the_start_and_worse_than_without(name: str) -> None:
    """Over 20 fixed seeds; what is drawn never changes."""
    entry = algorithm(name)
    noisy = np.mean([gap(run(entry, SMALL, noise=0.6, seed=seed)) for seed in range(20)])
    quiet = gap(run(entry, SMALL, noise=1e-9))
    assert quiet < noisy < gap(np.zeros(4))


@pytest.mark.parametrize("rounds", [10, 40, 160])
def test_acceleration_keeps_its_bound(rounds: int) -> None:
    """Ghadimi & Lan 2012, Prop. 9: without noise F − F* ≤ 4v‖w₀ − w*‖²/(R(R+1)), v = 2β."""
    found = run(accelerated.ALGORITHM, replace(SMALL, rounds=rounds), noise=1e-9)
    assert gap(found) <= 8 * float(MINIMIZER @ MINIMIZER) / (rounds * (rounds + 1))


def test_acceleration_needs_fewer_rounds_than_plain_steps() -> None:
    known = replace(SMALL, rounds=60)
    fast = gap(run(accelerated.ALGORITHM, known, noise=1e-9))
    assert fast < gap(run(plain_mb_sgd.ALGORITHM, known, noise=1e-9)) / 5


# Plain steps --------------------------------------------------------------------------------------


def asked_points(known: Setting, noise: float = 0.1) -> tuple[list[Floats], Floats]:
    """The points that plain steps ask about in a world of constant gradients, and the model."""
    plan = AlgorithmPlan(known, (Phase(known.rounds),), (noise,))
    gradient = np.array([1.0, 0.0, 0.0, 0.0])
    steps = plain_mb_sgd.ALGORITHM.start(plan)
    query, points = next(steps), []
    while True:
        points.append(query.point)
        try:
            query = steps.send(Aggregate(gradient, known.silos))
        except StopIteration as end:
            return points, end.value


def test_plain_steps_are_those_of_the_theorem() -> None:
    """By hand from Thm 2.1: D = 4, M = 9, L = 4, R = 200, n = 100, d = 4, ε = 1, δ = 10⁻⁵."""
    known = replace(SMALL, records=100, target=PrivacyTarget(1.0, 1e-5))
    psi = 16 * log(2.5 * 200 / 1e-5) * log(2 / 1e-5) / (100 * 1.0) ** 2
    printed = 4 * 3 / (4 * 200) * min(10, 4 / sqrt(4 * psi))
    assert printed < 1 / 4
    points, model = asked_points(known)
    assert points[0] == pytest.approx(np.zeros(4))
    assert points[1][0] == pytest.approx(-printed)
    assert model == pytest.approx(np.mean(points, axis=0))
    assert len(points) == 200


def test_plain_steps_never_exceed_a_quarter_of_one_over_beta() -> None:
    known = replace(SMALL, rounds=3, smoothness=2.0)
    points, model = asked_points(known)
    assert [point[0] for point in points] == pytest.approx([0, -1 / 8, -2 / 8])
    assert model[0] == pytest.approx(-1 / 8)


def test_plain_steps_with_a_ridge_are_those_of_the_strongly_convex_theorem() -> None:
    known = replace(SMALL, ridge=0.5, rounds=40, records=100)
    spread = 4 * 16 / (9 * 100) + 4 * 0.1**2 / 9
    step = min(1 / (4 * 1.5), log(max(2, 0.25 * 16 * 1600 / (2 * spread))) / (0.5 * 40))
    points, model = asked_points(known)
    assert points[1][0] == pytest.approx(-step)
    weights = [(1 - 0.5 * step) ** -(r + 1) for r in range(40)]
    assert model == pytest.approx(np.average(points, axis=0, weights=weights))


def test_plain_steps_keep_the_bound_of_lemma_d4() -> None:
    """Convex, full batches: E F(ŵ) − F* ≤ D²/(ηR) + 2η·dσ²/(2M); mean of 40 fixed seeds."""
    known, noise = replace(SMALL, rounds=400), 1.0
    psi = 16 * log(2.5 * 400 / 1e-5) * log(2 / 1e-5) / (4096 * 4.0) ** 2
    step = min(1 / 4, 4 * 3 / (4 * 400) * min(64, 4 / sqrt(4 * psi)))
    found = np.mean([gap(run(plain_mb_sgd.ALGORITHM, known, noise, seed)) for seed in range(40)])
    assert found <= 16 / (step * 400) + step * 4 * noise**2 / 9


def test_plain_steps_are_for_losses_without_kinks() -> None:
    assert plain_mb_sgd.ALGORITHM.needs_smooth


def test_a_theorem_of_the_paper_with_two_numberings_says_which() -> None:
    for entry in ALGORITHMS.values():
        if "Razaviyayn" in entry.theorem and ("Thm 2" in entry.theorem or "§5" in entry.theorem):
            assert "long" in entry.theorem or "short" in entry.theorem, entry.name


def test_stages_are_as_long_as_the_theorem_says_and_fill_the_rounds() -> None:
    """By hand: β = 2, μ = ½, V² = 0.3, Δ = 8; stage k halves what is left of the gap."""
    found = list(stages(200, 2.0, 0.5, 0.3, 8.0))
    lengths = [stage.rounds for stage in found]
    assert lengths[0] == ceil(max(4 * sqrt(8), 128 * 0.3 / (1.5 * 2))) == 13
    assert lengths[1] == ceil(128 * 0.3 / (1.5 * 1)) == 26
    assert sum(lengths) == 200
    last = found[-1]
    k, r = len(found), last.rounds
    assert last.v == pytest.approx(
        max(4.0, sqrt(0.5 * 0.3 * r * (r + 1) * (r + 2) / (3 * 8 * 2.0 ** -(k - 1))))
    )


def test_more_noise_means_smaller_steps() -> None:
    """The printed v, with the rounds in its denominator, would not move."""
    quiet, loud = (next(iter(stages(50, 1.0, 0.1, noise, 5.0))) for noise in (1e-6, 100.0))
    assert quiet == Stage(ceil(4 * sqrt(20)), 2.0)
    assert loud.v > 100 * quiet.v


def test_the_variance_counts_batches_participants_and_noise() -> None:
    known = replace(PAPER, participants=18)
    plan = AlgorithmPlan(known, (Phase(10),), (0.1,), share=0.5)
    drawn, chosen, noise = 4 / (867 * 18), (1 - 17 / 24) / 18, 50 * 0.01 / 18
    assert plan.variance() == pytest.approx(drawn + chosen + noise)
    assert AlgorithmPlan(PAPER, (Phase(10),), (0.1,)).variance() == pytest.approx(50 * 0.01 / 25)


# Localization -------------------------------------------------------------------------------------


def test_the_subgradient_method_asks_for_as_many_rounds_as_the_theorem() -> None:
    """Gao et al. 2024, Thm G.1 at N = 25, n = 1734: 25·867 + 1 in its first phase."""
    locals_ = kinked_locals(PAPER)
    assert [each.records for each in locals_] == [867, 433, 216, 108, 54, 27, 13, 6, 3, 1]
    assert locals_[0].rounds == 21676
    assert [phase.rounds for phase in kinked_phases(PAPER)][:3] == [21676, 10826, 5401]


def test_phases_shrink_by_their_exponent() -> None:
    locals_ = smooth_locals(PAPER)
    price = sqrt(50 * np.log(1734**2)) / 1.5
    assert locals_[0].modulus == pytest.approx(max(sqrt(1734), price) / (50 * 1734 * 5))
    for one, other in pairwise(locals_):
        assert other.modulus == pytest.approx(8 * one.modulus)
        assert other.reach == pytest.approx(one.reach / 8)


@pytest.mark.parametrize("entry", [localized.MB_SGD, localized.SUBGRADIENT])
@pytest.mark.parametrize("rounds", [1, 5, 10, 11, 60, 500])
def test_a_cap_leaves_every_phase_a_round_or_drops_the_last_ones(
    entry: Algorithm, rounds: int
) -> None:
    phases = entry.phases(replace(PAPER, rounds=rounds))
    assert sum(phase.rounds for phase in phases) <= rounds
    assert len(phases) == min(10, rounds)
    assert [phase.share for phase in phases] == [2.0**-index for index in range(1, len(phases) + 1)]
    assert phases[0].rounds >= phases[-1].rounds >= 1
    if rounds >= 60:
        assert sum(phase.rounds for phase in phases) > 0.85 * rounds
