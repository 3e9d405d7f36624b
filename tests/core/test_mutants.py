"""Code broken on purpose: each of these mistakes must be caught by the check that guards it.

The checks are those that the other tests of core run on the code as it is (support/
privacy_checks.py); every one of them passes there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from silomix_core import discrete_gaussian as noise
from silomix_core.accounting import (
    budget,
    composition,
    discretization_delta,
    gaussian_epsilon,
    gaussian_mu,
    integers,
    poisson,
)
from silomix_core.accounting.budget import NOTHING, Accountant, Budget, PrivacyLoss
from silomix_core.accounting.composition import largest_mu
from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.accounting.integers import Released
from silomix_core.discrete_gaussian import RandomBytes, discrete_gaussian
from silomix_core.mechanism import mechanism as mechanism_module
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.model import clipped_sum as update
from silomix_core.model.clipped_sum import ClippedSum, Records
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT, Task
from support.privacy_checks import (
    Floats,
    Neighbours,
    check_discretization_bound,
    check_fits,
    check_grid_is_bounded,
    check_meets_target,
    check_noise,
    check_promises,
    check_ratio_bound,
    check_record_is_bounded,
    clipped_sum,
    full_batch,
    hostile_pairs,
)

TARGET = PrivacyTarget(3, 3.33e-7)
Draw = Callable[[int, RandomBytes], NDArray[np.int64]]


@pytest.fixture(autouse=True)
def _forget_calibrations() -> Iterator[None]:
    """Neither may a mutant be handed what was computed without it, nor anybody a mutant's."""
    caches = (mechanism_module._calibrate, composition._largest_subsampled_mu, budget.fixed_order)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def reference() -> Mechanism:
    return full_batch(TARGET, clip=1.0, rounds=100, dimension=50, records=1734)


@pytest.mark.slow
def test_without_a_mutation_every_check_passes() -> None:
    check_noise(discrete_gaussian)
    check_meets_target(reference(), TARGET, 1734)
    check_discretization_bound(
        lambda count, sigma: discretization_delta(0.0, Released.of(count, sigma)) / 2
    )
    check_all_records(hostile_pairs(300))
    check_all_grids(hostile_pairs(300), small_mechanism)
    fixed_size = drawing(1, Scheme.WITHOUT_REPLACEMENT)
    for made, silos in (consortium(), drawing(1), drawing(2), fixed_size):
        check_promises(made, silos)
        check_fits(made, silos)
    check_filter(Accountant.GAUSSIAN)
    check_filter(Accountant.RENYI)


# The noise


def half(count: int, source: RandomBytes) -> NDArray[np.int64]:
    return discrete_gaussian(count, source) // 2


def two_percent_less(count: int, source: RandomBytes) -> NDArray[np.int64]:
    return np.rint(discrete_gaussian(count, source) * 0.98).astype(np.int64)


def coarse_only(count: int, source: RandomBytes) -> NDArray[np.int64]:
    """The fine table forgotten: multiples of 256, hidden from a plain test of the width."""
    return discrete_gaussian(count, source) // 256 * 256


def uniform(count: int, source: RandomBytes) -> NDArray[np.int64]:
    words = np.frombuffer(source(8 * count), dtype="<i8")
    return (words / 2**63 * 2**20 * sqrt(3)).astype(np.int64)


def positive(count: int, source: RandomBytes) -> NDArray[np.int64]:
    return np.abs(discrete_gaussian(count, source))


def reused(count: int, source: RandomBytes) -> NDArray[np.int64]:
    return discrete_gaussian(count, np.random.default_rng(1).bytes)


@pytest.mark.parametrize("draw", [half, two_percent_less, coarse_only, uniform, positive, reused])
def test_other_noise_is_caught(draw: Draw) -> None:
    with pytest.raises(AssertionError):
        check_noise(draw)


