"""Counters for Prometheus and a health check, over HTTP on an address of the operator's choice.

No label names a silo: a counter by sender and time would tell whose report is whose.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from silomix_protocol.tls import CannotListen

Health = Callable[[], list[str]]  # what is wrong now; nothing: all is well


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
        host, _, port = address.rpartition(":")
        handler = type("_Bound", (_Handler,), {"metrics": metrics, "health": staticmethod(health)})
        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), handler)
        except OSError as error:
            raise CannotListen(f"metrics_listen: cannot listen on {address}") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    metrics: Metrics
    health: Health
    timeout = 5.0

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
        """Who reads metrics is not news."""
