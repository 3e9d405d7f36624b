"""How many calls one caller may have, and that a refused call leaves nothing behind.

Real servers and channels on loopback.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import grpc
import grpc.aio
import pytest
from silomix_lab.demo.run_demo import free_ports
from silomix_proto import mix_pb2, mix_pb2_grpc
from silomix_protocol.certificates.certificates import Authority, dialled_name
from silomix_protocol.connections.tls import Identity, ServerContext
from silomix_protocol.grpc_calls import call_limits
from silomix_protocol.grpc_calls.call_limits import CallLimits, RefusedCall
from support.mixes import RPC_S, run

MB = 2**20
LIMITS = CallLimits(MB + 1024, of_a_party=4, of_an_address=6, on_a_connection=64)
AUTHORITY = Authority.create("consortium", datetime.now(UTC))
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def party(name: str, *, serves: bool = False) -> Identity:
    issued = AUTHORITY.issue(name, ("127.0.0.1",), datetime.now(UTC), serves=serves)
    return Identity(name, AUTHORITY.pem, issued.certificate, issued.key)


class Counter(mix_pb2_grpc.MixServicer):
    """Keeps every Forward until its caller is done; refuses every Submit after its first frame."""

    def __init__(self) -> None:
        self.under_way = 0

    async def Forward(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.BatchFrame], _context: ServerContext
    ) -> mix_pb2.ForwardReceipt:
        self.under_way += 1
        try:
            async for _ in request_iterator:
                pass
        finally:
            self.under_way -= 1
        return mix_pb2.ForwardReceipt()

    async def Submit(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.SubmitFrame], _context: ServerContext
    ) -> AsyncIterator[mix_pb2.Receipt]:
        async for _frame in request_iterator:
            raise RefusedCall(grpc.StatusCode.PERMISSION_DENIED, "not here")
        yield mix_pb2.Receipt()

    async def Prepare(  # noqa: N802
        self, _request: mix_pb2.PrepareRequest, _context: ServerContext
    ) -> mix_pb2.PreparedRounds:
        raise KeyError("ours")


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Counter, str]]:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server, counter = party("mix-1", serves=True).server(address, limits=LIMITS), Counter()
    mix_pb2_grpc.add_MixServicer_to_server(counter, server)
    await server.start()
    try:
        yield counter, address
    finally:
        await server.stop(None)


async def held(channel: grpc.aio.Channel) -> "grpc.aio.StreamUnaryCall[object, object]":
    """A call that began, said something, and is not done."""
    call = mix_pb2_grpc.MixStub(channel).Forward(timeout=RPC_S)
    await call.write(mix_pb2.BatchFrame(chunk=b"hello"))
    return call


async def settled(counter: Counter, expected: int) -> None:
    async with asyncio.timeout(RPC_S):
        while counter.under_way != expected:  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(0.01)


def test_a_partys_calls_are_counted_over_all_its_connections_and_nobody_elses() -> None:
    async def scene() -> None:
        async with serving() as (counter, address), AsyncExitStack() as stack:
            greedy, other = party("silo-1"), party("silo-2")
            channels = [
                await stack.enter_async_context(greedy.channel("mix-1", address)) for _ in range(5)
            ]
            kept = [await held(each) for each in channels[:4]]
            await settled(counter, 4)
            fifth = await held(channels[4])
            assert await fifth.code() is EXHAUSTED
            assert "4 calls here already" in await fifth.details()
            channel = await stack.enter_async_context(other.channel("mix-1", address))
            theirs = await held(channel)
            await settled(counter, 5)
            await theirs.done_writing()
            assert await theirs.code() is grpc.StatusCode.OK
            kept[0].cancel()  # one that goes makes room for another
            await settled(counter, 3)
            again = await held(channels[4])
            await settled(counter, 4)
            await again.done_writing()
            assert await again.code() is grpc.StatusCode.OK

    run(scene())


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Whatever is not let go of at once stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def resident() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
def test_nothing_is_kept_of_refused_calls() -> None:
    """With `context.abort` each of them would keep its megabyte until the collector comes by."""

    async def refused(channel: grpc.aio.Channel) -> None:
        call = mix_pb2_grpc.MixStub(channel).Submit(timeout=RPC_S)
        await call.write(mix_pb2.SubmitFrame(chunk=bytes(MB)))
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
        assert await call.details() == "not here"

    async def scene() -> int:
        async with serving() as (_, address), party("silo-1").channel("mix-1", address) as channel:
            for _ in range(20):
                await refused(channel)
            before = resident()
            for _ in range(200):  # more than a connection may have at once
                await refused(channel)
            return resident() - before

    assert run(scene()) < 60 * MB


def test_a_call_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limits, "FIRST_MESSAGE_S", 0.2)

    async def scene() -> grpc.StatusCode:
        async with serving() as (_, address), party("silo-1").channel("mix-1", address) as channel:
            prepare = channel.stream_unary(
                "/silomix.v1.Mix/Prepare", mix_pb2.PrepareRequest.SerializeToString, None
            )
            return await prepare(timeout=RPC_S).code()

    assert run(scene()) is grpc.StatusCode.DEADLINE_EXCEEDED


def test_strangers_share_the_places_of_calls_whose_message_is_to_come() -> None:
    """Each may hold a message of the largest size: at an inspected address anybody can call."""
    limits = replace(LIMITS, awaited=2)

    async def scene() -> list[tuple[grpc.StatusCode, str]]:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        identity = party("mix-1", serves=True)
        server = identity.server(addresses[0], inspected=addresses[1], limits=limits)
        mix_pb2_grpc.add_MixServicer_to_server(Counter(), server)
        await server.start()
        stranger = grpc.ssl_channel_credentials(identity.authority)
        name = [("grpc.ssl_target_name_override", dialled_name("mix-1"))]
        try:
            async with grpc.aio.secure_channel(addresses[1], stranger, options=name) as channel:
                silent = channel.stream_unary("/silomix.v1.Mix/Prepare")
                waiting = [silent(timeout=RPC_S) for _ in range(2)]
                for call in waiting:
                    await call.wait_for_connection()
                heard = []
                for _ in range(3):
                    call = channel.unary_unary("/silomix.v1.Mix/Prepare")(b"", timeout=RPC_S)
                    heard.append((await call.code(), await call.details()))
                    for each in waiting:
                        each.cancel()
            async with party("silo-1").channel("mix-1", addresses[0]) as channel:
                call = channel.unary_unary("/silomix.v1.Mix/Prepare")(b"", timeout=RPC_S)
                heard.append((await call.code(), ""))
        finally:
            await server.stop(None)
        return heard

    refused, *later, certified = run(scene())
    assert refused == (EXHAUSTED, "too many calls of strangers")
    assert later[-1][0] is grpc.StatusCode.UNKNOWN  # `Counter` failed: it was let in
    assert certified[0] is grpc.StatusCode.UNKNOWN


def test_what_cannot_be_read_and_what_fails_is_refused_without_a_word_about_us() -> None:
    async def scene() -> list[tuple[grpc.StatusCode, str]]:
        async with serving() as (_, address), party("silo-1").channel("mix-1", address) as channel:
            heard = []
            for content in (b"\xff\xff", b""):
                call = channel.unary_unary("/silomix.v1.Mix/Prepare")(content, timeout=RPC_S)
                heard.append((await call.code(), await call.details()))
            return heard

    unreadable, failed = run(scene())
    assert unreadable == (grpc.StatusCode.INVALID_ARGUMENT, "a message that cannot be read")
    assert failed[0] is grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize(
    ("peer", "origin"),
    [
        ("ipv4:10.0.0.7:4321", "10.0.0.7"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:4321", "10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4321", "2001:db8:1:2::/64"),
        ("unix:/run/socket", "unix:/run/socket"),
    ],
)
def test_where_a_call_comes_from(peer: str, origin: str) -> None:
    assert call_limits._origin(peer) == origin
