"""The round channel: where silos of a lease listen and answer, and the coordinator speaks.

A silo that breaks off is known at once; one that comes back within its lease is asked the current
round again and answers with the bytes that it stored.  One that has no tokens yet is not asked.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc
import grpc.aio
from silomix_core.study import Study
from silomix_proto import channel_pb2, channel_pb2_grpc, round_pb2
from silomix_protocol import logs
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.tls import ServerContext, UnknownPeer, peer_name

from silomix_server.errors import UnwelcomeFrame
from silomix_server.followers import AskedRound, Event, Follower
from silomix_server.frames import FrameReader, View
from silomix_server.gate import Gate

_BEHIND = 40  # events that a follower may leave unread, a round of a million coordinates being 11
_HELLO_S = 10.0  # until the first frame
_MOST_UNWELCOME = 20  # frames of one connection


class RoundChannel(channel_pb2_grpc.RoundChannelServicer):
    """The silos that follow the current lease."""

    def __init__(self, study: Study, reader: FrameReader) -> None:
        self._study = study
        self._reader = reader
        self._lease: str | None = None
        self._followers: dict[str, Follower] = {}
        self._view = View()
        self._changed = asyncio.Event()

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[channel_pb2.SiloFrame], context: ServerContext
    ) -> AsyncIterator[Event]:
        try:
            silo = await self._admit(request_iterator, context)
        except UnknownPeer as refusal:
            logs.warning("follower_refused", reason=refusal)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refusal))
        self._dismiss(silo, "another connection took over")
        follower = self._followers[silo] = Follower(silo)
        self._brief(follower)
        listening = asyncio.create_task(self._listen(request_iterator, follower))
        try:
            while (event := await follower.next_event(listening)) is not None:
                yield event
        finally:
            if self._followers.get(silo) is follower:
                del self._followers[silo]
                self._changed.set()
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _admit(
        self, frames: AsyncIterator[channel_pb2.SiloFrame], context: ServerContext
    ) -> str:
        silo = peer_name(context)
        with suppress(TimeoutError, StopAsyncIteration):
            first = await asyncio.wait_for(anext(frames), _HELLO_S)
            if self._study.silo(silo) is None or first.follow.study != self._study.identity:
                raise UnknownPeer("this study does not enrol you")
            if self._lease is None or first.follow.lease != self._lease:
                raise UnknownPeer("that lease is not open")
            return silo
        raise UnknownPeer("no lease was named")

    def _brief(self, follower: Follower) -> None:
        """Tell a silo that joins what it needs, and what it may have missed."""
        view = self._view
        if view.stretch is not None:
            follower.tell([Event(stretch=view.stretch)])
        self._reader.supply(follower, view)
        if view.last is not None and follower.silo in view.last.descriptor.silos:
            follower.tell(view.last.ending)
        if view.current is not None and follower.silo in view.current.descriptor.silos:
            follower.tell([*view.current.opening, *view.current.ending])
        self._changed.set()

    async def _listen(
        self, frames: AsyncIterator[channel_pb2.SiloFrame], follower: Follower
    ) -> None:
        """Read what a silo says, one frame after the other, until it says too much nonsense."""
        try:
            async for frame in frames:
                try:
                    await self._reader.read(frame, follower, self._view)
                    self._changed.set()
                except UnwelcomeFrame as problem:
                    follower.unwelcome += 1
                    logs.warning("frame_ignored", reason=problem)
                if follower.unwelcome > _MOST_UNWELCOME:
                    break
            else:
                return
            reason = "too many messages that nobody asked for"
        except Exception as error:  # the stream must not go on with nobody listening
            logs.warning("listening_failed", reason=repr(error))
            reason = "internal error"
        if self._followers.get(follower.silo) is follower:
            self._dismiss(follower.silo, reason)

    # The coordinator's side ---------------------------------------------------------------------

    @property
    def followers(self) -> frozenset[str]:
        return frozenset(self._followers)

    def ready(self, round_number: int) -> frozenset[str]:
        """The followers that can answer this round."""
        everybody = self._followers.values()
        return frozenset(
            each.silo
            for each in everybody
            if self._reader.is_supplied(each, round_number, self._view)
        )

    async def wait_for(
        self, silos: frozenset[str], round_number: int, timeout_s: float
    ) -> frozenset[str]:
        """Wait until all of `silos` can answer the round, or time is up; those who can then."""
        try:
            async with asyncio.timeout(timeout_s):
                while not silos <= self.ready(round_number):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            missing = silos - self.ready(round_number)
            logs.warning("silos_missing", names=",".join(sorted(missing)))
        return self.ready(round_number)

    def open_lease(self, lease: str) -> None:
        self._lease = lease

    def close_lease(self, reason: str) -> None:
        self._lease = None
        self._view.current = self._view.stretch = None
        self._tell([Event(ended=channel_pb2.LeaseEnded(reason=reason))])
        self._followers.clear()

    def open_stretch(self, stretch: channel_pb2.StretchOpened) -> None:
        """Announce the keys of the rounds to come; silos that need tokens ask for them now."""
        self._view.stretch = stretch
        for follower in self._followers.values():
            follower.tell([Event(stretch=stretch)])
            self._reader.supply(follower, self._view)

    def open_round(
        self, descriptor: Descriptor, opened: channel_pb2.RoundOpened, query: bytes
    ) -> None:
        """Ask everybody whom the descriptor names; who does not listen is let go."""
        late = [each.silo for each in self._followers.values() if each.events.qsize() > _BEHIND]
        for silo in late:
            self._dismiss(silo, "you are too far behind")
        self._view.current = AskedRound.opened(descriptor, opened, query)
        self._tell(self._view.current.opening, descriptor)

    def commit(
        self,
        committed: channel_pb2.RoundCommitted,
        chain: tuple[round_pb2.HopStatement, ...],
        gate: Gate | None,
    ) -> None:
        """Publish which reports arrived; those whose report is there confirm at the gate."""
        current = self._view.current
        if current is None or current.descriptor.digest != committed.digest:
            raise ValueError("the list belongs to another round than the current one")
        current.chain, current.gate = chain, gate
        current.ending.append(Event(committed=committed))
        self._tell(current.ending, current.descriptor)

    def close_round(self, *, void: bool) -> None:
        current = self._view.current
        if current is None:
            return
        digest = current.descriptor.digest
        event = Event(closed=channel_pb2.RoundClosed(digest=digest, void=void))
        current.ending.append(event)
        for silo in current.descriptor.silos:
            if silo in self._followers:
                self._followers[silo].unhurried.append(event)
        self._forget(self._view.last)
        self._view.last, self._view.current = current, None

    def _forget(self, over: AskedRound | None) -> None:
        if over is not None:
            for follower in self._followers.values():
                follower.answered.discard(over.descriptor.digest)
                follower.inspected.discard(over.descriptor.digest)

    def _tell(self, events: list[Event], descriptor: Descriptor | None = None) -> None:
        silos = self.followers if descriptor is None else frozenset(descriptor.silos)
        for silo, follower in self._followers.items():
            if silo in silos:
                follower.tell(events)

    def _dismiss(self, silo: str, reason: str) -> None:
        follower = self._followers.pop(silo, None)
        if follower is not None:
            follower.dismiss(reason)
            logs.warning("follower_dismissed", reason=reason)
            self._changed.set()
