"""A lease: many rounds at a silo for one Flower message.

The silo dials the coordinator's round channel and the first mix, takes keys and tokens for the
rounds to come, answers every round it is asked, and says whether its report is in the list that
the coordinator committed to.  The lease ends when the coordinator says so, at its deadline, when
the silo refuses what it is told, when its reports go nowhere (two missing, or half of the last
rounds missing or unheard: then no further lease is taken until the operator says to resume), or
when the channel stays broken.
"""

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import grpc
import grpc.aio
from silomix_core.study.study import Study
from silomix_proto import channel_pb2, channel_pb2_grpc
from silomix_protocol.connections.tls import Identity
from silomix_protocol.host import logs
from silomix_protocol.host.backoff import pause_s
from silomix_protocol.host.free_disk import lack_of_room
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.rounds.descriptor import RefusedDescriptor
from silomix_protocol.rounds.round_keys import RefusedKeys
from silomix_protocol.rounds.statements import BrokenChain
from silomix_protocol.rounds.tokens import RefusedToken

from silomix_client.errors import (
    BudgetExhausted,
    LedgerBehind,
    NotApproved,
    NotTaken,
    RefusedQuery,
    TokenMissing,
    Unsettled,
)
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.reports import StoredReport
from silomix_client.ledger.witnessed_height import Witness
from silomix_client.network.connection_status import Links, Purpose
from silomix_client.network.outbound import OutboundNetwork
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.channel_call import ChannelCall
from silomix_client.rounds.inclusion import Inclusion
from silomix_client.rounds.keys_and_tokens import KeysAndTokens
from silomix_client.rounds.listening_limit import ListeningLimit
from silomix_client.rounds.round_request import RoundRequest, read_round_request
from silomix_client.rounds.submit import FirstMix

