"""Flower's SuperLink with two doors: `python -m silomix_server.superlink SERVER.toml`.

Flower serves its Fleet, Control and Runtime APIs on one port, and the last two without
authentication.  Here the same application listens twice: on the fleet address, where only
/v1/fleet/ exists, and on a loopback address, where everything does.  TLS on both.

Uses flwr's `create_app` and its command-line parser (internals, hence the exact pin).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import uvicorn
from flwr.superlink.cli.flower_superlink import (
    SuperLinkLifespan,
    _parse_superlink_lifespan_config,
)
from flwr.superlink.main import create_app
from silomix_protocol import logs

from silomix_server.config import ServerConfig, load, split_address

_FLEET = "/v1/fleet/"

Scope = MutableMapping[str, Any]
Asgi = Callable[
    [Scope, Callable[..., Awaitable[Any]], Callable[..., Awaitable[None]]], Awaitable[None]
]


def only_fleet(app: Asgi) -> Asgi:
    """The application as silos see it: the Fleet API, and 404 for everything else."""

    async def door(
        scope: Scope,
        receive: Callable[..., Awaitable[Any]],
        send: Callable[..., Awaitable[None]],
    ) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] == "http" and path.startswith(_FLEET) and ".." not in path:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return door


class _Listener(uvicorn.Server):
    """A uvicorn server that leaves signals to us: two of them share one process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> None:
    config = load(Path(sys.argv[1]))
    logs.configure("superlink")
    asyncio.run(_serve(config))


async def _serve(config: ServerConfig) -> None:
    sys.argv = ["flower-superlink", *_arguments(config)]
    app = create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)
    inner = _listener(config, app, config.control_listen, "on")
    outer = _listener(config, only_fleet(app), config.fleet_listen, "off")
    loop = asyncio.get_running_loop()

    def stop() -> None:
        inner.should_exit = outer.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    logs.event("superlink_starting", fleet=config.fleet_listen, control=config.control_listen)
    try:
        await asyncio.gather(inner.serve(), outer.serve())
    finally:
        stop()


def _listener(config: ServerConfig, app: Any, address: str, lifespan: Any) -> _Listener:
    host, port = split_address(address)
    return _Listener(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            lifespan=lifespan,
            access_log=False,
            log_level="warning",
            ssl_certfile=config.folder / "tls.crt",
            ssl_keyfile=config.folder / "tls.key",
        )
    )


def _arguments(config: ServerConfig) -> list[str]:
    host, port = split_address(config.control_listen)
    return [
        *("--host", host, "--port", str(port)),
        *("--ssl-certfile", str(config.folder / "tls.crt")),
        *("--ssl-keyfile", str(config.folder / "tls.key")),
        *("--ssl-ca-certfile", str(config.folder / "ca.crt")),
        *("--database", str(config.state / "superlink.sqlite")),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(config.state / "superexec.secret")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


if __name__ == "__main__":
    main()
