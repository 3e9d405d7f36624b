"""Logs: one named event and its fields per line, on standard error.

    2026-11-16T00:53:47.123Z silo-1 round_answered round=3

Never data, updates, noise or keys; never a link from a report to a silo after mixing.
"""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Protocol

_LOGGER = logging.getLogger("silomix")


class Hearer(Protocol):
    """Takes every event beside the log, as it happens and from whichever thread."""

    def __call__(self, name: str, fields: dict[str, object], *, warning: bool) -> None: ...


_hearers: list[Hearer] = []


class _Lines:
    """Standard error, a line for each event, under the name of a party.

    Not through `logging`, which costs three times as much: ten silos on one machine feel it.
    """

    def __init__(self, party: str) -> None:
        self._party = party
        self._second, self._shown = -1, ""  # formatted once, for all events of that second
        self._lock = Lock()

    def write(self, text: str) -> None:
        now = time.time()
        second = int(now)
        with self._lock, suppress(OSError, ValueError, AttributeError):  # full, closed or none
            if second != self._second:
                shown = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
                self._second, self._shown = second, shown
            millisecond = int(1000 * (now - second))
            sys.stderr.write(f"{self._shown}.{millisecond:03d}Z {self._party} {text}\n")


_lines: _Lines | None = None  # as long as this is nobody's process, `logging` has the events


def configure(party: str) -> None:
    """Send this process's events to standard error, under the name of its party."""
    global _lines
    _lines = _Lines(party)


@contextmanager
def heard_by(hearer: Hearer) -> Iterator[None]:
    """As long as this lasts, `hearer` takes every event too."""
    _hearers.append(hearer)
    try:
        yield
    finally:
        _hearers.remove(hearer)


def event(name: str, /, **fields: object) -> None:
    _tell(name, fields, warning=False)


def warning(name: str, /, **fields: object) -> None:
    _tell(name, fields, warning=True)


def _tell(name: str, fields: dict[str, object], *, warning: bool) -> None:
    text = shown(name, fields)
    if _lines is not None:
        _lines.write(text)
    else:
        _LOGGER.log(logging.WARNING if warning else logging.INFO, "%s", text)
    for hearer in _hearers:
        hearer(name, fields, warning=warning)


def shown(name: str, fields: dict[str, object]) -> str:
    """An event as people read it: one line that a terminal cannot take for anything else."""
    return " ".join([name, *(f"{printable(key)}={_value(value)}" for key, value in fields.items())])


def printable(text: str) -> str:
    """What others said, fit for a terminal: nothing in it is obeyed, nothing begins a line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def _value(value: object) -> str:
    text = printable(f"{value:.6g}" if isinstance(value, float) else str(value))
    text = text.replace('"', "'")
    return f'"{text}"' if " " in text else text
