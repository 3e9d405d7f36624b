"""The life of a round: keys, descriptor, silos, batch, gate, sum.

The mixes open a round before any silo hears of it.  An attempt that brought no batch is followed
by another only if every mix states that it forwarded nothing and never will; the silos then seal
the report they stored once more.  Once a batch arrived, opened or not, the round is never tried
again: the same reports in two different batches would give away the difference.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from silomix_core.mechanism.mechanism import Mechanism
from silomix_core.study.study import Study
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.host import logs
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, check, issue
from silomix_protocol.rounds.round_keys import fingerprint

from silomix_server.errors import BatchAborted, BatchBroken, MixFailed, StudyFailed
from silomix_server.mixes.mix_chain import CollectedBatch, MixChain
from silomix_server.mixes.opening import Opened, Opening
from silomix_server.mixes.token_desk import TokenDesk
from silomix_server.rounds.availability import Membership, not_asked
from silomix_server.rounds.round_state import RoundState
from silomix_server.silos.attempt_outcomes import AttemptOutcomes
from silomix_server.silos.gate import Gate
from silomix_server.silos.round_channel import RoundChannel
from silomix_server.study.journal import ClosedRound, Journal

_MOMENT_S = 3.0  # how long a silo that left may take to come back and confirm


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """The result of a round, with the counts of its silos and reports."""

    result: ClosedRound
    asked: int  # silos that were asked
    attempts: int
    dropped: int  # reports that the mixes or the server dropped
    accepted: int = 0
    abstained: int = 0  # silos that said that they abstain: nobody knows which
    injected: int = 0  # of the dropped: without a token of the round
    repeated: int = 0  # of the dropped: with a token that another report had, too
    too_long: int = 0  # of the dropped: longer than any silo's
    outlying: int = 0  # accepted reports that are far from most others


@dataclass(slots=True)
class _Attempt:
    """One attempt at a round; the server's key lives no longer than this object."""

    descriptor: Descriptor
    server_key: SealKey
    mix_keys: tuple[round_pb2.RoundKeys, ...]
    opened: channel_pb2.RoundOpened  # the message that asks the silos


