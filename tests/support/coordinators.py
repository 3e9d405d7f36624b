"""The coordinator's counterparts in tests: mixes that do as they are told, silos that follow.

The mixes are real servers on loopback with real keys, but they hold a round's reports in memory
and have faults on demand.  The silos follow the round channel and send made-up reports.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import numpy as np
from silomix_core.mechanism.report_format import encode_report
from silomix_core.study.study import Study
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, channel_pb2_grpc, mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.connections.tls import Identity, ServerContext
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.rounds import tokens
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest, check
from silomix_protocol.rounds.onion import open_layer, seal
from silomix_protocol.rounds.round_keys import sign_list
from silomix_protocol.rounds.statements import (
    sign_abandonment,
    sign_commitment,
    sign_confirmation,
    sign_token_request,
    sign_voided,
)
from silomix_protocol.rounds.tokens import token_bytes
from silomix_server.silos.attempt_outcomes import AttemptOutcomes
from silomix_server.silos.complaint_box import ComplaintBox
from silomix_server.silos.frames import FrameReader
from silomix_server.study.journal import Journal

from support.heights import some_height
from support.rounds import MixSecrets, Parties, Round, hop_statement, joined

Frames = Iterable[mix_pb2.BatchFrame]
Event = channel_pb2.ChannelEvent
Chain = list[round_pb2.HopStatement]
Answer = TypeVar("Answer")


def identity(made: Consortium, name: str) -> Identity:
    return Identity.load(name, made.folder / name)


def signer(made: Consortium, name: str) -> SigningKey:
    return SigningKey.load(made.folder / name / "sign.key")


def parties(made: Consortium) -> Parties:
    """The consortium's study with everybody's signing keys."""
    study = made.study
    names = [*(silo.name for silo in study.silos), *(mix.name for mix in study.mixes)]
    keys = {name: signer(made, name) for name in [*names, study.server.name]}
    return Parties(study, (made.folder / "study.toml").read_bytes(), keys)


def report_of(study: Study, value: int) -> bytes:
    """A report with this value in every coordinate."""
    mechanism = study.mechanism()
    return encode_report(np.full(mechanism.dimension, value), mechanism)


def stated(made: Consortium, digest: RoundDigest, reports: Sequence[bytes]) -> Chain:
    """What mixes state that dropped nothing."""
    return _chain(made, digest, joined(reports), "")


def aborted(made: Consortium, digest: RoundDigest, reason: str) -> Chain:
    """What mixes state of whom the first forwarded nothing."""
    return _chain(made, digest, b"", reason)


def peeled(round_: Round, onion: bytes) -> bytes:
    """What is left of a report after the last mix."""
    for hop, mix in enumerate(round_.mixes):
        onion = open_layer(onion, mix.seal, hop, round_.digest)
    return onion


@dataclass(frozen=True, slots=True)
class Listed:
    """A batch as the coordinator publishes it: statements, and the list that all mixes signed."""

    chain: Chain
    committed: channel_pb2.RoundCommitted


def listed(made: Consortium, round_: Round, onions: Iterable[bytes]) -> Listed:
    chain = stated(made, round_.digest, [peeled(round_, each) for each in onions])
    output = chain[-1].output
    signatures = [
        sign_commitment(round_.digest, sha256(output).digest(), signer(made, mix.name))
        for mix in made.study.mixes
    ]
    committed = channel_pb2.RoundCommitted(digest=round_.digest, list=output, signatures=signatures)
    return Listed(chain, committed)


def _chain(made: Consortium, digest: RoundDigest, output: bytes, reason: str) -> Chain:
    chain: Chain = []
    for hop in range(len(made.study.mixes)):
        came = sha256(chain[-1].output).digest() if chain else bytes(32)
        chain.append(hop_statement(parties(made), digest, hop, came, output, aborted=reason))
    return chain


# Mixes -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Told:
    """What a mix was asked."""

    calls: list[str] = field(default_factory=list)
    opened: list[Descriptor] = field(default_factory=list)
    confirmations: list[round_pb2.Confirmation] = field(default_factory=list)


class FakeMix(mix_pb2_grpc.MixServicer):
    """One mix of the chain.

    `faults` maps a method to a function of its answer, which returns another answer or the status
    code to refuse with.
    """

    def __init__(self, made: Consortium, hop: int, chain: "FakeChain") -> None:
        self.made, self.hop, self.chain = made, hop, chain
        self.told = Told()
        self.faults: dict[str, Callable[[Any], Any]] = {}
        self._key = signer(made, made.study.mixes[hop].name)
        self._keys: dict[tuple[int, int], MixSecrets] = {}

    def keys(self, number: int, attempt: int) -> MixSecrets:
        key, gate = (number, attempt), self.made.study.batching.gate
        if key not in self._keys:
            release = SealKey.generate() if gate else None
            self._keys[key] = MixSecrets(SealKey.generate(), release)
        return self._keys[key]

    async def Prepare(  # noqa: N802
        self, request: mix_pb2.PrepareRequest, context: ServerContext
    ) -> mix_pb2.PreparedRounds:
        numbers = range(request.first_round, request.first_round + request.rounds)
        opened = {(each.round, each.attempt) for each in self.told.opened}
        if opened & {(number, request.attempt) for number in numbers}:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "opened already")
        keys = [self.keys(number, request.attempt).public for number in numbers]
        study, first = self.made.study, request.first_round
        listed = sign_list(study, request.attempt, first, keys, self._key)
        answer = mix_pb2.PreparedRounds(list=listed, keys=keys)
        return await self._answered("Prepare", answer, context)

    async def Open(  # noqa: N802
        self, request_iterator: AsyncIterator[round_pb2.SignedDescriptor], context: ServerContext
    ) -> AsyncIterator[mix_pb2.RoundIsOpen]:
        async for request in request_iterator:
            yield await self._open(request, context)

    async def _open(
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> mix_pb2.RoundIsOpen:
        self.told.opened.append(check(request, self.made.study))
        return await self._answered("Open", mix_pb2.RoundIsOpen(), context)

    async def Collect(  # noqa: N802
        self, request: mix_pb2.CollectRequest, context: ServerContext
    ) -> AsyncIterator[mix_pb2.BatchFrame]:
        batch = await self.chain.batch(request.digest)
        for frame in await self._answered("Collect", list(batch), context):
            yield frame

    async def Commit(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.CommitRequest], context: ServerContext
    ) -> AsyncIterator[mix_pb2.Commitment]:
        async for request in request_iterator:
            yield await self._commit(request, context)

    async def _commit(
        self, request: mix_pb2.CommitRequest, context: ServerContext
    ) -> mix_pb2.Commitment:
        list_hash = sha256(request.list).digest()
        signature = sign_commitment(RoundDigest(request.digest), list_hash, self._key)
        return await self._answered("Commit", mix_pb2.Commitment(signature=signature), context)

    async def Release(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.ReleaseRequest], context: ServerContext
    ) -> AsyncIterator[mix_pb2.ReleasedKey]:
        async for request in request_iterator:
            yield await self._release(request, context)

    async def _release(
        self, request: mix_pb2.ReleaseRequest, context: ServerContext
    ) -> mix_pb2.ReleasedKey:
        self.told.confirmations = list(request.confirmations)
        descriptor = self.chain.descriptor(request.digest)
        key = self.keys(descriptor.round, descriptor.attempt).release
        assert key is not None
        return await self._answered("Release", mix_pb2.ReleasedKey(key=key.raw), context)

    async def Abandon(  # noqa: N802
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> round_pb2.Abandonment:
        digest = check(request, self.made.study).digest
        answer = sign_abandonment(digest, "told to", self._key)
        return await self._answered("Abandon", answer, context)

    async def Void(  # noqa: N802
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> round_pb2.Ending:
        digest = check(request, self.made.study).digest
        return await self._answered("Void", sign_voided(digest, "told to", b"", self._key), context)

    async def _answered(self, method: str, answer: Answer, context: ServerContext) -> Answer:
        self.told.calls.append(method)
        if method not in self.faults:
            return answer
        changed: Any = self.faults[method](answer)
        if isinstance(changed, grpc.StatusCode):
            await context.abort(changed, "refused")
        return cast(Answer, changed)


def own_commitment(made: Consortium, digest: RoundDigest, output: bytes) -> bytes:
    """The last mix's word for the list that it hands over."""
    return sign_commitment(digest, sha256(output).digest(), signer(made, made.study.mixes[-1].name))


