"""Everybody around the silo at once: coordinator, both mixes and server, in one hostile hand.

They speak the real wire format with real keys: signed descriptors over the round channel, onions
over the first mix's Submit stream.  All layers are opened, so what the attacker sees of a study is
the silo's whole transcript, and when a report arrives it looks into the silo's ledger at once:
the round must be charged by then.  The silo's tokens are issued and its confirmations ignored: who
holds every release key needs none.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray
from silomix_core.mechanism.mechanism import Mechanism
from silomix_core.mechanism.report_format import decode_report, is_abstention
from silomix_core.study.study import Study
from silomix_proto import (
    channel_pb2,
    channel_pb2_grpc,
    introduction_pb2,
    mix_pb2,
    mix_pb2_grpc,
    round_pb2,
)
from silomix_protocol.connections.introduction import welcome
from silomix_protocol.connections.tls import Identity, ServerContext, peer_name
from silomix_protocol.keys import SealKey, SigningKey, verify
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, RoundDigest, issue
from silomix_protocol.rounds.onion import open_at_server, open_gates, open_layer
from silomix_protocol.rounds.round_keys import LONGEST_STRETCH, fingerprint, sign_list
from silomix_protocol.rounds.statements import sign_closing, sign_commitment, sign_receipt
from silomix_protocol.rounds.tokens import TOKEN_BYTES, Issuer, Token, issuer

from silomix_lab.consortium.create import Consortium

Event = channel_pb2.ChannelEvent
_REPORT_S = 60.0  # from a round's opening to its report


class UnusableReport(Exception):
    """What the silo sent is not a report of the round that it was asked."""


@dataclass(slots=True)
class Attack:
    """One trial: a study, the point that each of its rounds asks about, and what came back."""

    lease: str
    study: Study
    points: Sequence[NDArray[np.float64]]
    charged_rounds: Callable[[], int]  # what the silo's ledger says now
    reports: list[NDArray[np.int64] | None] = field(default_factory=list)  # None: it abstained
    charged_first: list[bool] = field(default_factory=list)
    supplied: set[int] = field(default_factory=set)  # rounds that the silo has tokens for
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class _MixKeys:
    """The private keys of one mix for one round."""

    seal: SealKey
    release: SealKey
    public: round_pb2.RoundKeys

    @classmethod
    def generate(cls) -> "_MixKeys":
        seal, release = SealKey.generate(), SealKey.generate()
        return cls(seal, release, round_pb2.RoundKeys(seal=seal.public, release=release.public))


@dataclass(slots=True)
class _Asked:
    """A round that waits for its report; `gated` will be the SHA-256 of the gated report."""

    attack: Attack
    descriptor: Descriptor
    server_key: SealKey
    mix_keys: list[_MixKeys]
    gated: "asyncio.Future[bytes]"


class Attacker(channel_pb2_grpc.RoundChannelServicer, mix_pb2_grpc.MixServicer):
    """The coordinator and first mix on the network, with the keys of all who are behind them."""

    def __init__(self, made: Consortium, mechanism: Mechanism) -> None:
        self._made, self._mechanism = made, mechanism
        self._sign_key = SigningKey.load(made.server.parent / "sign.key")
        self._mix_sign_keys = [SigningKey.load(path.parent / "sign.key") for path in made.mixes]
        self._seed = secrets.token_bytes(32)
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
        """Keep the lease of an attack open until the block ends."""
        self._attacks[attack.lease] = attack
        try:
            yield
        finally:
            del self._attacks[attack.lease]

    # The coordinator ----------------------------------------------------------------------------

    async def Follow(  # noqa: N802
        self, request_iterator: AsyncIterator[channel_pb2.SiloFrame], context: ServerContext
    ) -> AsyncIterator[Event]:
        follow = (await anext(request_iterator)).follow
        attack = self._attacks.get(follow.lease)
        if attack is None or follow.study != attack.study.identity:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "that lease is not open")
        tokens = issuer(self._seed, attack.study.identity)
        keys: dict[int, list[_MixKeys]] = {}
        for number in range(len(attack.reports) + 1, attack.study.rounds + 1):
            if number not in keys:
                keys = self._fresh_keys(number, attack.study)
                yield self._stretch(keys, attack.study, tokens)
                if not attack.supplied.issuperset(keys):
                    yield await _evaluated(request_iterator, tokens)
                    attack.supplied.update(keys)
            query = _query(attack, number)
            asked = self._ask(attack, number, query, keys[number], tokens)
            yield Event(opened=_opened(asked, query))
            yield Event(query_chunk=query)
            try:
                gated = await asyncio.wait_for(asked.gated, _REPORT_S)
            except TimeoutError:
                attack.failure = UnusableReport(f"no report within {_REPORT_S:g} s")
            except Exception as error:
                attack.failure = error
            finally:
                del self._asked[asked.descriptor.digest]
            if attack.failure is not None:
                break
            digest = asked.descriptor.digest
            yield Event(committed=self._committed(digest, gated))
            yield Event(closed=sign_closing(digest, (), self._sign_key, void=False))
        yield Event(ended=channel_pb2.LeaseEnded(reason="all rounds done"))

    def _fresh_keys(self, first_round: int, study: Study) -> dict[int, list[_MixKeys]]:
        last = min(study.rounds, first_round + LONGEST_STRETCH - 1)
        return {
            number: [_MixKeys.generate() for _ in study.mixes]
            for number in range(first_round, last + 1)
        }

    def _stretch(self, keys: dict[int, list[_MixKeys]], study: Study, tokens: Issuer) -> Event:
        lists = [
            sign_list(study, 1, min(keys), [each[hop].public for each in keys.values()], key)
            for hop, key in enumerate(self._mix_sign_keys)
        ]
        stretch = channel_pb2.StretchOpened(
            first_round=min(keys),
            lists=lists,
            token_keys=[tokens.public_key(number) for number in keys],
        )
        return Event(stretch=stretch)

    def _ask(
        self,
        attack: Attack,
        number: int,
        query: bytes,
        mix_keys: list[_MixKeys],
        tokens: Issuer,
    ) -> _Asked:
        server_key = SealKey.generate()
        keys = AttemptKeys(
            server=sha256(server_key.public).digest(),
            mixes=tuple(fingerprint(each.public) for each in mix_keys),
            token=tokens.public_key(number),
        )
        descriptor = issue(attack.study, number, 1, query, keys, self._sign_key)
        gated = asyncio.get_running_loop().create_future()
        asked = _Asked(attack, descriptor, server_key, mix_keys, gated)
        self._asked[descriptor.digest] = asked
        return asked

    def _committed(self, digest: RoundDigest, gated: bytes) -> channel_pb2.RoundCommitted:
        """The committed list of one report, signed by all mixes."""
        list_hash = sha256(gated).digest()
        signatures = [sign_commitment(digest, list_hash, key) for key in self._mix_sign_keys]
        return channel_pb2.RoundCommitted(digest=digest, list=gated, signatures=signatures)

    # The first mix ------------------------------------------------------------------------------

    async def Greet(  # noqa: N802
        self, _request: introduction_pb2.Greeting, _context: ServerContext
    ) -> introduction_pb2.Welcome:
        """Welcome the silo, and tell it nothing of what is known about its ledger."""
        return welcome()

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
        digest = RoundDigest(header.digest)
        report = sha256(onion).digest()
        asked = self._asked.get(digest)
        if asked is None:
            return mix_pb2.Receipt(status=mix_pb2.Receipt.REFUSED, reason="no such round")
        attack = asked.attack
        charged = attack.charged_rounds()
        try:
            place = [each.name for each in attack.study.silos].index(silo)
            verify(attack.study.silos[place].sign_key, header.signature, "report", digest, report)
            values, gated = self._open(onion, asked)
        except Exception as error:
            if not asked.gated.done():
                asked.gated.set_exception(error)
            return mix_pb2.Receipt(status=mix_pb2.Receipt.REFUSED, reason="not a report")
        if not asked.gated.done():  # sent twice: the same bytes, counted once
            attack.reports.append(values)
            told = sum(each is not None for each in attack.reports)
            attack.charged_first.append(values is None or charged >= told)
            asked.gated.set_result(gated)
        return sign_receipt(digest, place, report, self._mix_sign_keys[0])

    def _open(self, onion: bytes, asked: _Asked) -> tuple[NDArray[np.int64] | None, bytes]:
        """The integers of a report (None if the silo abstains, where it may), and the SHA-256 of
        what the server would have received."""
        descriptor, layer = asked.descriptor, onion
        for hop, keys in enumerate(asked.mix_keys):
            layer = open_layer(layer, keys.seal, hop, descriptor.digest)
        released = [keys.release for keys in asked.mix_keys]
        content = open_at_server(layer, asked.server_key, descriptor.digest)
        token = Token.from_bytes(content[:TOKEN_BYTES])
        if not issuer(self._seed, descriptor.study).valid(descriptor.round, token):
            raise UnusableReport("a report without a token of its round")
        report = open_gates(content[TOKEN_BYTES:], released, descriptor.digest)
        phase = self._mechanism.phases[self._mechanism.phase_of(descriptor.round)]
        abstains = phase.check_in is not None and is_abstention(report, self._mechanism)
        values = None if abstains else decode_report(report, self._mechanism)
        return values, sha256(layer).digest()


async def _evaluated(frames: AsyncIterator[channel_pb2.SiloFrame], tokens: Issuer) -> Event:
    """Answer the silo's request for tokens; ignore whatever else it says."""
    async for frame in frames:
        if frame.WhichOneof("frame") == "tokens":
            first = frame.tokens.first_round
            evaluated = [
                tokens.evaluate(first + place, blinded) if blinded else b""
                for place, blinded in enumerate(frame.tokens.blinded)
            ]
            reply = channel_pb2.TokenReply(first_round=first, evaluated=evaluated)
            return Event(tokens=reply)
    raise UnusableReport("the silo left before it asked for tokens")


def _opened(asked: _Asked, query: bytes) -> channel_pb2.RoundOpened:
    return channel_pb2.RoundOpened(
        descriptor=asked.descriptor.to_wire(),
        query_bytes=len(query),
        server_key=asked.server_key.public,
        mix_keys=[each.public for each in asked.mix_keys],
    )


def _query(attack: Attack, number: int) -> bytes:
    """The query of a round: its point and, where there are control variates, 0 for their mean,
    which it is if another silo's control variate is the opposite of this silo's."""
    encoded = attack.points[number - 1].astype("<f8").tobytes()
    control = bytes(len(encoded)) if attack.study.has_control else b""
    query = round_pb2.Query(point=encoded, control=control)
    return bytes(query.SerializeToString(deterministic=True))
