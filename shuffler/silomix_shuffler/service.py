"""The mix on the network: the RPC edge.

Coordinator → Prepare, Open, Collect, Commit, Release, Abandon, Void; silos → Submit (first mix);
previous mix → Forward.  Decodes, checks who is calling, lets the rounds take their steps, counts
what it refuses.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import grpc
import grpc.aio
from silomix_core.study.study import Study
from silomix_proto import introduction_pb2, mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.connections.introduction import Door, welcome
from silomix_protocol.connections.tls import ServerContext, peer_name
from silomix_protocol.grpc_calls.call_limits import RefusedCall
from silomix_protocol.host import logs
from silomix_protocol.keys import ForgedSignature, SigningKey, verify
from silomix_protocol.rounds.batches import BrokenBatch, chain_wait_s, digest_of, frames, incoming
from silomix_protocol.rounds.descriptor import (
    MOST_ATTEMPTS,
    RoundDigest,
    study_of,
)
from silomix_protocol.rounds.heights import check_height
from silomix_protocol.rounds.round_keys import LONGEST_STRETCH
from silomix_protocol.rounds.statements import sign_receipt

from silomix_shuffler.batch import State
from silomix_shuffler.errors import (
    BehindLedger,
    RefusedByMix,
    Stopping,
    TooMuch,
    WrongLength,
    WrongRound,
    WrongSender,
)
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.refusals import kind_of, sentence
from silomix_shuffler.round.round import Round
from silomix_shuffler.round.rounds import MixRounds
from silomix_shuffler.round.upload import Room, Upload, is_large

_COLLECT_MARGIN_S = 5.0
_REFUSALS_PER_STREAM = 16

Question = TypeVar("Question")
Result = TypeVar("Result")


class MixService(mix_pb2_grpc.MixServicer):
    def __init__(
        self, rounds: MixRounds, sign_key: SigningKey, metrics: Metrics, door: Door | None = None
    ) -> None:
        self._mix = rounds
        self._sign_key = sign_key
        self._metrics = metrics
        self._door = door or Door()
        self._room = Room()
        self.stopping = False  # no round is begun any more, those under way go on

    # The coordinator ----------------------------------------------------------------------------

    async def Prepare(  # noqa: N802
        self, request: mix_pb2.PrepareRequest, context: ServerContext
    ) -> mix_pb2.PreparedRounds:
        return await self._answered(self._prepare(request, context))

    async def _prepare(
        self, request: mix_pb2.PrepareRequest, context: ServerContext
    ) -> mix_pb2.PreparedRounds:
        study = self._mix.studies.find(request.study)
        self._door.caller(context)  # refuses another version before rounds follow
        _coordinator_only(study, context)
        last = request.first_round + request.rounds - 1
        if not (1 <= request.rounds <= LONGEST_STRETCH and 1 <= request.attempt <= MOST_ATTEMPTS):
            raise TooMuch(f"at most {LONGEST_STRETCH} rounds and {MOST_ATTEMPTS} attempts")
        if not 1 <= request.first_round <= last <= study.rounds:
            raise WrongRound("the study has no such rounds")
        return await self._mix.opener.prepare(request)

    async def Open(  # noqa: N802
        self, request_iterator: AsyncIterator[round_pb2.SignedDescriptor], context: ServerContext
    ) -> AsyncIterator[mix_pb2.RoundIsOpen]:
        async for answer in self._in_turn(context, request_iterator, self._open):
            yield answer

    async def _open(
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> mix_pb2.RoundIsOpen:
        _coordinator_only(self._mix.studies.find(study_of(request)), context)
        if self.stopping:
            raise Stopping("this mix is being stopped")
        await self._mix.opener.open(request)
        return mix_pb2.RoundIsOpen()

    async def Commit(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.CommitRequest], context: ServerContext
    ) -> AsyncIterator[mix_pb2.Commitment]:
        async for answer in self._in_turn(context, request_iterator, self._commit):
            yield answer

    async def _commit(
        self, request: mix_pb2.CommitRequest, context: ServerContext
    ) -> mix_pb2.Commitment:
        _coordinator_only(self._mix.rounds.named(request.digest).study, context)
        return mix_pb2.Commitment(signature=await self._mix.release.commit(request))

    async def Release(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.ReleaseRequest], context: ServerContext
    ) -> AsyncIterator[mix_pb2.ReleasedKey]:
        async for answer in self._in_turn(context, request_iterator, self._release):
            yield answer

    async def _release(
        self, request: mix_pb2.ReleaseRequest, context: ServerContext
    ) -> mix_pb2.ReleasedKey:
        _coordinator_only(self._mix.rounds.named(request.digest).study, context)
        return mix_pb2.ReleasedKey(key=await self._mix.release.release(request))

    async def Abandon(  # noqa: N802
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> round_pb2.Abandonment:
        return await self._answered(self._abandon(request, context))

    async def _abandon(
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> round_pb2.Abandonment:
        _coordinator_only(self._mix.studies.find(study_of(request)), context)
        return await self._mix.failed.abandon(*await self._mix.opener.opened(request))

    async def Void(  # noqa: N802
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> round_pb2.Ending:
        return await self._answered(self._void(request, context))

    async def _void(
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> round_pb2.Ending:
        _coordinator_only(self._mix.studies.find(study_of(request)), context)
        return await self._mix.failed.void(*await self._mix.opener.opened(request))

    async def Collect(  # noqa: N802
        self, request: mix_pb2.CollectRequest, context: ServerContext
    ) -> AsyncIterator[mix_pb2.BatchFrame]:
        async for frame in self._streamed(self._collect(request, context)):
            yield frame

    async def _collect(
        self, request: mix_pb2.CollectRequest, context: ServerContext
    ) -> AsyncGenerator[mix_pb2.BatchFrame, None]:
        current = self._mix.rounds.named(request.digest)
        _coordinator_only(current.study, context)
        if not current.last:
            raise WrongSender("batches are collected from the last mix of the chain")
        await self._batch_there(current)
        reports = current.spool.read(current.sequence)
        word = self._mix.release.own_commitment(current)
        for frame in frames(current.batch.descriptor.digest, current.chain, reports, word):
            yield frame

    async def _batch_there(self, current: Round) -> None:
        """Wait until the batch can be collected, and mark it as known outside."""
        hops, deadline_s = len(current.study.mixes), current.batch.descriptor.deadline_s
        with current.collecting():
            async with asyncio.timeout(chain_wait_s(deadline_s, hops) + _COLLECT_MARGIN_S):
                await current.closed.wait()
        await self._mix.delivery.leaves(current)
        if current.batch.state is State.ABORTED and current.chain:
            return  # its statements say why there is none
        if current.batch.state in (State.ABORTED, State.PURGED):
            raise WrongRound(f"this round has no batch: {current.reason or 'it is over'}")
        if current.batch.state is State.VOIDED:
            raise WrongRound(f"this round is void: {current.reason}")

    # Silos --------------------------------------------------------------------------------------

    async def Submit(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.SubmitFrame],
        context: ServerContext,
    ) -> AsyncIterator[mix_pb2.Receipt]:
        async for receipt in self._streamed(self._receipts(request_iterator, context)):
            yield receipt

    async def _receipts(
        self, source: AsyncIterator[mix_pb2.SubmitFrame], context: ServerContext
    ) -> AsyncGenerator[mix_pb2.Receipt, None]:
        silo, refusals = self._door.caller(context).name, 0
        self._mix.admission.connect(silo)
        try:
            async for frame in source:
                receipt = await self._receive(silo, frame, source)
                refusals += receipt.status != mix_pb2.Receipt.ACCEPTED
                yield receipt
                if refusals > _REFUSALS_PER_STREAM:
                    raise TooMuch("too many of your reports were refused")
        finally:
            self._mix.admission.disconnect(silo)

    async def Greet(  # noqa: N802
        self, request: introduction_pb2.Greeting, context: ServerContext
    ) -> introduction_pb2.Welcome:
        return await self._answered(self._greet(request, context))

    async def _greet(
        self, request: introduction_pb2.Greeting, context: ServerContext
    ) -> introduction_pb2.Welcome:
        silo = self._mix.studies.find(request.study).silo(self._door.caller(context).name)
        if silo is None:
            raise WrongSender("this study does not enrol you")
        return welcome(self._mix.admission.heights.of(silo.sign_key))

    async def _receive(
        self,
        silo: str,
        first: mix_pb2.SubmitFrame,
        rest: AsyncIterator[mix_pb2.SubmitFrame],
    ) -> mix_pb2.Receipt:
        """Take one report off the stream; return the receipt for it."""
        digest = RoundDigest(first.header.digest)
        current = self._mix.rounds.named(digest)
        if current.hop != 0:
            raise WrongSender("reports go to the first mix of the chain")
        enrolled = current.study.silo(silo)
        if enrolled is None:
            raise WrongSender("this study does not enrol you")
        upload = await self._read(current, first, rest)
        report = upload.digest
        signature = first.header.signature
        try:
            verify(enrolled.sign_key, signature, "report", digest, report)
            height = check_height(first.header.height, silo, enrolled.sign_key)
        except ForgedSignature:
            upload.close()
            raise
        try:
            await self._mix.admission.admit(current, enrolled, upload, signature, height)
        except RefusedByMix as refusal:
            self._metrics.refused.labels(kind_of(refusal)[1]).inc()
            logs.warning("report_refused", round=current.batch.descriptor.round, reason=refusal)
            return mix_pb2.Receipt(
                digest=digest,
                report=report,
                status=mix_pb2.Receipt.REFUSED,
                reason=str(refusal),
                height=refusal.held.to_wire() if isinstance(refusal, BehindLedger) else None,
            )
        return sign_receipt(digest, current.study.places[silo], report, self._sign_key)

    async def _read(
        self,
        current: Round,
        first: mix_pb2.SubmitFrame,
        rest: AsyncIterator[mix_pb2.SubmitFrame],
    ) -> Upload:
        """Read a report of exactly the round's length, within its time limit."""
        if first.header.bytes != current.length_in:
            raise WrongLength("a report of this round has another length")
        upload = await self._upload(current)
        try:
            upload.add(first.chunk)
            if not upload.complete:
                async with asyncio.timeout(self._mix.limits.report_s):
                    while not upload.complete:
                        frame = await anext(rest, None)
                        if frame is None or frame.HasField("header"):
                            raise WrongLength("a report ended early")
                        upload.add(frame.chunk)
        except BaseException:
            upload.close()
            raise
        return upload

    async def _upload(self, current: Round) -> Upload:
        wanted, folder = current.length_in, current.spool.path.parent
        in_memory = is_large(wanted) and await self._room.taken()
        return Upload(wanted, folder, self._room if in_memory else None)

    # The previous mix ---------------------------------------------------------------------------

    async def Forward(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.BatchFrame],
        context: ServerContext,
    ) -> mix_pb2.ForwardReceipt:
        return await self._answered(self._forward(request_iterator, context))

    async def _forward(
        self, source: AsyncIterator[mix_pb2.BatchFrame], context: ServerContext
    ) -> mix_pb2.ForwardReceipt:
        if not self._mix.studies.serves_with(peer_name(context)):
            raise WrongSender("only the previous mix of the chain forwards batches")
        report_s, source = self._mix.limits.report_s, aiter(source)
        async with asyncio.timeout(report_s):
            first = await anext(source, None)
        if first is None:
            raise BrokenBatch("empty")
        current = self._mix.rounds.named(digest_of(first))
        study, hop = current.study, current.hop
        if hop == 0 or study.mixes[hop - 1].name != peer_name(context):
            raise WrongSender("only the previous mix of the chain forwards batches")
        batch = incoming(first, source, current.batch.descriptor, study, hop, current.length_in)
        async with asyncio.timeout(report_s * len(current.batch.descriptor.silos)):
            await self._mix.previous_mix.take(current, batch)
        return mix_pb2.ForwardReceipt()

    # Refusing -------------------------------------------------------------------------------------

    # A refusal is raised only when the error inside is forgotten, and with it the chunks of a
    # refused report: their memory is free at once.

    async def _answered(self, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except Exception as error:
            refusal = self._refusal(error)
        raise RefusedCall(*refusal)

    def _in_turn(
        self,
        context: ServerContext,
        questions: AsyncIterator[Question],
        answer: Callable[[Question, ServerContext], Awaitable[Result]],
    ) -> AsyncGenerator[Result, None]:
        async def answers() -> AsyncGenerator[Result, None]:
            async for question in questions:
                yield await answer(question, context)

        return self._streamed(answers())

    async def _streamed(self, work: AsyncGenerator[Result, None]) -> AsyncGenerator[Result, None]:
        try:
            async with aclosing(work):
                async for each in work:
                    yield each
            return
        except Exception as error:
            refusal = self._refusal(error)
        raise RefusedCall(*refusal)

    def _refusal(self, error: Exception) -> tuple[grpc.StatusCode, str]:
        """The code and sentence that end a call; errors not our own get no sentence of theirs."""
        code, reason = kind_of(error)
        self._metrics.refused.labels(reason).inc()
        logs.warning("call_refused", code=code.name, reason=reason)
        return code, sentence(error, code)


def _coordinator_only(study: Study, context: ServerContext) -> None:
    if peer_name(context) != study.server.name:
        raise WrongSender("only the study's coordinator asks this")
