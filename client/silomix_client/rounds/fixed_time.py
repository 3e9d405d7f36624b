"""A fixed time for work whose duration must tell nothing.

An update is the same arithmetic for every record, but a processor's time may still depend a little
on the numbers.  So a report is ready at a fixed moment after its query came: late enough that the
arithmetic is done by then, unless the machine is busy with something else.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, log2

_RUNS = 5
_ROOM = 4.0  # times the quickest run


class FixedTime:
    """A time span of four times what `work` needs, rounded up to a power of two (seconds)."""

    def __init__(self, work: Callable[[], object]) -> None:
        quickest = min(_seconds(work) for _ in range(_RUNS))
        self.seconds: float = 2.0 ** ceil(log2(_ROOM * max(quickest, 1e-6)))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Make the `with` block end no earlier than `seconds` after it began."""
        started = time.monotonic()
        yield
        time.sleep(max(0.0, started + self.seconds - time.monotonic()))


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started
