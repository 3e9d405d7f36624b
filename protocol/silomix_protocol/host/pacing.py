"""A rate limit for what others can cause: some events at once, then one at a time."""

import time
from collections.abc import Callable


class Pace:
    """A rate limit: `burst` events at once, then one every `rest_s` seconds until it has rested."""

    def __init__(
        self, burst: int, rest_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst, self._rest_s, self._clock = burst, rest_s, clock
        self._left, self._at = float(burst), clock()

    def take(self) -> bool:
        """Return whether an event may happen now; if so, count it."""
        if self.wait_s > 0:
            return False
        self._left -= 1.0
        return True

    def give_back(self) -> None:
        """Uncount the last event: it was worth it."""
        self._left = min(self._left + 1.0, float(self._burst))

    @property
    def wait_s(self) -> float:
        """The seconds until the next event may happen; 0 if it may now."""
        now = self._clock()
        rested = max(now - self._at, 0.0) / self._rest_s
        self._left, self._at = min(self._left + rested, float(self._burst)), now
        return max(1.0 - self._left, 0.0) * self._rest_s
