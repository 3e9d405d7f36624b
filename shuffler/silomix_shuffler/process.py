"""`silomix mix run`: builds one mix from its folder and serves until it is told to stop."""

import asyncio
import ctypes
import fcntl
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import uvloop
from silomix_core.study.study import Study
from silomix_proto import mix_pb2_grpc
from silomix_protocol.connections.introduction import Door
from silomix_protocol.connections.tls import PARTIES, Identity
from silomix_protocol.enrolment.renewal import Keeper
from silomix_protocol.grpc_calls.call_limits import CallLimits
from silomix_protocol.host import logs
from silomix_protocol.keys import SigningKey, check_public_keys

from silomix_shuffler.config import InvalidMixConfig, MixConfig
from silomix_shuffler.metrics import Metrics, MetricsServer
from silomix_shuffler.round.rounds import MixRounds
from silomix_shuffler.round.served_studies import place
from silomix_shuffler.service import MixService
from silomix_shuffler.storage.store import Store
from silomix_shuffler.storage.writing_thread import WritingThread

_GRACE_S = 1.0
_CALLS_OF_A_SILO = 4  # at once: it submits, greets, and may come back before we know it left
_MALLOC = {  # malloc.h
    -8: 2,  # M_ARENA_MAX: few arenas, so that freed reports are reused
    -3: 8 * 2**20,  # M_MMAP_THRESHOLD: a large report costs no fresh pages of the system,
    -1: 16 * 2**20,  # M_TRIM_THRESHOLD: nor does the next batch
}


def run(config: MixConfig) -> None:
    logs.configure(config.name)
    make_room()
    uvloop.run(_serve(config))


def rotate(config: MixConfig) -> int:
    """Throw away every key that no round uses yet; return how many rounds' keys those were.

    May be called while the mix runs: a round whose keys are gone gets new ones in its next attempt.
    """
    store = Store(config.state)
    try:
        return store.rotate()
    finally:
        store.close()


async def _serve(config: MixConfig) -> None:
    keeper = Keeper(config.folder)
    await keeper.look()  # the mix may have been switched off for long
    identity = Identity.load(config.name, config.folder)
    sign_key = SigningKey.load(config.folder / "sign.key")
    _check_keys(config, sign_key)
    store = Store(config.state)
    _lock(config)
    metrics = Metrics()
    rounds = MixRounds(
        identity,
        config.studies,
        sign_key,
        WritingThread(store),
        metrics,
        config.limits,
        config.grace_s,
    )
    is_first = any(place(study, config.name) == 0 for study in config.studies)
    server = identity.server(
        config.listen,
        many_senders=is_first,
        inspected=config.inspected_listen,
        limits=call_limits(config.studies),
    )
    introduced = config.studies if config.inspected_listen else ()
    door = Door(config.name, identity.authority, introduced)
    service = MixService(rounds, sign_key, metrics, door)
    mix_pb2_grpc.add_MixServicer_to_server(service, server)
    watch = None
    if config.metrics_listen is not None:
        watch = MetricsServer(config.metrics_listen, metrics, rounds.problems)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await rounds.restore()
    await server.start()
    if watch is not None:
        watch.start()
    logs.event("mix_ready", listen=config.listen, studies=len(config.studies))
    keeping = asyncio.create_task(keeper.keep())
    await stop.wait()
    keeping.cancel()
    service.stopping = True  # streams that are open would otherwise be listened to a little longer
    await server.stop(_GRACE_S)
    if watch is not None:
        await asyncio.to_thread(watch.stop)
    await rounds.close()
    logs.event("mix_stopped")


def call_limits(studies: Sequence[Study]) -> CallLimits:
    """The limits on calls to a mix: every silo of its studies may come through one proxy."""
    most = max((len(study.silos) for study in studies), default=0)
    return replace(PARTIES, of_an_address=max(PARTIES.of_an_address, _CALLS_OF_A_SILO * most))


def _check_keys(config: MixConfig, sign_key: SigningKey) -> None:
    """Refuse a study that lists another key for this mix: it would lose every batch."""
    for study in config.studies:
        check_public_keys(study)
        (own,) = (mix for mix in study.mixes if mix.name == config.name)
        if own.sign_key != sign_key.public:
            raise InvalidMixConfig(f"study {study.short_id} lists another key for {config.name!r}")


def make_room() -> None:
    """Make the C library keep freed memory for the next report."""
    with suppress(OSError, AttributeError):  # not glibc
        for option, value in _MALLOC.items():
            ctypes.CDLL(None).mallopt(option, value)


def _lock(config: MixConfig) -> None:
    """Lock the folder while the process lives: two mixes on it would forward two batches."""
    descriptor = os.open(config.state, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as busy:
        raise InvalidMixConfig(f"{config.name} is already running from {config.folder}") from busy
