"""A small file beside a stored report: what became known since it was sent (`ReportOutcome`).

It is about one D: what it has of another D is about an earlier report and says nothing.  It is
written over in place, without waiting for the disk, several times cheaper than a row of the
database: it outlives this process, perhaps not a power cut.  What a power cut took counts as not
known, and the coordinator is asked again.
"""

import os
from pathlib import Path

from google.protobuf.message import DecodeError
from silomix_proto import mix_pb2
from silomix_protocol.keys import number
from silomix_protocol.rounds.descriptor import RoundDigest

from silomix_client.ledger.outcome_rules import NOTHING, Closing, ReportOutcome

_HASH_BYTES, _NUMBER_BYTES = 32, 4
_HEADER_BYTES = 2 * _HASH_BYTES + _NUMBER_BYTES
_NONE = bytes(_HASH_BYTES)  # no list has this hash
_INCLUDED, _ENDED, _CLOSING = 1, 2, 2  # bits of the last byte; the closing stands above them


class OutcomeFile:
    """The file about one study's last report, open as long as this object is."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._known = _decoded(os.read(self._descriptor, os.fstat(self._descriptor).st_size))

    def close(self) -> None:
        os.close(self._descriptor)

    def of(self, digest: RoundDigest) -> ReportOutcome:
        known_of, known = self._known
        return known if known_of == digest else NOTHING

    def write(self, digest: RoundDigest, known: ReportOutcome) -> None:
        os.pwrite(self._descriptor, _encoded(digest, known), 0)
        self._known = digest, known


def _encoded(digest: RoundDigest, known: ReportOutcome) -> bytes:
    receipt = b"" if known.receipt is None else known.receipt.SerializeToString(deterministic=True)
    flags = _INCLUDED * known.included | _ENDED * known.ended | known.closing.value << _CLOSING
    return digest + (known.committed or _NONE) + number(len(receipt)) + receipt + bytes([flags])


def _decoded(content: bytes) -> tuple[RoundDigest, ReportOutcome]:
    digest, committed = content[:_HASH_BYTES], content[_HASH_BYTES : 2 * _HASH_BYTES]
    length, rest = content[2 * _HASH_BYTES :][:_NUMBER_BYTES], content[_HEADER_BYTES:]
    if len(length) < _NUMBER_BYTES:
        return RoundDigest(b""), NOTHING
    end = int.from_bytes(length, "big")
    flags = rest[end] if end < len(rest) else 0
    if flags >> _CLOSING > max(each.value for each in Closing):
        return RoundDigest(b""), NOTHING
    known = ReportOutcome(
        receipt=_receipt(rest[:end]),
        committed=None if committed == _NONE else committed,
        included=bool(flags & _INCLUDED),
        closing=Closing(flags >> _CLOSING),
        ended=bool(flags & _ENDED),
    )
    return RoundDigest(digest), known


def _receipt(encoded: bytes) -> mix_pb2.Receipt | None:
    try:
        return mix_pb2.Receipt.FromString(encoded) if encoded else None
    except DecodeError:
        return None
