"""Logs: one named event and its fields per line, on standard error.

    2026-11-16T00:53:47.123Z silo-1 round_answered round=3

Never data, updates, noise or keys; never a link from a report to a silo after mixing.
"""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_LOGGER = logging.getLogger("silomix")


class Hearer(Protocol):
    """Takes every event beside the log, as it happens and from whichever thread."""

    def __call__(self, name: str, fields: dict[str, object], *, warning: bool) -> None: ...


_hearers: list[Hearer] = []


def configure(party: str) -> None:
    """Send this process's events to standard error, under the name of its party."""
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ {party} %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    _LOGGER.handlers[:] = [handler]
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not shown
    logging._srcfile = None  # nor is the caller: nobody looks for it


@contextmanager
def heard_by(hearer: Hearer) -> Iterator[None]:
    """As long as this lasts, `hearer` takes every event too."""
    _hearers.append(hearer)
    try:
        yield
    finally:
        _hearers.remove(hearer)


def event(name: str, /, **fields: object) -> None:
    _LOGGER.info("%s", shown(name, fields))
    for hearer in _hearers:
        hearer(name, fields, warning=False)


def warning(name: str, /, **fields: object) -> None:
    _LOGGER.warning("%s", shown(name, fields))
    for hearer in _hearers:
        hearer(name, fields, warning=True)


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
