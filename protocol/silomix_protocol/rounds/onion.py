"""Onions: a report behind every mix's gate, sealed to the server, then to every mix for its hop.

    mix 0 ( mix 1 ( … server ( token ‖ gate 0 ( gate 1 ( … report ) ) ) ) )

HPKE (RFC 9180) in base mode, suite MLKEM768-X25519 / HKDF-SHA256 / AES-128-GCM.  The `info` of
every layer is label ‖ role ‖ hop ‖ D, so a layer opens only at the place and in the attempt that
it was made for.  Sealing is randomized: the same report sealed twice gives different bytes, which
is why a silo stores the sealed onion before it sends anything.  What is left after the last mix
is the *gated* report: the server reads its token at once, the report only with the release keys of
all mixes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from silomix_core.study.study import Study
from silomix_proto import round_pb2

from silomix_protocol.keys import SealKey, UnusableKey, sealing_public_key
from silomix_protocol.rounds.descriptor import RoundDigest

_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
ENCAPSULATED_BYTES = 1088 + 32
LAYER_BYTES = ENCAPSULATED_BYTES + 16  # encapsulated key and tag


class UnopenableLayer(ValueError):
    """The bytes are not a layer for this key, place and round (one message for every cause)."""


@dataclass(frozen=True, slots=True)
class Onion:
    """What a silo sends, and `trail`: its SHA-256 as it comes to each mix, then to the server."""

    sealed: bytes
    trail: tuple[bytes, ...]


def seal(
    payload: bytes,
    server_key: bytes,
    mixes: Sequence[round_pb2.RoundKeys],
    digest: RoundDigest,
    *,
    ungated: int = 0,
) -> Onion:
    """The onion of a payload, for public keys that were checked against the descriptor.

    The payload's first `ungated` bytes (the token) are not behind the gates.
    """
    sealed = payload[ungated:]
    for hop, mix in reversed(list(enumerate(mixes))):
        if mix.release:
            sealed = _sealed(sealed, mix.release, _info(b"release", hop, digest))
    sealed = _sealed(payload[:ungated] + sealed, server_key, _info(b"server", 0, digest))
    trail = [sha256(sealed).digest()]
    for hop, mix in reversed(list(enumerate(mixes))):
        sealed = _sealed(sealed, mix.seal, _info(b"mix", hop, digest))
        trail.append(sha256(sealed).digest())
    return Onion(sealed, tuple(reversed(trail)))


def open_layer(layer: bytes | bytearray, key: SealKey, hop: int, digest: RoundDigest) -> bytes:
    """What is inside the layer of the mix at `hop` (0 is the first)."""
    return _open(layer, key, _info(b"mix", hop, digest))


def open_at_server(gated: bytes, server_key: SealKey, digest: RoundDigest) -> bytes:
    """What a gated report shows to the server: its token, and the report behind its gates."""
    return _open(gated, server_key, _info(b"server", 0, digest))


def open_gates(closed: bytes, released: Sequence[SealKey], digest: RoundDigest) -> bytes:
    """The report behind the gates, opened with every mix's release key (none without a gate)."""
    for hop, key in enumerate(released):
        closed = _open(closed, key, _info(b"release", hop, digest))
    return closed


def onion_bytes(payload_bytes: int, study: Study, hop: int) -> int:
    """The length of an onion that arrives at `hop`; after the last mix, of a gated report."""
    mixes = len(study.mixes)
    gates = mixes if study.batching.gate else 0
    return payload_bytes + LAYER_BYTES * (1 + gates + mixes - hop)


def _sealed(content: bytes, key: bytes, info: bytes) -> bytes:
    public = sealing_public_key(key)
    try:
        return _SUITE.encrypt(content, public, info)
    except ValueError as error:
        raise UnusableKey("a sealing key of this round is not one") from error


def _open(layer: bytes | bytearray, key: SealKey, info: bytes) -> bytes:
    try:
        return _SUITE.decrypt(layer, key.hpke, info)
    except (InvalidTag, ValueError) as error:
        raise UnopenableLayer("a layer could not be opened") from error


def _info(role: bytes, hop: int, digest: RoundDigest) -> bytes:
    return b"silomix/v1/onion\0" + role + b"\0" + hop.to_bytes(2, "big") + digest