def test_a_wrong_variance_in_a_table_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_COARSE_VARIANCE", noise._COARSE_VARIANCE // 4)
    with pytest.raises(AssertionError):
        check_noise(discrete_gaussian)


# The calibration


def test_half_the_sensitivity_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """C/n, as for adding or removing a record, instead of 2C/n."""
    calibrate = Mechanism.calibrate

    def mutant(
        silos: Sequence[Participant], *, clip: float, dimension: int, phases: Sequence[Phase]
    ) -> Mechanism:
        made = calibrate(silos, clip=clip / 2, dimension=dimension, phases=phases)
        return replace(made, clip=clip)

    monkeypatch.setattr(Mechanism, "calibrate", mutant)
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(reference(), TARGET, 1734)


def test_forgotten_composition_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """No √R: every round as if it were the only one."""
    monkeypatch.setattr(
        composition, "gaussian_mu", lambda epsilon, delta: gaussian_mu(epsilon, delta) * 10
    )
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(reference(), TARGET, 1734)


def test_half_the_noise_is_caught_in_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accountant that takes the noise for twice as wide as it is."""
    monkeypatch.setattr(mechanism_module, "SIGMA_UNITS", 2.0**21)
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(reference(), TARGET, 1734)


def test_a_calibration_for_the_average_silo_is_caught() -> None:
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(reference(), TARGET, 1733)


def test_forgotten_rounding_is_caught_in_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism_module, "_ROUNDING", 0.0)
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(reference(), TARGET, 1734)


def test_free_integers_are_caught_in_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """δ at which discrete noise takes a visible part."""
    target = PrivacyTarget(3, 1e-9)
    monkeypatch.setattr(integers, "discretization_delta", lambda *_: 0.0)
    made = full_batch(target, clip=1.0, rounds=10**5, dimension=50, records=1734)
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(made, target, 1734)


def test_a_ratio_that_costs_nothing_is_caught_in_the_calibration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = PrivacyTarget(3, 1e-9)
    monkeypatch.setattr(integers, "discretization_ratio", lambda *_: 0.0)
    made = full_batch(target, clip=1.0, rounds=10**5, dimension=50, records=1734)
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(made, target, 1734)


def test_a_smaller_discretization_constant_is_caught() -> None:
    with pytest.raises(AssertionError, match="σ = "):
        check_ratio_bound(lambda count, sigma: 7.9 * count / sigma**2)
    with pytest.raises(AssertionError, match="many"):
        check_discretization_bound(lambda count, sigma: 0.029 * sqrt(count) / sigma**2)


# Phases, weights and promises of single silos


def consortium() -> tuple[Mechanism, list[Participant]]:
    """Unlike silos in two unlike phases."""
    silos = [
        Participant(900, PrivacyTarget(2, 1e-6), weight=0.5),
        Participant(1000, PrivacyTarget(2, 1e-6), weight=1.9),
        Participant(1100, PrivacyTarget(1.1, 1e-6), weight=1.3),
    ]
    phases = [Phase(16, 0.5), Phase(4, 0.25)]
    return Mechanism.calibrate(silos, clip=1.0, dimension=6, phases=phases), silos


def check_consortium() -> None:
    check_promises(*consortium())


# Everything that `_grid` knows but the silo: clip, dimension, phase, batch, …
Grid = Callable[..., object]
grid_of: Grid = mechanism_module._grid


def no_weight(silo: Participant, *rest: object) -> object:
    return grid_of(replace(silo, weight=1.0), *rest)


def no_rounds(
    silo: Participant, clip: float, dimension: int, phase: Phase, *rest: object
) -> object:
    return grid_of(silo, clip, dimension, replace(phase, rounds=1), *rest)


def no_share(silo: Participant, clip: float, dimension: int, phase: Phase, *rest: object) -> object:
    return grid_of(silo, clip, dimension, replace(phase, share=1.0), *rest)


def one_promise(silo: Participant, *rest: object) -> object:
    return grid_of(replace(silo, target=PrivacyTarget(2, 1e-6)), *rest)


def another_delta(silo: Participant, *rest: object) -> object:
    return grid_of(replace(silo, target=replace(silo.target, delta=2e-6)), *rest)


@pytest.mark.parametrize("mutant", [no_weight, no_rounds, no_share, one_promise, another_delta])
def test_what_is_forgotten_of_a_silo_or_phase_is_caught(
    mutant: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mechanism_module, "_grid", mutant)
    with pytest.raises(AssertionError, match="promised"):
        check_consortium()


def test_noise_for_the_average_silo_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least instead of the most that any silo needs."""
    monkeypatch.setattr(mechanism_module, "max", min, raising=False)
    with pytest.raises(AssertionError, match="promised"):
        check_consortium()


