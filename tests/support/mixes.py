"""Mixes on loopback, in this process or as real ones, and the parties that talk to them.

The tests play silos and the coordinator: `opened_round` prepares keys and opens a round at every
mix, `submit` sends what a silo would, `collect` and `release` do what the coordinator does.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
from silomix_core.mechanism.report_format import encode_report, report_bytes
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.connections.introduction import Door
from silomix_protocol.connections.tls import Identity, ServerContext
from silomix_protocol.grpc_calls.question_stream import Asking
from silomix_protocol.keys import SealKey, SigningKey, verify
from silomix_protocol.rounds.batches import check_report, incoming
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, issue
from silomix_protocol.rounds.heights import Height
from silomix_protocol.rounds.onion import Onion, onion_bytes, seal
from silomix_protocol.rounds.round_keys import check_list, fingerprint
from silomix_protocol.rounds.statements import check_ending, sign_confirmation
from silomix_protocol.rounds.tokens import TOKEN_BYTES, payload_bytes
from silomix_shuffler.config import Limits
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round.rounds import MixRounds
from silomix_shuffler.service import MixService
from silomix_shuffler.storage.store import Store
from silomix_shuffler.storage.writing_thread import WritingThread

from support.heights import some_height
from support.rounds import open_gated

Result = TypeVar("Result")

RPC_S = 10.0
PATIENT_S = 3600.0  # a grace that no test outlives: nobody is given up


def run(work: Coroutine[Any, Any, Result], timeout_s: float = 30.0) -> Result:
    """The result of `work`, or TimeoutError: a test never hangs."""

    async def limited() -> Result:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(limited())


# What the parties have in their folders ---------------------------------------------------------


def identity(made: Consortium, name: str) -> Identity:
    return Identity.load(name, made.folder / name)


def signer(made: Consortium, name: str) -> SigningKey:
    return SigningKey.load(made.folder / name / "sign.key")


def wide_task(columns: int) -> Task:
    """A task whose reports are as long as its columns are many."""
    wide = Feature("x", 0.0, 1.0, 0.5, columns)
    return Task(LossName.LOGISTIC, "outcome", (wide,), Scaling.UNIT_BALL, 0.3)


# Rounds, reports and the frames they travel in --------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlayedRound:
    """A round as the coordinator knows it."""

    made: Consortium
    descriptor: Descriptor
    server_key: SealKey
    mix_keys: tuple[round_pb2.RoundKeys, ...]

    @property
    def length(self) -> int:
        """Bytes of a gated report."""
        study = self.made.study
        return onion_bytes(payload_length(self.made), study, len(study.mixes))


def payload_length(made: Consortium) -> int:
    return payload_bytes(made.study, report_bytes(made.study.mechanism()))


def described(
    made: Consortium,
    keys: Sequence[round_pb2.RoundKeys],
    round_number: int = 1,
    *,
    attempt: int = 1,
    query: bytes = b"query",
) -> PlayedRound:
    """A round with these mix keys."""
    server_key = SealKey.generate()
    attempt_keys = AttemptKeys(
        server=sha256(server_key.public).digest(),
        mixes=tuple(fingerprint(each) for each in keys),
        token=bytes(32) if made.study.batching.tokens else b"",
    )
    descriptor = issue(
        made.study,
        round_number,
        attempt,
        query,
        attempt_keys,
        signer(made, "server"),
    )
    return PlayedRound(made, descriptor, server_key, tuple(keys))


def invented_keys(made: Consortium) -> tuple[round_pb2.RoundKeys, ...]:
    """Keys that no mix knows."""
    release = SealKey.generate().public if made.study.batching.gate else b""
    return tuple(
        round_pb2.RoundKeys(seal=SealKey.generate().public, release=release)
        for _ in made.study.mixes
    )


async def prepared_keys(
    made: Consortium, round_number: int = 1, *, attempt: int = 1
) -> tuple[round_pb2.RoundKeys, ...]:
    """Every mix's keys for one round, vouched for by it."""
    return tuple(
        [
            await prepared_at(made, mix.name, round_number, attempt=attempt)
            for mix in made.study.mixes
        ]
    )


