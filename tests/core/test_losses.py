"""Losses: the residual is the derivative, a subgradient at a kink, and nothing ever overflows."""

from math import inf, isfinite

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from silomix_core.losses import LossName, loss

NAMES = st.sampled_from(LossName)
SCORES = st.floats(allow_nan=False)
LABELS = st.sampled_from([-1.0, 1.0])


def value(name: LossName, score: float, label: float) -> float:
    return float(loss(name).value(np.array([score]), np.array([label]))[0])


def residual(name: LossName, score: float, label: float) -> float:
    return float(loss(name).residual(np.array([score]), np.array([label]))[0])


@given(NAMES, SCORES, LABELS)
def test_every_score_gives_a_bounded_residual(name: LossName, score: float, label: float) -> None:
    found = residual(name, score, label)
    assert abs(found) <= loss(name).largest_residual
    assert found * label <= 0


@given(NAMES, st.floats(-30, 30), LABELS)
def test_the_residual_is_the_derivative_of_the_value(
    name: LossName, score: float, label: float
) -> None:
    step = 1e-5
    assume(name is not LossName.HINGE or abs(label * score - 1) > step)
    above, below = (value(name, score + each, label) for each in (step, -step))
    assert (above - below) / (2 * step) == pytest.approx(residual(name, score, label), abs=1e-9)


@given(NAMES, st.floats(-30, 30), st.floats(-30, 30), LABELS)
def test_the_residual_is_a_subgradient_everywhere(
    name: LossName, score: float, other: float, label: float
) -> None:
    """Convexity: the loss lies above each of its tangents."""
    tangent = value(name, score, label) + residual(name, score, label) * (other - score)
    assert value(name, other, label) >= tangent - 1e-9


@given(NAMES, st.floats(-30, 30), st.floats(-30, 30), LABELS)
def test_the_residual_changes_no_faster_than_the_smoothness(
    name: LossName, score: float, other: float, label: float
) -> None:
    moved = abs(residual(name, score, label) - residual(name, other, label))
    if isfinite(loss(name).smoothness):
        assert moved <= loss(name).smoothness * abs(score - other) + 1e-12
    else:
        assert residual(name, label * (1 - 1e-9), label) != residual(name, label, label)


@pytest.mark.parametrize("name", LossName)
def test_the_loss_of_infinite_scores_is_nothing_or_infinite(name: LossName) -> None:
    scores, labels = np.array([inf, -inf, inf]), np.array([1.0, -1.0, -1.0])
    assert loss(name).value(scores, labels).tolist() == [0, 0, inf]
    assert loss(name).residual(scores, labels).tolist() == [0, 0, 1]
