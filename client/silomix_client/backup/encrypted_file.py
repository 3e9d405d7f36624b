"""A file that only a passphrase or a private key opens: how a backup leaves the silo's machine.

    silomix backup 1 ‖ 'P' ‖ salt ‖ nonce ‖ AES-256-GCM under scrypt(passphrase, salt)
    silomix backup 1 ‖ 'K' ‖ HPKE to an ML-KEM-768 + X25519 key

The first line and the letter are authenticated with the rest.  With a public key nothing on the
silo's machine, and so nobody who gets hold of it, opens earlier backups.
"""

import os
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from silomix_protocol.keys import (
    SEAL_KEY_BYTES,
    SealKey,
    UnusableKey,
    read_secret,
    sealing_public_key,
    write_secret,
)

from silomix_client.errors import SiloError

_MAGIC = b"silomix backup 1\n"
_BY_PASSPHRASE, _BY_KEY = _MAGIC + b"P", _MAGIC + b"K"
_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_SALT_BYTES, _NONCE_BYTES = 16, 12
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**17, 8, 1  # 128 MiB, about half a second
LEAST_PASSPHRASE = 12  # characters


class Unopenable(SiloError):
    """The file is no backup, or not one for this passphrase or key, or it was changed."""


def seal_with_passphrase(content: bytes, passphrase: str) -> bytes:
    if len(passphrase) < LEAST_PASSPHRASE:
        raise SiloError(f"a passphrase needs at least {LEAST_PASSPHRASE} characters")
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    sealed = AESGCM(_stretched(passphrase, salt)).encrypt(nonce, content, _BY_PASSPHRASE)
    return _BY_PASSPHRASE + salt + nonce + sealed


def seal_to_key(content: bytes, public: bytes) -> bytes:
    try:
        return _BY_KEY + _SUITE.encrypt(content, sealing_public_key(public), _BY_KEY)
    except ValueError as error:  # a point of low order passes for a key until now
        raise UnusableKey("this is not a key that backups can be sealed to") from error


def needs_key(sealed: bytes) -> bool:
    """Whether a key opens the backup; otherwise a passphrase does."""
    if not sealed.startswith((_BY_PASSPHRASE, _BY_KEY)):
        raise Unopenable("this is not a backup that this release knows")
    return sealed.startswith(_BY_KEY)


def open_with_passphrase(sealed: bytes, passphrase: str) -> bytes:
    body = sealed.removeprefix(_BY_PASSPHRASE)
    salt, rest = body[:_SALT_BYTES], body[_SALT_BYTES:]
    try:
        key = AESGCM(_stretched(passphrase, salt))
        return key.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _BY_PASSPHRASE)
    except (InvalidTag, ValueError) as error:
        raise Unopenable("another passphrase, or the file was changed") from error


def open_with_key(sealed: bytes, key: SealKey) -> bytes:
    try:
        return _SUITE.decrypt(sealed.removeprefix(_BY_KEY), key.hpke, _BY_KEY)
    except (InvalidTag, ValueError) as error:
        raise Unopenable("another key, or the file was changed") from error


def make_key(path: Path) -> str:
    """Write a new private key and return its public half as text."""
    key = SealKey.generate()
    write_secret(path, key.raw)
    return b64encode(key.public).decode("ascii")


def load_key(path: Path) -> SealKey:
    return SealKey.from_raw(read_secret(path, SEAL_KEY_BYTES))


def load_public_key(path: Path) -> bytes:
    """The public half of a backup key, as `make_key` gave it."""
    try:
        public = b64decode(path.read_text(encoding="ascii").strip(), validate=True)
        sealing_public_key(public)
    except (NotBase64, UnicodeDecodeError, UnusableKey) as error:
        raise UnusableKey(f"{path}: not a public key of `silomix silo backup-key`") from error
    return public


def _stretched(passphrase: str, salt: bytes) -> bytes:
    stretch = Scrypt(salt=salt, length=32, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P)
    return stretch.derive(passphrase.encode("utf-8"))
