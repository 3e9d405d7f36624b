"""A report is ready at a fixed moment, whatever its numbers."""

import numpy as np
import pytest
from silomix_client.rounds import fixed_time
from silomix_client.rounds.fixed_time import FixedTime
from silomix_core.model.clipped_sum import ClippedSum, Records
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT


class Clock:
    """A clock that work and sleep move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fixed_time, "time", clock)
    return clock


@pytest.mark.parametrize("usual", [0.0001, 0.003, 0.02, 1.5])
def test_quick_and_slow_work_end_at_the_same_moment(clock: Clock, usual: float) -> None:
    made = FixedTime(lambda: clock.sleep(usual))
    assert 4 * usual <= made.seconds <= 8 * usual
    ends = set()
    for needed in (0.0, 0.5 * usual, usual, 1.5 * usual, 3.9 * usual):
        started = clock.now
        with made.kept():
            clock.sleep(needed)
        ends.add(round(clock.now - started, 9))
    assert ends == {round(made.seconds, 9)}


def test_work_that_takes_longer_is_not_cut_off(clock: Clock) -> None:
    made = FixedTime(lambda: clock.sleep(0.001))
    started = clock.now
    with made.kept():
        clock.sleep(10.0)
    assert clock.now - started == pytest.approx(10.0)


def test_a_tiny_point_makes_no_difference_to_any_product() -> None:
    """Subnormal products are slow, and would be there for records whose features are not 0 only.

    Told by the arithmetic, not by a clock: such a point counts as the origin.
    """
    features = np.array([[0.0, 5.0], [UNIT, -3.0]])
    clipped = ClippedSum(Records(features, np.array([1.0, -1.0])), loss(LossName.LOGISTIC), 1.0)
    origin = clipped.at(np.zeros(2))
    for size in (5e-324, 1e-310, 1e-250):
        with np.errstate(under="raise"):
            assert np.array_equal(clipped.at(np.array([size, -size])), origin)
