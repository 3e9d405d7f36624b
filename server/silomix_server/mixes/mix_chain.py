"""The coordinator's connections to every mix of the chain, first mix first.

Keys before the rounds, the opening of a round, its batch from the last mix, release keys behind
the gate, statements that nothing was forwarded: whatever comes back is checked here, and a mix
that does not deliver is named.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from silomix_core.mechanism.report_format import report_bytes
from silomix_core.study.study import Mix, Study
from silomix_proto import channel_pb2, mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.connections.tls import Identity
from silomix_protocol.grpc_calls.question_stream import Asking
from silomix_protocol.host import logs
from silomix_protocol.keys import ForgedSignature, SealKey, UnusableKey
from silomix_protocol.rounds.batches import (
    BrokenBatch,
    IncomingBatch,
    chain_wait_s,
    check_report,
    incoming,
)
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.onion import onion_bytes
from silomix_protocol.rounds.round_keys import RefusedKeys, check_lengths, check_list, fingerprint
from silomix_protocol.rounds.statements import (
    BrokenChain,
    check_abandonment,
    check_commitment,
    check_ending,
)
from silomix_protocol.rounds.tokens import payload_bytes

from silomix_server.errors import BatchAborted, BatchBroken, MixFailed, MixRefused
from silomix_server.mixes.batch_file import BatchFile

if TYPE_CHECKING:
    BatchFrames = grpc.aio.UnaryStreamCall[mix_pb2.CollectRequest, mix_pb2.BatchFrame]

_CALL_S = 10.0
_MARGIN_S = 5.0
_PAUSE_S = 0.1  # before a mix that did not answer is asked again

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Keys that the mixes made for consecutive rounds, all for the same attempt."""

    first_round: int
    lists: tuple[round_pb2.KeyList, ...]  # one of every mix
    keys: tuple[tuple[round_pb2.RoundKeys, ...], ...]  # for every round, those of every mix

    def __contains__(self, round_number: int) -> bool:
        return 0 <= round_number - self.first_round < len(self.keys)

    def of(self, round_number: int) -> tuple[round_pb2.RoundKeys, ...]:
        return self.keys[round_number - self.first_round]


@dataclass(frozen=True, slots=True)
class CollectedBatch:
    """The batch that the last mix handed over, and what every mix states about it."""

    chain: tuple[round_pb2.HopStatement, ...]
    commitment: bytes  # the last mix's signature on the list of reports
    reports: BatchFile

    @property
    def output(self) -> bytes:
        """The joined digests of the reports."""
        return self.chain[-1].output

    @property
    def dropped(self) -> int:
        return sum(statement.dropped for statement in self.chain)


@dataclass(frozen=True, slots=True)
class _Link:
    mix: Mix
    channel: grpc.aio.Channel
    stub: mix_pb2_grpc.MixStub
    opening: Asking[round_pb2.SignedDescriptor, mix_pb2.RoundIsOpen]
    committing: Asking[mix_pb2.CommitRequest, mix_pb2.Commitment]
    releasing: Asking[mix_pb2.ReleaseRequest, mix_pb2.ReleasedKey]


