"""What a peer says when it ends a call under our own write."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from silomix_protocol.grpc_calls import last_word

CALLS = 200  # grpc.aio alone makes up INTERNAL in about half of them
DENIED = grpc.StatusCode.PERMISSION_DENIED


async def refuse(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    await context.abort(DENIED, "you are not in the study")
    yield b""


async def leave(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Ends the call without an answer, and without a reproach."""
    for answer in ():
        yield answer


async def tell_and_leave(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Says something that is read only after the call has ended."""
    yield b"one"
    yield b"two"


@asynccontextmanager
async def peer() -> AsyncIterator[grpc.aio.Channel]:
    last_word.keep()
    server = grpc.aio.server()
    handlers = {
        "Refuse": grpc.stream_stream_rpc_method_handler(refuse),
        "Leave": grpc.stream_stream_rpc_method_handler(leave),
        "Tell": grpc.stream_stream_rpc_method_handler(tell_and_leave),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peer", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


def run(scene: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(60), peer() as channel:
            return await scene(channel)

    return asyncio.run(limited())


async def answered(call: Any) -> Any:
    """What comes back when more was sent than the peer waits for."""
    for _ in range(4):
        await call.write(bytes(2000))
    return await call.read()


def test_a_refusal_that_meets_a_write_keeps_its_code_and_sentence() -> None:
    async def scene(channel: grpc.aio.Channel) -> Counter[tuple[grpc.StatusCode, str | None]]:
        heard: Counter[tuple[grpc.StatusCode, str | None]] = Counter()
        for _ in range(CALLS):
            call = channel.stream_stream("/peer/Refuse")(wait_for_ready=True)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await answered(call)
            heard[refused.value.code(), refused.value.details()] += 1
        return heard

    assert run(scene) == {(DENIED, "you are not in the study"): CALLS}


def test_it_is_so_for_messages_from_an_iterator() -> None:
    async def scene(channel: grpc.aio.Channel) -> Counter[grpc.StatusCode]:
        heard: Counter[grpc.StatusCode] = Counter()
        for _ in range(CALLS):
            call = channel.stream_stream("/peer/Refuse")(iter([bytes(2000)] * 4))
            heard[await call.code()] += 1
        return heard

    assert run(scene) == {DENIED: CALLS}


def test_a_call_that_the_peer_ended_in_peace_is_over_and_no_error() -> None:
    async def scene(channel: grpc.aio.Channel) -> None:
        for _ in range(CALLS):
            call = channel.stream_stream("/peer/Leave")(wait_for_ready=True)
            try:
                for _ in range(4):
                    await call.write(bytes(2000))
            except asyncio.InvalidStateError:
                pass  # it knew already that the call is over
            assert await call.read() is grpc.aio.EOF

    run(scene)


def test_what_was_said_before_the_end_is_heard_after_a_write_that_came_too_late() -> None:
    async def scene(channel: grpc.aio.Channel) -> None:
        for _ in range(CALLS):
            call = channel.stream_stream("/peer/Tell")(wait_for_ready=True)
            heard = [await call.read()]
            for _ in range(4):
                await call.write(bytes(2000))
            heard += [await call.read(), await call.read()]
            assert heard == [b"one", b"two", grpc.aio.EOF]

    run(scene)


def test_a_cancelled_write_ends_the_call() -> None:
    async def scene(channel: grpc.aio.Channel) -> bool:
        call = channel.stream_stream("/peer/Leave")(wait_for_ready=True)
        call.cancel()
        with pytest.raises((asyncio.InvalidStateError, asyncio.CancelledError)):
            await call.write(b"too late")
        return bool(call.cancelled())

    assert run(scene)
