"""Models of several classes and networks: gradients are gradients, and no record weighs more."""

from dataclasses import replace
from fractions import Fraction
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from silomix_core.evaluation.pooled_baseline import logistic_regression, multinomial_regression
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import GradientSum, Model, model_of
from silomix_core.model.multiclass import Multiclass, class_residuals
from silomix_core.model.neural_net import NeuralNet
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Task
from support.privacy_checks import SUM_UNIT, Floats, hostile_task

PLAIN = hostile_task()
NUMBERS = {"label_bounds": (0.0, 50.0)}
TASKS: dict[str, Task] = {
    "logistic": PLAIN,
    "hinge": replace(PLAIN, loss=LossName.HINGE),
    "squared": replace(PLAIN, loss=LossName.SQUARED, **NUMBERS),
    "huber": replace(PLAIN, loss=LossName.HUBER, threshold=5.0, **NUMBERS),
    "absolute": replace(PLAIN, loss=LossName.ABSOLUTE, **NUMBERS),
    "quantile": replace(PLAIN, loss=LossName.QUANTILE, level=0.1, **NUMBERS),
    "multinomial": replace(PLAIN, loss=LossName.MULTINOMIAL, classes=5),
    "network": replace(PLAIN, hidden=6),
    "network of classes": replace(PLAIN, loss=LossName.MULTINOMIAL, classes=3, hidden=4),
}
MODELS = pytest.mark.parametrize("name", sorted(TASKS))
DEEP = pytest.mark.parametrize("name", ["multinomial", "network", "network of classes"])


def random_records(task: Task, count: int, seed: int) -> Records:
    rng = np.random.default_rng(seed)
    values = rng.uniform([0, -1, -1], [100, 1, 1], size=(count, 3))
    raw = rng.integers(0, task.classes or 2, count).astype(np.float64)
    if task.loss.is_regression:
        raw = rng.uniform(0, 50, count)
    return Records(task.encode(values), task.encode_labels(raw))


def random_point(task: Task, seed: int, spread: float = 1.0) -> Floats:
    return np.random.default_rng([seed, 1]).normal(0, spread, task.dimension)


def row(records: Records, index: int) -> Records:
    return Records(records.features[index : index + 1], records.labels[index : index + 1])


def mean_loss(model: Model, records: Records, point: Floats) -> float:
    scores = model.scores(point, records.features)
    return float(model.losses(scores, records.labels).mean())


@pytest.mark.parametrize("seed", range(3))
@DEEP
def test_unclipped_gradients_meet_finite_differences(name: str, seed: int) -> None:
    task, step = TASKS[name], 1e-4  # points and activations have steps of their own, below 10⁻⁷
    records, model = random_records(task, 30, seed), model_of(task)
    point = random_point(task, seed, 0.1)  # with weights beyond 1 more than the clip cuts
    slopes = [
        (mean_loss(model, records, point + move) - mean_loss(model, records, point - move))
        / (2 * step)
        for move in step * np.eye(task.dimension)
    ]
    mean = model.gradients(records, 1e6).at(point) / SUM_UNIT / 30
    # residuals are cut to 2⁻²⁰, activations to 2⁻¹⁶
    assert mean == pytest.approx(slopes, abs=2**-15)
    assert np.abs(slopes).max() > 0.01


@DEEP
@pytest.mark.parametrize("clip", [0.001, 0.05, 0.5])
def test_clipping_in_closed_form_is_clipping_each_gradient(name: str, clip: float) -> None:
    task = TASKS[name]
    records, point, model = random_records(task, 20, 4), random_point(task, 4, 2.0), model_of(task)
    for index in range(20):
        alone = row(records, index)
        whole = model.gradients(alone, 1e6).at(point) / SUM_UNIT
        factor = min(1.0, clip / float(np.linalg.norm(whole)))
        found = model.gradients(alone, clip).at(point) / SUM_UNIT
        assert found == pytest.approx(factor * whole, abs=2**-15 + 1e-3 * clip)