class MixChain:
    def __init__(self, study: Study, identity: Identity, folder: Path) -> None:
        """Make the connections; large batches wait for their opening in `folder`."""
        self._study, self._folder = study, folder
        self._links = tuple(_link(mix, identity) for mix in study.mixes)
        payload = payload_bytes(study, report_bytes(study.mechanism()))
        self._gated_bytes = onion_bytes(payload, study, len(study.mixes))

    async def close(self) -> None:
        await asyncio.gather(*(link.channel.close() for link in self._links))

    async def check_reachable(self) -> None:
        """Raise MixFailed unless every mix answers."""

        async def ready(link: _Link) -> None:
            try:
                await asyncio.wait_for(link.channel.channel_ready(), _CALL_S)
            except TimeoutError:
                raise _failed(link, "does not answer") from None

        await _all(ready(link) for link in self._links)

    async def prepare(self, attempt: int, first_round: int, rounds: int) -> Stretch:
        """Fetch every mix's keys for this attempt at `rounds` rounds, from `first_round` on."""
        request = mix_pb2.PrepareRequest(
            study=self._study.identity, attempt=attempt, first_round=first_round, rounds=rounds
        )

        async def prepared(link: _Link) -> mix_pb2.PreparedRounds:
            answer: mix_pb2.PreparedRounds = await _call(link, link.stub.Prepare, request)
            listed = answer.list
            try:
                check_list(listed, self._study, link.mix)
                check_lengths(list(answer.keys), self._study)
            except (ForgedSignature, RefusedKeys) as error:
                raise _failed(link, f"sent unusable keys: {error}") from error
            promised = listed.attempt, listed.first_round, len(listed.keys)
            given = [fingerprint(keys) for keys in answer.keys]
            if promised != (attempt, first_round, rounds) or given != list(listed.keys):
                raise _failed(link, "sent keys for other rounds than it was asked for")
            return answer

        answers = await _all(prepared(link) for link in self._links)
        by_round = zip(*(answer.keys for answer in answers), strict=True)
        return Stretch(first_round, tuple(answer.list for answer in answers), tuple(by_round))

    async def open(self, descriptor: Descriptor) -> None:
        """Let every mix open the round."""
        request = descriptor.to_wire()
        await _all(_ask(link, link.opening, request) for link in self._links)

    async def collect(self, descriptor: Descriptor) -> CollectedBatch:
        """Collect the round's batch; MixFailed if none came, BatchAborted if none was forwarded."""
        last = self._links[-1]
        hops = len(self._links)
        wait_s = chain_wait_s(self._study.batching.deadline_s, hops) + _MARGIN_S

        async def once(timeout_s: float) -> CollectedBatch:
            request = mix_pb2.CollectRequest(digest=descriptor.digest)
            call = last.stub.Collect(request, timeout=timeout_s, wait_for_ready=True)
            try:
                return await self._receive(await self._first(call, descriptor))
            finally:
                call.cancel()

        return await _patiently(last, once, wait_s)

    async def _first(self, call: "BatchFrames", descriptor: Descriptor) -> IncomingBatch:
        """Begin a batch: check what the mixes state before any report is taken."""
        last, hops = self._links[-1], len(self._links)
        frames = aiter(call)
        first = await anext(frames, mix_pb2.BatchFrame())
        try:
            batch = incoming(first, frames, descriptor, self._study, hops, self._gated_bytes)
        except (BrokenBatch, BrokenChain, ForgedSignature) as error:
            raise _failed(last, f"sent a batch that cannot be used: {error}") from error
        for statement in batch.chain:
            if statement.aborted:
                name = self._study.mixes[statement.hop].name
                raise BatchAborted(f"{name} forwarded nothing: {statement.aborted}")
        return batch

    async def _receive(self, batch: IncomingBatch) -> CollectedBatch:
        spool = BatchFile(self._folder, self._gated_bytes)
        try:
            async for report, digest in batch.reports():
                check_report(report, digest)
                spool.append(report)
        except BrokenBatch as error:
            spool.close()
            last = self._study.mixes[-1].name
            raise BatchBroken(f"{last} sent a broken batch: {error}") from error
        except BaseException:
            spool.close()
            raise
        return CollectedBatch(batch.chain, batch.commitment, spool)

    async def commit(
        self, descriptor: Descriptor, batch: CollectedBatch
    ) -> channel_pb2.RoundCommitted:
        """The list of the reports that arrived, with every mix's signature that it stands by it.

        The last mix gave its signature with the batch.
        """
        digest, list_hash = descriptor.digest, sha256(batch.output).digest()
        request = mix_pb2.CommitRequest(digest=digest, list=batch.output)

        async def signature(link: _Link) -> bytes:
            answer = await _ask(link, link.committing, request)
            return _checked(link, answer.signature)

        def _checked(link: _Link, given: bytes) -> bytes:
            try:
                check_commitment(given, digest, list_hash, link.mix)
            except ForgedSignature as error:
                raise _failed(link, "did not sign the list") from error
            return given

        *others, last = self._links
        own = _checked(last, batch.commitment)
        signatures = [*await _all(signature(link) for link in others), own]
        return channel_pb2.RoundCommitted(digest=digest, list=batch.output, signatures=signatures)

    async def release(
        self,
        descriptor: Descriptor,
        list_hash: bytes,
        confirmations: Sequence[round_pb2.Confirmation],
        keys: Sequence[round_pb2.RoundKeys],
    ) -> tuple[SealKey, ...]:
        """Fetch the mixes' release keys, each the one whose public half is in `keys`."""
        request = mix_pb2.ReleaseRequest(
            digest=descriptor.digest, list=list_hash, confirmations=confirmations
        )

        async def released(link: _Link, public: bytes) -> SealKey:
            answer = await _ask(link, link.releasing, request)
            try:
                key = SealKey.from_raw(answer.key)
            except UnusableKey as error:
                raise _failed(link, "released something that is no key") from error
            if key.public != public:
                raise _failed(link, "released another key than the one it announced")
            return key

        pairs = zip(self._links, keys, strict=True)
        return tuple(await _all(released(link, each.release) for link, each in pairs))

    async def abandon(self, descriptor: Descriptor) -> tuple[round_pb2.Abandonment, ...]:
        """Fetch every mix's statement that it forwarded nothing for D and never will."""
        request = descriptor.to_wire()

        async def abandoned(link: _Link) -> round_pb2.Abandonment:
            answer: round_pb2.Abandonment = await _call(link, link.stub.Abandon, request)
            try:
                check_abandonment(answer, descriptor.digest, link.mix)
            except (BrokenChain, ForgedSignature) as error:
                raise _failed(link, "did not sign that it abandoned the round") from error
            if answer.digest != descriptor.digest:
                raise _failed(link, "abandoned another round than it was asked to")
            return answer

        return tuple(await _all(abandoned(link) for link in self._links))

    async def void(self, descriptor: Descriptor) -> list[round_pb2.Ending | MixFailed]:
        """Fetch every mix's ending of a round that came to nothing, or why it signs none."""
        request = descriptor.to_wire()

        async def ending(link: _Link) -> round_pb2.Ending | MixFailed:
            try:
                answer: round_pb2.Ending = await _call(link, link.stub.Void, request)
                check_ending(answer, descriptor.digest, link.mix)
            except MixFailed as failure:
                return failure
            except (BrokenChain, ForgedSignature) as error:
                return MixRefused(f"{link.mix.name} did not sign that the round is void: {error}")
            return answer

        return list(await asyncio.gather(*(ending(link) for link in self._links)))