class FakeChain:
    """All mixes of a study; the reports of a round come from silos directly."""

    def __init__(self, made: Consortium) -> None:
        self.made = made
        self.mixes = [FakeMix(made, hop, self) for hop in range(len(made.study.mixes))]
        self._onions: dict[bytes, dict[str, bytes | None]] = {}
        self._arrived = asyncio.Event()
        self.batches: dict[bytes, Frames] = {}  # instead of what the silos sent
        self.added = 0  # garbage that no silo sent, at the end of every batch

    def descriptor(self, digest: bytes) -> Descriptor:
        told = [each for mix in self.mixes for each in mix.told.opened]
        return next(each for each in told if each.digest == digest)

    def deliver(self, digest: bytes, silo: str, onion: bytes | None) -> None:
        self._onions.setdefault(digest, {})[silo] = onion
        self._arrived.set()

    def pass_over(self, digest: bytes, silo: str) -> None:
        """The silo sends nothing in this round."""
        self.deliver(digest, silo, None)

    async def batch(self, digest: bytes) -> Frames:
        """The frames of the round's batch, as soon as all its silos have sent or passed over."""
        if digest in self.batches:
            return self.batches[digest]
        descriptor = self.descriptor(digest)
        while set(self._onions.get(digest, {})) != set(descriptor.silos):
            self._arrived.clear()
            await self._arrived.wait()
        sent = [each for each in self._onions[digest].values() if each is not None]
        reports = [self._peeled(each, descriptor) for each in sent]
        reports += [secrets.token_bytes(len(reports[0])) for _ in range(self.added)]
        chain = stated(self.made, descriptor.digest, reports)
        word = own_commitment(self.made, descriptor.digest, chain[-1].output)
        return list(frames(descriptor.digest, chain, reports, word))

    def _peeled(self, onion: bytes, descriptor: Descriptor) -> bytes:
        for hop, mix in enumerate(self.mixes):
            keys = mix.keys(descriptor.round, descriptor.attempt)
            onion = open_layer(onion, keys.seal, hop, descriptor.digest)
        return onion

    @asynccontextmanager
    async def serving(self, *, but: Sequence[int] = ()) -> AsyncIterator["FakeChain"]:
        self._arrived = asyncio.Event()
        async with AsyncExitStack() as stack:
            for hop, mix in enumerate(self.mixes):
                if hop not in but:
                    await stack.enter_async_context(serving_mix(mix))
            yield self


