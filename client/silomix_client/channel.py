"""The round channel as a silo uses it: events come, frames go, on one connection of a lease.

Whoever ends a call while the other writes makes grpc forget what was not read yet.  So the silo
says when it has no more to say, and the coordinator, which may have said that the lease is over,
waits for that before it ends the call.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from silomix_core.study import Study
from silomix_proto import channel_pb2

from silomix_client.errors import RefusedQuery
from silomix_client.question import largest_query

if TYPE_CHECKING:
    FollowCall = grpc.aio.StreamStreamCall[channel_pb2.SiloFrame, channel_pb2.ChannelEvent]

_FAREWELL_S = 1.0


class ChannelCall:
    """One call of Follow, from its first frame until it is left."""

    def __init__(self, call: "FollowCall") -> None:
        self._call = call
        self._waiting: deque[channel_pb2.ChannelEvent] = deque()  # came with another one
        self._unheard = False  # whether a frame was sent after the last event came
        self._ended = False  # whether the coordinator said that the lease is over

    async def send(self, frame: channel_pb2.SiloFrame) -> None:
        """Send a frame; if the call is over, the next event says how it ended."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(frame)
            self._unheard = True

    async def next(self) -> channel_pb2.ChannelEvent | None:
        """The next event; None when the coordinator closed the call."""
        if self._waiting:
            return self._noted(self._waiting.popleft())
        event = await self._call.read()
        self._unheard = False
        if event is grpc.aio.EOF:
            return None
        event = cast(channel_pb2.ChannelEvent, event)
        self._waiting.extend(event.more)
        return self._noted(event)

    def _noted(self, event: channel_pb2.ChannelEvent) -> channel_pb2.ChannelEvent:
        self._ended = self._ended or event.HasField("ended")
        return event

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
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                await self._call.done_writing()
                async with asyncio.timeout(_FAREWELL_S if self._unheard or self._ended else 0.0):
                    while await self.next() is not None:
                        pass
        self._call.cancel()
