"""Random bytes for noise, batches, phases and check-ins: AES-256 in counter mode."""

import os
from hashlib import sha256

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from silomix_core.noise import RandomBytes

KEY_BYTES = 32


def fresh_keystream() -> RandomBytes:
    """A new stream under a fresh key from the operating system, used once and forgotten."""
    return stream_of(os.urandom(KEY_BYTES))


def derived_key(secret: bytes, purpose: str) -> bytes:
    """A key for another purpose than the secret's own."""
    return sha256(f"silomix {purpose}\0".encode() + secret).digest()


def stream_of(key: bytes) -> RandomBytes:
    """The stream of this key; every call continues it.  One key, one stream, one purpose."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return lambda count: encryptor.update(bytes(count))
