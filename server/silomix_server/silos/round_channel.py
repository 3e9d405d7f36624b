"""The round channel: where silos of a lease listen and answer, and the coordinator speaks.

A silo that breaks off is noticed at once; one that comes back within its lease is asked the current
round again and answers with the bytes that it stored.  A silo that has no tokens yet is not asked.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress

import grpc
import grpc.aio
from silomix_core.study.study import Silo, Study
from silomix_proto import channel_pb2, channel_pb2_grpc, introduction_pb2, round_pb2
from silomix_protocol.connections.introduction import Door, Speaker, welcome
from silomix_protocol.connections.tls import ServerContext, UnknownPeer
from silomix_protocol.connections.version import WrongVersion
from silomix_protocol.grpc_calls.call_limits import CallLimits, RefusedCall
from silomix_protocol.host import logs
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest
from silomix_protocol.rounds.heights import HeightBook, check_height

from silomix_server.errors import UnwelcomeFrame
from silomix_server.silos.followers import Event, Follower, RoundAttempt
from silomix_server.silos.frames import FrameReader, View
from silomix_server.silos.gate import Gate
from silomix_server.silos.settlements import closing_for
from silomix_server.study.journal import Settlement

_BEHIND = 40  # events that a follower may leave unread, a round of a million coordinates being 11
_HELLO_S = 10.0  # until a silo's first frame
_MOST_UNWELCOME = 20  # frames of one connection before it is ended
_LARGEST_FRAME = 2**18  # a complaint of a round with thousands of silos, a stretch of tokens
_CALLS = 8  # of a silo at once: it follows, greets, and may come back before we know that it left


def call_limits(study: Study) -> CallLimits:
    """The limits on calls to the server of a round channel."""
    return CallLimits(_LARGEST_FRAME, _CALLS, _CALLS * len(study.silos), _CALLS)


class RoundChannel(channel_pb2_grpc.RoundChannelServicer):
    """The service that silos follow during the current lease.

    With a `sign_key`, what is told to a silo that introduced itself at the `door` is signed.
    `heights` are those of the silos' ledgers.
    """

    def __init__(
        self,
        study: Study,
        reader: FrameReader,
        door: Door | None = None,
        sign_key: SigningKey | None = None,
        heights: HeightBook | None = None,
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        """Open for no lease yet; `sync` makes sure that the journal is on disk."""
        self._study, self._sync = study, sync
        self._heights = heights or HeightBook()
        self._untold: RoundAttempt | None = None  # a round that is over, maybe not yet on disk
        self._reader = reader
        self._door, self._sign_key = door or Door(), sign_key
        self._lease: str | None = None
        self._followers: dict[str, Follower] = {}
        self._left: dict[str, float] = {}  # when a silo that followed left last
        self._view = View()
        self._changed = asyncio.Event()

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[channel_pb2.SiloFrame], context: ServerContext
    ) -> AsyncIterator[Event]:
        try:
            caller = self._door.caller(context)
            frames, speaker = caller.frames(request_iterator), caller.speaker(self._sign_key)
            request = await self._admit(caller.name, frames)
            silo, shown = caller.name, self._witnessed(caller.name, request)
        except (UnknownPeer, WrongVersion, ForgedSignature) as refusal:
            raise _refused(refusal) from None
        self._dismiss(silo, "another connection took over")
        follower = self._followers[silo] = Follower(silo)
        follower.tell(shown)
        self._brief(follower, RoundDigest(request.unsettled) or None)
        listening = asyncio.create_task(self._listen(frames, follower))
        try:
            while (event := await follower.next_event(listening)) is not None:
                yield event if speaker is None else _signed(event, speaker)
        finally:
            if self._followers.get(silo) is follower:
                self._let_go(silo)
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def Greet(  # noqa: N802
        self, request: introduction_pb2.Greeting, context: ServerContext
    ) -> introduction_pb2.Welcome:
        try:
            silo = self._enrolled(self._door.caller(context).name, request.study)
        except (UnknownPeer, WrongVersion) as refusal:
            raise _refused(refusal) from None
        return welcome(self._heights.of(silo.sign_key))

    def _enrolled(self, name: str, study: bytes) -> Silo:
        if study != self._study.identity:
            raise UnknownPeer(f"this server runs study {self._study.short_id}, not yours")
        silo = self._study.silo(name)
        if silo is None:
            raise UnknownPeer("this study does not enrol you")
        return silo

    async def _admit(
        self, silo: str, frames: AsyncIterator[channel_pb2.SiloFrame]
    ) -> channel_pb2.FollowRequest:
        with suppress(TimeoutError, StopAsyncIteration):
            first = await asyncio.wait_for(anext(frames), _HELLO_S)
            self._enrolled(silo, first.follow.study)
            if self._lease is None or first.follow.lease != self._lease:
                raise UnknownPeer("that lease is not open")
            return first.follow
        raise UnknownPeer("no lease was named")

    def _witnessed(self, silo: str, request: channel_pb2.FollowRequest) -> list[Event]:
        """Keep the height of a silo's ledger; return the earlier one, to show before all else."""
        key = self._enrolled(silo, request.study).sign_key
        earlier = self._heights.exchange(key, check_height(request.height, silo, key))
        return [] if earlier is None else [Event(height=earlier.to_wire())]

    def _brief(self, follower: Follower, unsettled: RoundDigest | None) -> None:
        """Tell a silo that joins what it may have missed, and what it needs."""
        view = self._view
        if unsettled is not None and not view.shows(unsettled):
            self._reader.settle(follower, unsettled)
        if view.stretch is not None:
            follower.tell([Event(stretch=view.stretch)])
        self._reader.supply(follower, view)
        if view.last is not None and follower.silo in view.last.descriptor.silos:
            follower.tell(self._ending(view.last, follower.silo))
        if view.current is not None and follower.silo in view.current.descriptor.silos:
            follower.tell([*view.current.opening, *view.current.ending])
        self._changed.set()

    async def _listen(
        self, frames: AsyncIterator[channel_pb2.SiloFrame], follower: Follower
    ) -> None:
        """Read a silo's frames one after the other, until too many of them are unwelcome."""
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

    def gone(self, moment_s: float) -> frozenset[str]:
        """The silos that left more than `moment_s` ago and did not come back."""
        before = asyncio.get_running_loop().time() - moment_s
        return frozenset(
            silo
            for silo, when in self._left.items()
            if when < before and silo not in self._followers
        )

    def ready(self, round_number: int) -> frozenset[str]:
        """The followers that can answer this round."""
        everybody = self._followers.values()
        return frozenset(
            each.silo
            for each in everybody
            if self._reader.is_supplied(each, round_number, self._view)
        )

    async def wait_for(
        self, silos: frozenset[str], round_number: int, timeout_s: float, enough: int | None = None
    ) -> frozenset[str]:
        """Wait until `enough` of `silos` (all, if it is None) can answer the round, or time is up.

        Returns all followers that can answer it then.
        """
        wanted = len(silos) if enough is None else enough
        try:
            async with asyncio.timeout(timeout_s):
                while len(silos & self.ready(round_number)) < wanted:
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
        if self._untold is not None:
            self._sync()
            self.journalled()
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
        """Ask the silos that the descriptor names; those too far behind with reading are let go."""
        late = [each.silo for each in self._followers.values() if each.events.qsize() > _BEHIND]
        for silo in late:
            self._dismiss(silo, "you are too far behind")
        self._view.current = RoundAttempt.opened(descriptor, opened, query)
        self._tell(self._view.current.opening, descriptor.silos)
        self._tell([], self.followers - frozenset(descriptor.silos))

    def commit(
        self,
        committed: channel_pb2.RoundCommitted,
        chain: tuple[round_pb2.HopStatement, ...],
        gate: Gate | None,
    ) -> None:
        """Publish which reports arrived; silos whose report is listed confirm at the gate."""
        current = self._view.current
        if current is None or current.descriptor.digest != committed.digest:
            raise ValueError("the list belongs to another round than the current one")
        current.chain, current.gate = chain, gate
        event = Event(committed=committed)
        current.ending.append(event)
        self._tell([event], current.descriptor.silos)

    def close_round(self, settlement: Settlement) -> None:
        """End the current round; that it was used is told when the journal surely has it."""
        view, current = self._view, self._view.current
        if current is None or current.descriptor.digest != settlement.digest:
            return
        current.settlement = settlement
        self._forget(view.earlier)
        view.earlier, view.last, view.current = view.last, current, None
        self._untold = current
        if settlement.closed is not None and settlement.closed.void:
            self.journalled()  # even if the journal lost it
        for silo in current.inspectors:
            self._tell(current.passages(), [silo])

    def journalled(self) -> None:
        """Tell, with the next message, the ending that waited for the journal, now on disk."""
        over, self._untold = self._untold, None
        if over is not None and over.settlement is not None:
            self.settle(over.settlement, over.descriptor.silos)

    def settle(self, settlement: Settlement, silos: Iterable[str]) -> None:
        """Tell silos, with the next message, what became known of a round that is over."""
        if not settlement.traced:
            self._later(Event(closed=settlement.closed), silos)
            return
        for silo in silos:
            self._later(self._closed(settlement, silo), [silo])

    def _ending(self, over: RoundAttempt, silo: str) -> list[Event]:
        """The events about how a round ended, as far as it may be told."""
        if over.settlement is None or over is self._untold:
            return over.ending
        return [*over.ending, self._closed(over.settlement, silo)]

    def _closed(self, settlement: Settlement, silo: str) -> Event:
        return Event(closed=closing_for(settlement, self._study.places[silo]))

    def _forget(self, over: RoundAttempt | None) -> None:
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
        """The followers among `silos`; all followers if that is None."""
        named = self._followers if silos is None else frozenset(silos)
        return [follower for silo, follower in self._followers.items() if silo in named]

    def _dismiss(self, silo: str, reason: str) -> None:
        follower = self._followers.get(silo)
        if follower is not None:
            self._let_go(silo)
            follower.dismiss(reason)
            logs.warning("follower_dismissed", reason=reason)

    def _let_go(self, silo: str) -> None:
        del self._followers[silo]
        self._left[silo] = asyncio.get_running_loop().time()
        self._changed.set()


def _refused(refusal: Exception) -> RefusedCall:
    """The refusal of a call; its sentence goes to the caller and into our own log."""
    logs.warning("follower_refused", reason=refusal)
    wrong_version = isinstance(refusal, WrongVersion)
    code = "FAILED_PRECONDITION" if wrong_version else "PERMISSION_DENIED"
    return RefusedCall(grpc.StatusCode[code], str(refusal))


def _signed(event: Event, speaker: Speaker) -> Event:
    return Event(signed=speaker.signed(event.SerializeToString()))