async def prepared_at(
    made: Consortium, mix: str, round_number: int = 1, *, attempt: int = 1
) -> round_pb2.RoundKeys:
    """One mix's keys for one round, vouched for by it."""
    request = mix_pb2.PrepareRequest(
        study=made.study.identity, attempt=attempt, first_round=round_number, rounds=1
    )
    async with calling(made, "server", mix) as stub:
        prepared = await stub.Prepare(request, timeout=RPC_S, wait_for_ready=True)
    (place,) = (each for each in made.study.mixes if each.name == mix)
    check_list(prepared.list, made.study, place)
    keys = prepared.keys[0]
    assert isinstance(keys, round_pb2.RoundKeys)
    return keys


async def opened_round(
    made: Consortium,
    round_number: int = 1,
    *,
    attempt: int = 1,
    query: bytes = b"query",
) -> PlayedRound:
    """A round that every mix has opened."""
    keys = await prepared_keys(made, round_number, attempt=attempt)
    played = described(made, keys, round_number, attempt=attempt, query=query)
    for mix in made.study.mixes:
        await open_at(made, played.descriptor, mix.name)
    return played


async def opened_at(
    made: Consortium, served: Sequence[int], round_number: int = 1, *, attempt: int = 1
) -> tuple[PlayedRound, dict[int, SealKey]]:
    """A round that the mixes at these places have opened; the test holds the other seal keys."""
    keys, own = [], {}
    for place, mix in enumerate(made.study.mixes):
        if place in served:
            keys.append(await prepared_at(made, mix.name, round_number, attempt=attempt))
        else:
            own[place] = SealKey.generate()
            release = SealKey.generate().public if made.study.batching.gate else b""
            keys.append(round_pb2.RoundKeys(seal=own[place].public, release=release))
    played = described(made, keys, round_number, attempt=attempt)
    for place in served:
        await open_at(made, played.descriptor, made.study.mixes[place].name)
    return played, own


async def asked(method: Any, question: object) -> Any:
    """What a mix answers to one question on a stream."""
    asking: Asking[object, Any] = Asking(method)
    return await asking.ask(question, RPC_S)


async def open_at(
    made: Consortium, descriptor: Descriptor, mix: str, *, caller: str = "server"
) -> None:
    async with calling(made, caller, mix) as stub:
        await asked(stub.Open, descriptor.to_wire())


async def abandon(
    made: Consortium, descriptor: Descriptor, mix: str, *, caller: str = "server"
) -> round_pb2.Abandonment:
    async with calling(made, caller, mix) as stub:
        statement = await stub.Abandon(descriptor.to_wire(), timeout=RPC_S, wait_for_ready=True)
    assert isinstance(statement, round_pb2.Abandonment)
    return statement


async def void_at(
    made: Consortium, descriptor: Descriptor, mix: str, *, caller: str = "server"
) -> round_pb2.Ending:
    """What one mix signs about a round that came to nothing, checked."""
    async with calling(made, caller, mix) as stub:
        ending = await stub.Void(descriptor.to_wire(), timeout=RPC_S, wait_for_ready=True)
    assert isinstance(ending, round_pb2.Ending)
    (place,) = (each for each in made.study.mixes if each.name == mix)
    check_ending(ending, descriptor.digest, place)
    return ending


def sealed_reports(played: PlayedRound, seed: int = 0) -> dict[str, Onion]:
    """A sealed report of every silo of the round (its token is zeros: no mix can tell)."""
    mechanism = played.made.study.mechanism()
    rng = np.random.default_rng(seed)
    token = bytes(TOKEN_BYTES) if played.made.study.batching.tokens else b""
    reports = {}
    for silo in played.descriptor.silos:
        values = rng.integers(-1000, 1000, mechanism.dimension)
        payload = token + encode_report(values, mechanism)
        reports[silo] = seal(
            payload, played.server_key.public, played.mix_keys, played.descriptor.digest
        )
    return reports


