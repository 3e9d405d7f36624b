"""A lease: many rounds at a silo for one Flower message.

The silo dials the coordinator's round channel and the first mix, answers every round it is asked,
and checks that its report is among those that the coordinator says it received.  The lease ends
when the coordinator says so, at its deadline, when the silo refuses a query, when its report went
missing twice (then no further lease is taken until the operator restarts the silo), or when the
channel stays broken.
"""

import asyncio
import random
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from silomix_core.study import Study
from silomix_proto import channel_pb2, channel_pb2_grpc, mix_pb2, mix_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.descriptor import Descriptor, RefusedDescriptor, check
from silomix_protocol.keys import ForgedSignature, SigningKey, verify
from silomix_protocol.tls import CHUNK_BYTES, Identity

from silomix_client.answer import StudyDesk
from silomix_client.errors import BudgetExhausted, NotApproved, RefusedQuery
from silomix_client.ledger import StoredReport

if TYPE_CHECKING:
    ChannelEvents = grpc.aio.UnaryStreamCall[channel_pb2.FollowRequest, channel_pb2.ChannelEvent]
    SubmitCall = grpc.aio.StreamStreamCall[mix_pb2.SubmitFrame, mix_pb2.Receipt]

_CHANNEL_TRIES = 5
_CONNECT_S = 3.0
_SUBMIT_TRIES = 4
_MISSING_BEFORE_STOP = 2
_VOID_BEFORE_STOP = 8


class Ending(Enum):
    """Why a lease ended; goes back to the coordinator in the Flower reply."""

    DONE = "done"
    DEADLINE = "deadline"
    REFUSED = "refused"
    BUDGET = "budget-exhausted"
    MISSING = "report-missing"
    CHANNEL_LOST = "channel-lost"


@dataclass(frozen=True, slots=True)
class Lease:
    identity: str
    deadline_s: float


@dataclass(slots=True)
class _Progress:
    """What happened so far in this lease."""

    answered: int = 0