def test_one_grid_for_all_phases_is_caught() -> None:
    made, silos = consortium()
    with pytest.raises(AssertionError, match="promised"):
        check_promises(replace(made, grids=(min(made.grids),) * 2), silos)


def test_a_weight_that_is_forgotten_in_the_range_is_caught() -> None:
    made, silos = consortium()
    with pytest.raises(AssertionError, match="beyond the range"):
        check_fits(replace(made, heaviest=1.0), silos)


# Batches that are drawn


def drawing(rounds: int, scheme: Scheme = Scheme.POISSON) -> tuple[Mechanism, list[Participant]]:
    silos = [Participant(400, PrivacyTarget(1, 1e-5))]
    batch = Minibatch(scheme, 0.5)
    phases = [Phase(rounds)]
    return Mechanism.calibrate(silos, clip=1.0, dimension=4, phases=phases, minibatch=batch), silos


def softer(factor: float) -> Callable[..., float]:
    """ε of events whose sensitivity is `factor` times what it is."""
    original = poisson.poisson_epsilon

    def mutant(events: Sequence[tuple[PrivacyEvent, int]], delta: float) -> float:
        changed = [(replace(each, sensitivity=each.sensitivity * factor), n) for each, n in events]
        return original(changed, delta)

    return mutant


def add_or_remove(events: Sequence[tuple[PrivacyEvent, int]], delta: float) -> float:
    """dp-accounting's other neighbours: (1−q)·N(0,1) + q·N(h,1) against N(0,1)."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    ((event, count),) = events
    single = from_gaussian_mechanism(
        2 / event.mu, sampling_prob=event.ratio, value_discretization_interval=1e-3
    )
    return float(single.self_compose(count).get_epsilon_for_delta(delta))


def one_round(events: Sequence[tuple[PrivacyEvent, int]], delta: float) -> float:
    return poisson.poisson_epsilon([(event, 1) for event, _ in events], delta)


def of_a_smaller_ratio(events: Sequence[tuple[PrivacyEvent, int]], delta: float) -> float:
    changed = [(replace(event, ratio=event.ratio * 0.9), count) for event, count in events]
    return poisson.poisson_epsilon(changed, delta)


def as_a_full_batch_of_the_mean(events: Sequence[tuple[PrivacyEvent, int]], delta: float) -> float:
    """q·μ, as a full batch would have: true to first order only."""
    total = sum(count * (0.97 * event.ratio * event.mu) ** 2 for event, count in events)
    return gaussian_epsilon(delta, sqrt(total))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [softer(0.5), softer(0.97), add_or_remove, of_a_smaller_ratio, as_a_full_batch_of_the_mean],
    ids=["half the sensitivity", "a little less", "add or remove", "smaller ratio", "mean"],
)
def test_poisson_batches_under_another_adjacency_are_caught(
    mutant: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "poisson_epsilon", mutant)
    with pytest.raises(AssertionError, match="promised"):
        check_promises(*drawing(1))


def test_forgotten_composition_of_poisson_batches_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(composition, "poisson_epsilon", one_round)
    with pytest.raises(AssertionError, match="promised"):
        check_promises(*drawing(2))


@pytest.mark.parametrize("scheme", [Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT])
def test_a_batch_that_is_divided_by_all_records_is_caught(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accountant believes in C/n where the silo computes C/K."""
    monkeypatch.setattr(Minibatch, "size", lambda self, records: float(records))
    with pytest.raises(AssertionError, match="promised"):
        check_promises(*drawing(1, scheme))