def submission(
    made: Consortium,
    silo: str,
    descriptor: Descriptor,
    onion: bytes,
    *,
    chunk_bytes: int | None = None,
    signed_by: str | None = None,
    height: Height | None = None,
) -> list[mix_pb2.SubmitFrame]:
    """The messages of one report, in one piece unless `chunk_bytes` cuts it."""
    digest = sha256(onion).digest()
    header = mix_pb2.SubmitHeader(
        digest=descriptor.digest,
        bytes=len(onion),
        signature=signer(made, signed_by or silo).sign("report", descriptor.digest, digest),
        height=some_height(made, silo).to_wire() if height is None else height.to_wire(),
    )
    step = chunk_bytes or len(onion)
    pieces = [onion[start : start + step] for start in range(0, len(onion), step)]
    first = mix_pb2.SubmitFrame(header=header, chunk=pieces[0])
    return [first, *(mix_pb2.SubmitFrame(chunk=piece) for piece in pieces[1:])]


# Mixes ------------------------------------------------------------------------------------------


def state_of(made: Consortium, index: int) -> Path:
    """Where the mix at this place of the chain keeps everything."""
    return made.folder / made.study.mixes[index].name / "state"


@asynccontextmanager
async def mix_serving(
    made: Consortium,
    index: int,
    *,
    grace_s: float = PATIENT_S,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    disk: WritingThread | None = None,
    inspected: bool = False,
) -> AsyncIterator[MixRounds]:
    """The mix at this place of the chain, served at its address by this process.

    If `inspected`, it takes introductions at the same port of 127.0.0.2.
    """
    place = made.study.mixes[index]
    own, key = identity(made, place.name), signer(made, place.name)
    metrics = metrics or Metrics()
    disk = disk or WritingThread(Store(state_of(made, index)))
    rounds = MixRounds(own, (made.study,), key, disk, metrics, limits or Limits(), grace_s)
    second = place.address.replace("127.0.0.1", "127.0.0.2") if inspected else None
    server = own.server(place.address, inspected=second)
    door = Door(place.name, own.authority, (made.study,) if inspected else ())
    mix_pb2_grpc.add_MixServicer_to_server(MixService(rounds, key, metrics, door), server)
    try:
        await rounds.restore()
        await server.start()
        try:
            yield rounds
        finally:
            await server.stop(None)
    finally:
        await rounds.close()


@asynccontextmanager
async def chain_serving(made: Consortium, *, grace_s: float = PATIENT_S) -> AsyncIterator[None]:
    """Every mix of the study, served by this process."""
    async with AsyncExitStack() as stack:
        for index in range(len(made.study.mixes)):
            await stack.enter_async_context(mix_serving(made, index, grace_s=grace_s))
        yield


class PlayedMix(mix_pb2_grpc.MixServicer):
    """A next mix that only notes what is forwarded to it, and answers or never does."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.batches: list[tuple[bytes, bytes]] = []  # the header and the bodies of each
        self.heard_of: set[bytes] = set()  # rounds of which anything came, however little
        self.came = asyncio.Event()

    async def Forward(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.BatchFrame], context: ServerContext
    ) -> mix_pb2.ForwardReceipt:
        source = aiter(request_iterator)
        first = await anext(source)
        self.heard_of.add(first.header.digest)
        header = first.header.SerializeToString(deterministic=True)
        self.batches.append((header, b"".join([frame.chunk async for frame in source])))
        self.came.set()
        if not self.answers:
            await asyncio.Event().wait()
        return mix_pb2.ForwardReceipt()

    async def next_batch(self) -> tuple[bytes, bytes]:
        await self.came.wait()
        self.came.clear()
        return self.batches[-1]


@asynccontextmanager
async def mix_played(
    made: Consortium, index: int, *, answers: bool = True
) -> AsyncIterator[PlayedMix]:
    """The mix at this place of the chain, played by the test."""
    place = made.study.mixes[index]
    server = identity(made, place.name).server(place.address)
    mix = PlayedMix(answers=answers)
    mix_pb2_grpc.add_MixServicer_to_server(mix, server)
    await server.start()
    try:
        yield mix
    finally:
        await server.stop(None)


@dataclass(slots=True)
class MixProcess:
    """`silomix mix run` as a process of its own, with what it has logged so far."""

    process: asyncio.subprocess.Process
    log: list[str] = field(default_factory=list)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def terminate(self) -> int:
        self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), 10.0)


@asynccontextmanager
async def mix_process(config: Path, timeout_s: float = 30.0) -> AsyncIterator[MixProcess]:
    """A running mix that said it is ready; gone afterwards, whatever happens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "silomix", "mix", "run", str(config)),
        stderr=asyncio.subprocess.PIPE,
    )
    mix, ready = MixProcess(process), asyncio.Event()
    reader = asyncio.create_task(_follow(mix, ready))
    try:
        await asyncio.wait_for(ready.wait(), timeout_s)
        assert any("mix_ready" in line for line in mix.log), "\n".join(mix.log)
        yield mix
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader


