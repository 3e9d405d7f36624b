"""Counters for Prometheus and a health check, over HTTP on an address of the operator's choice.

No label names a silo: a counter by sender and time would tell whose report is whose.
"""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from silomix_core.toml_table import split_address
from silomix_protocol.connections.tls import CannotListen

Health = Callable[[], list[str]]  # what is wrong now; empty if all is well
_MOST_CALLERS = 16  # at once; each takes a thread
_CALL_S = 5.0  # for a whole request and its answer


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # when the first report of a kind came is nobody's business
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.reports = self._counter("reports", "Reports by what became of them", "outcome")
        self.refused = self._counter("refused", "Calls and reports refused", "reason")
        self.batches = self._counter("batches", "Batches by what became of them", "outcome")
        self.rounds_open = Gauge(
            "silomix_mix_rounds_open", "Rounds that are not finished", registry=self.registry
        )
        self.body_bytes = Gauge(
            "silomix_mix_body_bytes", "Bytes that open batches may take", registry=self.registry
        )

    def _counter(self, name: str, what: str, label: str) -> Counter:
        return Counter(f"silomix_mix_{name}", what, [label], registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class MetricsServer:
    """GET /metrics and GET /health, in a thread of its own."""

    def __init__(self, address: str, metrics: Metrics, health: Health) -> None:
        handler = type("_Bound", (_Handler,), {"metrics": metrics, "health": staticmethod(health)})
        try:
            self._server = _FewCallers(split_address(address), handler)
        except OSError as error:
            raise CannotListen(f"metrics_listen: cannot listen on {address}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _FewCallers(ThreadingHTTPServer):
    """Takes a bounded number of callers, each for a bounded time, however slowly they talk."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(_MOST_CALLERS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread for the caller
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = threading.Timer(_CALL_S, _hang_up, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a caller that hangs up, or is hung up on, is not news either."""


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    metrics: Metrics
    health: Health
    timeout = _CALL_S

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._reply(200, "text/plain; version=0.0.4; charset=utf-8", self.metrics.text())
        elif self.path == "/health":
            problems = self.health()
            body = {"status": "failing" if problems else "ok", "problems": problems}
            encoded = json.dumps(body).encode("utf-8") + b"\n"
            self._reply(503 if problems else 200, "application/json", encoded)
        else:
            self._reply(404, "text/plain", b"try /metrics or /health\n")

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: who reads metrics is not news."""
