"""The logistic loss: its residual is its derivative, and neither ever overflows."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.losses import LossName, loss

LOGISTIC = loss(LossName.LOGISTIC)
SCORES = st.floats(allow_nan=False)
LABELS = st.sampled_from([-1.0, 1.0])


@given(SCORES, LABELS)
def test_every_score_gives_a_bounded_residual(score: float, label: float) -> None:
    residual = LOGISTIC.residual(np.array([score]), np.array([label]))[0]
    assert abs(residual) <= LOGISTIC.largest_residual
    assert residual * label <= 0


@given(st.floats(-30, 30), LABELS)
def test_the_residual_is_the_derivative_of_the_value(score: float, label: float) -> None:
    labels, step = np.array([label]), 1e-5
    above, below = (LOGISTIC.value(np.array([score + s]), labels)[0] for s in (step, -step))
    residual = LOGISTIC.residual(np.array([score]), labels)[0]
    assert (above - below) / (2 * step) == pytest.approx(residual, abs=1e-9)


def test_the_loss_of_infinite_scores_is_nothing_or_infinite() -> None:
    scores, labels = np.array([inf, -inf, inf]), np.array([1.0, -1.0, -1.0])
    assert LOGISTIC.value(scores, labels).tolist() == [0, 0, inf]
    assert LOGISTIC.residual(scores, labels).tolist() == [0, 0, 1]