async def _follow(mix: MixProcess, ready: asyncio.Event) -> None:
    assert mix.process.stderr is not None
    async for line in mix.process.stderr:
        mix.log.append(line.decode("utf-8").rstrip("\n"))
        if " mix_ready " in mix.log[-1]:
            ready.set()
    ready.set()  # it ended: nobody needs to wait any longer


# Callers ----------------------------------------------------------------------------------------


@asynccontextmanager
async def calling(made: Consortium, caller: str, mix: str) -> AsyncIterator[mix_pb2_grpc.MixStub]:
    """Party `caller`'s connection to a mix."""
    address = next(place.address for place in made.study.mixes if place.name == mix)
    async with identity(made, caller).channel(mix, address) as channel:
        yield mix_pb2_grpc.MixStub(channel)


async def refusal(call: Coroutine[Any, Any, Any]) -> grpc.StatusCode:
    """The code that this call is refused with."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    raise AssertionError(f"not refused: {answer!r}")


class SiloStream:
    """A silo's long-lived stream to the first mix: a report in, a receipt out."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[Any, Any]") -> None:
        self._call = call

    async def send(self, frames: Iterable[mix_pb2.SubmitFrame]) -> mix_pb2.Receipt:
        await self.write(frames)
        receipt = await self._call.read()
        assert isinstance(receipt, mix_pb2.Receipt), "the mix ended the stream"
        return receipt

    async def write(self, frames: Iterable[mix_pb2.SubmitFrame]) -> None:
        for frame in frames:
            await self._call.write(frame)

    async def leave(self) -> None:
        """End the stream, and return when the mix has ended it too."""
        await self._call.done_writing()
        assert await self._call.read() is grpc.aio.EOF


@asynccontextmanager
async def silo_stream(
    made: Consortium, silo: str, timeout_s: float = 30.0
) -> AsyncIterator[SiloStream]:
    """A silo's stream, connected: what is sent now arrives without a handshake before it."""
    async with calling(made, silo, made.study.mixes[0].name) as stub:
        call = stub.Submit(timeout=timeout_s, wait_for_ready=True)
        try:
            await call.wait_for_connection()
            yield SiloStream(call)
        finally:
            call.cancel()


async def submit(
    made: Consortium, caller: str, frames: Iterable[mix_pb2.SubmitFrame]
) -> list[mix_pb2.Receipt]:
    """The receipts for these messages, on a stream of their own."""
    messages = list(frames)
    async with calling(made, caller, made.study.mixes[0].name) as stub:
        call = stub.Submit(iter(messages), timeout=RPC_S, wait_for_ready=True)
        return [receipt async for receipt in call]


async def refused_submission(
    made: Consortium,
    caller: str,
    frames: Iterable[mix_pb2.SubmitFrame],
    *,
    mix: str | None = None,
    ends: bool = False,
) -> grpc.StatusCode:
    """The code that a stream with these messages is refused with.

    We end the stream ourselves only if that is the offence.
    """
    async with calling(made, caller, mix or made.study.mixes[0].name) as stub:
        call = stub.Submit(timeout=RPC_S, wait_for_ready=True)
        try:
            for frame in frames:
                await call.write(frame)
            if ends:
                await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
    raise AssertionError("not refused")


