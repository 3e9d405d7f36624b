"""A round's life: keys, descriptor, silos, batch, gate, sum.

The mixes open a round before any silo hears of it.  An attempt that brought no batch is followed
by another only if every mix states that it forwarded nothing and never will; the silos then seal
what they stored once more.  As soon as a batch was here, opened or not, the round is never tried
again: the same reports in two different batches would give away the difference.
"""

import asyncio
from dataclasses import dataclass, field
from hashlib import sha256

from silomix_core.mechanism import Mechanism
from silomix_core.study import Study
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol import logs
from silomix_protocol.descriptor import MOST_ATTEMPTS, AttemptKeys, Descriptor, check, issue
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.roundkeys import fingerprint

from silomix_server.chain import Batch, MixChain
from silomix_server.channel import RoundChannel
from silomix_server.errors import BatchAborted, BatchBroken, MixFailed, StudyFailed
from silomix_server.gate import Gate
from silomix_server.journal import ClosedRound, Journal
from silomix_server.membership import Membership, not_asked
from silomix_server.opening import Opened, Opening
from silomix_server.spool import Spool
from silomix_server.token_desk import TokenDesk

_FEW_CONFIRM_S = 0.25  # then the silos that were not asked to confirm are asked too
_LARGE = 2**16  # bytes of a report from which opening it gets a thread of its own
_ATTEMPTS = 3  # of one round, unless the coordinator is started again


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a round."""

    result: ClosedRound
    asked: int  # silos
    attempts: int
    dropped: int  # reports, along the chain and here
    accepted: int = 0
    abstained: int = 0  # silos that said so: nobody knows which
    injected: int = 0  # of those: without a token of the round
    repeated: int = 0  # of those: with a token that another report had, too


@dataclass(slots=True)
class _Attempt:
    """An attempt that the mixes opened; the server's key lives no longer than this."""

    descriptor: Descriptor
    server_key: SealKey
    mix_keys: tuple[round_pb2.RoundKeys, ...]
    opened: channel_pb2.RoundOpened  # what silos are told


@dataclass(slots=True)
class _Course:
    """How far a round has come."""

    number: int
    query: bytes
    tried: list[Descriptor]
    abandoned: list[round_pb2.Abandonment] = field(default_factory=list)
    asked: int = 0  # silos, in the last attempt that asked any


