"""Hours follow the clock of the policy's time zone, through midnights and changes of the clocks."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_client.config.hours import read_hours
from silomix_client.errors import OutsideHours
from silomix_client.process import within_hours
from silomix_client.rounds.lease import LeaseTerms

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
NIGHTS = read_hours(("mon-fri 19:00-06:00", "sun 12:00-24:00"), "UTC")


@pytest.mark.parametrize(
    ("day", "clock", "open_"),
    [
        (0, "18:59", False),
        (0, "19:00", True),
        (1, "05:59", True),
        (1, "06:00", False),
        (5, "05:59", True),  # Friday's night ends on Saturday
        (5, "19:00", False),
        (6, "11:59", False),
        (6, "23:59", True),
        (7, "00:00", False),  # Sunday's span ends at midnight, Monday's night has not begun
        (7, "05:00", False),
    ],
)
def test_a_span_over_midnight_belongs_to_the_day_it_begins_on(
    day: int, clock: str, open_: bool
) -> None:
    hour, minute = map(int, clock.split(":"))
    moment = MONDAY + timedelta(days=day, hours=hour, minutes=minute, seconds=59)
    assert NIGHTS.has(moment) is open_


def test_days_may_run_over_the_end_of_the_week() -> None:
    hours = read_hours(("sat-mon 08:00-09:00",), "UTC")
    there = [hours.has(MONDAY + timedelta(days=day, hours=8)) for day in range(7)]
    assert there == [True, False, False, False, False, True, True]


def test_the_zone_s_own_clock_counts_in_summer_and_in_winter() -> None:
    hours = read_hours(("mon-sun 08:00-09:00",), "Europe/Zurich")
    assert hours.has(datetime(2026, 7, 1, 6, 30, tzinfo=UTC))
    assert not hours.has(datetime(2026, 12, 1, 6, 30, tzinfo=UTC))
    assert hours.has(datetime(2026, 12, 1, 7, 30, tzinfo=UTC))


def test_the_night_in_which_the_clocks_go_back_is_an_hour_longer() -> None:
    hours = read_hours(("sat 22:00-06:00",), "Europe/Zurich")
    start = datetime(2026, 10, 24, 22, 0, tzinfo=ZoneInfo("Europe/Zurich"))
    assert hours.seconds_left(start.astimezone(UTC), 86_400.0) == 9 * 3600


@given(st.integers(0, 7 * 86_400), st.integers(0, 2000))
def test_what_is_left_ends_where_the_hours_do(second: int, most_minutes: int) -> None:
    now, most = MONDAY + timedelta(seconds=second), 60.0 * most_minutes + 1
    left = NIGHTS.seconds_left(now, most)
    assert 0 <= left <= most
    assert (left > 0) == NIGHTS.has(now)
    if left:
        assert NIGHTS.has(now + timedelta(seconds=left - 1e-3))
        assert left == most or not NIGHTS.has(now + timedelta(seconds=left))


def test_a_lease_ends_with_the_hours_and_none_begins_outside() -> None:
    lease = LeaseTerms("x", 3600.0)
    assert within_hours(lease, None, MONDAY) == lease
    evening = MONDAY + timedelta(hours=20)
    assert within_hours(lease, NIGHTS, evening) == lease
    morning = MONDAY + timedelta(days=1, hours=5, minutes=59, seconds=15)
    assert within_hours(lease, NIGHTS, morning) == LeaseTerms("x", 45.0)
    with pytest.raises(OutsideHours, match=r"answers mon-fri 19:00-06:00, .* \(UTC\)"):
        within_hours(lease, NIGHTS, MONDAY)