def _link(mix: Mix, identity: Identity) -> _Link:
    channel = identity.channel(mix.name, mix.address)
    stub = mix_pb2_grpc.MixStub(channel)
    return _Link(mix, channel, stub, Asking(stub.Open), Asking(stub.Commit), Asking(stub.Release))


async def _all(calls: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Wait until no call goes on any more; all answers, or MixFailed naming all who failed."""
    answers: list[Answer] = []
    failures: list[str] = []
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, MixFailed):
            failures.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers.append(answer)
    if failures:
        raise MixFailed("; ".join(failures))
    return answers


async def _call(link: _Link, method: Callable[..., Awaitable[Answer]], request: object) -> Answer:
    async def once(timeout_s: float) -> Answer:
        return await method(request, timeout=timeout_s, wait_for_ready=True)

    return await _patiently(link, once, _CALL_S)


async def _ask(link: _Link, asking: Asking[Question, Answer], question: Question) -> Answer:
    return await _patiently(link, partial(asking.ask, question), _CALL_S)


async def _patiently(
    link: _Link, once: Callable[[float], Coroutine[Any, Any, Answer]], timeout_s: float
) -> Answer:
    """Ask until there is an answer or time is up: a mix may be restarting."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            return await once(max(end - time.monotonic(), _PAUSE_S))
        except grpc.aio.AioRpcError as error:
            gone = error.code() is grpc.StatusCode.UNAVAILABLE
            if not gone or time.monotonic() + _PAUSE_S > end:
                raise _problem(link, error) from error
        except TimeoutError:
            raise _failed(link, "does not answer") from None
        await asyncio.sleep(_PAUSE_S)


def _problem(link: _Link, error: grpc.aio.AioRpcError) -> MixFailed:
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return _failed(link, "does not answer")
    failure = _failed(link, f"refused ({code.name}: {logs.foreign(error.details())})")
    return MixRefused(str(failure)) if code is grpc.StatusCode.FAILED_PRECONDITION else failure


def _failed(link: _Link, problem: str) -> MixFailed:
    return MixFailed(f"{link.mix.name} ({link.mix.address}) {problem}")
