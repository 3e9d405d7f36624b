"""What became known after a report was sent: a small file beside the stored report.

The first mix's receipt, and the SHA-256 of the list that the server committed to, both of one D:
what stands there of another D is of an earlier report and says nothing.  Written over in place,
without waiting for the disk, several times cheaper than a row of the database: it outlives this
process, perhaps not a power cut.  What a power cut left half written counts as not known.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from silomix_proto import mix_pb2
from silomix_protocol.descriptor import RoundDigest
from silomix_protocol.keys import number

_HASH_BYTES, _NUMBER_BYTES = 32, 4
_HEADER_BYTES = 2 * _HASH_BYTES + _NUMBER_BYTES
_NONE = bytes(_HASH_BYTES)  # no list has this hash


@dataclass(frozen=True, slots=True)
class Afterwards:
    receipt: mix_pb2.Receipt | None = None
    committed: bytes | None = None  # SHA-256 of the list


NOTHING = Afterwards()


class AfterwardsFile:
    """The file of one study, open as long as this is."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._known = _decoded(os.read(self._descriptor, os.fstat(self._descriptor).st_size))

    def close(self) -> None:
        os.close(self._descriptor)

    def of(self, digest: RoundDigest) -> Afterwards:
        known_of, known = self._known
        return known if known_of == digest else NOTHING

    def write(self, digest: RoundDigest, known: Afterwards) -> None:
        os.pwrite(self._descriptor, _encoded(digest, known), 0)
        self._known = digest, known


def _encoded(digest: RoundDigest, known: Afterwards) -> bytes:
    receipt = b"" if known.receipt is None else known.receipt.SerializeToString(deterministic=True)
    return digest + (known.committed or _NONE) + number(len(receipt)) + receipt


def _decoded(content: bytes) -> tuple[RoundDigest, Afterwards]:
    digest, committed = content[:_HASH_BYTES], content[_HASH_BYTES : 2 * _HASH_BYTES]
    length, rest = content[2 * _HASH_BYTES :][:_NUMBER_BYTES], content[_HEADER_BYTES:]
    if len(length) < _NUMBER_BYTES:
        return RoundDigest(b""), NOTHING
    receipt = rest[: int.from_bytes(length, "big")]
    try:
        given = mix_pb2.Receipt.FromString(receipt) if receipt else None
    except DecodeError:
        given = None
    return RoundDigest(digest), Afterwards(given, None if committed == _NONE else committed)
