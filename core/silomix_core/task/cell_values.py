"""What a cell of a table may hold, and the number it stands for.

Stands between a source of data and `Task.encode`: pure, and the same for every source, so that the
same people give the same numbers wherever they come from.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from math import isfinite, isnan, nan

from silomix_core.task.feature import FARTHEST_BOUND, Combine, Feature, FeatureKind

Cell = str | float | int | bool | None

_FLAGS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}
_EXPONENT = r"[eE][+-]?[0-9]{1,2}"
_DECIMAL = re.compile(rf"-?[0-9]{{1,50}}(?:\.[0-9]{{0,50}}(?:{_EXPONENT})?|{_EXPONENT})")
_LONGEST_SHOWN = 40
_MOST_LISTED = 10


class BadCell(ValueError):
    """A cell that no feature of its kind can have; the message says what it is and not where."""


def is_missing(cell: Cell) -> bool:
    """Return whether a cell is empty: nothing, blanks, or NaN as tables without a null write it."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or (isinstance(cell, float) and isnan(cell))


def row_parser(feature: Feature) -> Callable[[Cell], float]:
    """A function from a cell in one of a person's rows to its raw value, NaN if it is missing."""
    if feature.rule is Combine.COUNT:  # that there is something counts, not what it is
        return occurrence
    return parser(feature)


def parser(feature: Feature) -> Callable[[Cell], float]:
    """A function from the only cell of a person to its raw value, NaN if it is missing."""
    if feature.kind is FeatureKind.CATEGORY:
        return partial(_place, feature)
    return _flag if feature.kind is FeatureKind.FLAG else number


def number(cell: Cell) -> float:
    """The number in a cell, NaN if missing; cut so that sums of a hundred million are finite."""
    try:
        value = float(cell) if cell is not None else nan
    except (ValueError, OverflowError):
        return _odd_number(cell)
    if isinstance(cell, str) and ("_" in cell or not cell.isascii()):  # what only Python accepts
        return _odd_number(cell)
    if isfinite(value):
        return min(max(value, -FARTHEST_BOUND), FARTHEST_BOUND) + 0.0  # −0 is no other value than 0
    return value if isnan(value) else _odd_number(cell)


def occurrence(cell: Cell) -> float:
    """1 for a cell that holds anything, NaN for a missing one."""
    return nan if is_missing(cell) else 1.0


def _odd_number(cell: Cell) -> float:
    if is_missing(cell):
        return nan
    if isinstance(cell, int):  # of hundreds of digits
        return FARTHEST_BOUND if cell > 0 else -FARTHEST_BOUND
    raise BadCell(f"not a number: {_shown(cell)}")


def name_of(cell: Cell) -> str:
    """A category or a person as text: 7, 7.0 and "7" are the same, wherever they come from."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def whole_of(cell: Cell) -> str:
    """The digits of a whole number that a text writes in another way, as -9.0 or 1e3; else "".

    Programs write the whole numbers of a column with gaps in this way.
    """
    if not isinstance(cell, str) or not _DECIMAL.fullmatch(cell.strip()):
        return ""
    value = Decimal(cell.strip())
    return str(int(value)) if value == value.to_integral_value() else ""


def _flag(cell: Cell) -> float:
    if is_missing(cell):
        return nan
    text = str(cell).strip().lower()
    if text == "nan":
        return nan
    if text not in _FLAGS:
        raise BadCell(f"not true or false (1 or 0): {_shown(cell)}")
    return _FLAGS[text]


def _place(feature: Feature, cell: Cell) -> float:
    if is_missing(cell):
        return nan
    text = name_of(cell)
    if text not in feature.categories:
        text = whole_of(cell) or text
    if text not in feature.categories:
        listed = ", ".join(feature.categories[:_MOST_LISTED])
        more = ", …" if len(feature.categories) > _MOST_LISTED else ""
        raise BadCell(f"not one of {listed}{more}: {_shown(cell)}")
    return float(feature.categories.index(text))


def _shown(cell: Cell) -> str:
    return repr(cell[:_LONGEST_SHOWN]) if isinstance(cell, str) else repr(cell)[:_LONGEST_SHOWN]
