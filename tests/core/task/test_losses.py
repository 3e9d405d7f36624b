"""Losses: the residual is the derivative, a subgradient at a kink, and nothing ever overflows."""

from math import inf, isfinite

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from silomix_core.task.losses import Loss, LossName, loss

LOSSES = {
    "logistic": loss(LossName.LOGISTIC),
    "hinge": loss(LossName.HINGE),
    "squared": loss(LossName.SQUARED),
    "absolute": loss(LossName.ABSOLUTE),
    **{f"huber {knee}": loss(LossName.HUBER, knee=knee) for knee in (1e-6, 0.1, 2.0)},
    **{f"quantile {level}": loss(LossName.QUANTILE, level=level) for level in (0.01, 0.5, 0.9)},
}
CLASSES = ("logistic", "hinge")
NAMES = st.sampled_from(sorted(LOSSES))
SCORES = st.floats(allow_nan=False)
NEAR = st.floats(-30, 30) | st.floats(-2, 2)


@st.composite
def cases(draw: st.DrawFn, scores: st.SearchStrategy[float]) -> tuple[str, float, float]:
    """A loss, a score, and a label that this loss can have."""
    name = draw(NAMES)
    labels = st.sampled_from([-1.0, 1.0]) if name in CLASSES else st.floats(-1, 1)
    return name, draw(scores), draw(labels)


def value(name: str, score: float, label: float) -> float:
    return float(LOSSES[name].value(np.array([score]), np.array([label]))[0])


def residual(name: str, score: float, label: float) -> float:
    return float(LOSSES[name].residual(np.array([score]), np.array([label]))[0])


@given(cases(SCORES))
def test_every_score_gives_a_bounded_residual(case: tuple[str, float, float]) -> None:
    name, score, label = case
    found = residual(name, score, label)
    assert abs(found) <= LOSSES[name].largest_residual <= 1
    if name in CLASSES:
        assert found * label <= 0
    else:
        assert found * (score - label) >= 0


@given(cases(NEAR))
def test_the_residual_is_the_derivative_of_the_value(case: tuple[str, float, float]) -> None:
    (name, score, label), step = case, 1e-5
    assume(name == "logistic" or abs(score - label) > 2 * step)  # where the kinks are
    above, below = (value(name, score + each, label) for each in (step, -step))
    # of a loss with a knee the derivative itself has one
    exact = 1e-9 if not name.startswith(("huber", "squared")) else step * LOSSES[name].smoothness
    slope = (above - below) / (2 * step)
    assert slope == pytest.approx(residual(name, score, label), abs=min(exact, 1e-3) + 1e-9)


@given(cases(NEAR), NEAR)
def test_the_residual_is_a_subgradient_everywhere(
    case: tuple[str, float, float], other: float
) -> None:
    """Convexity: the loss lies above each of its tangents; at its kink too."""
    name, score, label = case
    for at in (score, label):
        tangent = value(name, at, label) + residual(name, at, label) * (other - at)
        assert value(name, other, label) >= tangent - 1e-9


@given(cases(NEAR), NEAR)
def test_the_residual_changes_no_faster_than_the_smoothness(
    case: tuple[str, float, float], other: float
) -> None:
    name, score, label = case
    moved = abs(residual(name, score, label) - residual(name, other, label))
    if isfinite(LOSSES[name].smoothness):
        assert moved <= LOSSES[name].smoothness * abs(score - other) + 1e-9
    else:
        sides = [residual(name, label + side, label) for side in (-1e-9, 1e-9)]
        assert sides[1] - sides[0] >= 0.5 - 1e-9


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_bounds_are_attained(name: str) -> None:
    """A bound that is too large costs noise or steps."""
    scores, labels = np.linspace(-60, 60, 120_001), np.ones(120_001)
    made = LOSSES[name]
    residuals = made.residual(scores, labels)
    assert np.abs(residuals).max() == pytest.approx(made.largest_residual, abs=1e-9)
    if isfinite(made.smoothness):
        steepest = np.abs(np.diff(residuals)).max() / 1e-3
        assert steepest == pytest.approx(min(made.smoothness, 1e3), rel=1e-3)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_loss_of_infinite_scores_is_nothing_or_infinite(name: str) -> None:
    scores, labels = np.array([inf, -inf, inf]), np.array([1.0, -1.0, -1.0])
    values, made = LOSSES[name].value(scores, labels).tolist(), LOSSES[name]
    residuals = made.residual(scores, labels).tolist()
    if name in CLASSES:
        assert values == [0, 0, inf]
        assert residuals == pytest.approx([0, 0, 1], abs=1e-26)  # cut at scores of ±60
    else:
        assert values == [inf] * 3
        assert all(map(isfinite, residuals))


def test_squared_errors_of_possible_predictions_are_squared() -> None:
    scores, labels = (grid.ravel() for grid in np.meshgrid(*[np.linspace(-1, 1, 41)] * 2))
    squared = LOSSES["squared"]
    assert squared.value(scores, labels) == pytest.approx((scores - labels) ** 2 / 4)
    assert squared.residual(scores, labels) == pytest.approx((scores - labels) / 2)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.9])
def test_the_best_score_for_the_quantile_loss_is_the_quantile(level: float) -> None:
    labels = np.random.default_rng(1).uniform(-1, 1, 2001)
    made, wanted = LOSSES[f"quantile {level}"], np.quantile(labels, level)

    def mean(score: float) -> float:
        return float(made.value(np.full(2001, score), labels).mean())

    assert all(mean(wanted) <= mean(other) for other in np.linspace(-1, 1, 201))


def test_a_narrow_knee_is_nearly_a_kink() -> None:
    scores, labels = np.linspace(-3, 3, 601), np.full(601, 0.2)
    near = LOSSES["huber 1e-06"].value(scores, labels) - LOSSES["absolute"].value(scores, labels)
    assert np.abs(near).max() <= 1e-6


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        (LossName.QUANTILE, {}, "parameter"),
        (LossName.MULTINOMIAL, {}, "none of one score"),
        (LossName.HUBER, {"level": 0.5}, "parameter"),
        (LossName.QUANTILE, {"level": 1.0}, "between 0 and 1"),
        (LossName.HUBER, {"knee": 0.0}, "above 0"),
        (LossName.HUBER, {"knee": 2.1}, "at most 2"),
    ],
)
def test_a_loss_with_parameters_that_make_no_sense_is_refused(
    name: LossName, parameters: dict[str, float], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        loss(name, **parameters)


def test_losses_with_kinks_say_how_steep_their_sides_are() -> None:
    for name, made in LOSSES.items():
        assert (made.slopes is None) == isfinite(made.smoothness), name
        if made.slopes is not None:
            check_slopes(name, made)


def check_slopes(name: str, made: Loss) -> None:
    assert made.slopes is not None
    for label in (-1.0, 1.0):
        below, above = (
            float(np.broadcast_to(side, 1)[0]) for side in made.slopes(np.array([label]))
        )
        assert residual(name, label - 0.1, label) == -below
        assert residual(name, label + 0.1, label) == above
