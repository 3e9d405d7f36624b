"""Points as silos use them: integers, near what was asked, and small enough for exact scores."""

from fractions import Fraction
from math import log2, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from silomix_core.model.rounding import LONGEST_RECORD, SCORE_BITS, Weights, rounded
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task

Floats = NDArray[np.float64]
NUMBERS = st.floats(allow_nan=False) | st.floats(-50, 50) | st.floats(-1e-6, 1e-6)
POINTS = arrays(np.float64, st.integers(1, 30), elements=NUMBERS)


def whole(weights: Weights) -> list[int]:
    assert np.array_equal(weights.integers, np.rint(weights.integers))
    return [int(each) for each in weights.integers.ravel()]


@given(POINTS, st.sampled_from([24, SCORE_BITS]))
def test_a_rounded_point_is_of_integers_below_the_norm_that_was_asked_for(
    point: Floats, bits: int
) -> None:
    weights = rounded(point, bits)
    assert sum(each**2 for each in whole(weights)) < 2 ** (2 * bits)
    assert log2(weights.unit).is_integer()
    assert 2.0**-100 <= weights.unit <= 2.0**210


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e50, 1e50)))
def test_a_weight_moves_by_half_a_unit_and_the_unit_is_as_fine_as_it_can_be(point: Floats) -> None:
    weights = rounded(point)
    for integer, given_weight in zip(whole(weights), point, strict=True):
        moved = abs(integer * Fraction(weights.unit) - Fraction(float(given_weight)))
        assert moved <= Fraction(weights.unit) / 2
    if point.any() and weights.unit > 2.0**-100:
        assert sum(each**2 for each in whole(weights)) > 2 ** (2 * SCORE_BITS - 3)


@given(st.integers(-900, 300), st.integers(1, 5))
def test_rows_share_a_unit_and_each_is_short_enough(exponent: int, rows: int) -> None:
    point = np.random.default_rng(rows).normal(size=(rows, 7)) * 2.0**exponent
    weights = rounded(point)
    for row in weights.integers.tolist():
        assert sum(int(each) ** 2 for each in row) < 2 ** (2 * SCORE_BITS)


@given(st.integers(2, 60), st.integers(0, 10**6))
def test_a_score_is_the_exact_product_with_the_rounded_point(width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    point = rng.normal(size=width) * 10.0 ** rng.integers(-5, 15)
    records = rng.normal(size=(3, width))
    records = np.trunc(records * (LONGEST_RECORD / np.linalg.norm(records, axis=1))[:, None])
    weights = rounded(point)
    scores = weights.scores(records)
    for record, score in zip(records.tolist(), scores.tolist(), strict=True):
        exact = sum(int(x) * w for x, w in zip(record, whole(weights), strict=True))
        assert Fraction(score) == exact * Fraction(weights.unit) / UNIT


def test_at_radius_fifty_no_score_moves_by_more_than_is_said() -> None:
    for width in (3, 50, 1000):
        rng = np.random.default_rng(width)
        features = rng.normal(size=(200, width))
        features = np.rint(features / np.linalg.norm(features, axis=1)[:, None] * UNIT)
        point = rng.normal(size=width)
        point *= 50 / np.linalg.norm(point)
        off = rounded(point).scores(features) - features @ (point / UNIT)
        assert np.abs(off).max() <= 2.0**-31 * sqrt(width)
        assert np.abs(off).max() <= 4e-9  # records do not lean towards what rounding moves


@pytest.mark.parametrize("scaling", list(Scaling))
def test_no_encoded_record_is_longer_than_scores_allow_for(scaling: Scaling) -> None:
    task = Task(LossName.LOGISTIC, "y", (Feature("x", -1.0, 1.0, 0.0, 5000),), scaling, bias=1.0)
    encoded = task.encode(np.array([np.ones(5000), np.full(5000, 0.7), np.zeros(5000)]))
    assert np.linalg.norm(encoded, axis=1).max() <= sqrt(2) * UNIT + sqrt(5001) / 2
    assert sqrt(2) * UNIT + sqrt(2**21 + 1) / 2 < LONGEST_RECORD
    assert LONGEST_RECORD * 2**SCORE_BITS == 2**53


@pytest.mark.parametrize("tiny", [0.0, 5e-324, 1e-200])
def test_a_point_too_small_to_matter_is_zero_without_subnormal_numbers(tiny: float) -> None:
    weights = rounded(np.array([tiny, -tiny]))
    assert not weights.integers.any()
    assert weights.unit >= 2.0**-100


def test_a_point_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="consists of numbers"):
        rounded(np.array([0.0, np.nan]))
