"""The round channel: where silos of a lease listen, and the coordinator speaks.

A silo that breaks off is known at once; one that comes back within its lease is asked the current
round again and answers with the bytes that it stored.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
from silomix_core.study import Study
from silomix_proto import channel_pb2, channel_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import SigningKey
from silomix_protocol.tls import CHUNK_BYTES, ServerContext, UnknownPeer, peer_name

_Queue = asyncio.Queue[channel_pb2.ChannelEvent]
_BEHIND = 40  # events that a follower may leave unread, a round of a million coordinates being 9


@dataclass(slots=True)
class _CurrentRound:
    silos: frozenset[str]
    events: list[channel_pb2.ChannelEvent] = field(default_factory=list)


class RoundChannel(channel_pb2_grpc.RoundChannelServicer):
    """The silos that follow the current lease."""

    def __init__(self, study: Study, sign_key: SigningKey) -> None:
        self._study = study
        self._sign_key = sign_key
        self._lease: str | None = None
        self._followers: dict[str, _Queue] = {}
        self._current: _CurrentRound | None = None
        self._last_closed: channel_pb2.ChannelEvent | None = None
        self._changed = asyncio.Event()

    async def Follow(  # noqa: N802
        self, request: channel_pb2.FollowRequest, context: ServerContext
    ) -> AsyncIterator[channel_pb2.ChannelEvent]:
        try:
            silo = self._admit(request, context)
        except UnknownPeer as refusal:
            logs.warning("follower_refused", reason=refusal)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refusal))
        queue: _Queue = asyncio.Queue()
        self._dismiss(silo, "another connection took over")
        self._followers[silo] = queue
        self._notify()
        if self._last_closed is not None:  # it may have missed how its last round ended
            queue.put_nowait(self._last_closed)
        if self._current is not None and silo in self._current.silos:
            for event in self._current.events:
                queue.put_nowait(event)
        try:
            while True:
                event = await queue.get()
                yield event
                if event.HasField("ended"):
                    return
        finally:
            if self._followers.get(silo) is queue:
                del self._followers[silo]
                self._notify()

    def _admit(self, request: channel_pb2.FollowRequest, context: ServerContext) -> str:
        silo = peer_name(context)
        if self._study.silo(silo) is None or request.study != self._study.identity:
            raise UnknownPeer("this study does not enrol you")
        if self._lease is None or request.lease != self._lease:
            raise UnknownPeer("that lease is not open")
        return silo

    # The coordinator's side ---------------------------------------------------------------------

    @property
    def followers(self) -> frozenset[str]:
        return frozenset(self._followers)

    async def wait_for(self, silos: frozenset[str], timeout_s: float) -> frozenset[str]:
        """Wait until all of `silos` follow, or time is up; those who follow then."""
        try:
            async with asyncio.timeout(timeout_s):
                while not silos <= self.followers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logs.warning("silos_missing", names=",".join(sorted(silos - self.followers)))
        return self.followers

    def open_lease(self, lease: str) -> None:
        self._lease = lease

    def close_lease(self, reason: str) -> None:
        self._lease = None
        self._current = None
        self._tell(channel_pb2.ChannelEvent(ended=channel_pb2.LeaseEnded(reason=reason)))

    def open_round(self, descriptor: Descriptor, query: bytes) -> None:
        """Ask everybody whom the descriptor names; who does not listen is let go."""
        for silo in [name for name, queue in self._followers.items() if queue.qsize() > _BEHIND]:
            self._dismiss(silo, "you are too far behind")
        self._current = _CurrentRound(frozenset(descriptor.silos), list(_opened(descriptor, query)))
        for event in self._current.events:
            self._tell(event, self._current.silos)

    def close_round(self, descriptor: Descriptor, sealed: list[bytes], *, void: bool) -> None:
        """Publish which sealed reports arrived."""
        flag = b"\1" if void else b"\0"
        signature = self._sign_key.sign("closed", descriptor.digest, flag, b"".join(sealed))
        closed = channel_pb2.RoundClosed(
            digest=descriptor.digest, void=void, reports=sealed, signature=signature
        )
        self._current = None
        self._last_closed = channel_pb2.ChannelEvent(closed=closed)
        self._tell(self._last_closed)

    def _tell(self, event: channel_pb2.ChannelEvent, silos: frozenset[str] | None = None) -> None:
        for silo, queue in self._followers.items():
            if silos is None or silo in silos:
                queue.put_nowait(event)

    def _dismiss(self, silo: str, reason: str) -> None:
        """End a follower's stream and forget what it has not read."""
        queue = self._followers.pop(silo, None)
        if queue is None:
            return
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(channel_pb2.ChannelEvent(ended=channel_pb2.LeaseEnded(reason=reason)))
        logs.warning("follower_dismissed", reason=reason)

    def _notify(self) -> None:
        self._changed.set()


def _opened(descriptor: Descriptor, query: bytes) -> Iterator[channel_pb2.ChannelEvent]:
    opened = channel_pb2.RoundOpened(descriptor=descriptor.to_wire(), query_bytes=len(query))
    yield channel_pb2.ChannelEvent(opened=opened)
    for start in range(0, len(query), CHUNK_BYTES):
        yield channel_pb2.ChannelEvent(query_chunk=query[start : start + CHUNK_BYTES])
