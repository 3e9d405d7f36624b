"""A server that does nothing but gRPC: what a mix receives and sends, without being a mix.

    python benchmarks/echo.py FOLDER NAME ADDRESS REPORTS BYTES_OUT [NEXT_NAME NEXT_ADDRESS]

The same TLS, the same memory allocator, the same messages, decoded; what came in is forgotten,
every report gets an answer of a receipt's size, and when REPORTS reports or one batch are here, as
many reports of BYTES_OUT bytes go on: to the next mix, or to whoever collects.  Started and ended
by benchmarks/mix.py.
"""
# ruff: noqa: ARG002 - gRPC passes more than an echo needs

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from silomix_proto import mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.connections.tls import Identity, ServerContext
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_server.flower.child_processes import end_with_parent
from silomix_shuffler.process import make_room

_RECEIPT = mix_pb2.Receipt(
    digest=bytes(32), report=bytes(32), status=mix_pb2.Receipt.ACCEPTED, signature=bytes(64)
)
_CHUNK = bytes(CHUNK_BYTES)


class Echo(mix_pb2_grpc.MixServicer):
    def __init__(self, reports: int, bytes_out: int, following: mix_pb2_grpc.MixStub | None):
        self._reports = reports
        self._bytes_out = bytes_out
        self._following = following
        self._received = 0
        self._batches: asyncio.Queue[None] = asyncio.Queue()
        self._sending: asyncio.Task[None] | None = None

    async def Open(  # noqa: N802
        self, request_iterator: AsyncIterator[round_pb2.SignedDescriptor], context: ServerContext
    ) -> AsyncIterator[mix_pb2.RoundIsOpen]:
        async for _ in request_iterator:
            yield mix_pb2.RoundIsOpen()

    async def Submit(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.SubmitFrame], context: ServerContext
    ) -> AsyncIterator[mix_pb2.Receipt]:
        wanted = 0
        async for frame in request_iterator:
            wanted = (wanted or frame.header.bytes) - len(frame.chunk)
            if wanted:
                continue
            yield _RECEIPT
            self._received += 1
            if self._received % self._reports == 0:
                self._hand_on()

    async def Forward(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.BatchFrame], context: ServerContext
    ) -> mix_pb2.ForwardReceipt:
        async for frame in request_iterator:
            len(frame.chunk)
        self._hand_on()
        return mix_pb2.ForwardReceipt()

    async def Collect(  # noqa: N802
        self, request: mix_pb2.CollectRequest, context: ServerContext
    ) -> AsyncIterator[mix_pb2.BatchFrame]:
        await self._batches.get()
        for frame in self._frames():
            yield frame

    def _hand_on(self) -> None:
        if self._following is None:
            self._batches.put_nowait(None)
        else:
            self._sending = asyncio.create_task(self._forward(self._following))

    async def _forward(self, following: mix_pb2_grpc.MixStub) -> None:
        await following.Forward(self._frames())

    def _frames(self) -> Iterator[mix_pb2.BatchFrame]:
        left = self._reports * self._bytes_out
        while left:
            size = min(left, CHUNK_BYTES)
            yield mix_pb2.BatchFrame(chunk=_CHUNK[:size])
            left -= size


async def serve(
    folder: Path, name: str, address: str, reports: int, bytes_out: int, following: list[str]
) -> None:
    identity = Identity.load(name, folder)
    stub = mix_pb2_grpc.MixStub(identity.channel(*following)) if following else None
    server = identity.server(address, many_senders=name == "mix-1")
    mix_pb2_grpc.add_MixServicer_to_server(Echo(reports, bytes_out, stub), server)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    end_with_parent()
    make_room()
    chosen = sys.argv[1:]
    asyncio.run(
        serve(Path(chosen[0]), chosen[1], chosen[2], int(chosen[3]), int(chosen[4]), chosen[5:])
    )
