"""Silos on the round channel, and the rounds they are asked: what the channel knows about both."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest

from silomix_server.silos.gate import Gate
from silomix_server.study.journal import Settlement

Event = channel_pb2.ChannelEvent
Queue = asyncio.Queue[Event]

_FAREWELL_S = 5.0
_SMALL = 2**16  # bytes of events that share a message


@dataclass(slots=True)
class Follower:
    """A silo's connection: what waits to be read, and what it may still say."""

    silo: str
    events: Queue = field(default_factory=asyncio.Queue)
    may_ask_tokens: bool = False
    may_ask_echo: bool = False  # once for every round that it is asked
    supplied: bool = False  # it has been answered about the tokens of the current stretch
    without_token: frozenset[int] = frozenset()  # rounds whose token it was refused
    answered: set[RoundDigest] = field(default_factory=set)
    inspected: set[RoundDigest] = field(default_factory=set)
    unwelcome: int = 0
    ended: bool = False
    dismissed: bool = False
    unhurried: list[Event] = field(default_factory=list)  # go with the next event told

    def tell(self, events: Iterable[Event]) -> None:
        for event in (*self.unhurried, *events):
            self.events.put_nowait(event)
            self.may_ask_echo = self.may_ask_echo or event.HasField("opened")
        self.unhurried.clear()

    async def next_event(self, listening: "asyncio.Task[None]") -> Event | None:
        """The next event to send, None when the stream is over.

        After the lease's end the stream stays open until the silo leaves, or for a moment: a silo
        whose report is missing still asks for statements about it.
        """
        if not self.ended:
            return self._with_more(await self.events.get())
        if self.dismissed:
            return None
        getting = asyncio.ensure_future(self.events.get())
        try:
            await asyncio.wait(
                {getting, listening}, timeout=_FAREWELL_S, return_when=asyncio.FIRST_COMPLETED
            )
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()

    def _with_more(self, event: Event) -> Event:
        """The event with small ones that wait behind it: a message costs more than its bytes."""
        self.ended = event.HasField("ended")
        if self.ended or self.events.empty() or event.ByteSize() > _SMALL:
            return event
        together = Event()
        together.CopyFrom(event)
        size = event.ByteSize()
        while not self.ended and not self.events.empty() and size < _SMALL:
            following = self.events.get_nowait()
            together.more.append(following)
            size += following.ByteSize()
            self.ended = following.HasField("ended")
        return together

    def dismiss(self, reason: str) -> None:
        """End the stream and forget what was not read."""
        self.dismissed = True
        self.unhurried.clear()
        while not self.events.empty():
            self.events.get_nowait()
        self.tell([Event(ended=channel_pb2.LeaseEnded(reason=reason))])


@dataclass(slots=True)
class RoundAttempt:
    """One attempt of a round, from its opening on."""

    descriptor: Descriptor
    opening: list[Event]
    ending: list[Event] = field(default_factory=list)
    chain: tuple[round_pb2.HopStatement, ...] = ()
    gate: Gate | None = None
    settlement: Settlement | None = None  # how it ended
    inspectors: set[str] = field(default_factory=set)  # silos to show the statements to

    @classmethod
    def opened(
        cls, descriptor: Descriptor, opened: channel_pb2.RoundOpened, query: bytes
    ) -> "RoundAttempt":
        return cls(descriptor, [Event(opened=opened), *_chunks(query)])

    def passages(self) -> list[Event]:
        """What every mix stated about the round; if it is void, with what it disclosed."""
        digest = self.descriptor.digest
        if self.settlement is None or self.settlement.evidence is None:
            return passages(digest, self.chain)
        return passages(digest, self.settlement.evidence.chain, self.settlement.evidence.endings)


def passages(
    digest: RoundDigest,
    chain: Sequence[round_pb2.HopStatement],
    endings: Sequence[round_pb2.Ending] = (),
) -> list[Event]:
    """What every mix stated about a round, one message each."""
    told = [
        Event(passage=channel_pb2.Passage(digest=digest, statement=statement))
        for statement in chain
    ]
    for event, ending in zip(told, endings, strict=False):
        event.passage.ending.CopyFrom(ending)
    return told


def _chunks(query: bytes) -> Iterator[Event]:
    for start in range(0, len(query), CHUNK_BYTES):
        yield Event(query_chunk=query[start : start + CHUNK_BYTES])
