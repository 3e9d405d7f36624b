"""Logs: one named event and its fields per line, on standard error.

    2026-11-16T00:53:47.123Z silo-1 round_answered round=3

Never data, updates, noise or keys; never a link from a report to a silo after mixing.
"""

import logging
import sys
import time

_LOGGER = logging.getLogger("silomix")


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


def event(name: str, **fields: object) -> None:
    _LOGGER.info("%s", _line(name, fields))


def warning(name: str, **fields: object) -> None:
    _LOGGER.warning("%s", _line(name, fields))


def _line(name: str, fields: dict[str, object]) -> str:
    return " ".join([name, *(f"{key}={_value(value)}" for key, value in fields.items())])


def _value(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    text = text.replace('"', "'")
    return f'"{text}"' if " " in text else text