async def submit_all(played: PlayedRound, reports: dict[str, Onion]) -> list[mix_pb2.Receipt]:
    """Every silo's report, one after the other."""
    receipts = []
    for silo, onion in reports.items():
        frames = submission(played.made, silo, played.descriptor, onion.sealed)
        receipts += await submit(played.made, silo, frames)
    return receipts


@dataclass(frozen=True, slots=True)
class Collected:
    """A batch as the coordinator got it, checked."""

    chain: tuple[round_pb2.HopStatement, ...]
    reports: tuple[bytes, ...]

    @property
    def aborted(self) -> str:
        return self.chain[-1].aborted


async def collect(
    played: PlayedRound, *, caller: str = "server", mix: str | None = None, timeout_s: float = RPC_S
) -> Collected:
    """The round's batch, fetched from the last mix and checked as the coordinator does."""
    made, last = played.made, played.made.study.mixes[-1]
    async with calling(made, caller, mix or last.name) as stub:
        request = mix_pb2.CollectRequest(digest=played.descriptor.digest)
        source = aiter(stub.Collect(request, timeout=timeout_s, wait_for_ready=True))
        first = await anext(source)
        hops = len(made.study.mixes)
        batch = incoming(first, source, played.descriptor, made.study, hops, played.length)
        reports = []
        async for report, digest in batch.reports():
            check_report(report, digest)
            reports.append(bytes(report))
    return Collected(batch.chain, tuple(reports))


def confirmations(
    played: PlayedRound, joined: bytes, silos: Iterable[str] | None = None
) -> list[round_pb2.Confirmation]:
    """What these silos (all of the round) sign when their reports are in the list."""
    roster = [silo.name for silo in played.made.study.silos]
    return [
        sign_confirmation(
            played.descriptor.digest, joined, roster.index(silo), signer(played.made, silo)
        )
        for silo in (silos if silos is not None else played.descriptor.silos)
    ]


async def commit_at(
    played: PlayedRound, mix: str, joined: bytes, *, caller: str = "server"
) -> bytes:
    """One mix's word that it stands by the joined list, checked."""
    listed = sha256(joined).digest()
    request = mix_pb2.CommitRequest(digest=played.descriptor.digest, list=joined)
    async with calling(played.made, caller, mix) as stub:
        commitment = await asked(stub.Commit, request)
    (place,) = (each for each in played.made.study.mixes if each.name == mix)
    signed = played.descriptor.digest, listed
    verify(place.sign_key, commitment.signature, "commitment", *signed)
    assert isinstance(commitment.signature, bytes)
    return commitment.signature


async def release_at(
    played: PlayedRound,
    mix: str,
    joined: bytes,
    confirmed: Sequence[round_pb2.Confirmation],
    *,
    caller: str = "server",
) -> SealKey:
    """The release key of one mix, against these confirmations of the joined list."""
    request = mix_pb2.ReleaseRequest(
        digest=played.descriptor.digest, list=sha256(joined).digest(), confirmations=confirmed
    )
    async with calling(played.made, caller, mix) as stub:
        released = await asked(stub.Release, request)
    return SealKey.from_raw(released.key)


async def opened_payloads(played: PlayedRound, collected: Collected) -> list[bytes]:
    """The payloads of a collected batch, every silo of the round having confirmed it."""
    joined, released = collected.chain[-1].output, []
    if played.made.study.batching.gate:
        confirmed = confirmations(played, joined)
        for mix in played.made.study.mixes:
            await commit_at(played, mix.name, joined)
        for mix in played.made.study.mixes:
            released.append(await release_at(played, mix.name, joined, confirmed))
    return [
        open_gated(report, released, played.server_key, played.descriptor.digest)
        for report in collected.reports
    ]


async def forward(
    made: Consortium, caller: str, frames: Iterable[mix_pb2.BatchFrame], *, mix: str
) -> None:
    messages = list(frames)
    async with calling(made, caller, mix) as stub:
        await stub.Forward(iter(messages), timeout=RPC_S, wait_for_ready=True)
