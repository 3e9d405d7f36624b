"""Handing a sealed batch to the next mix: the same bytes until it says that it has them."""

import asyncio
import random
import sqlite3
from collections.abc import Iterator

import grpc
import grpc.aio
from silomix_core.study.study import Mix
from silomix_proto import mix_pb2, mix_pb2_grpc
from silomix_protocol.connections.tls import Identity
from silomix_protocol.host import logs
from silomix_protocol.rounds.batches import frames

from silomix_shuffler.batch import State
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round.round import Round
from silomix_shuffler.storage.writing_thread import WritingThread

_TIMEOUT_S = 600.0
_PAUSES_S = (0.1, 5.0)  # first and longest, between two tries
_WORTH_ANOTHER_TRY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
)


class Delivery:
    def __init__(self, identity: Identity, disk: WritingThread, metrics: Metrics) -> None:
        self._identity = identity
        self._disk = disk
        self._metrics = metrics
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._failing: set[str] = set()

    def ready(self, current: Round) -> bool:
        """Whether the next mix could be sent something right now."""
        channel = self._channel(current.study.mixes[current.hop + 1])
        return channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def deliver(self, current: Round) -> None:
        """Send a batch until the next mix has it, refuses it for good, or the round ends here."""
        target = current.study.mixes[current.hop + 1]
        channel = self._channel(target)
        stub, pause = mix_pb2_grpc.MixStub(channel), _PAUSES_S[0]
        while True:
            await channel.channel_ready()
            try:
                await self.leaves(current)
                if not current.chain or current.batch.state is State.VOIDED:
                    return  # abandoned, purged or voided meanwhile
                await stub.Forward(self._frames(current), timeout=_TIMEOUT_S)
                await self._settled(current)
                self._metrics.batches.labels("forwarded").inc()
            except grpc.aio.AioRpcError as error:
                self._failing.add(target.name)
                logs.warning("forward_failed", to=target.name, code=error.code().name)
                if error.code() not in _WORTH_ANOTHER_TRY:
                    self._metrics.batches.labels("not_taken").inc()
                    await self._settled(current)
                    return
            except (OSError, sqlite3.Error) as error:  # our own disk, not the next mix
                logs.warning("forward_failed", to=target.name, reason=type(error).__name__)
            else:
                self._failing.discard(target.name)
                return
            await asyncio.sleep(pause * (1 + random.random()))  # noqa: S311 jitter
            pause = min(2 * pause, _PAUSES_S[1])

    async def leaves(self, current: Round) -> None:
        """Mark a sealed batch as forwarded, before its first byte leaves this mix.

        On disk first: whoever finds it forwarded in memory may send it.  A batch that is abandoned
        meanwhile stays abandoned: that is written later.
        """
        if current.batch.state is State.SEALED:
            await self._disk.do(self._disk.store.forwarded, current.batch.descriptor.digest)
            if current.batch.state is State.SEALED:
                current.batch.forward()

    def _frames(self, current: Round) -> Iterator[mix_pb2.BatchFrame]:
        digest = current.batch.descriptor.digest
        return frames(digest, current.chain, current.spool.read(current.sequence))

    async def _settled(self, current: Round) -> None:
        """Delete the bodies of a batch that the next mix has, or will never take."""
        digest, store = current.batch.descriptor.digest, self._disk.store
        forget = not current.study.batching.gate  # behind a gate it may have to be disclosed
        await self._disk.do(store.delivered, digest, forget=forget)
        current.deliver()

    def problems(self) -> list[str]:
        return [f"{name} does not take batches" for name in sorted(self._failing)]

    def _channel(self, target: Mix) -> grpc.aio.Channel:
        channel = self._channels.get(target.name)
        if channel is None:
            channel = self._identity.channel(target.name, target.address)
            self._channels[target.name] = channel
        return channel

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
