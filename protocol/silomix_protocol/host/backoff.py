"""Backoff: the wait before the next try, longer each time, never above a bound, and random.

Silos that lost the same server at the same moment must not come back at the same moment.
"""

import random

_FIRST_S = 0.2


def pause_s(tries: int, longest_s: float) -> float:
    """The pause after `tries` failures in a row: half to all of the backoff, at random."""
    whole: float = min(longest_s, _FIRST_S * 2.0 ** min(max(tries - 1, 0), 32))
    return whole * random.uniform(0.5, 1.0)  # noqa: S311 jitter