@asynccontextmanager
async def serving_mix(mix: FakeMix) -> AsyncIterator[None]:
    place = mix.made.study.mixes[mix.hop]
    server = identity(mix.made, place.name).server(place.address)
    mix_pb2_grpc.add_MixServicer_to_server(mix, server)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


# Silos -------------------------------------------------------------------------------------------


class Follow:
    """A silo's stream on the round channel, frame by frame."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[channel_pb2.SiloFrame, Event]") -> None:
        self.call = call
        self._waiting: deque[Event] = deque()

    async def next(self) -> Event | None:
        """The next event, which may have come with another one; None at the end."""
        if self._waiting:
            return self._waiting.popleft()
        event = await self.call.read()
        if not isinstance(event, Event):
            return None
        self._waiting.extend(event.more)
        return event

    async def say(self, **frame: object) -> None:
        await self.call.write(channel_pb2.SiloFrame(**frame))  # type: ignore[arg-type]

    async def hear(self, kind: str) -> Event:
        """The next event, which must be of this kind."""
        event = await self.next()
        assert event is not None, "the coordinator ended the stream"
        assert event.WhichOneof("event") == kind, event
        return event

    async def is_over(self) -> bool:
        return await self.next() is None


def frame_reader(made: Consortium, state: Path) -> FrameReader:
    """The coordinator's ear in a study without tokens, of which nothing was played yet."""
    study, complaints = made.study, ComplaintBox(made.study, state)
    chain: Any = None  # no mix is asked
    journal = Journal(state / "journal.sqlite")
    attempt_outcomes = AttemptOutcomes(study, signer(made, "server"), journal, chain, complaints)
    return FrameReader(study, None, complaints, attempt_outcomes)


