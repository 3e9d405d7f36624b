"""The mix on the network: the RPC edge.

Silos → Submit (first mix), previous mix → Forward (later mixes), coordinator → Collect (last mix).
"""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256

import grpc
import grpc.aio
from silomix_core.report import report_bytes
from silomix_core.study import Study
from silomix_proto import mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol import logs
from silomix_protocol.batches import (
    BrokenBatch,
    descriptor_of,
    frames,
    read_batch,
)
from silomix_protocol.descriptor import (
    RefusedDescriptor,
    check,
)
from silomix_protocol.keys import ForgedSignature, SigningKey, verify
from silomix_protocol.onion import onion_bytes
from silomix_protocol.tls import ServerContext, UnknownPeer, peer_name

from silomix_shuffler.errors import Refused, WrongLength, WrongSender
from silomix_shuffler.rounds import Rounds

_REPORT_S = 120.0  # from a report's first chunk to its last

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


class MixService(mix_pb2_grpc.MixServicer):
    """The RPC edge of one mix: decodes, checks who is calling, lets the rounds take their steps."""

    def __init__(self, rounds: Rounds, sign_key: SigningKey, studies: tuple[Study, ...]) -> None:
        self._rounds = rounds
        self._sign_key = sign_key
        self._report_bytes = {study.identity: report_bytes(study.mechanism()) for study in studies}

    # Submit: reports from silos -----------------------------------------------------------------

    async def Submit(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.SubmitFrame],
        context: ServerContext,
    ) -> AsyncIterator[mix_pb2.Receipt]:
        try:
            silo = peer_name(context)
            self._rounds.connect(silo)
            try:
                async for frame in request_iterator:
                    yield await self._receive(silo, frame, request_iterator)
            finally:
                self._rounds.disconnect(silo)
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
        study = self._rounds.study(first.header.descriptor)
        descriptor = check(first.header.descriptor, study)
        if self._rounds.hop(study) != 0:
            raise WrongSender("reports go to the first mix of the chain")
        onion = await self._read_onion(study, first, rest)
        digest = sha256(onion).digest()
        enrolled = study.silo(silo)
        if enrolled is None:
            raise WrongSender("this study does not enrol you")
        verify(enrolled.sign_key, first.header.signature, "report", descriptor.digest, digest)
        receipt = mix_pb2.Receipt(digest=descriptor.digest, report=digest)
        try:
            self._rounds.admit(self._rounds.open(study, descriptor), silo, onion, digest)
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
        study = self._rounds.study(descriptor_of(first))
        hop = self._rounds.hop(study)
        if hop == 0 or study.mixes[hop - 1].name != peer:
            raise WrongSender("only the previous mix of the chain forwards batches")
        current = self._rounds.open(study, check(descriptor_of(first), study))
        self._rounds.check_untaken(current)  # before the body is read
        length = onion_bytes(self._report_bytes[study.identity], hop, len(study.mixes))
        sender_key = study.mixes[hop - 1].sign_key
        received = await read_batch(_chain(first, source), study, sender_key, length)
        self._rounds.take(current, received)

    # Collect: the coordinator fetches what the last mix released --------------------------------

    async def Collect(  # noqa: N802
        self, request: round_pb2.SignedDescriptor, context: ServerContext
    ) -> AsyncIterator[mix_pb2.BatchFrame]:
        try:
            study = self._rounds.study(request)
            if peer_name(context) != study.server.name:
                raise WrongSender("only the coordinator collects")
            if self._rounds.hop(study) != len(study.mixes) - 1:
                raise WrongSender("batches are collected from the last mix of the chain")
            current = self._rounds.open(study, check(request, study))
            batch = await asyncio.shield(current.outcome)
            for frame in frames(batch, self._sign_key):
                yield frame
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:
            await _abort(context, error)


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
