"""Random bytes for noise, batches and phases: AES-256 in counter mode."""

import os

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from silomix_core.noise import RandomBytes

KEY_BYTES = 32


def fresh_keystream() -> RandomBytes:
    """A new stream under a fresh key from the operating system, used once and forgotten."""
    return stream_of(os.urandom(KEY_BYTES))


def stream_of(key: bytes) -> RandomBytes:
    """The stream of this key; every call continues it.  One key, one stream, one purpose."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return lambda count: encryptor.update(bytes(count))
