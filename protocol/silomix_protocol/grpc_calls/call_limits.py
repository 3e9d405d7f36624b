"""Calls at a server: how many one caller may have at once, and how a call is refused.

`context.abort` raises an error that gRPC keeps, and with it the call, its stream and every message
that was read, until Python's garbage collector comes by: hundreds of refused calls with a megabyte
each are as many megabytes, and gRPC lets no further stream in beside them.  A stream of messages
that nobody reads to its end keeps its call in the same way.  So whoever serves a call raises
`RefusedCall`, and the `Turnstile` of the server ends the call with nothing left of it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from silomix_protocol.host import logs
from silomix_protocol.host.origin import origin_of

CHUNK_BYTES = 2**20  # what one message carries of a batch or a query
FIRST_MESSAGE_S = 10.0  # from the beginning of a call to all of the one message that it has


class RefusedCall(Exception):
    """The call is refused, and ends with this code and sentence."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of a server: bytes of a message; calls at once of one party, over all its
    connections; of one address, as far as certificates name nobody; on one connection; and, of all
    callers whom no certificate names, calls whose one message is still to come (`awaited`).

    A proxy at one address may stand for many silos.
    """

    message_bytes: int
    of_a_party: int = 64
    of_an_address: int = 256
    on_a_connection: int = 64
    awaited: int = 256

    @property
    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.max_concurrent_streams", self.on_a_connection),
        ]


class Turnstile(grpc.aio.ServerInterceptor):
    """Counts every caller's calls from their first moment, and ends those that are refused.

    Every method is served as a stream, which is the same on the wire: of any other method gRPC
    would read the message, however long that takes, before anybody could refuse the call.
    """

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._under_way: Counter[str] = Counter()
        self._nameless = 0  # calls without a certificate whose one message is still to come

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not _is_served(handler):
            return handler

        async def served(request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            refusal = None
            try:
                with self._counted(context):
                    answering = self._answers(handler, request_iterator, context)
                    async with aclosing(answering) as answers:
                        async for answer in answers:
                            yield answer
            except RefusedCall as refused:
                refusal = refused.code, refused.reason
            except DecodeError:
                refusal = grpc.StatusCode.INVALID_ARGUMENT, "a message that cannot be read"
            if refusal is not None:
                context.set_code(refusal[0])
                context.set_details(refusal[1])

        return grpc.stream_stream_rpc_method_handler(
            served, handler.request_deserializer, handler.response_serializer
        )

    @contextmanager
    def _counted(self, context: Any) -> Iterator[None]:
        """Count one more call of this caller; RefusedCall if it has too many already."""
        name = certified_name(context)
        caller = f"party {name}" if name is not None else f"address {_origin(context.peer())}"
        most = self._limits.of_an_address if name is None else self._limits.of_a_party
        if self._under_way[caller] >= most:
            logs.warning("too_many_calls", caller=logs.foreign(caller), most=most)
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            raise RefusedCall(code, f"you have {most} calls here already")
        self._under_way[caller] += 1
        try:
            yield
        finally:
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]

    async def _answers(
        self, handler: Any, request_iterator: AsyncIterator[Any], context: Any
    ) -> AsyncGenerator[Any, None]:
        """The method's answers; the caller's messages are let go of at the end, read or not."""
        serve, messages = _serving(handler), aiter(request_iterator)
        try:
            request = messages
            if not handler.request_streaming:
                with self._awaited(context):
                    request = await _only(messages)
            if handler.response_streaming:
                async with aclosing(serve(request, context)) as answers:
                    async for answer in answers:
                        yield answer
            else:
                yield await serve(request, context)
        finally:
            await messages.aclose()  # type: ignore[attr-defined]  # gRPC's are a generator

    @contextmanager
    def _awaited(self, context: Any) -> Iterator[None]:
        """Hold one of the strangers' places until the one message of a call is there.

        A caller with a certificate needs none.  A silo that introduces itself needs one: what it
        says above its messages' heads, in the metadata, is believed only later.
        """
        if certified_name(context) is not None:
            yield
            return
        if self._nameless >= self._limits.awaited:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            raise RefusedCall(code, "too many calls of strangers")
        self._nameless += 1
        try:
            yield
        finally:
            self._nameless -= 1


def certified_name(context: Any) -> str | None:
    """The party that the caller's certificate names; None if it has none, or one without a name."""
    names = list(context.auth_context().get("x509_common_name", []))
    return names[0].decode("utf-8") if len(names) == 1 else None


def _serving(handler: Any) -> Any:
    return (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )


def _is_served(handler: Any) -> bool:
    """Whether this is a method of ours; what a servicer leaves out is answered by gRPC itself."""
    serve = _serving(handler)
    return iscoroutinefunction(serve) or isasyncgenfunction(serve)


async def _only(messages: AsyncIterator[Any]) -> Any:
    """The one message of a call; RefusedCall if it does not come, or not in time."""
    code, reason = grpc.StatusCode.INVALID_ARGUMENT, "nothing was asked"
    try:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            async for message in messages:
                return message
    except TimeoutError:
        code, reason = grpc.StatusCode.DEADLINE_EXCEEDED, "the question did not come in time"
    raise RefusedCall(code, reason)


def _origin(peer: str) -> str:
    """The origin of a call, by gRPC's name of its peer: an IPv4 address, or an IPv6 network."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    try:
        return origin_of(host)
    except ValueError:  # a socket of this machine
        return peer
