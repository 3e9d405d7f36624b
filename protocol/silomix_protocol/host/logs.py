"""Logs: one named event and its fields per line, on standard error.

    2026-11-16T00:53:47.123Z silo-1 round_answered round=3

Never data, updates, noise or keys; never a link from a report to a silo after mixing.

What others can cause does not fill a disk: a field is cut, and of warnings of one name the first
are written, then one a minute, and how many were left out.
"""

import atexit
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Protocol

from silomix_protocol.host.pacing import Pace

LONGEST_FOREIGN = 300  # characters of what somebody else said
_LONGEST_FIELD = 1000
_AT_ONCE, _PACE_S = 100, 60.0  # paced events of a name: so many, then one in so many seconds
_LOGGER = logging.getLogger("silomix")


class Hearer(Protocol):
    """A function that gets every event beside the log, as it happens, from whichever thread."""

    def __call__(self, name: str, fields: dict[str, object], *, warning: bool) -> None: ...


_hearers: list[Hearer] = []
_writing = Lock()
_party: str | None = None  # None until `configure`: `logging` gets the events


class _LeftOut:
    """Decides which paced events are written, and counts by name those that are left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paces: dict[str, Pace] = {}
        self._times: dict[str, int] = {}
        self._since = 0.0  # when the first of them was left out
        self._lock = Lock()

    def tells(self, name: str) -> bool:
        with self._lock:
            if name not in self._paces:
                self._paces[name] = Pace(_AT_ONCE, _PACE_S, self._clock)
            if self._paces[name].take():
                return True
            if not self._times:
                self._since = self._clock()
            self._times[name] = self._times.get(name, 0) + 1
            return False

    def is_due(self) -> bool:
        """Return whether it is time to say what was left out."""
        return bool(self._times) and self._clock() - self._since >= _PACE_S

    def taken(self) -> dict[str, int]:
        """The number of events left out since the last call, by name; counting starts anew."""
        with self._lock:
            taken, self._times = self._times, {}
            return taken


_left_out = _LeftOut()


def configure(party: str) -> None:
    """Send this process's events to standard error, under the name of its party."""
    global _party
    _party = party
    atexit.register(settle)


def settle() -> None:
    """Log now which events were left out, and how often."""
    for name, times in _left_out.taken().items():
        _write("lines_left_out", {"name": name, "times": times}, warning=True)


@contextmanager
def heard_by(hearer: Hearer) -> Iterator[None]:
    """Give every event to `hearer` too, as long as this lasts."""
    _hearers.append(hearer)
    try:
        yield
    finally:
        _hearers.remove(hearer)


def event(name: str, /, **fields: object) -> None:
    """Log what this party did; what it costs whoever brings it about bounds how often."""
    _tell(name, fields, warning=False, paced=False)


def paced(name: str, /, **fields: object) -> None:
    """Log what others can bring about as often as they like, as sparingly as warnings."""
    _tell(name, fields, warning=False, paced=True)


def warning(name: str, /, **fields: object) -> None:
    _tell(name, fields, warning=True, paced=True)


def _tell(name: str, fields: dict[str, object], *, warning: bool, paced: bool) -> None:
    if _left_out.is_due():
        settle()
    if not paced or _left_out.tells(name):
        _write(name, {key: _short(value) for key, value in fields.items()}, warning=warning)


def _write(name: str, fields: dict[str, object], *, warning: bool) -> None:
    text = shown(name, fields)
    if _party is not None:
        _write_line(f"{_party} {text}")
    else:
        _LOGGER.log(logging.WARNING if warning else logging.INFO, "%s", text)
    for hearer in _hearers:
        hearer(name, fields, warning=warning)


def _write_line(text: str) -> None:
    now = time.time()
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    with _writing, suppress(OSError, ValueError, AttributeError):  # full, closed or none
        sys.stderr.write(f"{second}.{int(1000 * (now % 1)):03d}Z {text}\n")


def _short(value: object) -> object:
    """Numbers as they are, anything else as a text that is not too long."""
    return value if value is None or isinstance(value, int | float) else _cut(str(value))


def _cut(text: str, longest: int = _LONGEST_FIELD) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shown(name: str, fields: dict[str, object]) -> str:
    """An event as people read it: one line that a terminal cannot take for anything else."""
    return " ".join([name, *(f"{printable(key)}={_value(value)}" for key, value in fields.items())])


def printable(text: str) -> str:
    """What others said, fit for a terminal: nothing in it is obeyed, nothing begins a line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def foreign(text: object) -> str:
    """What somebody else said, as one short line; to be called where it comes in."""
    return printable(_cut(str(text), LONGEST_FOREIGN))


def _value(value: object) -> str:
    text = printable(f"{value:.6g}" if isinstance(value, float) else str(value))
    text = text.replace('"', "'")
    return f'"{text}"' if " " in text else text
