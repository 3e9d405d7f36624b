"""Code broken on purpose: each of these mistakes must be caught by the check that guards it.

The checks are those that the other tests of core run on the code as it is (support/
privacy_checks.py); every one of them passes there.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from silomix_core import mechanism as mechanism_module
from silomix_core import noise, update
from silomix_core.accounting import discretization_delta, gaussian_mu
from silomix_core.losses import LossName, loss
from silomix_core.mechanism import Mechanism, PrivacyTarget
from silomix_core.noise import RandomBytes, discrete_gaussian
from silomix_core.task import UNIT, Task
from silomix_core.update import ClippedSum, Records
from support.privacy_checks import (
    Floats,
    Neighbours,
    check_discretization_bound,
    check_grid_is_bounded,
    check_meets_target,
    check_noise,
    check_record_is_bounded,
    clipped_sum,
    hostile_pairs,
)

TARGET = PrivacyTarget(3, 3.33e-7)
Draw = Callable[[int, RandomBytes], NDArray[np.int64]]


def reference() -> Mechanism:
    return Mechanism.calibrate(TARGET, clip=1.0, rounds=100, dimension=50, records=1734)


def test_without_a_mutation_every_check_passes() -> None:
    check_noise(discrete_gaussian)
    check_meets_target(reference(), TARGET, 1734)
    check_discretization_bound(lambda count, sigma: discretization_delta(0.0, count, sigma) / 2)
    check_all_records(hostile_pairs(300))
    check_all_grids(hostile_pairs(300), small_mechanism)


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

    def mutant(target: PrivacyTarget, *, clip: float, **sizes: int) -> Mechanism:
        return replace(calibrate(target, clip=clip / 2, **sizes), clip=clip)

    monkeypatch.setattr(Mechanism, "calibrate", mutant)
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(reference(), TARGET, 1734)


def test_forgotten_composition_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """No √R: every round as if it were the only one."""
    monkeypatch.setattr(
        mechanism_module, "gaussian_mu", lambda epsilon, delta: gaussian_mu(epsilon, delta) * 10
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
    monkeypatch.setattr(mechanism_module, "discretization_delta", lambda *_: 0.0)
    made = Mechanism.calibrate(target, clip=1.0, rounds=100, dimension=50, records=1734)
    with pytest.raises(AssertionError, match="promised"):
        check_meets_target(made, target, 1734)


def test_a_smaller_discretization_constant_is_caught() -> None:
    with pytest.raises(AssertionError, match="many"):
        check_discretization_bound(lambda count, sigma: 0.029 * sqrt(count) / sigma**2)


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
    target = PrivacyTarget(0.01, 1e-6)
    return Mechanism.calibrate(target, clip=clip, rounds=500_000, dimension=4, records=records)


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