class Rounds:
    """Plays one round after the other with the mixes and whoever follows the channel."""

    def __init__(
        self,
        study: Study,
        mechanism: Mechanism,
        sign_key: SigningKey,
        journal: Journal,
        membership: Membership,
        chain: MixChain,
        channel: RoundChannel,
        tokens: TokenDesk | None,
    ) -> None:
        self._study, self._mechanism, self._sign_key = study, mechanism, sign_key
        self._journal, self._membership = journal, membership
        self._chain, self._channel, self._tokens = chain, channel, tokens

    async def play(self, number: int, query: bytes) -> Outcome:
        """The round from its opening to its recorded result; StudyFailed if nobody was asked."""
        course = _Course(
            number, query, [check(each, self._study) for each in self._journal.attempts(number)]
        )
        try:
            outcome = await self._play(course)
        except StudyFailed:
            self._withdraw_unasked(course)
            raise
        except (MixFailed, BatchAborted, BatchBroken) as failure:
            self._withdraw_unasked(course)
            if not course.asked:
                raise not_asked(failure) from failure
            logs.warning("round_lost", round=number, reason=failure)
            outcome = _void(course)
        self._journal.closed(number, outcome.result)
        self._channel.close_round(void=outcome.result.total is None)
        return outcome

    def _withdraw_unasked(self, course: _Course) -> None:
        """A round that no silo heard of is still to come."""
        if not course.asked:
            self._journal.withdrawn(course.number)

    async def _play(self, course: _Course) -> Outcome:
        """Attempts until one brings a batch; the last failure if none does."""
        failure: MixFailed | BatchAborted | None = None
        for _ in range(min(_ATTEMPTS, MOST_ATTEMPTS - len(course.tried))):
            await self._abandon(course)
            attempt = await self._prepare(course)
            try:
                await self._chain.open(attempt.descriptor)
                self._ask(course, attempt)
                batch = await self._chain.collect(attempt.descriptor)
            except (MixFailed, BatchAborted) as problem:
                failure = problem
                logs.warning("attempt_failed", **_place(attempt.descriptor), reason=problem)
                self._membership.end_stretch()  # a mix may have lost the keys it announced
                continue
            try:
                return await self._finish(course, attempt, batch)
            finally:
                batch.reports.close()
        if failure is None:  # earlier runs of the coordinator used up all attempts
            return _void(course)
        raise failure

    async def _abandon(self, course: _Course) -> None:
        """Every mix's statement about every earlier attempt."""
        known = len(course.abandoned) // len(self._study.mixes)
        for descriptor in course.tried[known:]:
            course.abandoned += await self._chain.abandon(descriptor)

    async def _prepare(self, course: _Course) -> _Attempt:
        """A descriptor that is on disk, with everything that it names."""
        number, attempt = course.number, len(course.tried) + 1
        lists: tuple[round_pb2.KeyList, ...] = ()
        if attempt == 1:
            mix_keys = self._membership.keys(number)
        else:
            stretch = await self._chain.prepare(attempt, number, 1)
            mix_keys, lists = stretch.of(number), stretch.lists
        silos = await self._membership.silos(number)
        server_key = SealKey.generate()
        public = server_key.public
        keys = AttemptKeys(
            server=sha256(public).digest(),
            mixes=tuple(fingerprint(each) for each in mix_keys),
            token=self._tokens.public_keys(number, 1)[0] if self._tokens else b"",
        )
        descriptor = issue(
            self._study, number, attempt, tuple(silos), course.query, keys, self._sign_key
        )
        self._journal.opened(descriptor)
        course.tried.append(descriptor)
        opened = channel_pb2.RoundOpened(
            descriptor=descriptor.to_wire(),
            query_bytes=len(course.query),
            server_key=public,
            mix_keys=mix_keys,
            lists=lists,
            abandoned=course.abandoned,
        )
        return _Attempt(descriptor, server_key, mix_keys, opened)

    def _ask(self, course: _Course, attempt: _Attempt) -> None:
        course.asked = len(attempt.descriptor.silos)
        self._channel.open_round(attempt.descriptor, attempt.opened, course.query)

    async def _finish(self, course: _Course, attempt: _Attempt, batch: Batch) -> Outcome:
        """Take off our own layer while the gate is still closed, then open the rest and sum."""
        opening = Opening(attempt.descriptor, attempt.server_key, self._mechanism, self._tokens)
        gate = await self._commit(attempt, batch)
        unwrapping = asyncio.create_task(_unwrap(opening, batch.reports))
        try:
            released = await self._released(attempt, gate)
        except BaseException:
            opening.give_up()
            await asyncio.wait([unwrapping])  # it reads a file that is about to be closed
            raise
        await unwrapping
        opened = opening.result
        if released is not None:
            opened = await asyncio.to_thread(opening.add_up, batch.reports, released)
        return self._outcome(course, batch, opened)

    async def _commit(self, attempt: _Attempt, batch: Batch) -> Gate | None:
        """Publish the list that all mixes stand by; its gate, if the study has one."""
        descriptor = attempt.descriptor
        gate = Gate(self._study, descriptor, batch.output) if self._study.batching.gate else None
        committed = await self._chain.commit(descriptor, batch)
        self._channel.commit(committed, batch.chain, gate)
        return gate

    async def _released(self, attempt: _Attempt, gate: Gate | None) -> tuple[SealKey, ...] | None:
        """The release keys, once the gate opens; None if it stays closed."""
        descriptor = attempt.descriptor
        if gate is None:
            return ()
        if not await gate.opens(_FEW_CONFIRM_S):
            self._channel.hurry()
        if not await gate.opens(self._study.batching.deadline_s):
            confirmed = len(gate.confirmations)
            logs.warning("gate_closed", **_place(descriptor), confirmed=confirmed)
            return None
        return await self._chain.release(
            descriptor, gate.list_hash, gate.confirmations, attempt.mix_keys
        )

    def _outcome(self, course: _Course, batch: Batch, opened: Opened) -> Outcome:
        if opened.injected or opened.repeated:
            logs.warning(
                "reports_injected",
                round=course.number,
                without_token=opened.injected,
                token_used_twice=opened.repeated,
                hint="somebody in the chain put reports of its own into the batch",
            )
        enough = opened.accepted + opened.abstained >= self._study.batching.minimum
        return Outcome(
            result=ClosedRound(opened.summed, opened.total if enough else None),
            asked=course.asked,
            attempts=len(course.tried),
            dropped=batch.dropped + opened.dropped,
            accepted=opened.accepted,
            abstained=opened.abstained,
            injected=opened.injected,
            repeated=opened.repeated,
        )


async def _unwrap(opening: Opening, reports: Spool) -> None:
    """Small reports in turns with the silos that confirm, large ones beside them.

    Opening a small one holds Python's global lock: from a thread of its own it would keep the
    confirmations waiting for as long as there are reports.
    """
    if reports.report_bytes > _LARGE:
        await asyncio.to_thread(opening.unwrap, reports)
        return
    for _ in opening.unwrapping(reports):
        await asyncio.sleep(0)


def _void(course: _Course, dropped: int = 0) -> Outcome:
    return Outcome(ClosedRound(0, None), course.asked, len(course.tried), dropped)


def _place(descriptor: Descriptor) -> dict[str, object]:
    return {"round": descriptor.round, "attempt": descriptor.attempt}
