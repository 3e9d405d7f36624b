"""Calibration: figures by hand, what they show of scores that are shifted or stretched."""

from math import exp, log

import numpy as np
import pytest
from silomix_core.evaluation.calibration import (
    Calibration,
    brier,
    log_loss,
    prevalence_ratio,
    probabilities,
    slope,
)

SCORES = np.array([log(3), 0.0, -log(4), 0.0])  # probabilities ¾, ½, ⅕, ½
LABELS = np.array([1.0, 0.0, 0.0, 1.0])


def test_figures_are_those_computed_by_hand() -> None:
    assert probabilities(SCORES) == pytest.approx([0.75, 0.5, 0.2, 0.5])
    assert brier(SCORES, LABELS) == pytest.approx((0.0625 + 0.25 + 0.04 + 0.25) / 4)
    assert log_loss(SCORES, LABELS) == pytest.approx(-(log(0.75) + 2 * log(0.5) + log(0.8)) / 4)
    assert prevalence_ratio(SCORES, LABELS) == pytest.approx(1.95 / 2)


def test_the_slope_solves_the_equations_of_logistic_regression() -> None:
    """Two scores: of 10 records with −1, 2 are ones, of 10 with 2, 7: both shares are met."""
    scores = np.repeat([-1.0, 2.0], 10)
    labels = np.concatenate([np.arange(10) < 2, np.arange(10) < 7]).astype(float)
    assert slope(scores, labels) == pytest.approx((log(0.7 / 0.3) - log(0.2 / 0.8)) / 3, rel=1e-4)


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_stretched_scores_show_in_the_slope_and_shifted_ones_in_the_ratio(share: float) -> None:
    """100,000 labels drawn from the scores themselves: 2 % of share, a slope's deviation is at most
    0.02 (4000 ones or so), so each of 8 figures is off by 5 deviations with a chance below 10⁻⁵."""
    rng = np.random.default_rng(3)
    scores = rng.normal(log(share / (1 - share)) - 0.5, 1.5, 100_000)
    labels = (rng.uniform(size=len(scores)) < probabilities(scores)).astype(float)
    true = Calibration.of(scores, labels)
    assert (true.slope, true.prevalence_ratio) == pytest.approx((1.0, 1.0), abs=0.1)
    stretched = Calibration.of(1.6 * scores, labels)
    assert stretched.slope == pytest.approx(true.slope / 1.6, rel=1e-3)
    assert stretched.brier > true.brier
    shifted = Calibration.of(scores - 2.0, labels)
    assert shifted.slope == pytest.approx(true.slope, rel=1e-3)
    assert shifted.prevalence_ratio < 0.5
    assert shifted.log_loss > true.log_loss


def test_a_certain_score_costs_itself_and_nothing_overflows() -> None:
    scores, labels = np.array([800.0, -800.0, -800.0]), np.array([1.0, 0.0, 1.0])
    assert log_loss(scores, labels) == pytest.approx(800 / 3)
    assert brier(scores, labels) == pytest.approx(1 / 3)
    assert log_loss(np.array([-1.0]), np.array([0.0])) == pytest.approx(log(1 + exp(-1)))


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]),
        ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
        ([1.0, 2.0, 3.0], [0.0, 0.0, 1.0]),
        ([1.0, 2.0, 3.0], [1.0, 0.0, 0.0]),
        ([1.0, 2.0, 2.0], [0.0, 0.0, 1.0]),
        ([0.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
    ],
    ids=["all one", "all zero", "told apart", "backwards", "told apart at a tie", "one score"],
)
def test_what_labels_do_not_determine_is_none(scores: list[float], labels: list[float]) -> None:
    found = Calibration.of(np.array(scores), np.array(labels))
    assert found.slope is None
    assert (found.prevalence_ratio is None) == (not any(labels))