class LeaseHolder:
    """Follows leases of one study, with one connection to the coordinator and one to the mix."""

    def __init__(self, desk: StudyDesk, identity: Identity, sign_key: SigningKey) -> None:
        self._desk = desk
        self._study: Study = desk.study
        self._identity = identity
        self._sign_key = sign_key
        server, mix = self._study.server, self._study.mixes[0]
        self._channel = identity.channel(server.name, server.channel_address)
        self._mix_channel = identity.channel(mix.name, mix.address)
        self._mix = mix_pb2_grpc.MixStub(self._mix_channel)
        self._submit: SubmitCall | None = None
        self._waiting: tuple[Descriptor, StoredReport] | None = None  # answered, not yet closed
        self._missing = 0  # rounds in a row that were closed, or never closed, without our report
        self._void = 0  # rounds in a row that were closed as void

    async def follow(self, lease: Lease) -> tuple[Ending, int]:
        """Answer rounds until the lease ends; why, and how many were answered."""
        progress = _Progress()
        if self._neglected:
            logs.warning("report_missing", hint="restart this silo to take part again")
            return Ending.MISSING, 0
        self._connect_to_mix()
        try:
            async with asyncio.timeout(lease.deadline_s):
                ending = await self._follow(lease, progress)
        except TimeoutError:
            ending = Ending.DEADLINE
        except (RefusedQuery, NotApproved, RefusedDescriptor, ForgedSignature) as refusal:
            logs.warning("query_refused", reason=refusal)
            ending = Ending.REFUSED
        except BudgetExhausted as refusal:
            logs.warning("budget_exhausted", reason=refusal)
            ending = Ending.BUDGET
        logs.event("lease_ended", ending=ending.value, answered=progress.answered)
        return ending, progress.answered

    async def close(self) -> None:
        if self._submit is not None:
            self._submit.cancel()
        await self._channel.close()
        await self._mix_channel.close()

    async def _follow(self, lease: Lease, progress: _Progress) -> Ending:
        """Listen to the channel, dialling again a few times when it breaks."""
        stub = channel_pb2_grpc.RoundChannelStub(self._channel)
        request = channel_pb2.FollowRequest(lease=lease.identity, study=self._study.identity)
        attempt = 0
        while attempt < _CHANNEL_TRIES:
            before = progress.answered
            try:
                await asyncio.wait_for(self._channel.channel_ready(), _CONNECT_S)
                events = stub.Follow(request, timeout=lease.deadline_s + _CONNECT_S)
                ending = await self._listen(events, progress)
                if ending is not None:
                    return ending
            except grpc.aio.AioRpcError as error:
                logs.warning("channel_broken", code=error.code().name)
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    return Ending.CHANNEL_LOST
            except TimeoutError:
                logs.warning("channel_unreachable", server=self._study.server.channel_address)
            attempt = 0 if progress.answered > before else attempt + 1
            await asyncio.sleep(0.1 * 2**attempt * (1 + random.random()))  # noqa: S311 jitter
        return Ending.CHANNEL_LOST

    async def _listen(self, events: "ChannelEvents", progress: _Progress) -> Ending | None:
        while (event := await _next(events)) is not None:
            kind = event.WhichOneof("event")
            if kind == "opened":
                query = await _read_query(events, event.opened.query_bytes, self._study)
                descriptor = check(event.opened.descriptor, self._study)
                await self._answer(descriptor, query, progress)
            elif kind == "closed":
                self._check_inclusion(event.closed)
            elif kind == "ended":
                return Ending.DONE
            if self._neglected:
                return Ending.MISSING
        return None

    async def _answer(self, descriptor: Descriptor, query: bytes, progress: _Progress) -> None:
        if self._waiting is not None and self._waiting[0].digest != descriptor.digest:
            self._note_missing(self._waiting[0])  # that round was never closed
            if self._neglected:
                return
        if not await self._mix_is_there():
            logs.warning("mix_unreachable", mix=self._study.mixes[0].name, round=descriptor.round)
            return  # nothing was computed, nothing charged
        report = self._desk.answer(descriptor, query)
        progress.answered += 1
        self._waiting = (descriptor, report)
        logs.event("round_answered", round=descriptor.round)
        await self._send(descriptor, report)

    # Sending to the first mix -------------------------------------------------------------------

    async def _send(self, descriptor: Descriptor, report: StoredReport) -> None:
        """Submit until the first mix gives its receipt: always the same bytes, a few tries."""
        digest = sha256(report.onion).digest()
        signature = self._sign_key.sign("report", descriptor.digest, digest)
        try:
            async with asyncio.timeout(descriptor.deadline_s):
                for attempt in range(_SUBMIT_TRIES):
                    try:
                        receipt = await self._submit_once(descriptor, report.onion, signature)
                        return self._check_receipt(receipt, descriptor, digest)
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                        self._submit = None
                        logs.warning("submit_failed", round=descriptor.round, reason=_name(error))
                    await asyncio.sleep(0.1 * 2**attempt * (1 + random.random()))  # noqa: S311
        except TimeoutError:
            self._submit = None
            logs.warning("submit_failed", round=descriptor.round, reason="no receipt in time")

    async def _mix_is_there(self) -> bool:
        try:
            await asyncio.wait_for(self._mix_channel.channel_ready(), _CONNECT_S)
        except TimeoutError:
            return False
        return True

    def _connect_to_mix(self) -> "SubmitCall":
        """The stream to the first mix; an open one tells it that this silo is there."""
        if self._submit is None or self._submit.done():
            self._submit = self._mix.Submit(wait_for_ready=True)
        return self._submit

    async def _submit_once(
        self, descriptor: Descriptor, onion: bytes, signature: bytes
    ) -> mix_pb2.Receipt:
        call = self._connect_to_mix()
        header = mix_pb2.SubmitHeader(
            descriptor=descriptor.to_wire(), bytes=len(onion), signature=signature
        )
        await call.write(mix_pb2.SubmitFrame(header=header, chunk=onion[:CHUNK_BYTES]))
        for start in range(CHUNK_BYTES, len(onion), CHUNK_BYTES):
            await call.write(mix_pb2.SubmitFrame(chunk=onion[start : start + CHUNK_BYTES]))
        receipt = await call.read()
        if receipt is grpc.aio.EOF:
            raise asyncio.InvalidStateError("the mix closed the stream")
        return cast(mix_pb2.Receipt, receipt)

    def _check_receipt(
        self, receipt: mix_pb2.Receipt, descriptor: Descriptor, digest: bytes
    ) -> None:
        if receipt.status == mix_pb2.Receipt.ACCEPTED:
            mix = self._study.mixes[0]
            verify(mix.sign_key, receipt.signature, "receipt", descriptor.digest, digest)
        else:
            logs.warning("report_refused", round=descriptor.round, reason=receipt.reason)

    # Inclusion ----------------------------------------------------------------------------------

    @property
    def _neglected(self) -> bool:
        """Whether our reports go nowhere: time for the operator to ask why."""
        return self._missing >= _MISSING_BEFORE_STOP or self._void >= _VOID_BEFORE_STOP

    def _check_inclusion(self, closed: channel_pb2.RoundClosed) -> None:
        """Is our report among those that the coordinator says it received?"""
        void = b"\1" if closed.void else b"\0"
        key = self._study.server.sign_key
        verify(key, closed.signature, "closed", closed.digest, void, b"".join(closed.reports))
        if self._waiting is None or self._waiting[0].digest != closed.digest:
            return
        descriptor, report = self._waiting
        self._waiting = None
        self._void = self._void + 1 if closed.void else 0
        if report.sealed in closed.reports:
            self._missing = 0
        elif not closed.void:  # a void round used nobody's report
            self._note_missing(descriptor)

    def _note_missing(self, descriptor: Descriptor) -> None:
        self._missing += 1
        logs.warning("report_missing", round=descriptor.round, times=self._missing)


async def _next(events: "ChannelEvents") -> channel_pb2.ChannelEvent | None:
    event = await events.read()
    return None if event is grpc.aio.EOF else cast(channel_pb2.ChannelEvent, event)


async def _read_query(events: "ChannelEvents", size: int, study: Study) -> bytes:
    """The serialized query that follows an opened round."""
    if size > 8 * study.task.dimension + 64:
        raise RefusedQuery("the query is larger than the study allows")
    query = bytearray()
    while len(query) < size:
        event = await _next(events)
        if event is None or event.WhichOneof("event") != "query_chunk":
            raise RefusedQuery("the query broke off")
        query += event.query_chunk
    return bytes(query)


def _name(error: BaseException) -> str:
    return error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
