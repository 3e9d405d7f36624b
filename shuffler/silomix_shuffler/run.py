"""`silomix mix run`: builds one mix from its folder and serves until it is told to stop."""

import asyncio
import signal
from pathlib import Path

from silomix_proto import mix_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.keys import SealKey, SigningKey, check_public_keys
from silomix_protocol.tls import Identity

from silomix_shuffler.config import InvalidConfig, MixConfig
from silomix_shuffler.register import RoundRegister
from silomix_shuffler.rounds import Rounds
from silomix_shuffler.service import MixService

_GRACE_S = 1.0


def run(config: MixConfig) -> None:
    logs.configure(config.name)
    asyncio.run(_serve(config))


async def _serve(config: MixConfig) -> None:
    identity = Identity.load(config.name, config.folder)
    sign_key = SigningKey.load(config.folder / "sign.key")
    seal_key = SealKey.load(config.folder / "seal.key")
    _check_keys(config, sign_key, seal_key)
    rounds = Rounds(
        identity,
        config.studies,
        sign_key,
        seal_key,
        RoundRegister(_state(config.folder) / "rounds.sqlite"),
        config.grace_s,
    )
    service = MixService(rounds, sign_key, config.studies)
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
    await rounds.close()
    logs.event("mix_stopped")


def _check_keys(config: MixConfig, sign_key: SigningKey, seal_key: SealKey) -> None:
    """A study that lists other keys for this mix would lose every batch: say so at the start."""
    for study in config.studies:
        check_public_keys(study)
        (own,) = (mix for mix in study.mixes if mix.name == config.name)
        if (own.sign_key, own.seal_key) != (sign_key.public, seal_key.public):
            raise InvalidConfig(f"study {study.short_id} lists other keys for {config.name!r}")


def _state(folder: Path) -> Path:
    state = folder / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    return state