_CHANNEL_TRIES = 16  # about a minute
_LONGEST_PAUSE_S = 5.0
_FAREWELL_S = 3.0  # after the deadline of a lease, for the call to end
_MOST_SENDINGS = 16  # of the same bytes: a line that breaks in one round breaks less often
_LATE = 0.5  # of a round's deadline: after such a silence a round may have been held up too long
_STATEMENTS_S = 5.0  # how long the end of a lease waits for statements about a missing report
_PASSING = (  # INTERNAL: of a stream that was reset on its way; EXHAUSTED: earlier calls linger
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
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
    HOURS = "outside-hours"  # of the policy: absent, and perhaps there again at the next lease
    REFUSED = "refused"
    BUDGET = "budget-exhausted"
    MISSING = "report-missing"
    CHANNEL_LOST = "channel-lost"


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    identity: str
    deadline_s: float


@dataclass(slots=True)
class _Progress:
    """What happened so far in this lease."""

    answered: int = 0
    deferred: RoundRequest | None = None  # waits for its token or an echo, asked for already
    echo: bytes | None = None  # the echo that was asked for and is still to come


class LeaseHolder:
    """Follows leases of one study, with one connection to the coordinator and one to the mix."""

    def __init__(
        self,
        desk: StudyDesk,
        ledger: Ledger,
        identity: Identity,
        sign_key: SigningKey,
        state: Path,
        network: OutboundNetwork | None = None,
        links: Links | None = None,
    ) -> None:
        self._desk, self._state = desk, state
        self._witness = Witness(ledger, identity.name, sign_key)
        self._study: Study = desk.study
        self._account = ledger.account(desk.study)
        self._identity, self._sign_key = identity, sign_key
        network, links = network or OutboundNetwork(), links or Links()
        self._network, server = network, self._study.server
        self._channel = network.channel(identity, server.name, server.channel_address)
        address = network.address(server.name, server.channel_address)
        self._link = links.to(Purpose.ROUNDS, server.name, address)
        self._link.idle()
        self._mix = FirstMix(self._study, identity, sign_key, network, links, self._witness)
        self._keys_and_tokens = KeysAndTokens(self._study, ledger, sign_key)
        self._inclusion = Inclusion(self._study, identity.name, ledger, sign_key, state)
        self._listening = ListeningLimit(self._study)
        self._sent: tuple[bytes, int] = b"", 0  # the report that was sent last, and how often

    async def follow(self, lease: LeaseTerms) -> tuple[Ending, int]:
        """Answer rounds until the lease ends; return why it ended and how many were answered."""
        progress = _Progress()
        self._inclusion.stop_rule.load()
        if self._inclusion.stop_rule.stops:
            hint = f"to take part again: silomix silo resume SILO.toml {self._study.short_id}"
            logs.warning("report_missing", hint=hint)
            return Ending.MISSING, 0
        try:
            async with asyncio.timeout(lease.deadline_s):
                ending = await self._follow(lease, progress)
        except TimeoutError:
            ending = Ending.DEADLINE
        except _REFUSALS as refusal:
            logs.warning("query_refused", reason=refusal)
            ending = Ending.REFUSED
        except LedgerBehind:  # logged when it was found out
            ending = Ending.REFUSED
        except BudgetExhausted as refusal:
            logs.warning("budget_exhausted", reason=refusal)
            ending = Ending.BUDGET
        if ending is not Ending.CHANNEL_LOST:
            self._link.idle()
        logs.event("lease_ended", ending=ending.value, answered=progress.answered)
        return ending, progress.answered

    async def close(self) -> None:
        await self._mix.close()
        await self._channel.close()

    async def _follow(self, lease: LeaseTerms, progress: _Progress) -> Ending:
        """Listen to the channel, dialling again a bounded number of times when it breaks."""
        tries = 0
        while tries < _CHANNEL_TRIES:
            before = progress.answered
            try:
                ending = await self._connected(lease, progress)
                if ending is not None:
                    return ending
                reason = "the server ended the call"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {logs.foreign(error.details())}"
                if error.code() not in _PASSING:
                    self._link.refused(reason)
                    return Ending.CHANNEL_LOST
            tries = 1 if progress.answered > before else tries + 1
            pause = pause_s(tries, _LONGEST_PAUSE_S)
            self._link.waiting(reason, pause)
            await asyncio.sleep(pause)
        self._link.refused(f"given up for this lease: {reason}")
        return Ending.CHANNEL_LOST

    async def _connected(self, lease: LeaseTerms, progress: _Progress) -> Ending | None:
        """Follow one call from its first frame on; None if the call broke off."""
        await asyncio.sleep(self._listening.pause_s())
        stub = channel_pb2_grpc.RoundChannelStub(self._channel)
        server = self._study.server.name
        introduced = self._network.introduction(self._identity, server, self._study, self._sign_key)
        following = stub.Follow(
            timeout=lease.deadline_s + _FAREWELL_S,
            metadata=None if introduced is None else introduced.metadata,
        )
        call = ChannelCall(following, self._listening, introduced)
        request = channel_pb2.FollowRequest(
            lease=lease.identity,
            study=self._study.identity,
            unsettled=self._inclusion.unsettled,
            height=self._witness.height(),
        )
        self._keys_and_tokens.start()
        self._inclusion.listen()
        self._mix.begin()
        progress.deferred = progress.echo = None
        try:
            await call.send(channel_pb2.SiloFrame(follow=request))
            ending = await self._listen(call, progress)
            if ending is not None:
                await self._hear_statements(call)
            return ending
        finally:
            self._mix.end()
            self._inclusion.give_up()
            await call.leave()

    async def _listen(self, call: ChannelCall, progress: _Progress) -> Ending | None:
        heard = False
        while (event := await call.next()) is not None:
            if not heard:
                heard = True
                self._link.connected()
            if event.WhichOneof("event") == "ended":
                return Ending.DONE
            await self._hear(event, call, progress)
            if self._inclusion.stop_rule.stops:
                return Ending.MISSING
        return None

    async def _hear(
        self, event: channel_pb2.ChannelEvent, call: ChannelCall, progress: _Progress
    ) -> None:
        match event.WhichOneof("event"):
            case "stretch":
                self._listening.covered(event.stretch)
                request = self._keys_and_tokens.open(event.stretch)
                if request is not None:
                    await call.send(channel_pb2.SiloFrame(tokens=request))
            case "tokens":
                self._keys_and_tokens.take(event.tokens)
                await self._answer_deferred(progress)
            case "echo":
                if event.echo == progress.echo:
                    progress.echo = None
                    if self._late(call):
                        self._pass_over(progress)
                    await self._answer_deferred(progress)
            case "opened":
                query = await call.query(event.opened.query_bytes, self._study)
                asked = read_round_request(
                    event.opened, query, self._study, self._keys_and_tokens.book
                )
                self._listening.opened(asked.descriptor)
                self._pass_over(progress)
                self._inclusion.told(asked.descriptor.round)
                progress.deferred = asked
                if progress.echo is None and self._late(call):
                    call.silence_s, progress.echo = 0.0, secrets.token_bytes(8)
                    await call.send(channel_pb2.SiloFrame(echo=progress.echo))
                await self._answer_deferred(progress)
            case "committed":
                self._pass_over(progress, event.committed.digest)
                over = call.knows_closed(event.committed.digest)
                for frame in self._inclusion.committed(event.committed, over=over):
                    await call.send(frame)
            case "height":
                self._witness.hear(event.height, self._study.server.name)
                self._witness.check()
            case "passage":
                self._inclusion.passage(event.passage)
            case "closed":
                self._pass_over(progress, event.closed.digest)
                for frame in self._inclusion.closed(event.closed):
                    await call.send(frame)
            case _:
                raise RefusedQuery("the server said something that has no place here")

    async def _hear_statements(self, call: ChannelCall) -> None:
        """Wait for mixes' statements about a missing report, which may come after all else."""
        with suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(_STATEMENTS_S):
                while self._inclusion.inquiring and (event := await call.next()) is not None:
                    if event.WhichOneof("event") == "passage":
                        self._inclusion.passage(event.passage)

    async def _answer_deferred(self, progress: _Progress) -> None:
        """Answer the round asked last, once its token is here and it is known to be open.

        After a partition the rounds that were asked meanwhile come one after the other.  Answering
        them would charge for reports that no mix takes any more.
        """
        asked = progress.deferred
        if asked is None or progress.echo is not None:
            return
        if self._keys_and_tokens.awaits_token(asked.descriptor.round):
            return
        progress.deferred = None
        await self._answer(asked, progress)

    def _late(self, call: ChannelCall) -> bool:
        return call.silence_s > _LATE * self._study.batching.deadline_s

    def _pass_over(self, progress: _Progress, digest: bytes | None = None) -> None:
        """Drop the deferred round (or only that of `digest`): not computed, not charged."""
        asked = progress.deferred
        if asked is None or digest not in (None, asked.descriptor.digest):
            return
        progress.deferred = None
        number = asked.descriptor.round
        awaited = self._keys_and_tokens.awaits_token(number)
        logs.warning("token_missing" if awaited else "round_passed_over", round=number)

    async def _answer(self, asked: RoundRequest, progress: _Progress) -> None:
        number = asked.descriptor.round
        self._inclusion.opened(asked.descriptor)
        if self._inclusion.stop_rule.stops:
            return
        if (lack := lack_of_room(self._state)) is not None:
            logs.warning("disk_full", round=number, reason=lack)
            return
        if not await self._mix.is_there():
            logs.warning("mix_unreachable", mix=self._mix.name, round=number)
            return  # nothing was computed, nothing charged
        self._witness.check()
        try:
            report = self._desk.answer(asked)
        except TokenMissing:
            logs.warning("token_missing", round=number)
            return
        except Unsettled as unknown:
            logs.warning("round_passed_over", round=number, reason=unknown)
            return
        self._count_sending(report)
        progress.answered += 1
        self._inclusion.answered(report)
        await self._send(report)

    def _count_sending(self, report: StoredReport) -> None:
        """Count a sending; RefusedQuery if the server asked for the same bytes too often."""
        digest, times = self._sent
        times = times + 1 if report.descriptor.digest == digest else 1
        self._sent = report.descriptor.digest, times
        if times > _MOST_SENDINGS:
            number = report.descriptor.round
            raise RefusedQuery(f"round {number} was asked {times} times without another attempt")

    async def _send(self, report: StoredReport) -> None:
        try:
            receipt = await self._mix.submit(report)
        except NotTaken:
            return  # without a receipt nobody can have lost it
        if receipt is not None:
            self._account.note_receipt(report.descriptor.digest, receipt)
