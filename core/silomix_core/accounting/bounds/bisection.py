"""The smallest ε at which a bound holds."""

from collections.abc import Callable


def smallest_holding(holds: Callable[[float], bool], low: float, high: float) -> float:
    """An ε in (low, high] at which `holds`, given that it holds at `high`; to nine digits.

    Whatever the shape of `holds`, the result is a point at which it was true.
    """
    while high - low > max(1e-9 * high, 1e-12):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
