"""The mix on the network: decodes, steps the batch of the round, forwards what is released.

Silos → Submit (first mix), previous mix → Forward (later mixes), coordinator → Collect (last mix).
"""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from hashlib import sha256

import grpc
import grpc.aio
from silomix_core.report import report_bytes
from silomix_core.study import Study, StudyId
from silomix_proto import mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol import logs
from silomix_protocol.batches import (
    Batch,
    BrokenBatch,
    chain_wait_s,
    descriptor_of,
    frames,
    read_batch,
)
from silomix_protocol.descriptor import (
    Descriptor,
    RefusedDescriptor,
    RoundDigest,
    check,
    study_of,
)
from silomix_protocol.keys import ForgedSignature, SealKey, SigningKey, verify
from silomix_protocol.onion import UnopenableLayer, encapsulated_key, onion_bytes, open_layer
from silomix_protocol.tls import Identity, ServerContext, UnknownPeer, peer_name

from silomix_shuffler.attendance import Attendance
from silomix_shuffler.batch import OpenBatch, State
from silomix_shuffler.errors import Refused, WrongLength, WrongRound, WrongSender
from silomix_shuffler.register import RoundRegister

_REPORT_S = 120.0  # from a report's first chunk to its last
_STREAMS_PER_STUDY = 2  # of one silo: a new one may come before the old one is known to be broken
_FORWARD_TRIES = 4
_FORWARD_TIMEOUT_S = 60.0
_ROUNDS_REMEMBERED = 4
_OPEN_ROUNDS = 16  # of one study at once; a coordinator that behaves has one or two

_CODES: dict[type[Exception], grpc.StatusCode] = {
    WrongLength: grpc.StatusCode.INVALID_ARGUMENT,
    WrongSender: grpc.StatusCode.PERMISSION_DENIED,
    UnknownPeer: grpc.StatusCode.PERMISSION_DENIED,
    Refused: grpc.StatusCode.FAILED_PRECONDITION,
    RefusedDescriptor: grpc.StatusCode.FAILED_PRECONDITION,
    ForgedSignature: grpc.StatusCode.PERMISSION_DENIED,
    BrokenBatch: grpc.StatusCode.INVALID_ARGUMENT,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
}


@dataclass(slots=True)
class _Round:
    """One open round with what the event loop needs around its batch."""

    study: Study
    batch: OpenBatch
    outcome: asyncio.Future[Batch] = field(default_factory=asyncio.Future)
    deadline: asyncio.TimerHandle | None = None


