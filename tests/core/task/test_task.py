"""Where a record enters: any values at all become integers of bounded size."""

import tracemalloc
from math import inf, nan, sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task
from support.privacy_checks import HOSTILE_VALUES, Floats, hostile_task

ANYTHING = st.floats() | st.sampled_from(HOSTILE_VALUES)
COUNTS = st.integers(1, 3)
SCALINGS = pytest.mark.parametrize("scaling", list(Scaling))
TABLES = arrays(np.float64, st.tuples(st.integers(0, 6), st.just(3)), elements=ANYTHING)


def task(*features: Feature, scaling: Scaling = Scaling.UNIT_BALL, bias: float = 0.5) -> Task:
    return Task(LossName.LOGISTIC, "outcome", features, scaling, bias)


@SCALINGS
@given(values=TABLES)
def test_any_values_encode_to_finite_integers_within_the_unit(
    scaling: Scaling, values: Floats
) -> None:
    encoded = hostile_task(scaling).encode(values)
    assert encoded.shape == (len(values), 4)
    assert np.array_equal(encoded, np.rint(encoded))
    assert np.all(np.abs(encoded) <= UNIT)
    # the norm of the features is at most one, but for rounding each to an integer
    assert np.all(np.linalg.norm(encoded[:, :-1], axis=1) <= UNIT + sqrt(3) / 2)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[float, float]:
    low, high = sorted(
        draw(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=2, unique=True))
    )
    return low, high


@SCALINGS
@given(bounds(), ANYTHING)
@example((1e16, 1e16 + 2), 2e16)
@example((1e16 + 2, 1e16 + 4), 0.0)
@example((0.0, 5e-324), 1.0)
@example((-1e300, 1e300), 1e300)
def test_encoding_is_total_whatever_the_declared_bounds(
    scaling: Scaling, bounds: tuple[float, float], value: float
) -> None:
    low, high = bounds
    encoded = task(Feature("x", low, high, low), scaling=scaling).encode(np.array([[value]]))
    assert np.all(np.abs(encoded) <= UNIT)


@pytest.mark.parametrize(
    ("low", "high"), [(-1.7e308, 1.7e308), (1e308, 1.7e308), (-1.7e308, -1e308)]
)
def test_bounds_too_wide_for_arithmetic_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="'x'"):
        Feature("x", low, high, low)


@pytest.mark.slow
@SCALINGS
@given(values=TABLES)
def test_values_beyond_the_bounds_count_as_the_bounds(scaling: Scaling, values: Floats) -> None:
    clamped = np.clip(values, [0, -1, -1], [100, 1, 1])  # NaN stays
    encode = hostile_task(scaling).encode
    assert np.array_equal(encode(values), encode(clamped))


@SCALINGS
@given(values=TABLES)
def test_missing_values_count_as_the_declared_ones(scaling: Scaling, values: Floats) -> None:
    filled = np.where(np.isnan(values), [50.0, 0.25, 0.25], values)
    encode = hostile_task(scaling).encode
    assert np.array_equal(encode(values), encode(filled))


@SCALINGS
@given(values=TABLES, other=arrays(np.float64, 3, elements=ANYTHING))
def test_a_record_is_encoded_without_a_look_at_the_others(
    scaling: Scaling, values: Floats, other: Floats
) -> None:
    encode = hostile_task(scaling).encode
    together = encode(np.vstack([values, other]))
    assert np.array_equal(together[:-1], encode(values))
    assert np.array_equal(together[-1:], encode(other[None, :]))


def test_encoding_leaves_the_raw_values_alone() -> None:
    values = np.array([[nan, 7.0, -inf]])
    hostile_task().encode(values)
    assert np.array_equal(values, [[nan, 7.0, -inf]], equal_nan=True)


def test_the_unit_ball_maps_bounds_to_plus_and_minus_one_over_root_features() -> None:
    encoded = hostile_task(bias=0.25).encode(np.array([[0.0, 1.0, 0.0], [100.0, -1.0, 0.5]]))
    side = round(UNIT / sqrt(3))
    assert encoded.tolist() == [
        [-side, side, 0, UNIT / 4],
        [side, -side, round(UNIT / sqrt(12)), UNIT / 4],
    ]


def test_the_unit_sphere_gives_every_record_norm_one_but_the_zero_record() -> None:
    encoded = hostile_task(Scaling.UNIT_SPHERE).encode(
        np.array([[50.0, 0.0, 0.01], [80.0, 0.3, -1.0], [50.0, 0.0, 0.0]])
    )
    norms = np.linalg.norm(encoded[:, :-1], axis=1)
    assert norms == pytest.approx([UNIT, UNIT, 0], abs=1)


