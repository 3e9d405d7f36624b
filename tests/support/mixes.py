"""Mixes on loopback, in this process or as real ones, and the parties that talk to them."""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
from silomix.consortium import Consortium
from silomix_core.losses import LossName
from silomix_core.report import encode_report, report_bytes
from silomix_core.task import Feature, Scaling, Task
from silomix_proto import mix_pb2, mix_pb2_grpc
from silomix_protocol.batches import Batch, read_batch
from silomix_protocol.descriptor import Descriptor, issue
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.onion import Sealer, onion_bytes
from silomix_protocol.tls import Identity
from silomix_shuffler.register import RoundRegister
from silomix_shuffler.rounds import Rounds
from silomix_shuffler.service import MixService

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


def opener(made: Consortium, name: str) -> SealKey:
    return SealKey.load(made.folder / name / "seal.key")


def wide_task(columns: int) -> Task:
    """A task whose reports are as long as its columns are many."""
    wide = Feature("x", 0.0, 1.0, 0.5, columns)
    return Task(LossName.LOGISTIC, "outcome", (wide,), Scaling.UNIT_BALL, 0.3)


# Rounds, reports and the frames they travel in --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sealed:
    """A silo's report on its way: what it sends, and what the server will receive of it."""

    onion: bytes
    inner: bytes


def described(
    made: Consortium,
    round_number: int = 1,
    *,
    silos: tuple[str, ...] | None = None,
    query: bytes = b"query",
) -> Descriptor:
    """The descriptor of a round, for all silos unless some are named."""
    everyone = tuple(silo.name for silo in made.study.silos)
    return issue(made.study, round_number, silos or everyone, query, signer(made, "server"))


def sealed_reports(made: Consortium, descriptor: Descriptor) -> dict[str, Sealed]:
    """A sealed report of every silo of the round."""
    sealer, mechanism = Sealer(made.study), made.study.mechanism()
    rng = np.random.default_rng(descriptor.round)
    reports = {}
    for silo in descriptor.silos:
        values = rng.integers(-1000, 1000, mechanism.dimension)
        reports[silo] = Sealed(*sealer.seal(encode_report(values, mechanism), descriptor.digest))
    return reports


def submission(
    made: Consortium,
    silo: str,
    descriptor: Descriptor,
    onion: bytes,
    *,
    chunk_bytes: int | None = None,
    signed_by: str | None = None,
) -> list[mix_pb2.SubmitFrame]:
    """The messages of one report, in one piece unless `chunk_bytes` cuts it."""
    digest = sha256(onion).digest()
    header = mix_pb2.SubmitHeader(
        descriptor=descriptor.to_wire(),
        bytes=len(onion),
        signature=signer(made, signed_by or silo).sign("report", descriptor.digest, digest),
    )
    step = chunk_bytes or len(onion)
    pieces = [onion[start : start + step] for start in range(0, len(onion), step)]
    first = mix_pb2.SubmitFrame(header=header, chunk=pieces[0])
    return [first, *(mix_pb2.SubmitFrame(chunk=piece) for piece in pieces[1:])]


# Mixes ------------------------------------------------------------------------------------------


@asynccontextmanager
async def mix_serving(
    made: Consortium, index: int, *, grace_s: float = PATIENT_S
) -> AsyncIterator[Rounds]:
    """The mix at this place of the chain, served at its address by this process."""
    place = made.study.mixes[index]
    folder = made.folder / place.name
    own = identity(made, place.name)
    register = RoundRegister(folder / "rounds.sqlite")
    keys = signer(made, place.name), opener(made, place.name)
    rounds = Rounds(own, (made.study,), *keys, register, grace_s)
    service = MixService(rounds, keys[0], (made.study,))
    try:
        server = own.server(place.address)
        mix_pb2_grpc.add_MixServicer_to_server(service, server)
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
    async with calling(made, caller, made.study.mixes[0].name) as stub:
        call = stub.Submit(iter(list(frames)), timeout=RPC_S, wait_for_ready=True)
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

    The last message must be the offending one: if a call ends under a grpc.aio client that still
    writes, the client reports INTERNAL whatever the server said.  For the same reason we do not
    end the stream ourselves unless that is the offence.
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


async def submit_all(
    made: Consortium, descriptor: Descriptor, reports: dict[str, Sealed]
) -> list[mix_pb2.Receipt]:
    """Every silo's report, one after the other."""
    receipts = []
    for silo, sealed in reports.items():
        frames = submission(made, silo, descriptor, sealed.onion)
        receipts += await submit(made, silo, frames)
    return receipts


async def collect(
    made: Consortium,
    descriptor: Descriptor,
    *,
    caller: str = "server",
    mix: str | None = None,
) -> Batch:
    """The round's batch, fetched from the last mix and checked as the coordinator does."""
    last = made.study.mixes[-1]
    async with calling(made, caller, mix or last.name) as stub:
        call = stub.Collect(descriptor.to_wire(), timeout=RPC_S, wait_for_ready=True)
        length = inner_bytes(made)
        return await read_batch(aiter(call), made.study, last.sign_key, length)


async def forward(
    made: Consortium, caller: str, frames: Iterable[mix_pb2.BatchFrame], *, mix: str
) -> None:
    async with calling(made, caller, mix) as stub:
        await stub.Forward(iter(list(frames)), timeout=RPC_S, wait_for_ready=True)


def inner_bytes(made: Consortium) -> int:
    hops = len(made.study.mixes)
    return onion_bytes(report_bytes(made.study.mechanism()), hops, hops)


async def refusal(call: Coroutine[Any, Any, Any]) -> grpc.StatusCode:
    """The code that this call is refused with."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    raise AssertionError(f"not refused: {answer!r}")