@asynccontextmanager
async def following(
    made: Consortium,
    silo: str,
    lease: str = "lease",
    *,
    study: bytes | None = None,
    unsettled: bytes = b"",
) -> AsyncIterator[Follow]:
    server = made.study.server
    async with identity(made, silo).channel(server.name, server.channel_address) as channel:
        call = channel_pb2_grpc.RoundChannelStub(channel).Follow(wait_for_ready=True, timeout=30.0)
        follow = Follow(call)
        try:
            identity_bytes = made.study.identity if study is None else study
            height = some_height(made, silo).to_wire()
            request = channel_pb2.FollowRequest(
                lease=lease, study=identity_bytes, unsettled=unsettled, height=height
            )
            await follow.say(follow=request)
            yield follow
        finally:
            call.cancel()


@dataclass(slots=True)
class PlainSilo:
    """Answers every round with its value and confirms every list, unless told otherwise."""

    made: Consortium
    name: str
    value: int
    chain: FakeChain
    wallet: dict[int, tokens.Token] = field(default_factory=dict)
    confirms: bool = True
    answers: bool = True
    heard: list[Event] = field(default_factory=list)
    _blinded: dict[int, tokens.BlindedToken] = field(default_factory=dict)
    _keys: dict[int, bytes] = field(default_factory=dict)

    async def follow(self, lease: str = "lease") -> None:
        async with following(self.made, self.name, lease) as stream:
            while (event := await stream.next()) is not None:
                self.heard.append(event)
                kind = event.WhichOneof("event")
                if kind == "stretch" and event.stretch.token_keys:
                    await self._ask_tokens(stream, event.stretch)
                elif kind == "tokens":
                    self._take_tokens(event.tokens)
                elif kind == "opened" and self.answers:
                    self._answer(event.opened)
                elif kind == "committed" and self.confirms and self.made.study.batching.gate:
                    await self._confirm(stream, event.committed)
                elif kind == "ended":
                    return

    async def _ask_tokens(self, stream: Follow, stretch: channel_pb2.StretchOpened) -> None:
        keys = stretch.token_keys
        self._keys = {stretch.first_round + at: key for at, key in enumerate(keys)}
        self._blinded = {each: tokens.blind() for each in self._keys if each not in self.wallet}
        blinded = [
            self._blinded[each].blinded if each in self._blinded else b"" for each in self._keys
        ]
        if self._blinded:
            key = signer(self.made, self.name)
            request = sign_token_request(stretch.first_round, blinded, self.made.study, key)
            await stream.say(tokens=request)

    def _take_tokens(self, reply: channel_pb2.TokenReply) -> None:
        for at, evaluated in enumerate(reply.evaluated):
            number = reply.first_round + at
            if evaluated:
                self.wallet[number] = self._blinded[number].finish(evaluated, self._keys[number])

    def _answer(self, opened: channel_pb2.RoundOpened) -> None:
        study = self.made.study
        descriptor = check(opened.descriptor, study)
        payload = report_of(study, self.value)
        if study.batching.tokens:
            if descriptor.round not in self.wallet:
                self.chain.pass_over(descriptor.digest, self.name)
                return
            payload = self.wallet[descriptor.round].to_bytes() + payload
        keys, ungated = (opened.server_key, opened.mix_keys), token_bytes(study)
        onion = seal(payload, *keys, descriptor.digest, ungated=ungated)
        self.chain.deliver(descriptor.digest, self.name, onion.sealed)

    async def _confirm(self, stream: Follow, committed: channel_pb2.RoundCommitted) -> None:
        place = [silo.name for silo in self.made.study.silos].index(self.name)
        key = signer(self.made, self.name)
        digest = check(self.heard_opened().descriptor, self.made.study).digest
        confirmation = sign_confirmation(digest, committed.list, place, key)
        answer = channel_pb2.CommittedAnswer(digest=digest, confirmation=confirmation)
        await stream.say(answer=answer)

    def heard_opened(self) -> channel_pb2.RoundOpened:
        return [each.opened for each in self.heard if each.HasField("opened")][-1]
