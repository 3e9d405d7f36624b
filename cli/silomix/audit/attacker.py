"""Everybody around the silo at once: coordinator, both mixes and server, in one hostile hand.

They speak the real wire format with real keys: signed descriptors over the round channel, onions
over the first mix's Submit stream.  All layers are opened, so what the attacker sees of a study is
the silo's whole transcript, and when a report arrives it looks into the silo's ledger at once:
the round must be charged by then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray
from silomix_core.mechanism import Mechanism
from silomix_core.report import decode_report
from silomix_core.study import Study
from silomix_proto import channel_pb2, channel_pb2_grpc, mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.descriptor import Descriptor, RoundDigest, issue
from silomix_protocol.keys import SealKey, SigningKey, verify
from silomix_protocol.onion import SERVER_HOP, open_layer
from silomix_protocol.tls import Identity, ServerContext, peer_name

from silomix.consortium import Consortium

Event = channel_pb2.ChannelEvent
_REPORT_S = 60.0  # from a round's opening to its report


class UnusableReport(Exception):
    """What the silo sent is not a report of the round that it was asked."""


@dataclass(slots=True)
class Attack:
    """One trial: a study asked at one point in every round, and what came back."""

    lease: str
    study: Study
    point: NDArray[np.float64]
    charged_rounds: Callable[[], int]  # what the silo's ledger says now
    reports: list[NDArray[np.int64]] = field(default_factory=list)
    charged_first: list[bool] = field(default_factory=list)
    failure: Exception | None = None


@dataclass(slots=True)
class _Asked:
    """A round that waits for its report; `sealed` will be the SHA-256 of its innermost layer."""

    attack: Attack
    descriptor: Descriptor
    sealed: "asyncio.Future[bytes]"


class Attacker(channel_pb2_grpc.RoundChannelServicer, mix_pb2_grpc.MixServicer):
    """Coordinator and first mix on the network, and the keys of all who are behind them."""

    def __init__(self, made: Consortium, mechanism: Mechanism) -> None:
        self._made, self._mechanism = made, mechanism
        server = made.server.parent
        self._sign_key = SigningKey.load(server / "sign.key")
        self._server_key = SealKey.load(server / "seal.key")
        self._mix_sign_key = SigningKey.load(made.mixes[0].parent / "sign.key")
        self._mix_keys = [SealKey.load(path.parent / "seal.key") for path in made.mixes]
        self._attacks: dict[str, Attack] = {}
        self._asked: dict[bytes, _Asked] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        study = self._made.study
        parties = (
            (study.server.name, study.server.channel_address),
            (study.mixes[0].name, study.mixes[0].address),
        )
        servers = [
            Identity.load(name, self._made.folder / name).server(address)
            for name, address in parties
        ]
        channel_pb2_grpc.add_RoundChannelServicer_to_server(self, servers[0])
        mix_pb2_grpc.add_MixServicer_to_server(self, servers[1])
        try:
            for server in servers:
                await server.start()
            yield
        finally:
            for server in servers:
                await server.stop(None)

    @asynccontextmanager
    async def attacking(self, attack: Attack) -> AsyncIterator[None]:
        """While this lasts, the lease of that attack is open."""
        self._attacks[attack.lease] = attack
        try:
            yield
        finally:
            del self._attacks[attack.lease]

    # The coordinator ----------------------------------------------------------------------------

    async def Follow(  # noqa: N802
        self, request: channel_pb2.FollowRequest, context: ServerContext
    ) -> AsyncIterator[Event]:
        attack = self._attacks.get(request.lease)
        if attack is None or request.study != attack.study.identity:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "that lease is not open")
        silo, query = peer_name(context), _query(attack.point)
        for number in range(len(attack.reports) + 1, attack.study.rounds + 1):
            descriptor = issue(attack.study, number, (silo,), query, self._sign_key)
            asked = _Asked(attack, descriptor, asyncio.get_running_loop().create_future())
            self._asked[descriptor.digest] = asked
            opened = channel_pb2.RoundOpened(
                descriptor=descriptor.to_wire(), query_bytes=len(query)
            )
            yield Event(opened=opened)
            yield Event(query_chunk=query)
            try:
                sealed = await asyncio.wait_for(asked.sealed, _REPORT_S)
            except TimeoutError:
                attack.failure = UnusableReport(f"no report within {_REPORT_S:g} s")
            except Exception as error:
                attack.failure = error
            finally:
                del self._asked[descriptor.digest]
            if attack.failure is not None:
                break
            yield self._closed(descriptor, sealed)
        yield Event(ended=channel_pb2.LeaseEnded(reason="all rounds done"))

    def _closed(self, descriptor: Descriptor, sealed: bytes) -> Event:
        signature = self._sign_key.sign("closed", descriptor.digest, b"\0", sealed)
        return Event(
            closed=channel_pb2.RoundClosed(
                digest=descriptor.digest, void=False, reports=[sealed], signature=signature
            )
        )

    # The first mix ------------------------------------------------------------------------------

    async def Submit(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.SubmitFrame],
        context: ServerContext,
    ) -> AsyncIterator[mix_pb2.Receipt]:
        async for frame in request_iterator:
            onion = bytearray(frame.chunk)
            while len(onion) < frame.header.bytes:
                onion += (await anext(request_iterator)).chunk
            yield self._receive(peer_name(context), frame.header, bytes(onion))

    def _receive(self, silo: str, header: mix_pb2.SubmitHeader, onion: bytes) -> mix_pb2.Receipt:
        """Look into the ledger first, then at the report."""
        digest = RoundDigest(sha256(header.descriptor.descriptor).digest())
        report = sha256(onion).digest()
        asked = self._asked.get(digest)
        if asked is None:
            return mix_pb2.Receipt(status=mix_pb2.Receipt.REFUSED, reason="no such round")
        attack = asked.attack
        charged = attack.charged_rounds() >= asked.descriptor.round
        try:
            enrolled = attack.study.silo(silo)
            if enrolled is None:
                raise UnusableReport(f"a report from {silo!r}")
            verify(enrolled.sign_key, header.signature, "report", digest, report)
            values, sealed = self._open(onion, digest)
        except Exception as error:
            if not asked.sealed.done():
                asked.sealed.set_exception(error)
            return mix_pb2.Receipt(status=mix_pb2.Receipt.REFUSED, reason="not a report")
        if not asked.sealed.done():  # sent twice: the same bytes, counted once
            attack.charged_first.append(charged)
            attack.reports.append(values)
            asked.sealed.set_result(sealed)
        signature = self._mix_sign_key.sign("receipt", digest, report)
        return mix_pb2.Receipt(
            digest=digest, report=report, status=mix_pb2.Receipt.ACCEPTED, signature=signature
        )

    def _open(self, onion: bytes, digest: RoundDigest) -> tuple[NDArray[np.int64], bytes]:
        """The integers of a report, and the SHA-256 of what the server would have received."""
        layer = onion
        for hop, key in enumerate(self._mix_keys):
            layer = open_layer(layer, key, hop, digest)
        sealed = sha256(layer).digest()
        report = open_layer(layer, self._server_key, SERVER_HOP, digest)
        return decode_report(report, self._mechanism), sealed


def _query(point: NDArray[np.float64]) -> bytes:
    encoded = point.astype("<f8").tobytes()
    return bytes(round_pb2.Query(point=encoded).SerializeToString(deterministic=True))
