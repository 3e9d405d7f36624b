"""`silomix mix run`: builds one mix from its folder and serves until it is told to stop."""

import asyncio
import signal
from pathlib import Path

from silomix_proto import mix_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.keys import SealKey, SigningKey
from silomix_protocol.tls import Identity

from silomix_shuffler.config import MixConfig
from silomix_shuffler.register import RoundRegister
from silomix_shuffler.service import MixService

_GRACE_S = 1.0


def run(config: MixConfig) -> None:
    logs.configure(config.name)
    asyncio.run(_serve(config))


async def _serve(config: MixConfig) -> None:
    identity = Identity.load(config.name, config.folder)
    service = MixService(
        identity,
        config.studies,
        SigningKey.load(config.folder / "sign.key"),
        SealKey.load(config.folder / "seal.key"),
        RoundRegister(_state(config.folder) / "rounds.sqlite"),
        config.grace_s,
    )
    server = identity.server(config.listen)
    mix_pb2_grpc.add_MixServicer_to_server(service, server)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    logs.event("mix_ready", listen=config.listen, studies=len(config.studies))
    await stop.wait()
    await server.stop(_GRACE_S)
    await service.close()
    logs.event("mix_stopped")


def _state(folder: Path) -> Path:
    state = folder / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    return state
