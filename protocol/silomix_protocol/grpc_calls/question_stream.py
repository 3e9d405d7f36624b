"""Questions to a peer over one stream: a message in, a message out, in turn.

For what is asked in every round.  A gRPC call costs five times what a message on an open stream
does.  A refused question ends the stream with the refusal's status; the next one opens another.
"""

import asyncio
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

# The codes with which a stream ends under a question that the peer never saw.
_CUT_OFF = grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Asking(Generic[Question, Answer]):
    """Asks questions of one method of one peer, in turn."""

    def __init__(self, method: Any) -> None:
        self._method = method
        self._call: Any = None
        self._turn = asyncio.Lock()

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        """The answer; AioRpcError if it is refused or the peer is gone, TimeoutError if late."""
        async with asyncio.timeout(timeout_s), self._turn:
            call, self._call = self._call, None
            if call is None or call.done():
                call = self._method(wait_for_ready=True)
            try:
                answer: Answer = await _asked(call, question)
            except BaseException:
                call.cancel()
                raise
            self._call = call
            return answer


async def _asked(call: Any, question: object) -> Any:
    try:
        await call.write(question)
    except asyncio.InvalidStateError as error:
        raise _gone() from error
    except grpc.aio.AioRpcError as error:
        raise (_gone() if error.code() in _CUT_OFF else error) from error
    answer = await call.read()
    if answer is grpc.aio.EOF:
        raise _gone()
    return answer


def _gone() -> grpc.aio.AioRpcError:
    """The error as when nobody answers, so that the caller asks again."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, nothing, nothing, "the peer ended the stream"
    )