@st.composite
def hostile(draw: st.DrawFn, task: Task) -> tuple[Records, Floats, float]:
    """One record of any integers that fit, any label, any point, any clip."""
    features = draw(arrays(np.float64, (1, 4), elements=st.integers(-UNIT, UNIT).map(float)))
    raw = draw(st.integers(0, (task.classes or 2) - 1).map(float))
    if task.loss.is_regression:
        raw = draw(st.floats(-1e9, 1e9))
    scale = draw(st.sampled_from([1e-300, 1e-3, 1.0, 10.0, 1e9, 1e300]))
    seed = draw(st.integers(0, 1000))
    clip = draw(st.floats(1e-9, 4) | st.sampled_from([1e-15, 0.25, 1e9]))
    point = np.random.default_rng(seed).normal(0, 1, task.dimension) * scale
    return Records(features, task.encode_labels(np.array([raw]))), point, clip


@MODELS
@given(st.data())
def test_no_record_contributes_more_than_the_clip(name: str, data: st.DataObject) -> None:
    """Exactly, in integers; so replacing one moves a sum by at most twice the clip."""
    task = TASKS[name]
    records, point, clip = data.draw(hostile(task))
    added = model_of(task).gradients(records, clip).at(point)
    assert sum(int(each) ** 2 for each in added) <= (Fraction(clip) * SUM_UNIT) ** 2


@MODELS
def test_a_replaced_record_moves_the_sum_by_at_most_two_clip(name: str) -> None:
    task, clip, farthest = TASKS[name], 0.02, 0
    for seed in range(20):
        records, other = random_records(task, 6, seed), random_records(task, 1, seed + 100)
        features, labels = records.features.copy(), records.labels.copy()
        features[seed % 6], labels[seed % 6] = other.features[0], other.labels[0]
        point = random_point(task, seed, 10.0)
        first, second = (
            model_of(task).gradients(each, clip).at(point)
            for each in (records, Records(features, labels))
        )
        moved = sum((int(a) - int(b)) ** 2 for a, b in zip(first, second, strict=True))
        assert moved <= (2 * clip * SUM_UNIT) ** 2
        farthest = max(farthest, moved)
    assert farthest > (1.2 * clip * SUM_UNIT) ** 2  # the bound is near what can happen


@DEEP
@pytest.mark.parametrize(("steep", "clip"), [(1.0, 0.5), (1e6, 1e9)])
def test_the_sum_of_many_records_is_the_sum_of_its_parts(
    name: str, steep: float, clip: float
) -> None:
    """More rows than one float64 sum may have; in blocks of any size, in any order."""
    task = TASKS[name]
    records, point = random_records(task, 70_000, 8), random_point(task, 8)
    point[(task.hidden or 0) * task.width :] *= steep  # the last layer: hidden units stay alive
    model = model_of(task)

    def total(rows: slice | NDArray[np.int64]) -> list[int]:
        part = Records(records.features[rows], records.labels[rows])
        return model.gradients(part, clip).at(point).tolist()

    parts = [total(slice(start, start + 9_999)) for start in range(0, 70_000, 9_999)]
    whole = total(slice(None))
    assert whole == [sum(column) for column in zip(*parts, strict=True)]
    assert whole == total(np.random.default_rng(1).permutation(70_000))


@DEEP
def test_a_batch_is_summed_as_if_there_were_no_other_records(name: str) -> None:
    task = TASKS[name]
    records, point = random_records(task, 40, 9), random_point(task, 9)
    made: GradientSum = model_of(task).gradients(records, 0.2)
    mask = np.arange(40) % 3 == 0
    part = Records(records.features[mask], records.labels[mask])
    alone = model_of(task).gradients(part, 0.2).at(point)
    assert np.array_equal(made.at(point, mask), alone)
    assert not made.at(point, np.zeros(40, np.bool_)).any()
    assert len(made) == 40
    with pytest.raises(ValueError, match="one truth value"):
        made.at(point, mask[:-1])


@MODELS
@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 1.0])
def test_an_open_batch_gives_the_same_integers(name: str, share: float) -> None:
    """Also where nobody is drawn, and where more are than one float64 sum may have."""
    task = TASKS[name]
    records, point = random_records(task, 70_000, 10), random_point(task, 10)
    mask = np.random.default_rng(11).random(70_000) < share
    secret, opened = (
        model_of(task).gradients(records, 0.2, open_batches=each).at(point, mask)
        for each in (False, True)
    )
    assert np.array_equal(secret, opened)
    assert bool(np.any(opened)) == bool(mask.any())


