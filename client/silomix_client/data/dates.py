"""Dates as sources write them in texts: all of the text is one, or it is refused.

Python reads more than that (weeks, any character between date and time); what is no date here is
a cell that slipped, and a guess at it would be a wrong age or a wrong order.
"""

import re
from datetime import date, datetime

_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
_FHIR_DATE = re.compile(rf"[0-9]{{4}}(?:-[0-9]{{2}})?|{_DAY}")
_FHIR_TIME = re.compile(rf"{_FHIR_DATE.pattern}|{_DAY}T{_CLOCK}")
_TEXT_TIME = re.compile(rf"{_DAY}(?:[T ]{_CLOCK})?|[0-9]{{8}}(?:T[0-9]{{2,6}}Z?)?")


def fhir_date(found: object) -> date:
    """Read FHIR's date: a day, or a year or month as its first day; else raise ValueError."""
    if not isinstance(found, str) or not _FHIR_DATE.fullmatch(found):
        raise ValueError(f"not a date as 1970, 1970-01 or 1970-01-31: {found!r:.40}")
    try:
        return date.fromisoformat(_full(found))
    except ValueError:
        raise ValueError(f"no such date: {found!r}") from None


def fhir_time(found: object) -> datetime:
    """Read FHIR's dateTime or instant, also without seconds or zone; else raise ValueError."""
    if not isinstance(found, str) or not _FHIR_TIME.fullmatch(found):
        raise ValueError(f"not a date, or a date and time: {found!r:.40}")
    try:
        return datetime.fromisoformat(_full(found))
    except ValueError:
        raise ValueError(f"no such date and time: {found!r:.40}") from None


def text_time(text: str) -> datetime:
    """Read a table's date, or date and time with a T or a blank between; else raise ValueError."""
    if not _TEXT_TIME.fullmatch(text):
        raise ValueError(f"not a date, or a date and time: {text!r:.40}")
    return datetime.fromisoformat(text)


def _full(text: str) -> str:
    """Complete 2024 or 2024-05, which are dates to FHIR, to their first day."""
    return text + "-01-01"[3 * text.count("-") :] if len(text) in (4, 7) else text
