"""What one record can change: integers, bounded exactly, for any record that can be thought of."""

from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from silomix_core.losses import LossName, loss
from silomix_core.mechanism import Mechanism, PrivacyTarget
from silomix_core.task import UNIT, Feature, Scaling, Task
from silomix_core.update import ClippedSum, Records, to_grid
from support.privacy_checks import (
    HOSTILE_VALUES,
    SUM_UNIT,
    Floats,
    Neighbours,
    check_grid_is_bounded,
    check_record_is_bounded,
    clipped_sum,
    hostile_pairs,
    hostile_task,
)

ANYTHING = st.floats() | st.sampled_from(HOSTILE_VALUES)
LABELS = st.sampled_from([-1.0, 1.0])
COORDINATES = st.floats(-1e9, 1e9) | st.floats(-3, 3)
CLIPS = st.floats(1e-9, 4) | st.sampled_from([1e-15, 0.25, 1.0, 1e12])
LOGISTIC = loss(LossName.LOGISTIC)


@st.composite
def neighbours(draw: st.DrawFn) -> Neighbours:
    n = draw(st.integers(1, 5))
    return Neighbours(
        task=hostile_task(draw(st.sampled_from(Scaling)), bias=draw(st.floats(1e-6, 1))),
        values=draw(arrays(np.float64, (n, 3), elements=ANYTHING)),
        labels=draw(arrays(np.float64, n, elements=LABELS)),
        replaced=draw(st.integers(0, n - 1)),
        other_values=draw(arrays(np.float64, 3, elements=ANYTHING)),
        other_label=draw(LABELS),
        point=draw(arrays(np.float64, 4, elements=COORDINATES)),
        clip=draw(CLIPS),
    )


@given(neighbours())
def test_replacing_a_record_by_anything_moves_the_sum_by_at_most_two_clip(
    case: Neighbours,
) -> None:
    check_record_is_bounded(case)


@given(neighbours(), st.floats(0.1, 10), st.integers(1, 300))
def test_replacing_a_record_by_anything_moves_the_rounded_mean_by_at_most_the_sensitivity(
    case: Neighbours, epsilon: float, rounds: int
) -> None:
    mechanism = Mechanism.calibrate(
        PrivacyTarget(epsilon, 1e-5),
        clip=case.clip,
        rounds=rounds,
        dimension=4,
        records=len(case.values),
    )
    check_grid_is_bounded(case, mechanism)


def test_hostile_neighbours_of_the_mutant_tests_are_bounded_too() -> None:
    for case in hostile_pairs(300):
        check_record_is_bounded(case)


ENCODED = st.integers(-UNIT, UNIT).map(float)


@given(
    arrays(np.float64, (1, 4), elements=ENCODED),
    LABELS,
    arrays(np.float64, 4, elements=COORDINATES),
    CLIPS,
)
def test_a_record_contributes_at_most_the_clip_even_if_its_norm_is_large(
    features: Floats, label: float, point: Floats, clip: float
) -> None:
    """Any integers that fit, not only those of norm one that encoding gives."""
    added = clipped_sum(Records(features, np.array([label])), clip).at(point)
    assert sum(int(x) ** 2 for x in added) <= (Fraction(clip) * SUM_UNIT) ** 2


@pytest.mark.parametrize("coordinate", [1e154, 1e300, 1.7e308])
def test_no_finite_point_however_far_makes_a_record_weigh_more(coordinate: float) -> None:
    """Scores may overflow, each way at once in different parts of a row."""
    task = Task(
        LossName.LOGISTIC,
        "y",
        (Feature("x", -1.0, 1.0, 0.0, count=300),),
        Scaling.UNIT_BALL,
        0.5,
    )
    values = np.where(np.arange(300) % 2, 1.0, -1.0)[None, :].repeat(3, axis=0)
    values[1], values[2, :100] = 1.0, -1.0
    records = Records(task.encode(values), np.ones(3))
    total = clipped_sum(records, 1.0).at(np.full(301, coordinate))
    assert sum(int(x) ** 2 for x in total) <= (3 * SUM_UNIT) ** 2


