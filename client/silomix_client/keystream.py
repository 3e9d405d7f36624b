"""Random bytes for noise: AES-256 in counter mode under a key that is used once and forgotten."""

import os

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from silomix_core.noise import RandomBytes


def fresh_keystream() -> RandomBytes:
    """A new stream under a fresh key from the operating system; every call continues it."""
    encryptor = Cipher(AES(os.urandom(32)), CTR(bytes(16))).encryptor()
    return lambda count: encryptor.update(bytes(count))