@pytest.mark.parametrize("others", [0.0, 1.5e-162, -5e-324])
@pytest.mark.parametrize("tiny", [2.7e-162, 1e-170, 5e-324])
def test_the_unit_sphere_is_the_unit_sphere_for_the_smallest_numbers(
    tiny: float, others: float
) -> None:
    made = task(Feature("x", -1.0, 1.0, 0.0, count=50), scaling=Scaling.UNIT_SPHERE)
    encoded = made.encode(np.array([[tiny] + [others] * 49, [1.0] + [others] * 49]))
    assert np.abs(encoded).max() <= UNIT
    norms = np.linalg.norm(encoded[:, :-1], axis=1)
    assert norms == pytest.approx([UNIT, UNIT], abs=5)


def test_scaling_by_a_power_of_two_first_changes_no_bit() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(500, 7)) * 10.0 ** rng.integers(-40, 1, (500, 1))
    made = task(Feature("x", -9.0, 9.0, 0.0, count=7), scaling=Scaling.UNIT_SPHERE)
    scaled = values / 9
    plain = scaled / np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    assert np.array_equal(made.encode(values)[:, :-1], np.rint(plain * UNIT))


def test_a_feature_with_a_count_stands_for_numbered_columns() -> None:
    made = task(Feature("age", 0, 1, 0), Feature("gene", -1, 1, 0, count=3))
    assert made.columns == ("age", "gene_1", "gene_2", "gene_3")
    assert made.dimension == 5


NAMES = st.sampled_from(["x", "y", "x_1", "x_2", "x_01", "x_1_1", "x_", "_1", "x_3", "x_²"])
FEATURES = st.lists(st.builds(Feature, NAMES, st.just(0.0), st.just(1.0), st.just(0.0), COUNTS))


@given(FEATURES.filter(bool), NAMES)
def test_columns_are_told_apart_as_if_all_were_written_out(
    features: list[Feature], label: str
) -> None:
    columns = [column for feature in features for column in feature.columns]
    names = [feature.name for feature in features]
    differ = len({*columns}) == len(columns) and len({*names}) == len(names)
    try:
        made = Task(LossName.LOGISTIC, label, tuple(features), Scaling.UNIT_BALL, 0.5)
    except ValueError:
        assert not differ or label in columns
    else:
        assert differ
        assert label not in columns
        assert made.columns == tuple(columns)


def test_the_columns_of_all_features_together_are_limited() -> None:
    half = [Feature(name, 0.0, 1.0, 0.0, 2**20) for name in ("x", "y")]
    assert task(*half).dimension == 2**21 + 1
    with pytest.raises(ValueError, match="more than 2097152 columns in all"):
        task(*half, Feature("z", 0.0, 1.0, 0.0))


def test_a_task_of_many_columns_is_made_without_naming_them() -> None:
    tracemalloc.start()
    try:
        task(Feature("x", 0.0, 1.0, 0.0, 2**21))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (("", 0.0, 1.0, 0.0), "name"),
        (("x", 1.0, 1.0, 1.0), "low must be below high"),
        (("x", 2.0, 1.0, 1.0), "low must be below high"),
        (("x", nan, 1.0, 0.0), "low must be below high"),
        (("x", 0.0, inf, 0.0), "low must be below high"),
        (("x", -inf, 0.0, 0.0), "low must be below high"),
        (("x", 0.0, 1.0, 1.5), "missing"),
        (("x", 0.0, 1.0, nan), "missing"),
        (("x", 0.0, 1.0, 0.0, 0), "count"),
        (("x", 0.0, 1.0, 0.0, 2**21 + 1), "count"),
    ],
)
def test_a_feature_that_makes_no_sense_is_refused(fields: tuple, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Feature(*fields)


X = Feature("x", 0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("features", "label", "bias", "reason"),
    [
        ((), "y", 0.5, "at least one feature"),
        ((X, X), "y", 0.5, "differ"),
        ((X,), "x", 0.5, "label"),
        ((X,), "y", 0.0, "bias"),
        ((X,), "y", 1.1, "bias"),
        ((X,), "y", nan, "bias"),
        ((Feature("x", 0.0, 1.0, 0.0, 2), Feature("x_1", 0.0, 1.0, 0.0)), "y", 0.5, "differ"),
        ((Feature("x", 0.0, 1.0, 0.0, 2),), "x_2", 0.5, "label"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(
    features: tuple[Feature, ...], label: str, bias: float, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Task(LossName.LOGISTIC, label, features, Scaling.UNIT_BALL, bias)
