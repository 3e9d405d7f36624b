"""A gRPC channel that outlives its certificate.

A channel keeps the credentials that it was made with.  This one asks before every call whether the
party's certificate is still the same; if not, the call goes out on a new channel, while calls that
are under way finish on the old one.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import grpc
import grpc.aio

_LOOK_S = 0.2  # between two looks at the calls of a channel that was replaced


class LiveChannel(grpc.aio.Channel):
    """A channel that is dialled anew whenever the party's certificate has changed.

    `dial` makes a channel with the certificate as it is now, `version` changes when it does;
    `refusal` says why the party at the other end must not be called, if so.
    """

    def __init__(
        self,
        dial: Callable[[], grpc.aio.Channel],
        version: Callable[[], object],
        refusal: Callable[[], str | None],
    ) -> None:
        self._dial, self._version, self._refusal = dial, version, refusal
        self._dialled_with = version()
        self._current = _Connection(dial())
        self._retiring: set[asyncio.Task[None]] = set()

    def _connection(self) -> "_Connection":
        if (version := self._version()) != self._dialled_with:
            replaced, self._current = self._current, _Connection(self._dial())
            self._dialled_with = version
            task = asyncio.get_running_loop().create_task(replaced.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        return self._current

    def _method(self, kind: str, *arguments: Any, **named: Any) -> Any:
        """What a stub calls: one callable for all connections to come."""

        def call(*request: Any, **options: Any) -> Any:
            if (reason := self._refusal()) is not None:
                raise _refused(reason)
            connection = self._connection()
            return connection.call(kind, arguments, named, request, options)

        return call

    def unary_unary(self, *arguments: Any, **named: Any) -> Any:
        return self._method("unary_unary", *arguments, **named)

    def unary_stream(self, *arguments: Any, **named: Any) -> Any:
        return self._method("unary_stream", *arguments, **named)

    def stream_unary(self, *arguments: Any, **named: Any) -> Any:
        return self._method("stream_unary", *arguments, **named)

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:
        return self._method("stream_stream", *arguments, **named)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._connection().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._connection().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._connection().channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        for task in list(self._retiring):
            task.cancel()  # closes what is left of its connection
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await self._current.channel.close(grace)

    async def __aenter__(self) -> "LiveChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Connection:
    """One channel, its methods, and the calls that are under way on it.

    The calls are held weakly: a call that nobody keeps ends, as it would on any channel.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._methods: dict[str, Callable[..., Any]] = {}
        self._calls: WeakSet[Any] = WeakSet()

    def call(
        self,
        kind: str,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        request: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        method = self._methods.get(arguments[0])
        if method is None:
            method = getattr(self.channel, kind)(*arguments, **named)
            self._methods[arguments[0]] = method
        call = method(*request, **options)
        self._calls.add(call)
        return call

    async def retire(self) -> None:
        """Close the channel when its last call has ended, or at once if this is cancelled."""
        try:
            while not all(call.done() for call in list(self._calls)):  # noqa: ASYNC110 see above
                await asyncio.sleep(_LOOK_S)
        finally:
            await self.channel.close()


def _refused(reason: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.PERMISSION_DENIED, nothing, nothing, reason)