class MixService(mix_pb2_grpc.MixServicer):
    """One mix; its place in the chain of a study follows from the study file."""

    def __init__(
        self,
        identity: Identity,
        studies: tuple[Study, ...],
        sign_key: SigningKey,
        seal_key: SealKey,
        register: RoundRegister,
        grace_s: float,
    ) -> None:
        self._identity = identity
        self._studies: dict[StudyId, Study] = {study.identity: study for study in studies}
        self._report_bytes = {study.identity: report_bytes(study.mechanism()) for study in studies}
        self._sign_key, self._seal_key = sign_key, seal_key
        self._register = register
        self._grace_s = grace_s
        self._rounds: dict[RoundDigest, _Round] = {}
        self._attendance = Attendance()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._shuffle = secrets.SystemRandom().shuffle

    # Submit: reports from silos -----------------------------------------------------------------

    async def Submit(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.SubmitFrame],
        context: ServerContext,
    ) -> AsyncIterator[mix_pb2.Receipt]:
        try:
            silo = peer_name(context)
            self._admit_stream(silo)
            try:
                async for frame in request_iterator:
                    yield await self._receive(silo, frame, request_iterator)
            finally:
                self._disconnected(silo)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:
            await _abort(context, error)

    async def _receive(
        self,
        silo: str,
        first: mix_pb2.SubmitFrame,
        rest: AsyncIterator[mix_pb2.SubmitFrame],
    ) -> mix_pb2.Receipt:
        """One report off the stream, and the receipt for it."""
        study = self._study(first.header.descriptor)
        descriptor = check(first.header.descriptor, study)
        if self._hop(study) != 0:
            raise WrongSender("reports go to the first mix of the chain")
        onion = await self._read_onion(study, first, rest)
        digest = sha256(onion).digest()
        enrolled = study.silo(silo)
        if enrolled is None:
            raise WrongSender("this study does not enrol you")
        verify(enrolled.sign_key, first.header.signature, "report", descriptor.digest, digest)
        receipt = mix_pb2.Receipt(digest=descriptor.digest, report=digest)
        try:
            current = self._open(study, descriptor)
            if current.batch.admit(silo, digest):
                self._attendance.answered(study.identity, silo)
                self._start(self._add(current, onion))
        except Refused as refusal:
            logs.warning("report_refused", round=descriptor.round, reason=refusal)
            receipt.status, receipt.reason = mix_pb2.Receipt.REFUSED, str(refusal)
            return receipt
        receipt.status = mix_pb2.Receipt.ACCEPTED
        receipt.signature = self._sign_key.sign("receipt", descriptor.digest, digest)
        return receipt

    async def _read_onion(
        self,
        study: Study,
        first: mix_pb2.SubmitFrame,
        rest: AsyncIterator[mix_pb2.SubmitFrame],
    ) -> bytes:
        wanted = onion_bytes(self._report_bytes[study.identity], 0, len(study.mixes))
        if first.header.bytes != wanted:
            raise WrongLength("a report of this round has another length")
        if len(first.chunk) == wanted:
            return first.chunk
        onion = bytearray(first.chunk)
        async with asyncio.timeout(_REPORT_S):
            while len(onion) < wanted:
                frame = await anext(rest, None)
                if frame is None or frame.HasField("header") or not frame.chunk:
                    raise WrongLength("a report ended early")
                onion += frame.chunk
        if len(onion) > wanted:
            raise WrongLength("a report is longer than announced")
        return bytes(onion)

    async def _add(self, current: _Round, onion: bytes) -> None:
        opened = await self._opened(current, onion)
        current.batch.add(encapsulated_key(onion), opened)
        self._release_if_complete(current)

    # Forward: a batch from the previous mix -----------------------------------------------------

    async def Forward(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.BatchFrame],
        context: ServerContext,
    ) -> mix_pb2.ForwardReceipt:
        try:
            await self._take_batch(peer_name(context), request_iterator)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:
            await _abort(context, error)
        return mix_pb2.ForwardReceipt()

    async def _take_batch(self, peer: str, source: AsyncIterator[mix_pb2.BatchFrame]) -> None:
        first = await anext(source, None)
        if first is None:
            raise BrokenBatch("empty")
        study = self._study(descriptor_of(first))
        current = self._open(study, check(descriptor_of(first), study))
        self._check_untaken(current)  # before the body is read
        hop = self._hop(study)
        if hop == 0 or study.mixes[hop - 1].name != peer:
            raise WrongSender("only the previous mix of the chain forwards batches")
        length = onion_bytes(self._report_bytes[study.identity], hop, len(study.mixes))
        sender_key = study.mixes[hop - 1].sign_key
        received = await read_batch(_chain(first, source), study, sender_key, length)
        self._check_untaken(current)
        self._cancel_deadline(current)
        # The batch is ours now: its way does not end when the sender hangs up.
        self._start(self._mix(current, received))

    def _check_untaken(self, current: _Round) -> None:
        if current.batch.state is not State.OPEN or current.deadline is None:
            raise WrongRound("a batch for this round was already taken")

    async def _mix(self, current: _Round, received: Batch) -> None:
        """Open, permute and pass on a batch of the previous mix."""
        if received.aborted:
            current.batch.release(self._shuffle)
            await self._pass_on(current, received)
            return
        for onion in received.reports:
            current.batch.add(encapsulated_key(onion), await self._opened(current, onion))
        await self._pass_on(current, current.batch.release(self._shuffle))

    # Collect: the coordinator fetches what the last mix released --------------------------------

    async def Collect(  # noqa: N802
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> AsyncIterator[mix_pb2.BatchFrame]:
        try:
            study = self._study(request)
            if peer_name(context) != study.server.name:
                raise WrongSender("only the coordinator collects")
            if self._hop(study) != len(study.mixes) - 1:
                raise WrongSender("batches are collected from the last mix of the chain")
            current = self._open(study, check(request, study))
            batch = await asyncio.shield(current.outcome)
            for frame in frames(batch, self._sign_key):
                yield frame
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:
            await _abort(context, error)

    # Rounds -------------------------------------------------------------------------------------

    def _study(self, signed: round_pb2.SignedDescriptor) -> Study:
        study = self._studies.get(study_of(signed))
        if study is None:
            raise WrongRound("this mix does not serve that study")
        return study

    def _hop(self, study: Study) -> int:
        return [mix.name for mix in study.mixes].index(self._identity.name)

    def _open(self, study: Study, descriptor: Descriptor) -> _Round:
        """The open round of this descriptor, made on first sight and bound to it for good."""
        current = self._rounds.get(descriptor.digest)
        if current is not None:
            return current
        pending = [entry for entry in self._rounds.values() if not entry.outcome.done()]
        if sum(entry.study is study for entry in pending) >= _OPEN_ROUNDS:
            raise WrongRound("too many rounds of this study are open")
        if not self._register.open(descriptor):
            raise WrongRound("this round is over")
        current = _Round(study, OpenBatch(descriptor))
        # The first mix counts from the first report; the others may hear of the round earlier.
        hop = self._hop(study)
        wait_s = descriptor.deadline_s if hop == 0 else chain_wait_s(descriptor.deadline_s, hop)
        loop = asyncio.get_running_loop()
        current.deadline = loop.call_later(wait_s, self._at_deadline, current)
        self._rounds[descriptor.digest] = current
        self._forget_old_rounds(study)
        logs.event("round_opened", round=descriptor.round, waits_for=len(descriptor.silos))
        return current

    def _forget_old_rounds(self, study: Study) -> None:
        """Keep a few finished rounds for late readers; `register` remembers all of them."""
        mine = [entry for entry in self._rounds.values() if entry.study is study]
        for old in mine[:-_ROUNDS_REMEMBERED]:
            if old.outcome.done():
                del self._rounds[old.batch.descriptor.digest]

    async def _opened(self, current: _Round, onion: bytes) -> bytes | None:
        """One layer less, or None for what is not a layer of ours."""
        hop, digest = self._hop(current.study), current.batch.descriptor.digest
        try:
            if len(onion) < 2**16:
                return open_layer(onion, self._seal_key, hop, digest)
            return await asyncio.to_thread(open_layer, onion, self._seal_key, hop, digest)
        except UnopenableLayer:
            return None
        except Exception as error:  # an admitted report is counted, whatever happens to it
            logs.warning("layer_failed", error=type(error).__name__)
            return None

    def _release_if_complete(self, current: _Round) -> None:
        number = current.batch.descriptor.round
        gone = self._attendance.gone(current.study.identity, number)
        if current.batch.complete(gone):
            self._release(current)

    def _at_deadline(self, current: _Round) -> None:
        if current.batch.state is State.OPEN:
            logs.warning("round_deadline", round=current.batch.descriptor.round)
            if self._hop(current.study) == 0:
                for silo in current.batch.missing():
                    self._attendance.missed(
                        current.study.identity, silo, current.batch.descriptor.round
                    )
            current.batch.close()
            self._release_if_complete(current)

    def _release(self, current: _Round) -> None:
        self._cancel_deadline(current)
        self._start(self._pass_on(current, current.batch.release(self._shuffle)))

    def _cancel_deadline(self, current: _Round) -> None:
        if current.deadline is not None:
            current.deadline.cancel()
            current.deadline = None

    async def _pass_on(self, current: _Round, batch: Batch) -> None:
        logs.event(
            "batch_aborted" if batch.aborted else "batch_released",
            round=batch.descriptor.round,
            received=batch.counts.received,
            forwarded=batch.counts.forwarded,
            dropped=batch.counts.dropped,
        )
        hop = self._hop(current.study)
        last = hop == len(current.study.mixes) - 1
        try:
            if not last:
                await self._forward(current.study, hop + 1, batch)
        finally:
            kept = batch.reports if last else ()
            if not current.outcome.done():
                current.outcome.set_result(
                    Batch(batch.descriptor, kept, batch.counts, batch.aborted)
                )

    async def _forward(self, study: Study, hop: int, batch: Batch) -> None:
        """Hand the batch to the next mix; a few tries, then the round is lost (never repeated)."""
        target = study.mixes[hop]
        channel = self._channels.get(target.name)
        if channel is None:
            channel = self._identity.channel(target.name, target.address)
            self._channels[target.name] = channel
        stub = mix_pb2_grpc.MixStub(channel)
        for attempt in range(_FORWARD_TRIES):
            try:
                await stub.Forward(
                    frames(batch, self._sign_key), timeout=_FORWARD_TIMEOUT_S, wait_for_ready=True
                )
                return
            except grpc.aio.AioRpcError as error:
                final = error.code() is not grpc.StatusCode.UNAVAILABLE
                logs.warning("forward_failed", to=target.name, code=error.code().name)
                if final:
                    return
                await asyncio.sleep(0.1 * 2**attempt * (1 + random.random()))  # noqa: S311 jitter

    # Silos coming and going ---------------------------------------------------------------------

    def _admit_stream(self, silo: str) -> None:
        enrolled = sum(study.silo(silo) is not None for study in self._studies.values())
        if not enrolled:
            raise WrongSender("no study here enrols you")
        if self._attendance.streams(silo) >= _STREAMS_PER_STUDY * enrolled:
            raise WrongSender("you have other streams open")
        self._attendance.connected(silo)

    def _disconnected(self, silo: str) -> None:
        if self._attendance.disconnected(silo):
            asyncio.get_running_loop().call_later(self._grace_s, self._give_up_on, silo)

    def _give_up_on(self, silo: str) -> None:
        """Stop waiting for a silo that did not come back; rounds open now may be complete."""
        self._attendance.gave_up(silo)
        for current in list(self._rounds.values()):
            if self._hop(current.study) == 0:
                self._release_if_complete(current)

    # Life of the process ------------------------------------------------------------------------

    def _start(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logs.warning("task_failed", error=repr(error))

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for current in self._rounds.values():
            self._cancel_deadline(current)
            current.outcome.cancel()
        for channel in self._channels.values():
            await channel.close()
        self._register.close()


async def _chain(
    first: mix_pb2.BatchFrame, rest: AsyncIterator[mix_pb2.BatchFrame]
) -> AsyncIterator[mix_pb2.BatchFrame]:
    yield first
    async for frame in rest:
        yield frame


async def _abort(context: ServerContext, error: Exception) -> None:
    """End a call: our own refusals with their sentence, anything else without one."""
    known = (code for kind, code in _CODES.items() if isinstance(error, kind))
    code = next(known, grpc.StatusCode.INTERNAL)
    logs.warning("call_refused", code=code.name, reason=repr(error))
    internal = code is grpc.StatusCode.INTERNAL
    await context.abort(code, "internal error" if internal else str(error))
