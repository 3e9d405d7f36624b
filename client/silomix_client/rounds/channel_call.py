"""The round channel as a silo uses it: events come, frames go, on one connection of a lease.

Whoever ends a call while the other writes makes grpc forget what was not read yet.  So the silo
says when it has no more to say, and the coordinator, which may have said that the lease is over,
waits for that before it ends the call.
"""

import asyncio
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from silomix_core.study.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.connections.introduction import Introduced

from silomix_client.errors import RefusedQuery
from silomix_client.rounds.listening_limit import ListeningLimit
from silomix_client.rounds.query import largest_query

if TYPE_CHECKING:
    FollowCall = grpc.aio.StreamStreamCall[channel_pb2.SiloFrame, channel_pb2.ChannelEvent]

_FAREWELL_S = 1.0
_MOST_TOGETHER = 256  # events in one message; a coordinator lets a silo fall behind by fewer


class ChannelCall:
    """One call of Follow, from its first frame until it is left.

    If the silo introduced itself, what either side says is signed.
    """

    def __init__(
        self, call: "FollowCall", patience: ListeningLimit, introduced: Introduced | None = None
    ) -> None:
        self._call, self._listening, self._introduced = call, patience, introduced
        self._waiting: deque[channel_pb2.ChannelEvent] = deque()  # came with another event
        self._unheard = False  # whether a frame was sent after the last event came
        self._ended = False  # whether the coordinator said that the lease is over
        self._heard = monotonic()
        self.silence_s = 0.0  # the longest between two messages, since somebody set it to 0

    async def send(self, frame: channel_pb2.SiloFrame) -> None:
        """Send a frame; if the call is over, the next event says how it ended."""
        if self._introduced is not None:
            signed = self._introduced.speaker.signed(frame.SerializeToString())
            frame = channel_pb2.SiloFrame(signed=signed)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(frame)
            self._unheard = True

    async def next(self) -> channel_pb2.ChannelEvent | None:
        """The next event; None when the coordinator closed the call."""
        if self._waiting:
            return self._noted(self._waiting.popleft())
        event = await self._call.read()
        now = monotonic()
        self.silence_s, self._heard = max(self.silence_s, now - self._heard), now
        self._unheard = False
        if event is grpc.aio.EOF:
            return None
        event = cast(channel_pb2.ChannelEvent, event)
        if self._introduced is not None:
            event = _parsed(self._introduced.listener.content(event.signed))
        if len(event.more) > _MOST_TOGETHER:
            raise RefusedQuery(f"the server said more than {_MOST_TOGETHER} things at once")
        self._listening.heard(event)
        self._waiting.extend(event.more)
        return self._noted(event)

    def _noted(self, event: channel_pb2.ChannelEvent) -> channel_pb2.ChannelEvent:
        self._ended = self._ended or event.HasField("ended")
        return event

    def knows_closed(self, digest: bytes) -> bool:
        """Whether word that this round is closed is among the events that came and still wait."""
        return any(event.closed.digest == digest for event in self._waiting)

    async def query(self, size: int, study: Study) -> bytes:
        """The serialized query that follows an opened round."""
        if size > largest_query(study):
            raise RefusedQuery("the query is larger than the study allows")
        query = bytearray()
        while len(query) < size:
            event = await self.next()
            if event is None or not event.query_chunk:
                raise RefusedQuery("the query broke off")
            query += event.query_chunk
        return bytes(query)

    async def leave(self) -> None:
        """End the call: say that no more frames come, and let the last of them arrive."""
        if not self._call.done():
            over = (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError, RefusedQuery)
            with suppress(*over):
                await self._call.done_writing()
                async with asyncio.timeout(_FAREWELL_S if self._unheard or self._ended else 0.0):
                    while await self.next() is not None:
                        pass
        self._call.cancel()


def _parsed(content: bytes) -> channel_pb2.ChannelEvent:
    try:
        return channel_pb2.ChannelEvent.FromString(content)
    except DecodeError as error:
        raise RefusedQuery("the server signed something that cannot be read") from error
