"""What one record can change: integers, bounded exactly, for any record that can be thought of."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.model.clipped_sum import ClippedSum, Records, to_grid
from silomix_core.model.rounding import rounded
from silomix_core.task.losses import Loss, LossName, loss
from silomix_core.task.task import UNIT, Feature, Scaling, Task
from support.privacy_checks import (
    HOSTILE_VALUES,
    SUM_UNIT,
    Floats,
    Neighbours,
    check_record_is_bounded,
    clipped_sum,
    difference,
    hostile_pairs,
    hostile_task,
)

ANYTHING = st.floats() | st.sampled_from(HOSTILE_VALUES)
LABELS = st.sampled_from([-1.0, 1.0])
COORDINATES = st.floats(-1e9, 1e9) | st.floats(-3, 3)
CLIPS = st.floats(1e-9, 4) | st.sampled_from([1e-15, 1e-6, 0.25, 1.0, 1e12])
STEPS = st.floats(1, 2**36)  # grid steps in a clip
LOGISTIC = loss(LossName.LOGISTIC)
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Agreed:
    """A mechanism and the silo that uses it: what a sum becomes, and how far that may move."""

    mechanism: Mechanism
    participant: Participant

    def mean(self, total: NDArray[np.int64]) -> NDArray[np.int64]:
        return to_grid(total, self.mechanism.units_per_sum(self.participant))

    def exact(self, total: int) -> Fraction:
        return Fraction(self.mechanism.units_per_sum(self.participant)) * total / SUM_UNIT

    @property
    def sensitivity(self) -> float:
        return self.mechanism.sensitivity_units(self.participant)

    @property
    def rounding(self) -> float:
        """The part of it that pays for rounding to the grid."""
        signal = self.mechanism.units_per_sum(self.participant) * self.mechanism.clip
        return self.sensitivity - 2 * signal


def agreed(
    *,
    records: int,
    grid: float,
    clip: float = 1.0,
    dimension: int = 1,
    batch: Minibatch | None = None,
    weight: float = 1.0,
) -> Agreed:
    """The only place here that knows how a mechanism is made."""
    mechanism = Mechanism(
        clip, dimension, batch or Minibatch(), (Phase(1),), (grid,), heaviest=weight
    )
    return Agreed(mechanism, Participant(records, PrivacyTarget(1.0, 1e-6), weight))


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


@st.composite
def batches(draw: st.DrawFn, records: int) -> tuple[Minibatch, Mask]:
    """A scheme and a batch that it can draw among so many records."""
    scheme = draw(st.sampled_from(Scheme))
    if scheme is Scheme.FULL:
        return Minibatch(), np.ones(records, dtype=np.bool_)
    if scheme is Scheme.POISSON:
        mask = draw(arrays(np.bool_, records))
        return Minibatch(scheme, draw(st.floats(0.01, 1))), mask
    size = draw(st.integers(1, records))
    chosen = draw(st.permutations(range(records)))[:size]
    return Minibatch(scheme, size / records), np.isin(np.arange(records), chosen)


def pair(case: Neighbours) -> tuple[ClippedSum, ClippedSum]:
    values, labels = case.values.copy(), case.labels.copy()
    values[case.replaced], labels[case.replaced] = case.other_values, case.other_label
    return (
        clipped_sum(Records(case.task.encode(case.values), case.labels), case.clip),
        clipped_sum(Records(case.task.encode(values), labels), case.clip),
    )


def norm(vector: list[int]) -> float:
    return sqrt(sum(entry**2 for entry in vector))


def check_answer_is_bounded(case: Neighbours, made: Agreed, mask: Mask | None) -> None:
    """Neither the exact sum nor the rounded mean of neighbours is farther apart than is charged."""
    first, second = (entry.at(case.point, mask) for entry in pair(case))
    limit = 2 * Fraction(case.clip) * SUM_UNIT
    assert sum(entry**2 for entry in difference(first, second)) <= limit**2
    if mask is not None and not mask[case.replaced]:
        assert np.array_equal(first, second)
    means = [made.mean(total) for total in (first, second)]
    assert norm(difference(*means)) <= made.sensitivity
    assert max(int(np.abs(mean).max()) for mean in means) <= made.mechanism.largest_signal


@given(st.data(), neighbours(), STEPS, st.floats(0.01, 3))
def test_replacing_a_record_by_anything_moves_the_rounded_mean_by_at_most_the_sensitivity(
    data: st.DataObject, case: Neighbours, steps: float, weight: float
) -> None:
    """Whichever batch it is in or not in."""
    batch, mask = data.draw(batches(len(case.values)))
    grid = case.clip * weight / steps
    made = agreed(
        records=len(case.values),
        grid=grid,
        clip=case.clip,
        dimension=4,
        batch=batch,
        weight=weight,
    )
    check_answer_is_bounded(case, made, None if batch.scheme is Scheme.FULL else mask)


@pytest.mark.parametrize("label", [-1.0, 1.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("clip", [1e-6, 0.01, 1.0])
@pytest.mark.parametrize("hostile", [nan, inf, -inf, 1e300, 1e6, -1e6])
def test_no_hostile_record_moves_an_answer_by_more_than_the_sensitivity(
    hostile: float, clip: float, masked: bool, label: float
) -> None:
    """Raw values, and gradients (at a clip of 10⁻⁶), a million times as large as the clip."""
    rng = np.random.default_rng(3)
    for index in range(20):
        case = Neighbours(
            task=hostile_task(list(Scaling)[index % 2], bias=1.0),
            values=rng.uniform([0, -1, -1], [100, 1, 1], size=(6, 3)),
            labels=rng.choice([-1.0, 1.0], 6),
            replaced=index % 6,
            other_values=np.where(rng.random(3) < 0.7, hostile * max(clip, 1), rng.normal(size=3)),
            other_label=label,
            point=rng.normal(0, 10 ** rng.uniform(-2, 6), size=4),
            clip=clip,
        )
        mask = rng.random(6) < 0.5 if masked else None
        made = agreed(records=6, grid=clip / 1000, clip=clip, dimension=4)
        check_answer_is_bounded(case, made, mask)


@given(neighbours())
def test_flipping_a_label_moves_the_sum_by_at_most_two_clip(case: Neighbours) -> None:
    row, label = case.values[case.replaced], case.labels[case.replaced]
    check_record_is_bounded(replace(case, other_values=row, other_label=-label))


@given(neighbours(), STEPS, st.floats(0.01, 1))
def test_a_record_that_joins_a_poisson_batch_moves_it_by_at_most_half_the_sensitivity(
    case: Neighbours, steps: float, ratio: float
) -> None:
    n, limit = len(case.values), Fraction(case.clip) * SUM_UNIT
    made = agreed(
        records=n,
        grid=case.clip / steps,
        clip=case.clip,
        dimension=4,
        batch=Minibatch(Scheme.POISSON, ratio),
    )
    joined = np.ones(n, dtype=np.bool_)
    without = np.arange(n) != case.replaced
    for entry in pair(case):
        first, second = (entry.at(case.point, mask) for mask in (joined, without))
        assert sum(entry**2 for entry in difference(first, second)) <= limit**2
        assert norm(difference(made.mean(first), made.mean(second))) <= made.sensitivity / 2


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


@pytest.mark.slow
@pytest.mark.parametrize("share", [None, 0.0, 0.3, 1.0])
def test_the_sum_of_seventy_thousand_records_is_the_sum_of_python_integers(
    share: float | None,
) -> None:
    """Several blocks, and more rows than one float64 sum may have."""
    rng = np.random.default_rng(9)
    features = rng.integers(-UNIT, UNIT + 1, size=(70_000, 2)).astype(np.float64)
    labels = rng.choice([-1.0, 1.0], 70_000)
    point = np.array([0.7, -1.3])
    mask = None if share is None else rng.random(70_000) < share
    weights = rounded(point)
    whole = [[int(x) for x in row] for row in (*features.tolist(), weights.integers.tolist())]
    scores = [sum(x * w for x, w in zip(row, whole[-1], strict=True)) for row in whole[:-1]]
    exact = np.array(scores, dtype=np.float64) * (weights.unit / UNIT)
    residuals = np.trunc(LOGISTIC.residual(exact, labels) * 2**20)
    chosen = residuals if mask is None else np.where(mask, residuals, 0.0)
    rows = zip(chosen.tolist(), features.tolist(), strict=True)
    products = [[int(residual) * int(x) for x in row] for residual, row in rows]
    expected = [sum(column) for column in zip(*products, strict=True)]
    assert clipped_sum(Records(features, labels), 4.0).at(point, mask).tolist() == expected


@pytest.mark.parametrize("dimension", [1, 3, 700, 5000])
def test_blocks_of_any_shape_give_the_sum_of_single_records(dimension: int) -> None:
    rng = np.random.default_rng(dimension)
    features = np.rint(rng.uniform(-UNIT, UNIT, size=(400, dimension)) / sqrt(dimension))
    labels, point = rng.choice([-1.0, 1.0], 400), rng.normal(size=dimension)
    alone = sum(
        clipped_sum(Records(features[row : row + 1], labels[row : row + 1]), 0.5).at(point)
        for row in range(400)
    )
    assert np.array_equal(clipped_sum(Records(features, labels), 0.5).at(point), alone)


@given(arrays(np.bool_, 60), st.sampled_from([0.05, 0.2, 4.0]))
def test_a_batch_is_summed_as_if_there_were_no_other_records(mask: Mask, clip: float) -> None:
    records, point = random_records(60, 4), np.array([1.0, -2.0, 0.5, 3.0])
    total = clipped_sum(records, clip).at(point, mask)
    if not mask.any():
        assert not total.any()
        return
    subset = Records(records.features[mask], records.labels[mask])
    assert np.array_equal(total, clipped_sum(subset, clip).at(point))


def test_a_batch_of_all_records_is_no_batch() -> None:
    made, point = clipped_sum(random_records(60, 5), 0.2), np.array([1.0, -2.0, 0.5, 3.0])
    assert np.array_equal(made.at(point), made.at(point, np.ones(60, dtype=np.bool_)))


def test_every_record_is_worked_on_whatever_the_batch() -> None:
    """Size and members of a batch are secret: nothing may be skipped because of them."""
    asked: list[int] = []

    def residual(scores: Floats, labels: Floats) -> Floats:
        asked.append(len(scores))
        return LOGISTIC.residual(scores, labels)

    made = ClippedSum(random_records(500, 6), Loss(LOGISTIC.value, residual, 1.0, 0.25), 0.2)
    for mask in (None, np.zeros(500, np.bool_), np.arange(500) < 3, np.ones(500, np.bool_)):
        asked.clear()
        made.at(np.ones(4), mask)
        assert asked == [500]


@pytest.mark.parametrize(
    "batch", [np.ones(4, np.bool_), np.ones((5, 1), np.bool_), np.ones(5), np.arange(5)]
)
def test_a_batch_that_is_no_mask_of_the_records_is_refused(batch: Mask) -> None:
    with pytest.raises(ValueError, match="one truth value for each record"):
        clipped_sum(random_records(5, 0), 0.2).at(np.ones(4), batch)


def test_sums_beyond_two_to_the_53_stay_exact() -> None:
    """Odd numbers, 140 001 times: one float64 sum would lose the last bit."""
    count, odd = 140_001, UNIT - 1
    records = Records(np.full((count, 1), float(odd)), np.full(count, -1.0))
    point = np.array([14.0])
    one = int(clipped_sum(Records(records.features[:1], records.labels[:1]), 4.0).at(point)[0])
    assert count * one > 2**53
    assert (count * one) % 2 == 1
    assert int(clipped_sum(records, 4.0).at(point)[0]) == count * one


def grid_error(first: int, second: int, made: Agreed) -> Fraction:
    """How much farther two totals are apart on the grid than they really are, in grid units."""
    near, far = made.mean(np.array([first, second]))
    return abs(int(near) - int(far)) - made.exact(abs(first - second))


@given(st.data(), st.sampled_from([1, 37, 1734, 10**5 + 3, 2**21 - 9]))
def test_rounding_to_the_grid_adds_at_most_what_the_sensitivity_reserves(
    data: st.DataObject, records: int
) -> None:
    made = agreed(records=records, grid=data.draw(st.floats(1, 9)) / 2**22 / records)
    totals = st.integers(-records * SUM_UNIT, records * SUM_UNIT)
    first = data.draw(totals)
    second = data.draw(st.integers(first - 2 * SUM_UNIT, first + 2 * SUM_UNIT) | totals)
    second = max(-records * SUM_UNIT, min(records * SUM_UNIT, second))
    assert grid_error(first, second, made) <= Fraction(made.rounding)


def test_rounding_of_the_largest_means_adds_at_most_what_the_sensitivity_reserves() -> None:
    """Near 2⁴³ grid units two float64 roundings, of the total and of the product, add up.

    Found by a search for totals that round up early and down late; about 2.1·2⁻¹⁰ beyond one unit.
    """
    made = agreed(records=3_100_001, grid=1.3581785325951395e-13)
    assert made.mechanism.largest_signal < 2**43
    assert 1 < grid_error(211058843224250480, 211058777841648272, made) <= made.rounding


def test_the_rounded_mean_is_the_mean() -> None:
    grid = 1e-7
    made = agreed(records=100, grid=grid, dimension=3)
    mean = made.mean(np.array([0, 25 * SUM_UNIT, -100 * SUM_UNIT]))
    assert mean * grid == pytest.approx([0, 0.25, -1.0], abs=0.51 * grid)


@pytest.mark.parametrize(
    ("features", "labels", "reason"),
    [
        (np.zeros((0, 2)), np.zeros(0), "at least one record"),
        (np.zeros(3), np.zeros(3), r"\(n, d\)"),
        (np.zeros((3, 2)), np.zeros(2), r"\(n, d\)"),
        (np.full((1, 2), UNIT + 1.0), np.ones(1), "outside the encoded range"),
        (np.array([[0.0, -inf]]), np.ones(1), "outside the encoded range"),
        (np.array([[0.0, nan]]), np.ones(1), "outside the encoded range"),
        (np.array([[0.0, 0.5]]), np.ones(1), "no integer"),
        (np.full((1, 5), float(UNIT)), np.ones(1), "longer than any that encoding gives"),
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
