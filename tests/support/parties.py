"""The parties that a silo talks to, in a process of their own, outside of any study.

Round channel, first mix and the door of Flower's Fleet API are the real ones, with the
consortium's certificates; behind the Fleet door is nothing.  They answer greetings.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from silomix_core.toml_table import split_address
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2_grpc
from silomix_protocol.connections.introduction import Door
from silomix_protocol.connections.tls import Identity
from silomix_protocol.keys import SigningKey
from silomix_server.flower.superlink import Receive, Scope, Send, only_fleet
from silomix_server.silos.round_channel import RoundChannel

from support.children import child
from support.coordinators import frame_reader
from support.mixes import mix_serving

READY = "parties are there"


@contextmanager
def greeters(made: Consortium, *, inspected: bool = False) -> Iterator[None]:
    """Server and first mix of this consortium; ended with the block."""
    process = child("parties", "serve", str(made.folder), inspected)
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        assert any(READY in line for line in lines), process.communicate()
        yield
    finally:
        process.kill()
        process.communicate()


def serve(folder: str, inspected: bool) -> None:
    """What the process does: until it is killed."""
    from support.silos import consortium_of_folder

    asyncio.run(_serve(consortium_of_folder(Path(folder)), inspected))


async def _serve(made: Consortium, inspected: bool) -> None:
    study, state = made.study, made.server.parent / "state"
    state.mkdir(exist_ok=True)
    own = Identity.load("server", made.server.parent)
    sign_key = SigningKey.load(made.server.parent / "sign.key")
    door = Door("server", own.authority, (study,) if inspected else ())
    reader = frame_reader(made, state)
    address = study.server.channel_address
    server = own.server(address, inspected=beside(address) if inspected else None)
    channel = RoundChannel(study, reader, door, sign_key)
    channel_pb2_grpc.add_RoundChannelServicer_to_server(channel, server)
    await server.start()
    async with mix_serving(made, 0, inspected=inspected):
        host, port = split_address(study.server.fleet_address)
        fleet = uvicorn.Server(
            uvicorn.Config(
                only_fleet(_nothing),
                host=host,
                port=port,
                log_level="warning",
                lifespan="off",
                ssl_certfile=made.server.parent / "tls.crt",
                ssl_keyfile=made.server.parent / "tls.key",
            )
        )
        serving = asyncio.create_task(fleet.serve())
        while not fleet.started:  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(0.01)
        print(READY)
        sys.stdout.flush()
        await serving


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def beside(address: str) -> str:
    """Where a party takes introductions in tests: the same port of another loopback address."""
    host, port = split_address(address)
    assert host == "127.0.0.1"
    return f"127.0.0.2:{port}"
