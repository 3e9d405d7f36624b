"""A lease: many rounds at a silo for one Flower message.

The silo dials the coordinator's round channel and the first mix, takes keys and tokens for the
rounds to come, answers every round it is asked, and says whether its report is in the list that
the coordinator committed to.  The lease ends when the coordinator says so, at its deadline, when
the silo refuses what it is told, when its reports go nowhere (two missing in a row, or half of the
last rounds missing or void: then no further lease is taken until the operator restarts the silo),
or when the channel stays broken.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import grpc
import grpc.aio
from silomix_core.study import Study
from silomix_proto import channel_pb2, channel_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.descriptor import RefusedDescriptor
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.roundkeys import RefusedKeys
from silomix_protocol.statements import BrokenChain
from silomix_protocol.tls import Identity
from silomix_protocol.tokens import RefusedToken

from silomix_client.answer import StudyDesk
from silomix_client.asked import AskedRound, asked_round
from silomix_client.channel import ChannelCall
from silomix_client.errors import BudgetExhausted, NotApproved, RefusedQuery, TokenMissing
from silomix_client.inclusion import Inclusion
from silomix_client.ledger import Ledger
from silomix_client.reports import StoredReport
from silomix_client.stretch import Stretches
from silomix_client.submit import FirstMix

_CHANNEL_TRIES = 5
_CONNECT_S = 3.0
_STATEMENTS_S = 5.0  # how long the end of a lease waits for statements about a missing report
_PASSING = (  # INTERNAL: what grpc says of a call that ended under a client's write
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
)
_REFUSALS = (
    RefusedQuery,
    NotApproved,
    RefusedDescriptor,
    RefusedKeys,
    RefusedToken,
    ForgedSignature,
    BrokenChain,
)


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
    deferred: AskedRound | None = None  # its token was asked for and is still to come


class LeaseHolder:
    """Follows leases of one study, with one connection to the coordinator and one to the mix."""

    def __init__(
        self, desk: StudyDesk, ledger: Ledger, identity: Identity, sign_key: SigningKey
    ) -> None:
        self._desk, self._ledger = desk, ledger
        self._study: Study = desk.study
        server = self._study.server
        self._channel = identity.channel(server.name, server.channel_address)
        self._mix = FirstMix(self._study, identity, sign_key)
        self._stretches = Stretches(self._study, ledger)
        self._inclusion = Inclusion(self._study, identity.name, ledger, sign_key)

    async def follow(self, lease: Lease) -> tuple[Ending, int]:
        """Answer rounds until the lease ends; why, and how many were answered."""
        progress = _Progress()
        if self._inclusion.neglected:
            logs.warning("report_missing", hint="restart this silo to take part again")
            return Ending.MISSING, 0
        self._mix.connect()
        try:
            async with asyncio.timeout(lease.deadline_s):
                ending = await self._follow(lease, progress)
        except TimeoutError:
            ending = Ending.DEADLINE
        except _REFUSALS as refusal:
            logs.warning("query_refused", reason=refusal)
            ending = Ending.REFUSED
        except BudgetExhausted as refusal:
            logs.warning("budget_exhausted", reason=refusal)
            ending = Ending.BUDGET
        logs.event("lease_ended", ending=ending.value, answered=progress.answered)
        return ending, progress.answered

    async def close(self) -> None:
        await self._mix.close()
        await self._channel.close()

    async def _follow(self, lease: Lease, progress: _Progress) -> Ending:
        """Listen to the channel, dialling again a few times when it breaks."""
        attempt = 0
        while attempt < _CHANNEL_TRIES:
            before = progress.answered
            try:
                await asyncio.wait_for(self._channel.channel_ready(), _CONNECT_S)
                ending = await self._connected(lease, progress)
                if ending is not None:
                    return ending
            except grpc.aio.AioRpcError as error:
                logs.warning("channel_broken", code=error.code().name)
                if error.code() not in _PASSING:
                    return Ending.CHANNEL_LOST
            except TimeoutError:
                logs.warning("channel_unreachable", server=self._study.server.channel_address)
            attempt = 0 if progress.answered > before else attempt + 1
            await asyncio.sleep(0.1 * 2**attempt * (1 + random.random()))  # noqa: S311 jitter
        return Ending.CHANNEL_LOST

    async def _connected(self, lease: Lease, progress: _Progress) -> Ending | None:
        """One call from its first frame on; None if it broke off."""
        stub = channel_pb2_grpc.RoundChannelStub(self._channel)
        call = ChannelCall(stub.Follow(timeout=lease.deadline_s + _CONNECT_S))
        request = channel_pb2.FollowRequest(lease=lease.identity, study=self._study.identity)
        self._stretches.start()
        progress.deferred = None
        try:
            await call.send(channel_pb2.SiloFrame(follow=request))
            ending = await self._listen(call, progress)
            if ending is not None:
                await self._hear_statements(call)
            return ending
        finally:
            self._inclusion.give_up()
            await call.leave()

    async def _listen(self, call: ChannelCall, progress: _Progress) -> Ending | None:
        while (event := await call.next()) is not None:
            if event.WhichOneof("event") == "ended":
                return Ending.DONE
            await self._hear(event, call, progress)
            if self._inclusion.neglected:
                return Ending.MISSING
        return None

    async def _hear(
        self, event: channel_pb2.ChannelEvent, call: ChannelCall, progress: _Progress
    ) -> None:
        match event.WhichOneof("event"):
            case "stretch":
                request = self._stretches.open(event.stretch)
                if request is not None:
                    await call.send(channel_pb2.SiloFrame(tokens=request))
            case "tokens":
                self._stretches.take(event.tokens)
                asked, progress.deferred = progress.deferred, None
                if asked is not None:
                    await self._answer(asked, progress)
            case "opened":
                query = await call.query(event.opened.query_bytes, self._study)
                asked = asked_round(event.opened, query, self._study, self._stretches.book)
                if progress.deferred is not None:
                    logs.warning("token_missing", round=progress.deferred.descriptor.round)
                awaited = self._stretches.awaits_token(asked.descriptor.round)
                progress.deferred = asked if awaited else None
                if not awaited:
                    await self._answer(asked, progress)
            case "committed":
                for frame in self._inclusion.committed(event.committed):
                    await call.send(frame)
            case "passage":
                self._inclusion.passage(event.passage)
            case "closed":
                self._inclusion.closed(event.closed)
            case _:
                raise RefusedQuery("the server said something that has no place here")

    async def _hear_statements(self, call: ChannelCall) -> None:
        """The mixes' statements about a missing report may come after all else."""
        with suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(_STATEMENTS_S):
                while self._inclusion.inquiring and (event := await call.next()) is not None:
                    if event.WhichOneof("event") == "passage":
                        self._inclusion.passage(event.passage)

    async def _answer(self, asked: AskedRound, progress: _Progress) -> None:
        number = asked.descriptor.round
        self._inclusion.opened(asked.descriptor)
        if self._inclusion.neglected:
            return
        if not await self._mix.is_there():
            logs.warning("mix_unreachable", mix=self._mix.name, round=number)
            return  # nothing was computed, nothing charged
        try:
            report = self._desk.answer(asked)
        except TokenMissing:
            logs.warning("token_missing", round=number)
            return
        progress.answered += 1
        self._inclusion.answered(report)
        await self._send(report)

    async def _send(self, report: StoredReport) -> None:
        receipt = await self._mix.submit(report)
        if receipt is not None:
            descriptor = report.descriptor
            self._ledger.reports.keep_receipt(descriptor.study, descriptor.digest, receipt)