def test_batches_of_fixed_size_that_cost_like_their_mean_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """q²·μ² instead of what one draw in 1/q can show."""
    monkeypatch.setattr(composition, "renyi_epsilon", as_a_full_batch_of_the_mean)
    with pytest.raises(AssertionError, match="promised"):
        check_promises(*drawing(1, Scheme.WITHOUT_REPLACEMENT))


def test_the_loss_of_full_batches_for_drawn_ones_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensitivity of n records with the loss of K: nobody's batch."""
    monkeypatch.setattr(
        mechanism_module,
        "largest_mu",
        lambda target, scheme, ratio, rounds, dimension, *_: (
            largest_mu(target, Scheme.FULL, 1.0, rounds, dimension) / ratio * 1.1
        ),
    )
    with pytest.raises(AssertionError, match="promised"):
        check_promises(*drawing(1))


def test_a_range_for_the_expected_batch_only_is_caught() -> None:
    """Without 1/q in it, a batch that is larger than expected would be cut."""
    made, silos = drawing(1)
    mutant = replace(made, minibatch=Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.5))
    with pytest.raises(AssertionError, match="beyond the range"):
        check_fits(mutant, silos, everybody=True)


# The filter


def check_filter(accountant: Accountant) -> None:
    """What a budget holds is inside (ε, δ) by exact arithmetic, however the rounds are split."""
    from support.exact import exact_delta

    target = PrivacyTarget(1, 1e-6)
    for parts in (1, 2, 50):
        kept = Budget(target, accountant)
        mu = gaussian_mu(1, 1e-6) / sqrt(parts)
        for factor in (0.9, 1.0001, 1.05, 1.5, 3.0):
            event = PrivacyEvent(Scheme.FULL, 1.0, factor * mu * 2**20, 2.0**20, 1)
            total = NOTHING
            for _ in range(parts):
                total = total + kept.loss(event)
            if kept.holds(total):
                delta = exact_delta(1, factor * mu * sqrt(parts))
                assert delta <= 1e-6, f"held at δ = {float(delta):.2e}"


