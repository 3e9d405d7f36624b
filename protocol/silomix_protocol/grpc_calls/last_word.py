"""A patch of grpc.aio: a refusal that meets our own write keeps its code and its sentence.

grpc.aio up to 1.80 forgets them: when a message cannot be sent any more because the peer has ended
the call, it makes up the status INTERNAL, though the peer's own is under way.  A silo would not
learn why a mix refuses it.  With `keep`, a write that comes too late is lost without a word, and
the next `read` tells what the peer still said and how it ended the call.  (Not the write itself:
the status comes behind messages that nobody has read yet.)  grpcio is pinned for it, and
tests/protocol/grpc_calls/test_last_word.py shows what is promised.
"""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _call


def keep() -> None:
    """Patch grpc.aio for all calls of this process, from now on."""
    _call._StreamRequestMixin.write = _write  # type: ignore[method-assign]
    _call._StreamRequestMixin._write = _send  # type: ignore[method-assign]


class _TooLate(grpc.aio.AioRpcError):
    """The peer has ended the call; whoever iterates over messages to send stops here."""

    def __init__(self) -> None:
        nothing = grpc.aio.Metadata()
        super().__init__(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "the call is over")


async def _write(self: Any, request: object) -> None:
    self._raise_for_different_style(_call._APIStyle.READER_WRITER)
    with suppress(_TooLate):
        await self._write(request)


async def _send(self: Any, request: object) -> None:
    """Send a message as grpc.aio does, but raise `_TooLate` if the peer has ended the call."""
    if self.done():
        if not self.cancelled():
            await self._raise_for_status()
        raise asyncio.InvalidStateError("the call is over")
    if self._done_writing_flag:
        raise asyncio.InvalidStateError("this side has ended the call")
    if not self._metadata_sent.is_set():
        await self._metadata_sent.wait()
        if self.done():
            await self._raise_for_status()
    serialize = self._request_serializer
    message = request if serialize is None else serialize(request)
    try:
        await self._cython_call.send_serialized_message(message)
    except cygrpc.InternalError as error:
        raise _TooLate from error
    except asyncio.CancelledError:
        if not self.cancelled():
            self.cancel()
        raise
