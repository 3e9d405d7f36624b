"""A doorkeeper of the SuperLink: limits connections in all, from one address, and idle ones.

uvicorn accepts whoever comes and waits as long as it takes, for a handshake, for headers, for a
body.  The doorkeeper accepts instead, before TLS.  A connection *earns* its place by a successful
answer, which Flower gives to silos that sign; one that earned nothing for a while is closed, and
one that never did makes room, oldest first, when somebody new finds the door full.  So whoever
holds connections without a key holds them only as long as nobody else wants to come in.
"""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from silomix_protocol.host import logs
from silomix_protocol.host.origin import origin_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

_HANDSHAKE_S = 10.0
_LOOK_S = 1.0  # between two looks for connections that earned nothing
_PAUSE_S = 0.1  # when the system has no descriptor left
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits of a door."""

    connections: int
    from_one: int  # connections from one address, or IPv6 network
    unearned_s: float  # from one successful answer to the next
    unearned_bytes: int


@dataclass(eq=False, slots=True)
class _Guest:
    """A connection, from the moment it is accepted."""

    origin: str
    peer: tuple[str, int]
    last: float = field(default_factory=time.monotonic)  # when it came, or last earned
    earned: bool = False
    bytes: int = 0
    transport: asyncio.Transport | None = None  # None until the TLS handshake is done
    greeting: "asyncio.Task[None] | None" = None

    def send_away(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()


class Doorkeeper(uvicorn.Server):
    """A uvicorn server behind its door; it leaves signals to us, as two share one process."""

    def __init__(self, config: uvicorn.Config, terms: Terms) -> None:
        super().__init__(config)
        self._terms = terms
        self._guests: dict[tuple[str, int], _Guest] = {}  # by peer, in the order they came
        self._from: Counter[str] = Counter()
        self._work: list[asyncio.Task[None]] = []
        self._protocol = _counted(config.http_protocol_class, self)

    def capture_signals(self) -> Any:
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        listeners = sockets or await _listeners(self.config.host, self.config.port)
        await super().startup(sockets=[])  # uvicorn itself opens no socket
        if not self.started:
            for listener in listeners:
                listener.close()
            return
        self._work = [asyncio.create_task(self._accept(each)) for each in listeners]
        self._work.append(asyncio.create_task(self._look_around()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        for guest in [each for each in self._guests.values() if not each.earned]:
            guest.send_away()
        await super().shutdown(sockets=sockets)

    # Coming in ----------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, peer = await loop.sock_accept(listener)
                except OSError as error:
                    logs.warning("connections_not_accepted", reason=error.strerror)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                guest = _Guest(origin_of(peer[0]), (peer[0], peer[1]))
                if self._has_room(guest.origin):
                    self._guests[guest.peer] = guest
                    self._from[guest.origin] += 1
                    guest.greeting = asyncio.create_task(self._greet(guest, connection))
                else:
                    connection.close()
                await asyncio.sleep(0)  # connections that are in go on meanwhile

    def _has_room(self, origin: str) -> bool:
        """Whether one more from `origin` may come in, maybe in place of one that earned nothing."""
        if self._from[origin] >= self._terms.from_one and not self._make_room(origin):
            return False
        return len(self._guests) < self._terms.connections or self._make_room(None)

    def _make_room(self, origin: str | None) -> bool:
        idle = (
            guest
            for guest in self._guests.values()
            if not guest.earned and origin in (None, guest.origin)
        )
        guest = next(idle, None)
        if guest is None:
            return False
        guest.send_away()
        self._forget(guest)
        return True

    async def _greet(self, guest: _Guest, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            guest.transport, _ = await loop.connect_accepted_socket(
                lambda: self._protocol(guest),
                connection,
                ssl=self.config.ssl,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError):  # no TLS, too slow, or sent away
            self._forget(guest)
            connection.close()

    def _forget(self, guest: _Guest) -> None:
        if self._guests.get(guest.peer) is guest:
            del self._guests[guest.peer]
            self._from[guest.origin] -= 1
            if not self._from[guest.origin]:
                del self._from[guest.origin]

    # Staying ------------------------------------------------------------------------------------

    def earning(self, app: Asgi) -> Asgi:
        """The application, with every successful answer credited to its connection."""

        async def door(scope: Message, receive: Receive, send: Send) -> None:
            async def watched(message: Message) -> None:
                if message["type"] == "http.response.start" and message["status"] < 300:
                    self._earn(scope.get("client"))
                await send(message)

            await app(scope, receive, watched)

        return door

    def _earn(self, peer: Any) -> None:
        guest = self._guests.get(tuple(peer or ()))
        if guest is not None:
            guest.last, guest.earned, guest.bytes = time.monotonic(), True, 0

    def takes(self, guest: _Guest, size: int) -> bool:
        """Whether `size` more bytes are taken; a connection that sends too many is closed."""
        guest.bytes += size
        if guest.bytes <= self._terms.unearned_bytes:
            return True
        guest.send_away()
        return False

    def left(self, guest: _Guest) -> None:
        self._forget(guest)

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            oldest = time.monotonic() - self._terms.unearned_s
            for guest in [each for each in self._guests.values() if each.last < oldest]:
                guest.send_away()


def _counted(base: Any, keeper: Doorkeeper) -> Callable[[_Guest], asyncio.Protocol]:
    """A factory of uvicorn's protocol that tells the keeper of bytes received and the end."""

    class Counted(base):  # type: ignore[misc]
        guest: _Guest

        def data_received(self, data: bytes) -> None:
            if keeper.takes(self.guest, len(data)):
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            keeper.left(self.guest)
            super().connection_lost(exc)

    def made(guest: _Guest) -> asyncio.Protocol:
        protocol: Any = Counted(
            config=keeper.config,
            server_state=keeper.server_state,
            app_state=keeper.lifespan.state,
        )
        protocol.guest = guest
        return protocol  # type: ignore[no-any-return]

    return made


async def _listeners(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made = []
    for family, address in dict.fromkeys((each[0], each[4]) for each in found):
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        made.append(listener)
    return made
