"""A coordinator and a first mix that do what a test says, and a silo's lease between them.

Only the other parties are played: they are real gRPC servers with their own certificates and keys;
desk, ledger, signatures and TLS are the silo's own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256

import grpc
import grpc.aio
from silomix_client.config.silo_config import SiloConfig
from silomix_client.ledger.ledger import Ledger
from silomix_client.network.connection_status import Links
from silomix_client.network.outbound import OutboundNetwork
from silomix_client.rounds.lease import Ending, LeaseHolder, LeaseTerms
from silomix_core.accounting.events import PrivacyTarget
from silomix_lab.consortium.create import Consortium
from silomix_proto import (
    channel_pb2,
    channel_pb2_grpc,
    introduction_pb2,
    ledger_pb2,
    mix_pb2,
    mix_pb2_grpc,
    round_pb2,
)
from silomix_protocol.connections.introduction import welcome
from silomix_protocol.connections.tls import Identity, peer_name
from silomix_protocol.keys import SigningKey, verify
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest
from silomix_protocol.rounds.onion import open_layer
from silomix_protocol.rounds.statements import sign_hop, sign_receipt

from support.echoes import with_echoes
from support.silos import (
    asked,
    closed_round,
    committed_list,
    mix_key,
    open_desk,
    open_ledger,
    round_of,
    round_opened,
    stretch_of,
    tokens_for,
)

Event = channel_pb2.ChannelEvent
Frame = channel_pb2.SiloFrame
ENDED = Event(ended=channel_pb2.LeaseEnded(reason="all rounds done"))


# The mix -----------------------------------------------------------------------------------------


class PlayedMix(mix_pb2_grpc.MixServicer):
    """Takes every report, keeps it, and gives the receipt that `reply` says."""

    def __init__(self, made: Consortium) -> None:
        self.made = made
        self.sign_key = mix_key(made, 0)
        self.onions: asyncio.Queue[bytes] = asyncio.Queue()
        self.breaks = 0  # streams to break after a report, before its receipt
        self.code = grpc.StatusCode.UNAVAILABLE  # what they are broken with
        self.reply: Callable[[RoundDigest, bytes], mix_pb2.Receipt] = self.accept
        self.heights: list[ledger_pb2.LedgerHeight] = []  # that came with reports
        self.shown: ledger_pb2.LedgerHeight | None = None  # to who greets
        self.greeted = 0

    async def Greet(  # noqa: N802
        self, request: introduction_pb2.Greeting, context: grpc.aio.ServicerContext
    ) -> introduction_pb2.Welcome:
        self.greeted += 1
        answer = welcome()
        if self.shown is not None:
            answer.height.CopyFrom(self.shown)
        return answer

    async def Submit(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.SubmitFrame],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[mix_pb2.Receipt]:
        silo = self.made.study.silo(peer_name(context))
        assert silo is not None
        async for frame in request_iterator:
            assert frame.header.bytes == len(frame.chunk)
            digest = RoundDigest(frame.header.digest)
            self.heights.append(frame.header.height)
            report = sha256(frame.chunk).digest()
            verify(silo.sign_key, frame.header.signature, "report", digest, report)
            self.onions.put_nowait(frame.chunk)
            if self.breaks:
                self.breaks -= 1
                await context.abort(self.code, "broken by the test")
            yield self.reply(digest, report)

    def accept(self, digest: RoundDigest, report: bytes, place: int = 0) -> mix_pb2.Receipt:
        """A receipt for the silo at `place` of the roster: silo-1 is the first."""
        return sign_receipt(digest, place, report, self.sign_key)

    async def gated(self, descriptor: Descriptor) -> bytes:
        """SHA-256 of what the mixes leave of the next report."""
        return gated_digest(self.made, await self.onions.get(), descriptor)

    def left_over(self) -> list[bytes]:
        """Reports that no script took."""
        return [self.onions.get_nowait() for _ in range(self.onions.qsize())]


def gated_digest(made: Consortium, onion: bytes, descriptor: Descriptor) -> bytes:
    for hop, mix in enumerate(round_of(made, descriptor.round, descriptor.attempt).mixes):
        onion = open_layer(onion, mix.seal, hop, descriptor.digest)
    return sha256(onion).digest()


# The coordinator ---------------------------------------------------------------------------------


@dataclass
class Stage:
    """What a script of the coordinator has at hand."""

    made: Consortium
    mix: PlayedMix
    context: grpc.aio.ServicerContext
    frames: asyncio.Queue[Frame] = field(default_factory=asyncio.Queue)  # what the silo says
    echoes: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)  # what it wants to hear
    echoing: bool = True  # else what it wants to hear is among the frames

    def opened(
        self,
        round_number: int,
        attempt: int = 1,
        abandoned: Sequence[round_pb2.Abandonment] = (),
    ) -> tuple[Descriptor, list[Event]]:
        question = asked(self.made, round_number, attempt=attempt)
        signed = question.descriptor.to_wire()
        return question.descriptor, opening(self.made, signed, question.query, abandoned)

    def committed(self, descriptor: Descriptor, reports: list[bytes]) -> Event:
        return Event(committed=committed_list(self.made, descriptor.digest, reports))

    def closed(self, descriptor: Descriptor, *, void: bool = False) -> Event:
        """The server's word; of a void round with what every mix states."""
        return Event(closed=closed_round(self.made, descriptor, void=void))

    async def said(self, kind: str) -> Frame:
        """The silo's next frame, which must be of this kind."""
        frame = await asyncio.wait_for(self.frames.get(), 10.0)
        assert frame.WhichOneof("frame") == kind, frame
        return frame

    async def complained(self) -> channel_pb2.Complaint:
        """The silo's complaint, after which it asks for the statements of the mixes."""
        answer = (await self.said("answer")).answer
        assert answer.WhichOneof("answer") == "complaint", answer
        assert (await self.said("inspect")).inspect == answer.digest
        return answer.complaint

    async def broken(self) -> None:
        await self.context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")


