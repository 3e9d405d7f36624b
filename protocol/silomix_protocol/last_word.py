"""A refusal that meets our own write keeps its code and its sentence.

grpc.aio up to 1.80 forgets them: when a message cannot be sent any more because the peer has ended
the call, it makes up the status INTERNAL instead of waiting for the peer's, which is under way.  A
silo would not learn why a mix refuses it.  `keep` puts that right for every call of this process;
grpcio is pinned for it, and tests/protocol/test_last_word.py shows what is promised.
"""

import asyncio
from typing import Any

from grpc._cython import cygrpc
from grpc.aio import _call


def keep() -> None:
    """From now on a write that comes too late raises what the peer said."""
    _call._StreamRequestMixin._write = _write  # type: ignore[method-assign]


async def _write(self: Any, request: object) -> None:
    """As grpc.aio's own, but for what is said of a call that is over."""
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
    except cygrpc.InternalError:
        await self._raise_for_status()  # of the peer, or UNAVAILABLE if its connection is gone
    except asyncio.CancelledError:
        if not self.cancelled():
            self.cancel()
        raise