def naive_mean(records: Records, point: Floats, clip: float) -> Floats:
    """The mean of per-record gradients, each one written out and clipped by its own norm."""
    total = np.zeros_like(point)
    for row, label in zip(records.features / UNIT, records.labels, strict=True):
        gradient = -label / (1 + np.exp(label * float(row @ point))) * row
        total += gradient * min(1.0, clip / float(np.linalg.norm(gradient)))
    return total / len(records)


def random_records(n: int, seed: int) -> Records:
    rng = np.random.default_rng(seed)
    values = rng.uniform([0, -1, -1], [100, 1, 1], size=(n, 3))
    return Records(hostile_task().encode(values), rng.choice([-1.0, 1.0], n))


@pytest.mark.parametrize("clip", [0.01, 0.1, 0.25, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_clipping_in_closed_form_is_clipping_each_gradient(clip: float, seed: int) -> None:
    records = random_records(50, seed)
    point = np.random.default_rng(seed).normal(0, 3, 4)
    mean = clipped_sum(records, clip).at(point) / SUM_UNIT / 50
    # residuals are rounded to 2⁻²⁰, norms (at least bias = 0.3) up to the next 2⁻¹⁶
    assert mean == pytest.approx(naive_mean(records, point, clip), abs=2**-19 + clip * 2**-14)


@pytest.mark.parametrize("seed", range(5))
def test_unclipped_gradients_meet_finite_differences_of_the_loss(seed: int) -> None:
    records = random_records(40, seed)
    point, step = np.random.default_rng(seed).normal(0, 2, 4), 1e-5

    def mean_loss(at: Floats) -> float:
        return float(LOGISTIC.value(records.features / UNIT @ at, records.labels).mean())

    slopes = [
        (mean_loss(point + step * axis) - mean_loss(point - step * axis)) / (2 * step)
        for axis in np.eye(4)
    ]
    mean = clipped_sum(records, 10.0).at(point) / SUM_UNIT / 40
    assert mean == pytest.approx(slopes, abs=2**-19)


def test_a_clip_that_binds_nobody_changes_nothing() -> None:
    records, point = random_records(30, 1), np.array([1.0, -2.0, 0.5, 3.0])
    first, second = (clipped_sum(records, clip).at(point) for clip in (2.0, 1e9))
    assert np.array_equal(first, second)


@given(st.permutations(range(12)))
def test_the_order_of_records_does_not_matter(order: list[int]) -> None:
    records, point = random_records(12, 2), np.array([1.0, -2.0, 0.5, 3.0])
    shuffled = Records(records.features[order], records.labels[order])
    first, second = (clipped_sum(entry, 0.2).at(point) for entry in (records, shuffled))
    assert np.array_equal(first, second)


def test_the_sum_of_seventy_thousand_records_is_the_sum_of_python_integers() -> None:
    rng = np.random.default_rng(9)
    features = rng.integers(-UNIT, UNIT + 1, size=(70_000, 2)).astype(np.float64)
    labels = rng.choice([-1.0, 1.0], 70_000)
    point = np.array([0.7, -1.3])
    residuals = np.trunc(LOGISTIC.residual(features @ (point / UNIT), labels) * 2**20)
    rows = zip(residuals.tolist(), features.tolist(), strict=True)
    products = [[int(residual) * int(x) for x in row] for residual, row in rows]
    expected = [sum(column) for column in zip(*products, strict=True)]
    assert clipped_sum(Records(features, labels), 4.0).at(point).tolist() == expected


def test_sums_beyond_two_to_the_53_stay_exact() -> None:
    """Odd numbers, 140 001 times: one float64 sum would lose the last bit."""
    count, odd = 140_001, UNIT - 1
    records = Records(np.full((count, 1), float(odd)), np.full(count, -1.0))
    point = np.array([14.0])
    one = int(clipped_sum(Records(records.features[:1], records.labels[:1]), 4.0).at(point)[0])
    assert count * one > 2**53
    assert (count * one) % 2 == 1
    assert int(clipped_sum(records, 4.0).at(point)[0]) == count * one


def grid_error(first: int, second: int, records: int, mechanism: Mechanism) -> Fraction:
    """How much farther two totals are apart on the grid than they really are, in grid units."""
    near, far = to_grid(np.array([first, second]), records, mechanism)
    exact = Fraction(abs(first - second)) / (SUM_UNIT * records * Fraction(mechanism.grid))
    return abs(int(near) - int(far)) - exact


@given(st.data(), st.sampled_from([1, 37, 1734, 10**5 + 3, 2**21 - 9]))
def test_rounding_to_the_grid_adds_at_most_what_the_sensitivity_reserves(
    data: st.DataObject, records: int
) -> None:
    mechanism = Mechanism.calibrate(
        PrivacyTarget(20, 1e-2), clip=1.0, rounds=1, dimension=1, records=records
    )
    totals = st.integers(-records * SUM_UNIT, records * SUM_UNIT)
    first = data.draw(totals)
    second = data.draw(st.integers(first - 2 * SUM_UNIT, first + 2 * SUM_UNIT) | totals)
    second = max(-records * SUM_UNIT, min(records * SUM_UNIT, second))
    reserved = mechanism.sensitivity_units(1) - 2 / mechanism.grid  # √1·rounding
    assert grid_error(first, second, records, mechanism) <= Fraction(reserved)


def test_rounding_of_the_largest_means_adds_at_most_what_the_sensitivity_reserves() -> None:
    """Near 2⁴³ grid units two float64 roundings, of the total and of the product, add up.

    Found by a search for totals that round up early and down late; about 2.1·2⁻¹⁰ beyond one unit.
    """
    mechanism = Mechanism(clip=1.0, rounds=1, dimension=1, grid=1.3581785325951395e-13)
    assert mechanism.largest_signal < 2**43
    error = grid_error(211058843224250480, 211058777841648272, 3_100_001, mechanism)
    reserved = mechanism.sensitivity_units(10**30)  # with so many records, the rounding alone
    assert 1 < error <= reserved


def test_the_rounded_mean_is_the_mean() -> None:
    mechanism = Mechanism.calibrate(
        PrivacyTarget(3, 1e-6), clip=1.0, rounds=10, dimension=3, records=100
    )
    mean = to_grid(np.array([0, 25 * SUM_UNIT, -100 * SUM_UNIT]), 100, mechanism)
    assert mean * mechanism.grid == pytest.approx([0, 0.25, -1.0], abs=0.51 * mechanism.grid)


@pytest.mark.parametrize(
    ("features", "labels", "reason"),
    [
        (np.zeros((0, 2)), np.zeros(0), "at least one record"),
        (np.zeros(3), np.zeros(3), r"\(n, d\)"),
        (np.zeros((3, 2)), np.zeros(2), r"\(n, d\)"),
        (np.full((1, 2), UNIT + 1.0), np.ones(1), "outside the encoded range"),
        (np.array([[0.0, -inf]]), np.ones(1), "outside the encoded range"),
        (np.array([[0.0, nan]]), np.ones(1), "outside the encoded range"),
    ],
)
def test_records_that_were_not_encoded_are_refused(
    features: Floats, labels: Floats, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Records(features, labels)


def test_records_know_how_many_they_are() -> None:
    assert len(random_records(7, 0)) == 7


def test_a_clip_smaller_than_one_unit_sends_nothing_of_a_record() -> None:
    total = ClippedSum(random_records(5, 0), LOGISTIC, 1e-12).at(np.ones(4))
    assert not total.any()
