"""Fetching a batch from the last mix and opening it: from sealed reports to one integer sum."""

import asyncio
from dataclasses import dataclass
from hashlib import sha256

import grpc.aio
import numpy as np
from silomix_core.mechanism import Mechanism
from silomix_core.report import MalformedReport, decode_report, report_bytes
from silomix_core.study import Study
from silomix_proto import mix_pb2_grpc
from silomix_protocol import logs
from silomix_protocol.batches import BrokenBatch, chain_wait_s, read_batch
from silomix_protocol.descriptor import Descriptor, RefusedDescriptor
from silomix_protocol.keys import ForgedSignature, SealKey
from silomix_protocol.onion import SERVER_HOP, UnopenableLayer, onion_bytes, open_layer
from silomix_protocol.tls import Identity

from silomix_server.journal import ClosedRound

_MARGIN_S = 5.0
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Collected:
    """A round as the coordinator received it."""

    result: ClosedRound
    sealed: list[bytes]  # SHA-256 of every sealed report
    dropped: int  # along the chain and here


class Collector:
    """The coordinator's connection to the last mix of the chain."""

    def __init__(
        self, study: Study, mechanism: Mechanism, key: SealKey, identity: Identity
    ) -> None:
        self._study = study
        self._mechanism = mechanism
        self._key = key
        last = study.mixes[-1]
        self._channel = identity.channel(last.name, last.address)
        self._stub = mix_pb2_grpc.MixStub(self._channel)
        hops = len(study.mixes)
        self._sealed_bytes = onion_bytes(report_bytes(mechanism), hops, hops)
        self._timeout_s = chain_wait_s(study.batching.deadline_s, hops) + _MARGIN_S

    async def reachable(self) -> bool:
        """Whether the last mix answers."""
        try:
            await asyncio.wait_for(self._channel.channel_ready(), _CONNECT_S)
        except TimeoutError:
            return False
        return True

    async def collect(self, descriptor: Descriptor) -> Collected:
        """Wait for the round's batch; a lost or broken one is a void round."""
        try:
            call = self._stub.Collect(
                descriptor.to_wire(), timeout=self._timeout_s, wait_for_ready=True
            )
            last = self._study.mixes[-1]
            batch = await read_batch(aiter(call), self._study, last.sign_key, self._sealed_bytes)
        except grpc.aio.AioRpcError as error:
            logs.warning("batch_lost", round=descriptor.round, code=error.code().name)
            return _nothing()
        except (BrokenBatch, ForgedSignature, RefusedDescriptor) as error:
            logs.warning("batch_broken", round=descriptor.round, reason=error)
            return _nothing()
        if batch.descriptor.digest != descriptor.digest:
            logs.warning("batch_broken", round=descriptor.round, reason="another round's batch")
            return _nothing()
        if batch.aborted:
            logs.warning("batch_aborted", round=descriptor.round, reason=batch.aborted)
        return self._open(descriptor, batch.reports, batch.counts.dropped)

    def _open(self, descriptor: Descriptor, reports: tuple[bytes, ...], dropped: int) -> Collected:
        """Open and sum; a report that is not one of the mechanism's is dropped whole."""
        total = np.zeros(self._mechanism.dimension, dtype=np.int64)
        accepted = 0
        sealed = [sha256(report).digest() for report in reports]
        for report in set(reports):
            try:
                plain = open_layer(report, self._key, SERVER_HOP, descriptor.digest)
                total += decode_report(plain, self._mechanism)
                accepted += 1
            except (UnopenableLayer, MalformedReport):
                continue
        dropped += len(reports) - accepted
        if accepted < descriptor.minimum_batch:
            return Collected(ClosedRound(accepted, None), sealed, dropped)
        return Collected(ClosedRound(accepted, total), sealed, dropped)

    async def close(self) -> None:
        await self._channel.close()


def _nothing() -> Collected:
    return Collected(ClosedRound(0, None), [], 0)
