"""When a silo answers: hours of the week that its operator's policy names.

    hours = ["mon-fri 19:00-06:00", "sat-sun 00:00-24:00"]
    time_zone = "Europe/Zurich"

A span that ends before it begins runs into the next morning.  Hours stand in the policy and follow
the clock alone: whether a silo answers tells which time it is, and nothing about its records.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from silomix_core.toml_table import InvalidField

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = 24 * 60
_SPAN = re.compile(
    r"(?P<first>[a-z]{3})(-(?P<last>[a-z]{3}))? "
    r"(?P<from>[0-2][0-9]:[0-5][0-9])-(?P<to>[0-2][0-9]:[0-5][0-9])"
)


@dataclass(frozen=True, slots=True)
class Span:
    """From minute `start` of each of these days (Monday is 0) to before minute `end`."""

    days: frozenset[int]
    start: int
    end: int  # beyond `_DAY`: in the next morning

    def has(self, day: int, minute: int) -> bool:
        today = day in self.days and self.start <= minute < self.end
        return today or ((day - 1) % 7 in self.days and minute + _DAY < self.end)


@dataclass(frozen=True, slots=True)
class Hours:
    spans: tuple[Span, ...]
    time_zone: str
    text: str  # as the policy has it

    def has(self, moment: datetime) -> bool:
        local = moment.astimezone(ZoneInfo(self.time_zone))
        minute = 60 * local.hour + local.minute
        return any(span.has(local.weekday(), minute) for span in self.spans)

    def seconds_left(self, now: datetime, most: float) -> float:
        """How long the silo may answer from now on: 0 outside the hours, at most `most`."""
        if not self.has(now):
            return 0.0
        moment, end = now.astimezone(UTC), now + timedelta(seconds=most)
        while moment < end and self.has(moment):
            moment = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        return min((moment - now).total_seconds(), most)


def read_hours(spans: tuple[str, ...], time_zone: str) -> Hours:
    """Hours as the policy has them; InvalidField if they cannot be meant."""
    if not spans:
        raise InvalidField("hours: name at least one span, or leave hours out to answer always")
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidField(
            f"time_zone: {time_zone!r:.60} is not known on this machine; use a name as in "
            "/usr/share/zoneinfo (Europe/Zurich), or UTC"
        ) from error
    return Hours(tuple(map(_span, spans)), time_zone, f"{', '.join(spans)} ({time_zone})")


def _span(text: str) -> Span:
    match = _SPAN.fullmatch(text)
    if match is None or {match["first"], match["last"] or "mon"} - set(_DAYS):
        raise InvalidField(f"hours: {text!r:.60} is not like 'mon-fri 19:00-06:00'")
    first = _DAYS.index(match["first"])
    last = _DAYS.index(match["last"] or match["first"])
    days = frozenset((first + day) % 7 for day in range((last - first) % 7 + 1))
    start, end = _minute(match["from"]), _minute(match["to"])
    if start >= _DAY or end > _DAY or start == end:
        raise InvalidField(f"hours: {text!r:.60}: a span lies between 00:00 and 24:00")
    return Span(days, start, end if start < end else end + _DAY)


def _minute(text: str) -> int:
    return 60 * int(text[:2]) + int(text[3:])
