"""Random bytes for noise, batches, phases and check-ins: AES-256 in counter mode.

What is random about an answer is a function of the approval's secret and of all that the answer
depends on: whoever asks the same again gets the same, whatever happened to this machine's disk in
between, and any other question gets a stream that has nothing to do with it.  Proof that privacy
is that of fresh noise: docs/privacy.md, "Noise that is derived".
"""

import hmac
import os
from hashlib import sha256

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from silomix_core.discrete_gaussian import RandomBytes, Streams
from silomix_protocol.keys import framed

KEY_BYTES = 32


def fresh_keystream() -> RandomBytes:
    """A new stream under a fresh key from the operating system, used once and forgotten."""
    return stream_of(os.urandom(KEY_BYTES))


def derived_key(secret: bytes, purpose: str) -> bytes:
    """A key for another purpose than the secret's own."""
    return sha256(f"silomix {purpose}\0".encode() + secret).digest()


def answer_streams(secret: bytes, *depends_on: bytes) -> Streams:
    """The streams of one answer, keyed by HMAC-SHA-256 of all that it depends on and the label."""
    key = derived_key(secret, "answers")

    def stream(label: bytes) -> RandomBytes:
        return stream_of(hmac.digest(key, framed("answer", *depends_on, label), "sha256"))

    return stream


def stream_of(key: bytes) -> RandomBytes:
    """The stream of this key; every call continues it.  One key, one stream, one purpose."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return lambda count: encryptor.update(bytes(count))
