"""Keys of a party, each for one purpose, and the files they live in.

sign: Ed25519, signs everything that a party states; pinned by the study file.
seal: ML-KEM-768 + X25519, opens one layer of an onion; made for one attempt of one round.
node: EC P-384, a silo's key for Flower's node authentication; signs once more, when it joins.
Private keys that last are files that only their owner can read; none is ever printed.
"""

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import nacl.bindings
import nacl.exceptions
import nacl.signing
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey
from silomix_core.study.study import Mix, Server, Silo, Study

from silomix_protocol.host.durable import write_new
from silomix_protocol.host.ownership import OpenToOthers, check_owner

_SIGNING_KEY_BYTES = 32
_SEED_BYTES, _X25519_BYTES, _MLKEM_PUBLIC_BYTES = 64, 32, 1184
_NODE_PROOF = ec.ECDSA(hashes.SHA384())
SEAL_KEY_BYTES = _SEED_BYTES + _X25519_BYTES
SEAL_PUBLIC_BYTES = _MLKEM_PUBLIC_BYTES + _X25519_BYTES


class UnusableKey(ValueError):
    """A key file is missing, readable by others or not a key; the message names the file."""


class ForgedSignature(ValueError):
    """A signature does not belong to the message and the key that it claims."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    _key: nacl.signing.SigningKey = field(repr=False)

    @classmethod
    def generate(cls) -> "SigningKey":
        return cls(nacl.signing.SigningKey.generate())

    @classmethod
    def from_raw(cls, raw: bytes) -> "SigningKey":
        if len(raw) != _SIGNING_KEY_BYTES:
            raise UnusableKey(f"a private signing key has {_SIGNING_KEY_BYTES} bytes")
        return cls(nacl.signing.SigningKey(raw))

    @classmethod
    def load(cls, path: Path) -> "SigningKey":
        return cls.from_raw(read_secret(path, _SIGNING_KEY_BYTES))

    def save(self, path: Path) -> None:
        write_secret(path, self.raw)

    @property
    def raw(self) -> bytes:
        return bytes(self._key)

    @property
    def public(self) -> bytes:
        return bytes(self._key.verify_key)

    def sign(self, purpose: str, *parts: bytes) -> bytes:
        return self._key.sign(framed(purpose, *parts)).signature

    def tag(self, purpose: str, *parts: bytes) -> bytes:
        """A keyed hash of these parts: nobody else can make it, or try out what it hashes."""
        key = sha256(framed("tag-key", self.raw)).digest()
        return hmac.digest(key, framed(purpose, *parts), "sha256")


def verify(public: bytes, signature: bytes, purpose: str, *parts: bytes) -> None:
    """Return if `signature` is `public`'s over exactly these parts for this purpose, else raise."""
    try:
        nacl.signing.VerifyKey(public).verify(framed(purpose, *parts), signature)
    except nacl.exceptions.CryptoError as error:
        raise ForgedSignature(f"the signature on this {purpose} is not valid") from error


@dataclass(frozen=True, slots=True)
class SealKey:
    """The private half of a sealing key; stored as ML-KEM seed ‖ X25519 scalar."""

    _mlkem: MLKEM768PrivateKey = field(repr=False)
    _x25519: X25519PrivateKey = field(repr=False)
    hpke: MLKEM768X25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> "SealKey":
        return cls._of(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())

    @classmethod
    def from_raw(cls, raw: bytes) -> "SealKey":
        if len(raw) != SEAL_KEY_BYTES:
            raise UnusableKey(f"a private sealing key has {SEAL_KEY_BYTES} bytes")
        return cls._of(
            MLKEM768PrivateKey.from_seed_bytes(raw[:_SEED_BYTES]),
            X25519PrivateKey.from_private_bytes(raw[_SEED_BYTES:]),
        )

    @classmethod
    def _of(cls, mlkem: MLKEM768PrivateKey, x25519: X25519PrivateKey) -> "SealKey":
        return cls(mlkem, x25519, MLKEM768X25519PrivateKey(mlkem, x25519))

    @property
    def raw(self) -> bytes:
        return self._mlkem.private_bytes_raw() + self._x25519.private_bytes_raw()

    @property
    def public(self) -> bytes:
        mlkem, x25519 = self._mlkem.public_key(), self._x25519.public_key()
        return mlkem.public_bytes_raw() + x25519.public_bytes_raw()


