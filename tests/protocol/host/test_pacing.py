"""How often something may happen that others can cause."""

from types import SimpleNamespace

from silomix_protocol.host.pacing import Pace


def paced(burst: int = 3, rest_s: float = 10.0) -> tuple[SimpleNamespace, Pace]:
    clock = SimpleNamespace(now=100.0)
    return clock, Pace(burst, rest_s, lambda: clock.now)


def test_some_at_once_then_one_at_a_time() -> None:
    clock, pace = paced()
    assert [pace.take() for _ in range(5)] == [True, True, True, False, False]
    assert pace.wait_s == 10.0
    clock.now += 9.0
    assert not pace.take()
    assert 0.9 < pace.wait_s < 1.1
    clock.now += 1.01
    assert [pace.take(), pace.take()] == [True, False]


def test_after_a_long_rest_no_more_than_the_burst() -> None:
    clock, pace = paced()
    assert all(pace.take() for _ in range(3))
    clock.now += 1e6
    assert [pace.take() for _ in range(4)] == [True, True, True, False]


def test_what_is_given_back_may_happen_again_and_never_more_than_the_burst() -> None:
    _, pace = paced(burst=2)
    for _ in range(10):
        assert pace.take()
        pace.give_back()
    pace.give_back()
    assert [pace.take() for _ in range(3)] == [True, True, False]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    clock, pace = paced(burst=1)
    assert pace.take()
    clock.now -= 50.0
    assert not pace.take()
