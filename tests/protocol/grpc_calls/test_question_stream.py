"""Questions in turn over one stream: answers in order, refusals, a peer that comes back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from silomix_protocol.grpc_calls.question_stream import Asking

LIMIT_S = 20.0
Answering = Callable[[bytes, Any], Awaitable[bytes]]


class Peer:
    """Answers each question, and counts the streams that were opened for them."""

    def __init__(self, answer: Answering) -> None:
        self.streams, self._answer = 0, answer

    async def ask(self, questions: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.streams += 1
        async for question in questions:
            yield await self._answer(question, context)


@asynccontextmanager
async def serving(peer: Peer, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server()
    handlers = {"Ask": grpc.stream_stream_rpc_method_handler(peer.ask)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peer", handlers),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def asking(port: int) -> AsyncIterator[Asking[bytes, bytes]]:
    options = [("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 100)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield Asking(channel.stream_stream("/peer/Ask"))


def run(scene: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scene

    asyncio.run(limited())


async def echo(question: bytes, context: Any) -> bytes:
    if question == b"refuse":
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
    return question.upper()


async def code_of(work: Awaitable[bytes]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await work
    return refused.value.code()


async def answer_or_code(peer: Asking[bytes, bytes], question: bytes) -> bytes | grpc.StatusCode:
    try:
        return await peer.ask(question, LIMIT_S)
    except grpc.aio.AioRpcError as error:
        return error.code()


def test_every_question_gets_its_own_answer_on_one_stream() -> None:
    async def scene() -> None:
        peer = Peer(echo)
        async with serving(peer) as port, asking(port) as peer_asked:
            words = [b"one", b"two", b"three", b"four"]
            answers = await asyncio.gather(*(peer_asked.ask(word, LIMIT_S) for word in words))
            assert answers == [b"ONE", b"TWO", b"THREE", b"FOUR"]
            assert peer.streams == 1

    run(scene())


def test_a_refusal_has_its_code_and_the_next_question_is_answered() -> None:
    async def scene() -> None:
        peer = Peer(echo)
        async with serving(peer) as port, asking(port) as peer_asked:
            assert await peer_asked.ask(b"one", LIMIT_S) == b"ONE"
            refused = grpc.StatusCode.FAILED_PRECONDITION
            assert await code_of(peer_asked.ask(b"refuse", LIMIT_S)) is refused
            assert await peer_asked.ask(b"two", LIMIT_S) == b"TWO"
            assert peer.streams == 2

    run(scene())


def test_a_late_answer_is_not_taken_for_that_of_the_next_question() -> None:
    async def scene() -> None:
        allowed = asyncio.Event()

        async def slow(question: bytes, _: Any) -> bytes:
            if question == b"slow":
                await allowed.wait()
            return question.upper()

        async with serving(Peer(slow)) as port, asking(port) as peer_asked:
            with pytest.raises(TimeoutError):
                await peer_asked.ask(b"slow", 0.1)
            allowed.set()
            assert await peer_asked.ask(b"next", LIMIT_S) == b"NEXT"

    run(scene())


def test_a_peer_that_was_restarted_is_asked_on_a_new_stream() -> None:
    """At most one question notices: it fails as a call to a dead peer does, and may be repeated."""

    async def scene() -> None:
        async with serving(Peer(echo)) as port:
            pass
        async with asking(port) as peer_asked:
            async with serving(Peer(echo), port):
                assert await peer_asked.ask(b"one", LIMIT_S) == b"ONE"
            async with serving(Peer(echo), port):
                first, second = [await answer_or_code(peer_asked, b"two") for _ in range(2)]
                assert first in (b"TWO", grpc.StatusCode.UNAVAILABLE)
                assert second == b"TWO"

    run(scene())


def test_nobody_there_is_a_timeout() -> None:
    async def scene() -> None:
        async with serving(Peer(echo)) as port:
            pass
        async with asking(port) as peer_asked:
            with pytest.raises(TimeoutError):
                await peer_asked.ask(b"one", 0.2)

    run(scene())
