"""The round channel: where silos of a lease listen and answer, and the coordinator speaks.

A silo that breaks off is known at once; one that comes back within its lease is asked the current
round again and answers with the bytes that it stored.  One that has no tokens yet is not asked.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import NoReturn

import grpc
import grpc.aio
from silomix_core.study import Study
from silomix_proto import channel_pb2, channel_pb2_grpc, introduction_pb2, round_pb2
from silomix_protocol import logs
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.introduction import Door, Speaker, welcome
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.statements import digests
from silomix_protocol.tls import ServerContext, UnknownPeer
from silomix_protocol.version import WrongVersion

from silomix_server.errors import UnwelcomeFrame
from silomix_server.followers import AskedRound, Event, Follower
from silomix_server.frames import FrameReader, View
from silomix_server.gate import Gate

_BEHIND = 40  # events that a follower may leave unread, a round of a million coordinates being 11
_SPARE = 4  # of those whom the gate does not need, one in so many is asked to confirm too
_HELLO_S = 10.0  # until the first frame
_MOST_UNWELCOME = 20  # frames of one connection


class RoundChannel(channel_pb2_grpc.RoundChannelServicer):
    """The silos that follow the current lease.

    With a `sign_key`, what a silo is told that introduced itself at the `door` is signed.
    """

    def __init__(
        self,
        study: Study,
        reader: FrameReader,
        door: Door | None = None,
        sign_key: SigningKey | None = None,
    ) -> None:
        self._study = study
        self._reader = reader
        self._door, self._sign_key = door or Door(), sign_key
        self._lease: str | None = None
        self._followers: dict[str, Follower] = {}
        self._view = View()
        self._changed = asyncio.Event()

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[channel_pb2.SiloFrame], context: ServerContext
    ) -> AsyncIterator[Event]:
        try:
            caller = self._door.caller(context)
            frames, speaker = caller.frames(request_iterator), caller.speaker(self._sign_key)
            silo = await self._admit(caller.name, frames)
        except (UnknownPeer, WrongVersion, ForgedSignature) as refusal:
            await _refuse(refusal, context)
        self._dismiss(silo, "another connection took over")
        follower = self._followers[silo] = Follower(silo)
        self._brief(follower)
        listening = asyncio.create_task(self._listen(frames, follower))
        try:
            while (event := await follower.next_event(listening)) is not None:
                yield event if speaker is None else _signed(event, speaker)
        finally:
            if self._followers.get(silo) is follower:
                del self._followers[silo]
                self._changed.set()
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def Greet(  # noqa: N802
        self, request: introduction_pb2.Greeting, context: ServerContext
    ) -> introduction_pb2.Welcome:
        try:
            self._check_enrolled(self._door.caller(context).name, request.study)
        except (UnknownPeer, WrongVersion) as refusal:
            await _refuse(refusal, context)
        return welcome()

    def _check_enrolled(self, silo: str, study: bytes) -> None:
        if study != self._study.identity:
            raise UnknownPeer(f"this server runs study {self._study.short_id}, not yours")
        if self._study.silo(silo) is None:
            raise UnknownPeer("this study does not enrol you")

    async def _admit(self, silo: str, frames: AsyncIterator[channel_pb2.SiloFrame]) -> str:
        with suppress(TimeoutError, StopAsyncIteration):
            first = await asyncio.wait_for(anext(frames), _HELLO_S)
            self._check_enrolled(silo, first.follow.study)
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
        except ForgedSignature as forged:
            logs.warning("frame_forged", reason=forged)
            reason = "a message on the way was changed, added or left out"
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
        self._tell(self._view.current.opening, descriptor.silos)
        self._tell([], self.followers - frozenset(descriptor.silos))

    def commit(
        self,
        committed: channel_pb2.RoundCommitted,
        chain: tuple[round_pb2.HopStatement, ...],
        gate: Gate | None,
    ) -> None:
        """Publish which reports arrived; those whose report is there confirm at the gate.

        Where all reports arrived, some more silos than the gate needs hear of it at once, the
        others with what they are told next, or by `hurry`: most of a round's messages are these.
        """
        current = self._view.current
        if current is None or current.descriptor.digest != committed.digest:
            raise ValueError("the list belongs to another round than the current one")
        current.chain, current.gate = chain, gate
        event = Event(committed=committed)
        current.ending.append(event)
        asked = list(current.descriptor.silos)
        if gate is not None and len(digests(committed.list)) == len(asked):
            enough = current.descriptor.minimum_batch
            secrets.SystemRandom().shuffle(asked)
            asked = asked[: enough + max(1, (len(asked) - enough) // _SPARE)]
        self._tell([event], asked)
        self._later(event, frozenset(current.descriptor.silos) - frozenset(asked))

    def hurry(self) -> None:
        """Tell everybody what waits for the next message."""
        self._tell([])

    def close_round(self, *, void: bool) -> None:
        current = self._view.current
        if current is None:
            return
        digest = current.descriptor.digest
        event = Event(closed=channel_pb2.RoundClosed(digest=digest, void=void))
        current.ending.append(event)
        self._later(event, current.descriptor.silos)
        view = self._view
        self._forget(view.earlier)
        view.earlier, view.last, view.current = view.last, current, None

    def _forget(self, over: AskedRound | None) -> None:
        if over is not None:
            for follower in self._followers.values():
                follower.answered.discard(over.descriptor.digest)
                follower.inspected.discard(over.descriptor.digest)

    def _tell(self, events: list[Event], silos: Iterable[str] | None = None) -> None:
        for follower in self._of(silos):
            follower.tell(events)

    def _later(self, event: Event, silos: Iterable[str]) -> None:
        for follower in self._of(silos):
            follower.unhurried.append(event)

    def _of(self, silos: Iterable[str] | None) -> list[Follower]:
        """The followers among them; all if none are named."""
        named = self._followers if silos is None else frozenset(silos)
        return [follower for silo, follower in self._followers.items() if silo in named]

    def _dismiss(self, silo: str, reason: str) -> None:
        follower = self._followers.pop(silo, None)
        if follower is not None:
            follower.dismiss(reason)
            logs.warning("follower_dismissed", reason=reason)
            self._changed.set()


async def _refuse(refusal: Exception, context: ServerContext) -> NoReturn:
    """The sentence goes to the caller and into our own log."""
    logs.warning("follower_refused", reason=refusal)
    wrong_version = isinstance(refusal, WrongVersion)
    code = "FAILED_PRECONDITION" if wrong_version else "PERMISSION_DENIED"
    await context.abort(grpc.StatusCode[code], str(refusal))
    raise AssertionError("abort returned")


def _signed(event: Event, speaker: Speaker) -> Event:
    return Event(signed=speaker.signed(event.SerializeToString()))