def opening(
    made: Consortium,
    signed: round_pb2.SignedDescriptor,
    query: bytes,
    abandoned: Sequence[round_pb2.Abandonment] = (),
) -> list[Event]:
    opened = round_opened(made, signed, query, abandoned)
    return [Event(opened=opened), Event(query_chunk=query)]


def passages(
    made: Consortium, descriptor: Descriptor, outputs: Sequence[Sequence[bytes]]
) -> list[Event]:
    """What the mixes state about a round, each of them having put out these digests."""
    came, events = bytes(32), []
    received = len(outputs[0])
    for hop, output in enumerate(outputs):
        statement = round_pb2.HopStatement(
            hop=hop,
            received=received,
            forwarded=len(output),
            dropped=received - len(output),
            input=came,
            output=b"".join(output),
        )
        signed = sign_hop(descriptor.digest, statement, mix_key(made, hop))
        passage = channel_pb2.Passage(digest=descriptor.digest, statement=signed)
        events.append(Event(passage=passage))
        came, received = sha256(signed.output).digest(), signed.forwarded
    return events


Script = Callable[[Stage], AsyncIterator[Event]]


@dataclass
class PlayedCoordinator(channel_pb2_grpc.RoundChannelServicer):
    """Plays one script per connection; the last one again for all that follow.

    Before each it announces the whole study as one stretch and gives its tokens, if it is `kind`.
    """

    made: Consortium
    mix: PlayedMix
    scripts: list[Script]
    kind: bool = True
    requests: list[channel_pb2.FollowRequest] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[Frame], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Event]:
        assert peer_name(context) == "silo-1"
        self.requests.append((await anext(request_iterator)).follow)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        stage = Stage(self.made, self.mix, context)
        self.stages.append(stage)
        if self.kind:
            yield Event(stretch=stretch_of(self.made))
            if self.made.study.batching.tokens:
                request = (await anext(request_iterator)).tokens
                yield Event(tokens=tokens_for(self.made.study, request))
        listening = asyncio.create_task(_listen(request_iterator, stage))
        try:
            ended = False
            async for event in with_echoes(script(stage), stage.echoes):
                ended = event.HasField("ended") or ended
                yield event
            if ended:
                await asyncio.wait({listening}, timeout=5.0)  # the silo has the last word
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening


