"""Onions: a report sealed to the server, then to each mix, the first mix outermost.

HPKE (RFC 9180) in base mode, suite MLKEM768-X25519 / HKDF-SHA256 / AES-128-GCM.  The `info` of
every layer is label ‖ role ‖ hop ‖ D, so a layer opens only at the place and in the round that it
was made for.  Sealing is randomized: the same report sealed twice gives different bytes, which is
why a silo stores the sealed onion before it sends anything.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from silomix_core.study import Study

from silomix_protocol.descriptor import RoundDigest
from silomix_protocol.keys import SealKey, sealing_public_key

_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
LAYER_BYTES = 1136  # encapsulated key (1088 + 32) and tag (16)
SERVER_HOP = 0xFFFF


class UnopenableLayer(ValueError):
    """The bytes are not a layer for this key, hop and round (one message for every cause)."""


class Sealer:
    """Seals reports for one study: its public keys are decoded once."""

    def __init__(self, study: Study) -> None:
        self._server = sealing_public_key(study.server.seal_key)
        self._mixes = [sealing_public_key(mix.seal_key) for mix in study.mixes]

    def seal(self, report: bytes, digest: RoundDigest) -> tuple[bytes, bytes]:
        """The onion for the first mix, and its innermost layer (what the server will receive)."""
        inner = onion = _SUITE.encrypt(report, self._server, _info(SERVER_HOP, digest))
        for hop in reversed(range(len(self._mixes))):
            onion = _SUITE.encrypt(onion, self._mixes[hop], _info(hop, digest))
        return onion, inner


def open_layer(layer: bytes, key: SealKey, hop: int, digest: RoundDigest) -> bytes:
    """What is inside the layer for `hop` (0 is the first mix, `SERVER_HOP` the server)."""
    try:
        return _SUITE.decrypt(layer, key.hpke, _info(hop, digest))
    except (InvalidTag, ValueError) as error:
        raise UnopenableLayer("a layer could not be opened") from error


def onion_bytes(report_bytes: int, hop: int, mixes: int) -> int:
    """Length of an onion when it arrives at `hop` of a chain of `mixes`."""
    return report_bytes + LAYER_BYTES * (mixes - hop + 1)


def encapsulated_key(layer: bytes) -> bytes:
    """The part of a layer that no two honest layers share: equal ones are duplicates."""
    return layer[: 1088 + 32]


def _info(hop: int, digest: RoundDigest) -> bytes:
    role = b"server" if hop == SERVER_HOP else b"mix"
    return b"silomix/v1/onion\0" + role + b"\0" + hop.to_bytes(2, "big") + digest