def sealing_public_key(raw: bytes) -> MLKEM768X25519PublicKey:
    """The public sealing key in these bytes.

    An X25519 point of low order passes for a key until somebody seals to it: `onion.seal` says
    so then, before anything was charged or sent.
    """
    if len(raw) != SEAL_PUBLIC_BYTES:
        raise UnusableKey(f"a sealing key has {SEAL_PUBLIC_BYTES} bytes")
    try:
        mlkem = MLKEM768PublicKey.from_public_bytes(raw[:_MLKEM_PUBLIC_BYTES])
        x25519 = X25519PublicKey.from_public_bytes(raw[_MLKEM_PUBLIC_BYTES:])
    except ValueError as error:
        raise UnusableKey("a sealing key is not one") from error
    return MLKEM768X25519PublicKey(mlkem, x25519)


def check_public_keys(study: Study) -> None:
    """Raise UnusableKey if a key that the study lists is not one."""
    signers: list[Mix | Server | Silo] = [*study.mixes, study.server, *study.silos]
    for signer in signers:
        with _named(f"the signing key of {signer.name}"):
            _check_point(signer.sign_key)
    for silo in study.silos:
        with _named(f"the node key of {silo.name}"):
            serialization.load_der_public_key(silo.node_key)


def _check_point(sign_key: bytes) -> None:
    if len(sign_key) != _SIGNING_KEY_BYTES:
        raise ValueError(f"an Ed25519 key has {_SIGNING_KEY_BYTES} bytes")
    if not nacl.bindings.crypto_core_ed25519_is_valid_point(sign_key):
        raise ValueError("no point of prime order on Ed25519's curve")


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UnusableKey(f"{what} is not usable: {error}") from error


def fingerprint(public: bytes) -> bytes:
    return sha256(public).digest()


def generate_node_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def load_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    content = read_secret(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise UnusableKey(f"{path}: not an unencrypted private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UnusableKey(f"{path}: not an elliptic-curve key")
    return key


def node_public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def node_proof(key: ec.EllipticCurvePrivateKey, *parts: bytes) -> bytes:
    """A signature by which the holder of this node key says that the key goes with these parts.

    What the key signs for Flower begins with a date, so neither signature passes for the other.
    """
    return key.sign(framed("node-key", *parts), _NODE_PROOF)


def verify_node_proof(key: ec.EllipticCurvePublicKey, proof: bytes, *parts: bytes) -> None:
    """Return if the holder of `key` made `proof` for exactly these parts, else raise."""
    try:
        key.verify(proof, framed("node-key", *parts), _NODE_PROOF)
    except InvalidSignature as error:
        raise ForgedSignature("the proof of the node key is not valid") from error


def write_secret(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read; an existing one is never overwritten."""
    write_new(path, content)


def read_secret(path: Path, length: int | None = None) -> bytes:
    """The content of a file that only its owner can read."""
    try:
        if path.stat().st_mode & 0o077:
            raise UnusableKey(f"{path}: readable by others; run: chmod 600 {path}")
        check_owner(path)
        content = path.read_bytes()
    except OSError as error:
        raise UnusableKey(f"{path}: {error.strerror}") from error
    except OpenToOthers as error:
        raise UnusableKey(str(error)) from error
    if length is not None and len(content) != length:
        raise UnusableKey(f"{path}: expected {length} bytes, found {len(content)}")
    return content


def framed(purpose: str, *parts: bytes) -> bytes:
    """Purpose and parts, each part with its length: no two lists of parts give the same bytes."""
    lengths = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return b"silomix/v1/" + purpose.encode("ascii") + b"\0" + lengths


def number(value: int) -> bytes:
    """A number as four bytes, for a part of what is signed."""
    return value.to_bytes(4, "big")