def test_two_classes_are_logistic_regression() -> None:
    """Scores ±s/2 of two classes: the second half of the gradient is half the logistic one."""
    task = replace(PLAIN, loss=LossName.MULTINOMIAL, classes=2)
    records, point = random_records(PLAIN, 50, 3), random_point(PLAIN, 3)
    classes = Records(records.features, task.encode_labels((records.labels + 1) / 2))
    twin = model_of(task).gradients(classes, 9.0).at(np.concatenate([-point / 2, point / 2]))
    logistic = model_of(PLAIN).gradients(records, 9.0).at(point)
    assert twin[4:] / SUM_UNIT == pytest.approx(logistic / SUM_UNIT, abs=1e-4)
    assert twin[:4] == pytest.approx(-twin[4:], abs=50 * UNIT)


SCORES = arrays(np.float64, (1, 5), elements=st.floats(-1e200, 1e200) | st.floats(-30, 30))


@given(SCORES, SCORES, st.integers(0, 4))
def test_class_residuals_are_bounded_and_change_no_faster_than_half(
    one: Floats, two: Floats, label: int
) -> None:
    labels = np.array([label / UNIT])
    first, second = class_residuals(one, labels), class_residuals(two, labels)
    assert np.all(np.isfinite(first))
    assert np.linalg.norm(first) <= sqrt(2) * (1 + 1e-12)
    assert np.abs(first).max() <= 1
    assert first[0, label] <= 0
    if np.abs(one - two).max() < 1e100:
        moved = np.linalg.norm(first - second)
        assert moved <= np.linalg.norm(one - two) / 2 + 1e-9


def test_constants_of_models_follow_from_public_bounds() -> None:
    longest = PLAIN.longest
    assert TASKS["multinomial"].lipschitz == pytest.approx(sqrt(2) * longest)
    assert TASKS["multinomial"].smoothness == pytest.approx(longest**2 / 2)
    assert (TASKS["network"].lipschitz, TASKS["network"].smoothness) == (inf, inf)
    assert [TASKS[name].dimension for name in ("multinomial", "network", "network of classes")] == [
        20,
        6 * 4 + 7,
        4 * 4 + 3 * 5,
    ]
    assert {task.width for task in TASKS.values()} == {4}


def test_a_networks_start_is_public_and_breaks_the_tie_between_its_units() -> None:
    """The same on every machine, whoever runs the study."""
    lower, upper = NeuralNet(4, 6, 1).layers(np.zeros(31))
    assert lower[0, :3] == pytest.approx(GOLDEN, abs=1e-12)
    assert np.abs(lower).max() <= 3
    assert len(np.unique(lower)) == 24
    assert not upper.any()


GOLDEN = [-1.6247498001935752, 0.038649086030845714, 2.7956634548700956]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss": LossName.MULTINOMIAL}, "classes belong to the multinomial loss"),
        ({"classes": 3}, "classes belong to the multinomial loss"),
        ({"loss": LossName.MULTINOMIAL, "classes": 1}, "between 2 and 1000"),
        ({"loss": LossName.MULTINOMIAL, "classes": 1001}, "between 2 and 1000"),
        ({"hidden": 0}, "hidden must lie between 1 and 1000"),
        ({"loss": LossName.HINGE, "hidden": 4}, "hidden units need the logistic or multinomial"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(PLAIN, **changes)  # type: ignore[arg-type]


def test_labels_of_several_classes_are_whole_numbers() -> None:
    task = TASKS["multinomial"]
    assert (
        task.are_labels(np.array([0.0, 4.0, 5.0, 1.5, -1.0])).tolist() == [True] * 2 + [False] * 3
    )
    assert task.label_rule == "a whole number from 0 to 4"
    assert (task.encode_labels(np.array([0.0, 4.0])) * UNIT).tolist() == [0, 4]
    assert task.predict(np.eye(5)).tolist() == [0, 1, 2, 3, 4]


def test_pooled_multinomial_regression_of_two_classes_is_logistic_regression() -> None:
    rng = np.random.default_rng(5)
    features = rng.uniform(-1, 1, (400, 3))
    signs = np.where(features @ [2.0, -1.0, 0.5] + rng.logistic(size=400) > 0, 1.0, -1.0)
    twin = multinomial_regression(features, (signs + 1) / 2 / UNIT, 2)
    assert twin[3:] - twin[:3] == pytest.approx(logistic_regression(features, signs), abs=1e-3)
    assert isinstance(model_of(TASKS["multinomial"]), Multiclass)