async def _listen(frames: AsyncIterator[Frame], stage: Stage) -> None:
    async for frame in frames:
        if stage.echoing and frame.HasField("echo"):
            stage.echoes.put_nowait(frame.echo)
        else:
            stage.frames.put_nowait(frame)


# A lease -----------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(
    made: Consortium,
    channel: channel_pb2_grpc.RoundChannelServicer | None,
    mix: mix_pb2_grpc.MixServicer,
    party: str = "server",
) -> AsyncIterator[None]:
    """Coordinator (under the certificate of `party`) and mix at the study's addresses."""
    study = made.study
    servers = [Identity.load("mix-1", made.folder / "mix-1").server(study.mixes[0].address)]
    mix_pb2_grpc.add_MixServicer_to_server(mix, servers[0])
    if channel is not None:
        folder = made.folder / party
        servers.append(Identity.load(party, folder).server(study.server.channel_address))
        channel_pb2_grpc.add_RoundChannelServicer_to_server(channel, servers[1])
    for server in servers:
        await server.start()
    try:
        yield
    finally:
        for server in servers:
            await server.stop(None)


@asynccontextmanager
async def holding(
    config: SiloConfig,
    made: Consortium,
    ledger: Ledger,
    network: OutboundNetwork | None = None,
    links: Links | None = None,
) -> AsyncIterator[LeaseHolder]:
    """The silo as its process holds it, with the tokens that it was given so far."""
    desk = open_desk(config, made.study, ledger, tokens=False)
    sign_key = SigningKey.load(config.folder / "sign.key")
    own = Identity.load(config.name, config.folder)
    holder = LeaseHolder(desk, ledger, own, sign_key, config.state, network, links)
    try:
        yield holder
    finally:
        await holder.close()
        ledger.close()


@dataclass(frozen=True, slots=True)
class Followed:
    """How a lease went."""

    ending: Ending
    answered: int
    mix: PlayedMix
    coordinator: PlayedCoordinator

    @property
    def outcome(self) -> tuple[Ending, int]:
        return self.ending, self.answered


def follow(
    made: Consortium,
    config: SiloConfig,
    *scripts: Script,
    prepare: Callable[[PlayedMix], None] = lambda mix: None,
    deadline_s: float = 30.0,
    lifetime: PrivacyTarget | None = None,
    kind: bool = True,
    leases: int = 1,
) -> Followed:
    """Leases of one silo process, each from its first to its last event; how the last one went."""

    async def play() -> Followed:
        mix = PlayedMix(made)
        prepare(mix)
        coordinator = PlayedCoordinator(made, mix, list(scripts), kind)
        ledger = open_ledger(config, lifetime)
        async with serving(made, coordinator, mix), holding(config, made, ledger) as holder:
            for number in range(1, leases + 1):
                ending, answered = await holder.follow(LeaseTerms(f"lease-{number}", deadline_s))
        return Followed(ending, answered, mix, coordinator)

    return asyncio.run(asyncio.wait_for(play(), 40.0))


def rounds_charged(config: SiloConfig) -> int:
    ledger = open_ledger(config)
    try:
        return ledger.total().rounds
    finally:
        ledger.close()


async def round_with(
    stage: Stage,
    number: int,
    published: Callable[[bytes], list[bytes]] = lambda gated: [gated],
    *,
    void: bool = False,
) -> AsyncIterator[Event]:
    """One whole round; `published` makes the committed list from the silo's own digest.

    A silo that is not in it is shown that the first mix dropped its report.
    """
    descriptor, events = stage.opened(number)
    for event in events:
        yield event
    gated = await stage.mix.gated(descriptor)
    listed = published(gated)
    yield stage.committed(descriptor, listed)
    if gated in listed:
        if stage.made.study.batching.gate:
            await stage.said("answer")
    else:
        await stage.complained()
        for event in passages(stage.made, descriptor, [listed] * len(stage.made.mixes)):
            yield event
    yield stage.closed(descriptor, void=void)
