"""HTTP answers from outside that cost little: so many bytes, so many seconds, nothing compressed.

Counted where bytes come in, before anything is made of them: a status line, headers, the answer of
a proxy to CONNECT and a body that never ends all count.  What a server may send as much as it likes
of, one byte at a time, ends at the deadline of its request.
"""

import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpcore
from silomix_protocol.connections.route import Proxy, Route

LARGEST_ANSWER = 2**18  # bytes: the largest honest one, a lease, has a few thousand
LONGEST_ANSWER_S = 45.0  # from the first byte that is sent to the last that comes back
STEP_S = 30.0  # without a byte
_IDLE_S = 5.0  # a connection that nobody uses is closed before the server does it
_IDENTITY = b"identity"

Headers = list[tuple[bytes | str, bytes | str]]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    content: bytes


class BoundedHttp:
    """Requests that take this route and no other, and whose answers are bounded."""

    def __init__(self, trusted: ssl.SSLContext, route: Route) -> None:
        self._meter = _Meter()
        self._pool = httpcore.ConnectionPool(
            ssl_context=trusted,
            proxy=None if route.proxy is None else _dialled(route.proxy),
            keepalive_expiry=_IDLE_S,
            network_backend=_Network(self._meter),
        )

    def post(
        self, url: str, headers: Mapping[str, str], content: bytes, step_s: float = STEP_S
    ) -> HttpAnswer:
        """Send a request and take its answer, of whatever status."""
        sent: Headers = [*headers.items(), ("accept-encoding", _IDENTITY)]
        steps = dict.fromkeys(("connect", "read", "write", "pool"), step_s)
        self._meter.begin()
        with self._pool.stream(
            "POST", url, headers=sent, content=content, extensions={"timeout": steps}
        ) as response:
            for name, value in response.headers:
                if name.lower() == b"content-encoding" and value.strip().lower() != _IDENTITY:
                    raise httpcore.RemoteProtocolError(
                        "a compressed answer, which nobody asked for"
                    )
            return HttpAnswer(response.status, response.read())

    def close(self) -> None:
        self._pool.close()


def _dialled(proxy: Proxy) -> httpcore.Proxy:
    login = proxy.authorization
    headers: Headers = [] if login is None else [("Proxy-Authorization", login)]
    return httpcore.Proxy(f"http://{proxy.address}", headers=headers)


class _Meter(threading.local):
    """The bytes and the time that the request of this thread may still take."""

    left = 0  # bytes
    end = 0.0

    def begin(self) -> None:
        self.left, self.end = LARGEST_ANSWER, time.monotonic() + LONGEST_ANSWER_S

    def seconds(self, wanted: float | None) -> float:
        """How long the next step may take."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout(f"no whole answer within {LONGEST_ANSWER_S:g} s")
        return left if wanted is None else min(left, wanted)

    def count(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise httpcore.ReadError(f"an answer of more than {LARGEST_ANSWER} bytes")


class _Network(httpcore.NetworkBackend):
    """The ordinary network backend, with the meter on every connection."""

    def __init__(self, meter: _Meter) -> None:
        self._plain, self._meter = httpcore.SyncBackend(), meter

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        within = self._meter.seconds(timeout)
        stream = self._plain.connect_tcp(host, port, within, local_address, socket_options)
        return _Stream(stream, self._meter)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, meter: _Meter) -> None:
        self._stream, self._meter = stream, meter

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        content = self._stream.read(max_bytes, self._meter.seconds(timeout))
        self._meter.count(len(content))
        return content

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._meter.seconds(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        within = self._meter.seconds(timeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, within), self._meter)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
