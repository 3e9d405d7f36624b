"""Flower's SuperLink with two doors: `python -m silomix_server.flower.superlink SERVER.toml`.

Flower serves its Fleet, Control and Runtime APIs on one port, the Control API without
authentication.  Here the same application listens twice: on the fleet address, where only
/v1/fleet/ exists, and on a loopback address, where everything does but the Control API asks for a
secret that only this user can read.  TLS on both.
"""

import asyncio
import os
import signal
import sys
from collections.abc import MutableMapping
from hmac import compare_digest
from pathlib import Path
from typing import Any

from silomix_core.toml_table import split_address

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import uvicorn
from silomix_protocol.certificates.files import CERTIFICATE, KEY, CertificateFiles
from silomix_protocol.host import logs
from silomix_protocol.host.file_descriptors import connections
from silomix_protocol.keys import read_secret

from silomix_server.config import CONTROL_HEADER, ServerConfig, load
from silomix_server.flower.child_processes import end_with_parent
from silomix_server.flower.doorkeeper import Asgi, Doorkeeper, Receive, Send, Terms
from silomix_server.flower.flower_state import DATABASE
from silomix_server.flower.inside_flower import superlink_app

_FLEET = "/v1/fleet/"
_CONTROL = "/v1/control/"
_LARGEST_BODY = 2**20  # a silo's largest Flower message is its reply to a lease
_LARGEST_HEAD = 2**16
_UNEARNED_S = 30.0  # for handshake, headers, body and answer; a silo asks every 2 s, or hangs up
_CONNECTIONS, _FROM_ONE = 2048, 512  # a silo has up to three; hospitals may share an address
_INNER = Terms(connections=64, from_one=64, unearned_s=60.0, unearned_bytes=64 * 2**20)
_FAREWELL_S = 5  # for requests that are under way when the server stops
_LOOK_S = 1.0  # between two looks whether the certificate was renewed
_IDLE_S = 75  # clients close idle connections after 5: never under a request that is on its way

Scope = MutableMapping[str, Any]


def only_fleet(app: Asgi) -> Asgi:
    """The application as silos see it: the Fleet API with small bodies, 404 for everything else."""

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] != "http":
            return
        if not path.startswith(_FLEET) or ".." in path:
            await _answer(send, 404)
            return
        body = await _small_body(receive)
        if body is None:
            await _answer(send, 413)
            return
        await app(scope, _replay(body, receive), send)

    return door


def with_secret(app: Asgi, secret: bytes) -> Asgi:
    """The application as this machine sees it: the Control API only with the secret."""

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and str(scope["path"]).startswith(_CONTROL):
            shown = dict(scope["headers"]).get(CONTROL_HEADER.encode("ascii"), b"")
            if not compare_digest(shown, secret.hex().encode("ascii")):
                await _answer(send, 403)
                return
        await app(scope, receive, send)

    return door


async def _answer(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _small_body(receive: Receive) -> bytes | None:
    """The request's body, read before Flower reads it without a limit; None if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > _LARGEST_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then whatever comes after it."""
    given = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def main() -> None:
    end_with_parent()
    config = load(Path(sys.argv[1]))
    logs.configure("superlink")
    asyncio.run(_serve(config))


async def _serve(config: ServerConfig) -> None:
    app = superlink_app(_arguments(config))
    secret = read_secret(config.control_secret, 32)
    inner = _door(config, with_secret(app, secret), config.control_listen, "on", _INNER)
    outer = _door(config, only_fleet(app), config.fleet_listen, "off", _outer_terms())
    loop = asyncio.get_running_loop()

    def stop() -> None:
        inner.should_exit = outer.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    logs.event("superlink_starting", fleet=config.fleet_listen, control=config.control_listen)
    following = asyncio.create_task(_follow_certificate(config, (inner, outer)))
    try:
        await asyncio.gather(inner.serve(), outer.serve())
    finally:
        following.cancel()
        stop()


def _outer_terms() -> Terms:
    most = connections(_CONNECTIONS)
    return Terms(most, min(_FROM_ONE, most), _UNEARNED_S, _LARGEST_HEAD + _LARGEST_BODY)


async def _follow_certificate(config: ServerConfig, listeners: tuple[Doorkeeper, ...]) -> None:
    """Show a renewed certificate from the next connection on; open ones stay as they are.

    An SSL context may be given another certificate while it is in use.
    """
    files = CertificateFiles(config.folder)
    version = files.version
    while True:
        await asyncio.sleep(_LOOK_S)
        if files.version == version:
            continue
        if not files.settled:  # the key follows its certificate by a moment
            continue
        version = files.version
        for listener in listeners:
            if listener.config.ssl is not None:
                listener.config.ssl.load_cert_chain(
                    config.folder / CERTIFICATE, config.folder / KEY
                )
        logs.event("certificate_loaded")


def _door(config: ServerConfig, app: Asgi, address: str, lifespan: Any, terms: Terms) -> Doorkeeper:
    host, port = split_address(address)
    listening = uvicorn.Config(
        app,
        host=host,
        port=port,
        lifespan=lifespan,
        ws="none",
        access_log=False,
        log_level="error",  # what strangers send is no news
        proxy_headers=False,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_FAREWELL_S,
        ssl_certfile=config.folder / CERTIFICATE,
        ssl_keyfile=config.folder / KEY,
    )
    listening.load()  # makes its SSL context
    keeper = Doorkeeper(listening, terms)
    listening.loaded_app = keeper.earning(listening.loaded_app)
    return keeper


def _arguments(config: ServerConfig) -> list[str]:
    host, port = split_address(config.control_listen)
    return [
        *("--host", host, "--port", str(port)),
        *("--ssl-certfile", str(config.folder / "tls.crt")),
        *("--ssl-keyfile", str(config.folder / "tls.key")),
        *("--ssl-ca-certfile", str(config.folder / "ca.crt")),
        *("--database", str(config.state / DATABASE)),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(config.task_secret)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


if __name__ == "__main__":
    main()
