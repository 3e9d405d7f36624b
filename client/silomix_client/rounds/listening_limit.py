"""How much of a server's talk a silo listens to.

Whatever a server says costs the silo work: signatures, key lists, megabytes.  What rounds need is
paid for by rounds, each attempt of each once while this process lives; beyond that, by time.  A
server that talks without asking anything ends its lease with that.
"""

from collections.abc import Callable
from time import monotonic

from silomix_core.study.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.round_keys import LONGEST_STRETCH

from silomix_client.errors import RefusedQuery
from silomix_client.rounds.query import largest_query

_PIECE_BYTES = 2**14  # of a message: so many cost as much again as an event
_OF_A_ROUND = 64  # events: a dozen, and statements of every mix
_ROUND_S = 10.0  # in so many seconds time alone pays for a round, however long its query
_ROUNDS_AT_ONCE = 16  # rounds that may be paid for in advance


class ListeningLimit:
    """How much more a silo listens to, in events, over all leases of one study."""

    def __init__(self, study: Study, clock: Callable[[], float] = monotonic) -> None:
        self._of_a_round = _OF_A_ROUND + 2 * (1 + largest_query(study) // _PIECE_BYTES)
        self._of_a_second = self._of_a_round / _ROUND_S
        self._left = self._most = float(_ROUNDS_AT_ONCE * self._of_a_round)
        self._clock, self._counted = clock, clock()
        self._last = 0, 0  # the latest round that was opened, and its attempt
        self._covered = 0  # the last round that any stretch covered

    def pause_s(self) -> float:
        """Seconds until a stretch and a round can be heard to their end.

        A round pays when all of its query was heard: who began sooner, on a line that breaks,
        would spend what was saved, again and again.
        """
        self._rest()
        return max(0.0, LONGEST_STRETCH + self._of_a_round - self._left) / self._of_a_second

    def heard(self, message: channel_pb2.ChannelEvent) -> None:
        """Count a message with the events in it."""
        self._spend(1 + len(message.more) + message.ByteSize() // _PIECE_BYTES)

    def covered(self, stretch: channel_pb2.StretchOpened) -> None:
        """Count a stretch: rounds that had been in one already cost an event each."""
        first = stretch.first_round
        last = first + (len(stretch.lists[0].keys) if stretch.lists else 0) - 1
        self._spend(max(0, min(last, self._covered) - first + 1))
        self._covered = max(self._covered, last)

    def opened(self, descriptor: Descriptor) -> None:
        """Credit a round, or an attempt of it, that was not opened before with what it needs."""
        attempt = descriptor.round, descriptor.attempt
        if attempt > self._last:
            self._last = attempt
            self._gain(self._of_a_round)

    def _rest(self) -> None:
        now = self._clock()
        self._gain(self._of_a_second * (now - self._counted))
        self._counted = now

    def _spend(self, events: int) -> None:
        self._rest()
        if events > self._left:
            raise RefusedQuery("the server talks more than its rounds need")
        self._left -= events

    def _gain(self, events: float) -> None:
        self._left = min(self._most, self._left + events)
