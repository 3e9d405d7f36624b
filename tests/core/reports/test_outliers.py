"""Reports far from the others: seen when somebody pushes, silent for honest silos."""

from math import sqrt

import numpy as np
import pytest
from scipy import stats
from silomix_core.reports import outliers
from silomix_core.reports.length_bound import VectorNoise
from silomix_core.reports.outliers import outlying
from support.privacy_checks import Floats

SIGMA = 2.0**20


def between(dimension: int) -> VectorNoise:
    """The noise in the difference of two reports."""
    return VectorNoise(dimension, sqrt(2) * SIGMA)


def reports_of(centres: Floats, rng: np.random.Generator) -> list[np.ndarray]:
    """One for each row: there, in standard deviations, with noise."""
    noisy = SIGMA * (centres + rng.normal(size=centres.shape))
    return list(np.rint(noisy).astype(np.int64))


@pytest.mark.parametrize(("silos", "dimension"), [(3, 5), (10, 13), (25, 50), (10, 1000)])
def test_silos_that_are_alike_raise_no_more_alarms_than_stated(
    silos: int, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to err in 30 % of studies of one round, it errs in fewer; our own false alarm 10⁻⁶."""
    monkeypatch.setattr(outliers, "FALSE_ALARMS", 0.3)
    rng = np.random.default_rng([silos, dimension])
    alarms = sum(
        outlying(reports_of(np.zeros((silos, dimension)), rng), between(dimension), silos) > 0
        for _ in range(300)
    )
    assert alarms <= stats.binom.isf(1e-6, 300, 0.3)


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0, 1000.0])
def test_silos_that_differ_as_silos_do_raise_none(spread: float) -> None:
    """Ten silos in random directions, some twice as far as others, 60 rounds; as stated 10⁻³."""
    rng = np.random.default_rng(7)
    away = spread * rng.normal(size=(10, 13)) * np.linspace(0.7, 1.4, 10)[:, None]
    found = [outlying(reports_of(away, rng), between(13), 600) for _ in range(60)]
    assert not any(found)


@pytest.mark.parametrize("bad", [1, 2, 3])
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_who_pushes_is_seen_and_nobody_else(bad: int, spread: float) -> None:
    rng = np.random.default_rng(bad)
    centres = spread * rng.normal(size=(10, 13))
    centres[:bad] = 40 + 20 * spread
    for _ in range(20):
        assert outlying(reports_of(centres, rng), between(13), 600) == bad


def test_of_two_reports_nobody_can_say_which_stands_apart() -> None:
    far = [np.zeros(4, dtype=np.int64), np.full(4, 2**40, dtype=np.int64)]
    assert outlying(far, between(4), 10) == 0
    assert outlying([], between(4), 10) == 0
    assert outlying([*far, far[0]], between(4), 10) == 1
