"""Labels: any number becomes one in [−1, 1] by public bounds alone, and what is predicted is one
in the study's own unit again."""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.evaluation.pooled_baseline import least_squares
from silomix_core.evaluation.public import PublicRecords, constant_error, error, predict
from silomix_core.model.clipped_sum import Records
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task

CHARGES = Task(
    LossName.SQUARED,
    "charges",
    (Feature("x", -1.0, 1.0, 0.0),),
    Scaling.UNIT_BALL,
    0.5,
    label_bounds=(0.0, 50_000.0),
)
READMITTED = replace(CHARGES, loss=LossName.LOGISTIC, label_bounds=None)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[float, float]:
    low, high = sorted(draw(st.sets(st.floats(-1e300, 1e300), min_size=2, max_size=2)))
    return low, high


@given(bounds(), st.floats(allow_nan=False))
def test_any_number_becomes_a_label_within_one(limits: tuple[float, float], value: float) -> None:
    encoded = replace(CHARGES, label_bounds=limits).encode_labels(np.array([value]))
    assert abs(encoded[0]) <= 1
    assert encoded[0] * UNIT == round(encoded[0] * UNIT)


def test_labels_beyond_the_bounds_count_as_the_bounds() -> None:
    wild = CHARGES.encode_labels(np.array([-1e308, -1.0, 0.0, 25_000, 5e4, 6e4, inf]))
    assert wild.tolist() == [-1, -1, -1, 0, 1, 1, 1]


@given(st.floats(-1e5, 1e5))
def test_predicting_undoes_encoding_within_the_bounds(value: float) -> None:
    encoded = CHARGES.encode_labels(np.array([value]))
    found = CHARGES.predict(encoded)[0]
    assert found == pytest.approx(min(max(value, 0.0), 5e4), abs=5e4 / UNIT)
    assert CHARGES.predict(100 * encoded)[0] <= 5e4


def test_classes_become_signs_and_signs_classes() -> None:
    assert READMITTED.encode_labels(np.array([0.0, 1.0])).tolist() == [-1, 1]
    assert READMITTED.predict(np.array([-0.1, 0.0, 7.0])).tolist() == [0, 0, 1]


def test_what_can_be_a_label_depends_on_the_loss() -> None:
    values = np.array([0.0, 1.0, 0.5, 7.0, -3.0, nan, inf])
    assert READMITTED.are_labels(values).tolist() == [True, True] + [False] * 5
    assert CHARGES.are_labels(values).tolist() == [True] * 5 + [False] * 2
    assert (READMITTED.label_rule, CHARGES.label_rule) == ("0 or 1", "a number")


@pytest.mark.parametrize("label", [1.1, -inf, nan])
def test_records_with_labels_that_were_not_encoded_are_refused(label: float) -> None:
    with pytest.raises(ValueError, match="a label lies outside"):
        Records(np.ones((1, 2)), np.array([label]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"label_bounds": None}, "squared loss needs bounds"),
        ({"loss": LossName.HINGE}, "hinge loss has no bounds"),
        ({"label_bounds": (1.0, 1.0)}, "label 'charges': low must be below high"),
        ({"label_bounds": (nan, 1.0)}, "label 'charges': low must be below high"),
        ({"label_bounds": (-1.7e308, 1.0)}, "label 'charges': bounds must lie within"),
        ({"level": 0.5}, "level belongs to the quantile loss"),
        ({"loss": LossName.QUANTILE}, "level belongs to the quantile loss"),
        ({"loss": LossName.QUANTILE, "level": 1.0}, "level must be above 0"),
        ({"threshold": 1.0}, "threshold belongs to the huber loss"),
        ({"loss": LossName.HUBER}, "threshold belongs to the huber loss"),
        ({"loss": LossName.HUBER, "threshold": 60_000.0}, "0.05 and 50000, the range"),
        ({"loss": LossName.HUBER, "threshold": 0.0}, "0.05 and 50000, the range"),
    ],
)
def test_a_loss_whose_labels_make_no_sense_is_refused(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(CHARGES, **changes)  # type: ignore[arg-type]


def test_constants_of_a_loss_follow_from_public_bounds() -> None:
    """Huber's knee is its threshold in half ranges of the label: 2·10 000/50 000."""
    longest = 1.25
    assert CHARGES.lipschitz == pytest.approx(longest**0.5)
    assert CHARGES.smoothness == pytest.approx(longest / 2)
    huber = replace(CHARGES, loss=LossName.HUBER, threshold=10_000.0)
    assert huber.smoothness == pytest.approx(longest / 0.4)
    quantile = replace(CHARGES, loss=LossName.QUANTILE, level=0.9)
    assert quantile.lipschitz == pytest.approx(0.9 * longest**0.5)
    assert quantile.smoothness == inf


def test_the_error_of_a_regression_is_relative_to_the_mean_square() -> None:
    labels = np.array([3.0, 4.0])
    assert error(CHARGES, np.array([3.0, 2.0]), labels) == pytest.approx(4 / 25)
    assert constant_error(CHARGES, labels) == pytest.approx(0.5 / 25)
    assert error(READMITTED, np.array([1.0, 0.0]), np.array([1.0, 1.0])) == 0.5
    assert constant_error(READMITTED, np.array([1.0, 1.0, 0.0])) == pytest.approx(1 / 3)


def test_a_known_model_is_scored_in_the_labels_own_unit() -> None:
    """Slope 2 on x/√1 with bias weight 0: scores 1 and 0.5 predict 50 000 and 37 500."""
    shown = PublicRecords(CHARGES, np.array([[0.5], [0.25]]), np.array([40_000.0, 37_500.0]))
    model = np.array([2.0, 0.0])
    assert predict(CHARGES, model, np.array([[0.5], [0.25], [9.0]])).tolist() == [5e4, 37_500, 5e4]
    assert shown.error(model) == pytest.approx(1e8 / (4e4**2 + 3.75e4**2), rel=1e-4)
    assert shown.mean_loss(model) == pytest.approx(((1 - 0.6) ** 2 / 4) / 2, rel=1e-4)


def test_least_squares_finds_a_linear_law() -> None:
    rng = np.random.default_rng(2)
    features, truth = rng.uniform(-1, 1, (500, 3)), np.array([0.3, -0.2, 0.1])
    assert least_squares(features, features @ truth) == pytest.approx(truth, abs=1e-4)
