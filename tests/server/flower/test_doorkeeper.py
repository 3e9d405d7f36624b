"""A door of the SuperLink: real TLS connections to a small application behind real terms."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from silomix_lab.demo.run_demo import free_ports
from silomix_protocol.certificates.certificates import Authority, dialled_name
from silomix_protocol.host.origin import origin_of
from silomix_server.flower.doorkeeper import Doorkeeper, Message, Receive, Send, Terms

TERMS = Terms(connections=8, from_one=4, unearned_s=30.0, unearned_bytes=100_000)
SLOW = b"POST /good HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
CALL_S = 20.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """200 for /good, 401 for all else, once the body is there."""
    while (await receive()).get("more_body"):
        pass
    status = 200 if scope["path"] == "/good" else 401
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Door:
    def __init__(self, port: int, trusted: ssl.SSLContext, stack: AsyncExitStack) -> None:
        self.port, self._trusted, self._stack = port, trusted, stack

    async def connected(self, source: str = "127.0.0.1") -> Stream:
        """A connection from that address, closed when the test is over."""
        connecting = asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=self._trusted,
            server_hostname=dialled_name("server"),
            local_addr=(source, 0),
        )
        stream = await asyncio.wait_for(connecting, CALL_S)
        self._stack.callback(let_go, stream[1])
        return stream

    async def slow(self, source: str = "127.0.0.1") -> Stream:
        """One whose request never ends."""
        stream = await self.connected(source)
        stream[1].write(SLOW)
        await stream[1].drain()
        return stream

    async def kept(self, source: str = "127.0.0.1") -> Stream:
        """One that earned its place."""
        stream = await self.connected(source)
        assert await asked(stream) == 200
        return stream


@asynccontextmanager
async def door(tmp_path: Path, terms: Terms = TERMS) -> AsyncIterator[Door]:
    authority = Authority.create("consortium", datetime.now(UTC))
    issued = authority.issue("server", ("127.0.0.1",), datetime.now(UTC), serves=True)
    (tmp_path / "crt").write_bytes(issued.certificate)
    (tmp_path / "key").write_bytes(issued.key)
    (port,) = free_ports(1)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        lifespan="off",
        ws="none",
        log_level="critical",
        timeout_graceful_shutdown=1,
        ssl_certfile=tmp_path / "crt",
        ssl_keyfile=tmp_path / "key",
    )
    config.load()
    keeper = Doorkeeper(config, terms)
    config.loaded_app = keeper.earning(config.loaded_app)
    serving = asyncio.create_task(keeper.serve())
    trusted = ssl.create_default_context(cadata=authority.pem.decode("ascii"))
    async with AsyncExitStack() as stack:
        while not keeper.started:  # noqa: ASYNC110 it tells nobody
            await asyncio.sleep(0.01)
        try:
            yield Door(port, trusted, stack)
        finally:
            keeper.should_exit = True
            await asyncio.wait_for(serving, CALL_S)


def let_go(writer: asyncio.StreamWriter) -> None:
    """Close it; Python 3.11 takes a TLS transport that the other side closed for an open one."""
    writer.transport.abort()
    vars(writer)["_transport"] = SimpleNamespace(is_closing=lambda: True)


async def asked(stream: Stream, path: str = "/good") -> int:
    """The status of one request on this connection."""
    reader, writer = stream
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CALL_S)
    await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), CALL_S)
    return int(head.split()[1])


async def is_closed(stream: Stream, within_s: float = CALL_S) -> bool:
    with suppress(OSError, TimeoutError):
        return await asyncio.wait_for(stream[0].read(1), within_s) == b""
    return stream[0].at_eof() or stream[1].transport.is_closing()


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 60.0))


def test_who_comes_to_a_full_door_takes_the_place_of_the_oldest_that_earned_nothing(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with door(tmp_path) as here:
            kept = await here.kept()
            slow = [await here.slow() for _ in range(3)]  # then one address has its four
            again = await here.kept()
            assert await is_closed(slow[0])
            assert not await is_closed(slow[1], 0.2)
            assert (await asked(kept), await asked(again)) == (200, 200)

    run(scene())


def test_of_connections_that_all_earned_their_place_none_is_closed_for_another(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with door(tmp_path) as here:
            kept = [await here.kept() for _ in range(4)]
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await here.kept()
            assert [await asked(each) for each in kept] == [200] * 4
            kept += [await here.kept("127.0.0.2") for _ in range(4)]  # another address
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await here.kept("127.0.0.3")  # all eight places are taken
            assert [await asked(each) for each in kept] == [200] * 8

    run(scene())


def test_connections_before_tls_count_too(tmp_path: Path) -> None:
    async def scene() -> None:
        async with door(tmp_path) as here:
            silent = [await asyncio.open_connection("127.0.0.1", here.port) for _ in range(40)]
            kept = [await here.kept() for _ in range(3)]
            assert [await asked(each) for each in kept] == [200] * 3
            closed = [await is_closed(each, 0.1) for each in silent]
            assert closed.count(False) <= 1
            for _, writer in silent:
                let_go(writer)

    run(scene())


def test_an_answer_that_is_a_refusal_earns_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with door(tmp_path) as here:
            strangers = [await here.connected() for _ in range(4)]
            assert [await asked(each, "/bad") for each in strangers] == [401] * 4
            await here.kept()
            assert await is_closed(strangers[0])

    run(scene())


@pytest.mark.parametrize("sent", [b"", b"GET /go", SLOW + b"x"], ids=["nothing", "head", "body"])
def test_a_connection_that_earns_nothing_is_closed_in_time_however_it_drips(
    tmp_path: Path, sent: bytes
) -> None:
    terms = Terms(connections=8, from_one=8, unearned_s=1.0, unearned_bytes=100_000)

    async def scene() -> None:
        async with door(tmp_path, terms) as here:
            began = time.monotonic()
            slow = await here.connected()
            slow[1].write(sent)
            while not slow[1].transport.is_closing() and time.monotonic() - began < CALL_S:
                if sent:
                    slow[1].write(b"x")
                await asyncio.sleep(0.1)
                if slow[0].at_eof():
                    break
            assert 0.9 < time.monotonic() - began < CALL_S / 2

    run(scene())


def test_a_connection_that_goes_on_earning_stays(tmp_path: Path) -> None:
    terms = Terms(connections=8, from_one=8, unearned_s=1.0, unearned_bytes=300)

    async def scene() -> None:
        async with door(tmp_path, terms) as here:
            kept = await here.kept()
            for _ in range(25):
                await asyncio.sleep(0.1)
                assert await asked(kept) == 200

    run(scene())


ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\n", b"x: " + b"y" * 1000 + b"\r\n"),
    "one-header": (b"GET / HTTP/1.1\r\nx: ", b"y" * 1000),
    "path": (b"GET /", b"y" * 1000),
    "body": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 200),
}


@pytest.mark.parametrize(("start", "part"), ENDLESS.values(), ids=ENDLESS)
def test_a_request_without_end_is_cut_off(tmp_path: Path, start: bytes, part: bytes) -> None:
    async def scene() -> None:
        async with door(tmp_path) as here:
            stream = await here.connected()
            stream[1].write(start)
            with suppress(OSError):
                for _ in range(2000):
                    stream[1].write(part)
                    await stream[1].drain()
            assert await is_closed(stream)

    run(scene())


def test_a_site_is_an_address_or_an_ipv6_network() -> None:
    assert origin_of("192.0.2.1") != origin_of("192.0.2.2")
    assert origin_of("2001:db8:1:2:3::4") == origin_of("2001:db8:1:2:ffff::1")
    assert origin_of("2001:db8:1:2::1") != origin_of("2001:db8:1:3::1")
    assert origin_of("::ffff:192.0.2.1") != origin_of("::ffff:192.0.2.2")
    assert origin_of("fe80::1%eth0") == origin_of("fe80::2%eth0")
