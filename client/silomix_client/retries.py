"""How long to wait before the next try: longer each time, never longer than a bound, and random.

Silos that lost the same server at the same moment must not come back at the same moment.
"""

import random

_FIRST_S = 0.2


def pause_s(tries: int, longest_s: float) -> float:
    """After so many tries in a row that failed; between half of it and all of it, at random."""
    whole: float = min(longest_s, _FIRST_S * 2.0 ** min(max(tries - 1, 0), 32))
    return whole * random.uniform(0.5, 1.0)  # noqa: S311 jitter