def test_a_filter_that_takes_the_larger_loss_for_the_sum_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Studies treated as if they were disjoint phases."""
    monkeypatch.setattr(PrivacyLoss, "__add__", PrivacyLoss.at_least)
    for accountant in Accountant:
        with pytest.raises(AssertionError, match="held"):
            check_filter(accountant)


def test_a_filter_that_counts_only_half_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Budget.loss

    def half_loss(self: Budget, event: PrivacyEvent, times: int = 1) -> PrivacyLoss:
        loss = original(self, event, times)
        return PrivacyLoss(loss.value / 2, loss.released)

    monkeypatch.setattr(Budget, "loss", half_loss)
    for accountant in Accountant:
        with pytest.raises(AssertionError, match="held"):
            check_filter(accountant)


def test_a_conversion_without_its_delta_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """ε = D_α: what remains of the conversion when its second part is forgotten."""
    monkeypatch.setattr(budget, "epsilon_at", lambda order, divergence, delta: divergence / order)
    with pytest.raises(AssertionError, match="held"):
        check_filter(Accountant.RENYI)


# The sensitivity


def unclipped(records: Records, clip: float) -> ClippedSum:
    made = clipped_sum(records, clip)
    made._caps = np.full(len(records), 2.0**20)
    return made


def clipped_by_coordinate(records: Records, clip: float) -> ClippedSum:
    """The largest coordinate bounded instead of the norm."""
    made = clipped_sum(records, clip)
    made._caps = np.floor(clip * UNIT * 2**20 / np.abs(records.features).max(axis=1))
    return made


def clipped_above_only(records: Records, clip: float) -> ClippedSum:
    made = clipped_sum(records, clip)
    made._caps = np.maximum(made._caps, 0)

    class OneSided(ClippedSum):
        def at(self, point: Floats) -> NDArray[np.int64]:
            scores = records.features @ (point / UNIT)
            residuals = np.trunc(loss(LossName.LOGISTIC).residual(scores, records.labels) * 2**20)
            return (np.minimum(residuals, made._caps) @ records.features).astype(np.int64)

    return OneSided(records, loss(LossName.LOGISTIC), clip)


def double_clip(records: Records, clip: float) -> ClippedSum:
    return clipped_sum(records, 2 * clip)


def slightly_too_large(records: Records, clip: float) -> ClippedSum:
    return clipped_sum(records, clip * (1 + 1e-3))


@pytest.mark.parametrize(
    "make",
    [unclipped, clipped_by_coordinate, clipped_above_only, double_clip, slightly_too_large],
)
def test_a_record_that_is_not_clipped_is_caught(make: Callable[..., ClippedSum]) -> None:
    with pytest.raises(AssertionError, match="one record"):
        check_all_records(hostile_pairs(300), make)


def test_forgotten_clamping_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite and missing values reach the arithmetic."""

    def careless(self: Task, values: Floats) -> Floats:
        scaled = np.column_stack([values * UNIT / sqrt(3), np.full(len(values), UNIT * self.bias)])
        return np.rint(scaled)

    monkeypatch.setattr(Task, "encode", careless)
    with np.errstate(all="ignore"), pytest.raises((AssertionError, ValueError)):
        check_all_records(hostile_pairs(300))


def test_scaling_fitted_on_the_data_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividing by the largest value of a column lets one record change all others."""
    encode = Task.encode

    def fitted(self: Task, values: Floats) -> Floats:
        encoded = encode(self, values)
        return np.rint(encoded * UNIT / np.maximum(np.abs(encoded).max(axis=0), 1))

    monkeypatch.setattr(Task, "encode", fitted)
    with pytest.raises(AssertionError, match="moved the sum"):
        check_all_records(hostile_pairs(300, clips=(0.05,)))


def small_mechanism(clip: float, records: int) -> Mechanism:
    """A grid so coarse that rounding is a good part of the sensitivity."""
    return Mechanism(clip, 4, Minibatch(), (Phase(1),), (clip / records / 7,))


def test_forgotten_rounding_is_caught_in_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {(clip, n): small_mechanism(clip, n) for clip in (0.01, 0.25, 1.0) for n in range(1, 5)}
    monkeypatch.setattr(mechanism_module, "_ROUNDING", 0.0)
    with pytest.raises(AssertionError, match="moved too far"):
        check_all_grids(hostile_pairs(300), lambda clip, records: made[clip, records])


def check_all_records(
    cases: Iterable[Neighbours], make: Callable[[Records, float], ClippedSum] = clipped_sum
) -> None:
    for case in cases:
        check_record_is_bounded(case, make)


def check_all_grids(cases: Iterable[Neighbours], make: Callable[[float, int], Mechanism]) -> None:
    for case in cases:
        check_grid_is_bounded(case, make(case.clip, len(case.values)))


def test_sums_in_one_piece_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without blocks of rows a float64 sum passes 2⁵³ and loses its last bit."""
    monkeypatch.setattr(update, "_ROWS_PER_SUM", 2**30)
    records = Records(np.full((140_001, 1), UNIT - 1.0), np.full(140_001, -1.0))
    point = np.array([14.0])
    alone = Records(records.features[:1], records.labels[:1])
    one = int(clipped_sum(alone, 4.0).at(point)[0])
    assert int(clipped_sum(records, 4.0).at(point)[0]) != 140_001 * one
