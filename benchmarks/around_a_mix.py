"""Everybody around one mix of three, played by this process: coordinator, silos, the other mixes.

What they send is sealed and serialized before the clock starts and is sent as it is, so that the
process that plays them has little to do while a mix, or an echo in its place, is measured.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.mechanism.report_format import report_bytes
from silomix_core.study.specification import Batching, Specification
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Addresses, Consortium, create
from silomix_lab.demo.run_demo import free_ports
from silomix_proto import mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.connections.tls import SUBMIT_BYTES, Identity
from silomix_protocol.grpc_calls.question_stream import Asking
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, RoundDigest, issue
from silomix_protocol.rounds.heights import sign_height
from silomix_protocol.rounds.onion import LAYER_BYTES, onion_bytes, open_layer, seal
from silomix_protocol.rounds.round_keys import fingerprint
from silomix_protocol.rounds.statements import sign_hop
from silomix_protocol.rounds.tokens import payload_bytes

MIXES = 3
_TIMEOUT_S = 300.0


class Hop(Enum):
    """Where the measured mix stands."""

    FIRST = 0
    LATER = 1
    LAST = 2


# Before the clock starts ------------------------------------------------------------------------


def consortium(folder: Path, silos: int, dimension: int, rounds: int) -> Consortium:
    """Keys, certificates and study of so many silos; a round takes the report of every one."""
    task = Task(
        loss=LossName.LOGISTIC,
        label="y",
        features=(Feature("x", -1.0, 1.0, 0.0, count=dimension - 1),),
        scaling=Scaling.UNIT_BALL,
        bias=0.3,
    )
    specification = Specification(
        name="benchmark",
        algorithm="noisy-mb-sgd",
        most_rounds=rounds,
        radius=50.0,
        clip=0.25,
        target=PrivacyTarget(5.0, 1e-5),
        batching=Batching(silos, _TIMEOUT_S),
    )
    ports = [f"127.0.0.1:{port}" for port in free_ports(3 + MIXES)]
    addresses = Addresses(ports[0], ports[1], ports[2], tuple(ports[3:]))
    return create(folder, task, (200,) * silos, specification, addresses)


def identity(made: Consortium, name: str) -> Identity:
    return Identity.load(name, made.folder / name)


def signer(made: Consortium, name: str) -> SigningKey:
    return SigningKey.load(made.folder / name / "sign.key")


def report_length(made: Consortium, hop: int) -> int:
    """Bytes of a report when it arrives at this hop."""
    payload = payload_bytes(made.study, report_bytes(made.study.mechanism()))
    return onion_bytes(payload, made.study, hop)


def arriving(
    made: Consortium, hop: Hop, key: bytes, digest: RoundDigest, count: int
) -> list[bytes]:
    """Reports as they arrive at a mix with this seal key.

    What its layer holds is itself sealed, and only by one layer where there should be several of
    the same total length: no mix can tell.
    """
    content = os.urandom(report_length(made, hop.value + 1) - LAYER_BYTES)
    server, before = SealKey.generate(), [SealKey.generate() for _ in range(hop.value)]
    layers = [*(each.public for each in before), key]
    mixes = [round_pb2.RoundKeys(seal=public) for public in layers]
    reports = []
    for _ in range(count):
        report = seal(content, server.public, mixes, digest).sealed
        for place, each in enumerate(before):
            report = open_layer(report, each, place, digest)
        reports.append(report)
    return reports


@dataclass(frozen=True, slots=True)
class Traffic:
    """A round, ready to be sent: the messages of every stream into the mix, serialized."""

    descriptor: Descriptor
    streams: list[list[bytes]]


def traffic(made: Consortium, hop: Hop, number: int, keys: round_pb2.RoundKeys) -> Traffic:
    """Round `number` for the mix that prepared these keys."""
    mix_keys = [keys if place == hop.value else _invented_keys() for place in range(MIXES)]
    attempt = AttemptKeys(
        server=bytes(32),
        mixes=tuple(fingerprint(each) for each in mix_keys),
        token=bytes(32),
    )
    descriptor = issue(made.study, number, 1, b"query", attempt, signer(made, "server"))
    silos = descriptor.silos
    reports = arriving(made, hop, keys.seal, descriptor.digest, len(silos))
    if hop is not Hop.FIRST:
        chain = _chain(made, hop, descriptor, reports)
        batch = frames(descriptor.digest, chain, reports)
        return Traffic(descriptor, [[frame.SerializeToString() for frame in batch]])
    streams = [
        submission(made, silo, descriptor, report)
        for silo, report in zip(silos, reports, strict=True)
    ]
    return Traffic(descriptor, streams)


def submission(made: Consortium, silo: str, descriptor: Descriptor, report: bytes) -> list[bytes]:
    key, digest = signer(made, silo), descriptor.digest
    header = mix_pb2.SubmitHeader(
        digest=digest,
        bytes=len(report),
        signature=key.sign("report", digest, sha256(report).digest()),
        height=sign_height(silo, (0, descriptor.round), bytes(32), key).to_wire(),
    )
    pieces = [report[at : at + SUBMIT_BYTES] for at in range(0, len(report), SUBMIT_BYTES)]
    messages = [mix_pb2.SubmitFrame(header=header, chunk=pieces[0])]
    messages += [mix_pb2.SubmitFrame(chunk=piece) for piece in pieces[1:]]
    return [message.SerializeToString() for message in messages]


def _invented_keys() -> round_pb2.RoundKeys:
    return round_pb2.RoundKeys(seal=SealKey.generate().public, release=SealKey.generate().public)


def _chain(
    made: Consortium, hop: Hop, descriptor: Descriptor, reports: Sequence[bytes]
) -> list[round_pb2.HopStatement]:
    """What the mixes before this one state; only the last of their lists is looked into."""
    joined = b"".join(sha256(report).digest() for report in reports)
    statements = []
    for place in range(hop.value):
        statement = round_pb2.HopStatement(
            hop=place,
            received=len(reports),
            forwarded=len(reports),
            input=sha256(joined).digest(),
            output=joined,
        )
        key = signer(made, made.study.mixes[place].name)
        statements.append(sign_hop(descriptor.digest, statement, key))
    return statements


# While it runs ----------------------------------------------------------------------------------


class Coordinator:
    """Prepares keys and opens rounds at one mix."""

    def __init__(self, made: Consortium, mix: str, address: str) -> None:
        self._study = made.study
        self._channel = identity(made, "server").channel(mix, address)
        self._stub = mix_pb2_grpc.MixStub(self._channel)
        self._opening: Asking[object, object] = Asking(self._stub.Open)

    async def keys(self, rounds: int) -> list[round_pb2.RoundKeys]:
        request = mix_pb2.PrepareRequest(
            study=self._study.identity, attempt=1, first_round=1, rounds=rounds
        )
        prepared = await self._stub.Prepare(request, timeout=60.0, wait_for_ready=True)
        return list(prepared.keys)

    async def open(self, descriptor: Descriptor) -> None:
        await self._opening.ask(descriptor.to_wire(), 60.0)

    async def close(self) -> None:
        await self._channel.close()


class Sink(grpc.GenericRpcHandler):
    """The next mix: takes a batch, throws it away and says when it had the last byte."""

    def __init__(self, made: Consortium, place: int) -> None:
        mix = made.study.mixes[place]
        self.name, self.address = mix.name, mix.address
        self._batches: asyncio.Queue[None] = asyncio.Queue()
        self._server = identity(made, mix.name).server(mix.address)
        self._server.add_generic_rpc_handlers((self,))

    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002
        return grpc.stream_unary_rpc_method_handler(self._forward)

    async def _forward(self, source: AsyncIterator[bytes], _: Any) -> bytes:
        async for _ in source:
            pass
        self._batches.put_nowait(None)
        return b""

    async def start(self) -> None:
        await self._server.start()

    async def batch(self) -> None:
        """Return when another batch is here."""
        await asyncio.wait_for(self._batches.get(), _TIMEOUT_S)

    async def stop(self) -> None:
        await self._server.stop(None)


class Sender(ABC):
    """Those who send to one mix and wait for what it has to hand on, connected beforehand."""

    @abstractmethod
    async def connect(self) -> None: ...

    @abstractmethod
    async def send(self, ready: Traffic) -> None:
        """Send a round; return when the batch was handed on, whole."""

    @abstractmethod
    async def close(self) -> None: ...


class Silos(Sender):
    """Every silo with its own certificate, connection and long-lived stream to a first mix."""

    def __init__(self, made: Consortium, mix: str, address: str, sink: Sink) -> None:
        self._sink = sink
        self._channels = [
            identity(made, silo.name).channel(mix, address) for silo in made.study.silos
        ]
        self._calls: list[Any] = []

    async def connect(self) -> None:
        for channel in self._channels:
            submit: Any = channel.stream_stream("/silomix.v1.Mix/Submit")
            call = submit(wait_for_ready=True)
            await call.wait_for_connection()
            self._calls.append(call)

    async def send(self, ready: Traffic) -> None:
        pairs = zip(self._calls, ready.streams, strict=True)
        await asyncio.gather(*(_submit(call, messages) for call, messages in pairs))
        await self._sink.batch()

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*(channel.close() for channel in self._channels))


async def _submit(call: Any, messages: list[bytes]) -> None:
    for message in messages:
        await call.write(message)
    receipt = mix_pb2.Receipt.FromString(await call.read())
    if receipt.status != mix_pb2.Receipt.ACCEPTED:
        raise RuntimeError(f"a report was refused: {receipt.reason}")


class Predecessor(Sender):
    """The mix before a later one; with `sink` None the coordinator collects from the last."""

    def __init__(
        self, made: Consortium, hop: Hop, mix: str, address: str, sink: Sink | None
    ) -> None:
        before = made.study.mixes[hop.value - 1].name
        self._sink = sink
        self._channel = identity(made, before).channel(mix, address)
        self._collector = identity(made, "server").channel(mix, address)

    async def connect(self) -> None:
        await asyncio.gather(self._channel.channel_ready(), self._collector.channel_ready())

    async def send(self, ready: Traffic) -> None:
        handed_on = asyncio.ensure_future(self._sink.batch() if self._sink else self._take(ready))
        forward: Any = self._channel.stream_unary("/silomix.v1.Mix/Forward")
        await forward(_each(ready.streams[0]), timeout=_TIMEOUT_S)
        await handed_on

    async def _take(self, ready: Traffic) -> None:
        request = mix_pb2.CollectRequest(digest=ready.descriptor.digest)
        collect: Any = self._collector.unary_stream("/silomix.v1.Mix/Collect")
        async for _ in collect(request.SerializeToString(), timeout=_TIMEOUT_S):
            pass

    async def close(self) -> None:
        await asyncio.gather(self._channel.close(), self._collector.close())


async def _each(messages: Iterable[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def sender(made: Consortium, hop: Hop, address: str, sink: Sink | None) -> Sender:
    """Whoever sends to the mix at this hop, or to an echo that listens at `address`."""
    mix = made.study.mixes[hop.value].name
    if hop is Hop.FIRST:
        assert sink is not None
        return Silos(made, mix, address, sink)
    return Predecessor(made, hop, mix, address, sink)