class RoundPlayer:
    """Plays one round after the other with the mixes and the silos on the round channel."""

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
        attempt_outcomes: AttemptOutcomes,
    ) -> None:
        self._study, self._mechanism, self._sign_key = study, mechanism, sign_key
        self._reception = study.reception()
        self._journal, self._membership = journal, membership
        self._chain, self._channel, self._tokens = chain, channel, tokens
        self._attempt_outcomes = attempt_outcomes

    async def play(self, number: int, query: bytes) -> RoundOutcome:
        """Play a round from opening to recorded result; StudyFailed if nobody can be asked."""
        tried = [check(each, self._study) for each in self._journal.attempts(number)]
        state = RoundState(number, query, len(self._study.mixes), tried)
        try:
            outcome = await self._play(state)
        except StudyFailed:
            self._withdraw_unasked(state)
            raise
        except (MixFailed, BatchAborted, BatchBroken) as failure:
            self._withdraw_unasked(state)
            if not state.asked:
                raise not_asked(failure) from failure
            logs.warning("round_lost", round=number, reason=failure)
            outcome = _void(state)
        if state.tried:
            await self._close(state, outcome)
        else:
            self._skip(number)
        return outcome

    def _skip(self, number: int) -> None:
        """Skip a round whose silos are away: nobody is asked, and nobody is charged.

        Which silos a round asks is not ours to change, and the next round asks others.
        """
        logs.warning("round_skipped", round=number, asks=",".join(self._study.asked(number)))
        self._journal.skipped(number)

    async def _close(self, state: RoundState, outcome: RoundOutcome) -> None:
        """Record the round's result and tell the silos; if it is void, with what the mixes sign."""
        if outcome.result.total is not None:
            attempt_outcome = self._attempt_outcomes.used(state.last)
        else:
            attempt_outcome = await self._attempt_outcomes.void(
                state.last, state.chain, listed=state.listed
            )
        self._journal.closed(state.number, outcome.result, attempt_outcome)
        self._channel.close_round(attempt_outcome)

    async def settle_left(self) -> None:
        """Ask the mixes about rounds of which they have not said all yet, and tell the silos."""
        for attempt_outcome in await self._attempt_outcomes.settle_left():
            self._channel.settle(attempt_outcome, self._channel.followers)

    def _withdraw_unasked(self, state: RoundState) -> None:
        """Take back a round that no silo heard of: its number is used again."""
        if not state.asked:
            self._journal.withdrawn(state.number)

    async def _play(self, state: RoundState) -> RoundOutcome:
        """Try until an attempt brings a batch; if none does, raise the last attempt's failure.

        A round that this run could not try at all is void.
        """
        failure: MixFailed | BatchAborted | None = None
        await self._abandon(state)
        while state.may_try and await self._enough(state):
            attempt = await self._prepare(state)
            try:
                await self._chain.open(attempt.descriptor)
                await self.settle_left()  # now that all mixes are there, before silos are asked
                self._ask(state, attempt)
                batch = await self._chain.collect(attempt.descriptor)
            except (MixFailed, BatchAborted) as problem:
                failure = problem
                logs.warning("attempt_failed", **_place(attempt.descriptor), reason=problem)
                self._membership.end_stretch()  # a mix may have lost the keys it announced
                await self._abandon(state)
                continue
            state.collect(batch.chain)
            try:
                return await self._finish(state, attempt, batch)
            finally:
                batch.reports.close()
        if failure is None:  # silos are away, or earlier runs used up all attempts
            return _void(state)
        raise failure

    async def _enough(self, state: RoundState) -> bool:
        return await self._membership.enough(state.number, tried_before=bool(state.tried))

    async def _abandon(self, state: RoundState) -> None:
        """Take every mix's statement that it abandoned each earlier attempt."""
        for descriptor in state.unabandoned:
            statements = await self._chain.abandon(descriptor)
            state.abandon(statements)
            self._attempt_outcomes.abandoned(descriptor, statements)

    async def _prepare(self, state: RoundState) -> _Attempt:
        """Issue the next attempt's descriptor, on disk first, with the keys that it names."""
        number, attempt = state.number, state.attempt
        lists: tuple[round_pb2.KeyList, ...] = ()
        if attempt == 1:
            mix_keys = self._membership.keys(number)
        else:
            stretch = await self._chain.prepare(attempt, number, 1)
            mix_keys, lists = stretch.of(number), stretch.lists
        server_key = SealKey.generate()
        public = server_key.public
        keys = AttemptKeys(
            server=sha256(public).digest(),
            mixes=tuple(fingerprint(each) for each in mix_keys),
            token=self._tokens.public_keys(number, 1)[0] if self._tokens else b"",
        )
        descriptor = issue(self._study, number, attempt, state.query, keys, self._sign_key)
        self._journal.opened(descriptor)
        self._channel.journalled()
        state.begin(descriptor)
        opened = channel_pb2.RoundOpened(
            descriptor=descriptor.to_wire(),
            query_bytes=len(state.query),
            server_key=public,
            mix_keys=mix_keys,
            lists=lists,
            abandoned=state.abandoned,
        )
        return _Attempt(descriptor, server_key, mix_keys, opened)

    def _ask(self, state: RoundState, attempt: _Attempt) -> None:
        state.ask()
        self._channel.open_round(attempt.descriptor, attempt.opened, state.query)

    async def _finish(
        self, state: RoundState, attempt: _Attempt, batch: CollectedBatch
    ) -> RoundOutcome:
        """Take off the server's layer while the gate is closed, then open the rest and sum."""
        opening = Opening(
            attempt.descriptor,
            attempt.server_key,
            self._mechanism,
            self._reception,
            self._tokens,
        )
        gate = await self._commit(state, attempt, batch)
        await asyncio.to_thread(opening.unwrap, batch.reports)
        released = await self._released(attempt, gate)
        opened = opening.result
        if released is not None:
            opened = await asyncio.to_thread(opening.add_up, batch.reports, released)
        return self._outcome(state, batch, opened)

    async def _commit(
        self, state: RoundState, attempt: _Attempt, batch: CollectedBatch
    ) -> Gate | None:
        """Publish the list that all mixes stand by; return its gate, if the study has one."""
        descriptor = attempt.descriptor
        gate = Gate(self._study, descriptor, batch.output) if self._study.batching.gate else None
        committed = await self._chain.commit(descriptor, batch)
        self._journal.listed(committed)
        state.show_list()
        self._channel.commit(committed, batch.chain, gate)
        return gate

    async def _released(self, attempt: _Attempt, gate: Gate | None) -> tuple[SealKey, ...] | None:
        """The release keys, once the gate opens; None if it stays closed."""
        descriptor = attempt.descriptor
        if gate is None:
            return ()
        deadline_s = self._study.batching.deadline_s
        if not await gate.opens(deadline_s, partial(self._channel.gone, _MOMENT_S)):
            logs.warning(
                "gate_closed",
                **_place(descriptor),
                confirmed=len(gate.confirmations),
                without=",".join(gate.unconfirmed),
            )
            return None
        return await self._chain.release(
            descriptor, gate.list_hash, gate.confirmations, attempt.mix_keys
        )

    def _outcome(self, state: RoundState, batch: CollectedBatch, opened: Opened) -> RoundOutcome:
        if opened.injected or opened.repeated:
            logs.warning(
                "reports_injected",
                round=state.number,
                without_token=opened.injected,
                token_used_twice=opened.repeated,
                hint="somebody in the chain put reports of its own into the batch",
            )
        _warn_of_contents(state.number, opened)
        enough = opened.accepted + opened.abstained >= self._study.batching.minimum
        return RoundOutcome(
            result=ClosedRound(opened.summed, opened.total if enough else None),
            asked=state.asked,
            attempts=len(state.tried),
            dropped=batch.dropped + opened.dropped,
            accepted=opened.accepted,
            abstained=opened.abstained,
            injected=opened.injected,
            repeated=opened.repeated,
            too_long=opened.too_long,
            outlying=opened.outlying,
        )


def _warn_of_contents(round_number: int, opened: Opened) -> None:
    """Log how many reports are too long or outlying; nobody can tell whose they are."""
    if opened.too_long:
        logs.warning(
            "reports_too_long",
            round=round_number,
            reports=opened.too_long,
            hint="longer than noise and clip allow: a silo does not run the agreed software; "
            "they were left out",
        )
    if opened.outlying:
        logs.warning(
            "reports_outlying",
            round=round_number,
            reports=opened.outlying,
            hint="far from most others: a silo whose records differ, or one that wants to move the "
            "model; they were used",
        )


def _void(state: RoundState, dropped: int = 0) -> RoundOutcome:
    return RoundOutcome(ClosedRound(0, None), state.asked, len(state.tried), dropped)


def _place(descriptor: Descriptor) -> dict[str, object]:
    return {"round": descriptor.round, "attempt": descriptor.attempt}
