"""What a web server or a proxy may answer a silo: so many bytes, so long, nothing compressed.

A real TLS server on loopback that sends what each test says, as long as anybody reads.
"""

import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpcore
import pytest
from silomix_client.network import bounded_http
from silomix_client.network.bounded_http import LARGEST_ANSWER, BoundedHttp
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.connections.route import DIRECT, Proxy, Route

AUTHORITY = Authority.create("consortium", datetime.now(UTC))
SHORT_S = 1.0  # in place of 45
PATIENCE_S = 20.0

# What ends an answer that is too large: the bytes counted, or h11's own limit on a header.
TRANSPORT_ERRORS = (httpcore.NetworkError, httpcore.ProtocolError)

Sender = Callable[[socket.socket], None]


class Web:
    """A server that answers every request by `sender`; what it was asked, what it got rid of."""

    def __init__(self, listener: socket.socket, sender: Sender, context: ssl.SSLContext | None):
        self.port = listener.getsockname()[1]
        self.asked, self._sender, self._context = bytearray(), sender, context
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                stream, _ = self._listener.accept()
                with suppress(OSError):
                    stream.settimeout(PATIENCE_S)
                    if self._context is not None:
                        stream = self._context.wrap_socket(stream, server_side=True)
                    with stream:
                        while b"\r\n\r\n" not in self.asked:
                            self.asked += stream.recv(4096)
                        self._sender(stream)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/"


@contextmanager
def web(tmp_path: Path, sender: Sender, *, tls: bool = True) -> Iterator[Web]:
    issued = AUTHORITY.issue("server", ("127.0.0.1",), datetime.now(UTC), serves=True)
    (tmp_path / "crt").write_bytes(issued.certificate)
    (tmp_path / "key").write_bytes(issued.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Web(listener, sender, context if tls else None)


@contextmanager
def client(route: Route = DIRECT) -> Iterator[BoundedHttp]:
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=AUTHORITY.pem.decode("ascii"))
    with closing(BoundedHttp(trusted, route)) as asking:
        yield asking


def for_ever(start: bytes, part: bytes, pause_s: float = 0.0) -> Sender:
    """Sends the start, then parts as long as they are taken, and a while at most."""

    def send(stream: socket.socket) -> None:
        end = time.monotonic() + PATIENCE_S
        stream.sendall(start)
        while time.monotonic() < end:
            stream.sendall(part)
            time.sleep(pause_s)

    return send


def once(answer: bytes) -> Sender:
    return lambda stream: stream.sendall(answer)


OK = b"HTTP/1.1 200 OK\r\n"


def test_an_answer_that_fits_is_taken(tmp_path: Path) -> None:
    body = bytes(LARGEST_ANSWER - 1000)
    head = OK + b"content-length: %d\r\n\r\n" % len(body)
    with web(tmp_path, once(head + body)) as server, client() as asking:
        assert asking.post(server.url, {}, b"").content == body
        assert b"accept-encoding: identity\r\n" in server.asked.lower()


def test_a_compressed_answer_is_refused_before_it_is_read(tmp_path: Path) -> None:
    body = gzip.compress(bytes(2**24))
    head = OK + b"Content-Encoding: GZIP\r\ncontent-length: %d\r\n\r\n" % len(body)
    with (
        web(tmp_path, once(head + body)) as server,
        client() as asking,
        pytest.raises(httpcore.RemoteProtocolError, match="compressed"),
    ):
        asking.post(server.url, {}, b"")


CHUNK = b"1000\r\n" + bytes(4096) + b"\r\n"
ENDLESS = {
    "body": (OK + b"\r\n", bytes(4096)),
    "chunks": (OK + b"transfer-encoding: chunked\r\n\r\n", CHUNK),
    "announced": (OK + b"content-length: 9999999999\r\n\r\n", bytes(4096)),
    "headers": (OK, b"x: " + b"y" * 4096 + b"\r\n"),
    "one-header": (OK + b"x: ", b"y" * 4096),
    "informational": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
}


@pytest.mark.parametrize(("start", "part"), ENDLESS.values(), ids=ENDLESS)
def test_an_answer_without_end_is_left_where_it_becomes_too_large(
    tmp_path: Path, start: bytes, part: bytes
) -> None:
    with web(tmp_path, for_ever(start, part)) as server, client() as asking:
        began = time.monotonic()
        with pytest.raises(TRANSPORT_ERRORS):
            asking.post(server.url, {}, b"")
        assert time.monotonic() - began < PATIENCE_S / 2


DRIPPING = {
    "status": (b"HTTP/1.1 2", b"0"),
    "headers": (OK, b"x"),
    "body": (OK + b"content-length: 1000\r\n\r\n", b"x"),
}


@pytest.mark.parametrize(("start", "part"), DRIPPING.values(), ids=DRIPPING)
def test_an_answer_that_comes_byte_by_byte_ends_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes, part: bytes
) -> None:
    """Each byte comes long before the time that one step may take."""
    monkeypatch.setattr(bounded_http, "LONGEST_ANSWER_S", SHORT_S)
    with web(tmp_path, for_ever(start, part, pause_s=0.05)) as server, client() as asking:
        began = time.monotonic()
        with pytest.raises(httpcore.ReadTimeout):
            asking.post(server.url, {}, b"")
        assert SHORT_S * 0.9 < time.monotonic() - began < PATIENCE_S / 2


def test_a_proxy_that_never_ends_its_answer_costs_no_more_than_a_server(tmp_path: Path) -> None:
    with web(tmp_path, for_ever(OK, b"x: " + b"y" * 4096 + b"\r\n"), tls=False) as proxy:
        route = Route(Proxy("127.0.0.1", proxy.port))
        with client(route) as asking, pytest.raises(TRANSPORT_ERRORS):
            asking.post("https://server.example/", {}, b"")
        assert proxy.asked.startswith(b"CONNECT server.example:443 ")
