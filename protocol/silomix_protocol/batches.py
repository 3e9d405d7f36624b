"""A batch on the wire: header, reports of one length back to back, signed trailer.

Written by a mix, read by the next mix or by the coordinator.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from silomix_core.study import Study
from silomix_proto import mix_pb2, round_pb2

from silomix_protocol.descriptor import Descriptor, check
from silomix_protocol.keys import SigningKey, verify
from silomix_protocol.tls import CHUNK_BYTES


class BrokenBatch(ValueError):
    """A batch that is malformed, incomplete or not signed by the mix that it came from."""


def chain_wait_s(deadline_s: float, hops: int) -> float:
    """How long to wait for a batch that `hops` mixes handle first, from the round's opening.

    The first mix counts its deadline from the first report, which itself may take that long.
    """
    return 2 * deadline_s + 2.0 * hops


@dataclass(frozen=True, slots=True)
class Counts:
    received: int
    forwarded: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Reports as one mix released them; `aborted` says why there are none."""

    descriptor: Descriptor
    reports: tuple[bytes, ...]
    counts: Counts
    aborted: str = ""


def frames(batch: Batch, key: SigningKey) -> Iterator[mix_pb2.BatchFrame]:
    """The batch as messages, ending with what this mix signs about it."""
    header = mix_pb2.BatchHeader(descriptor=batch.descriptor.to_wire(), reports=len(batch.reports))
    yield mix_pb2.BatchFrame(header=header)
    for chunk in _chunks(batch.reports):
        yield mix_pb2.BatchFrame(chunk=chunk)
    summary = _summary(batch.reports)
    signature = key.sign("batch", *_signed(batch.descriptor, batch.counts, summary, batch.aborted))
    yield mix_pb2.BatchFrame(
        trailer=mix_pb2.BatchTrailer(
            received=batch.counts.received,
            forwarded=batch.counts.forwarded,
            dropped=batch.counts.dropped,
            reports=summary,
            signature=signature,
            aborted=batch.aborted,
        )
    )


async def read_batch(
    source: AsyncIterator[mix_pb2.BatchFrame], study: Study, sender_key: bytes, report_bytes: int
) -> Batch:
    """The batch in these messages, if `sender_key` signed it and every length is right."""
    first = await anext(source, None)
    if first is None or first.WhichOneof("frame") != "header":
        raise BrokenBatch("a batch starts with its header")
    descriptor = check(first.header.descriptor, study)
    if first.header.reports > len(descriptor.silos):
        raise BrokenBatch("more reports than silos in the round")
    body, trailer = bytearray(), None
    async for frame in source:
        kind = frame.WhichOneof("frame")
        if kind == "chunk" and trailer is None:
            body += frame.chunk
            if len(body) > first.header.reports * report_bytes:
                raise BrokenBatch("longer than its header says")
        elif kind == "trailer" and trailer is None:
            trailer = frame.trailer
        else:
            raise BrokenBatch("unexpected frame")
    if trailer is None or len(body) != first.header.reports * report_bytes:
        raise BrokenBatch("incomplete")
    view = memoryview(body)
    reports = tuple(
        bytes(view[start : start + report_bytes]) for start in range(0, len(body), report_bytes)
    )
    counts = Counts(trailer.received, trailer.forwarded, trailer.dropped)
    summary = _summary(reports)
    if trailer.reports != summary or counts.forwarded != len(reports):
        raise BrokenBatch("the trailer belongs to other reports")
    parts = _signed(descriptor, counts, summary, trailer.aborted)
    verify(sender_key, trailer.signature, "batch", *parts)
    if trailer.aborted and reports:
        raise BrokenBatch("an aborted batch has no reports")
    return Batch(descriptor, reports, counts, trailer.aborted)


def descriptor_of(frame: mix_pb2.BatchFrame) -> round_pb2.SignedDescriptor:
    """The descriptor of a batch's first message."""
    if frame.WhichOneof("frame") != "header":
        raise BrokenBatch("a batch starts with its header")
    return frame.header.descriptor


def _chunks(reports: Iterable[bytes]) -> Iterator[bytes]:
    """Report bytes in pieces of about a chunk: many small reports together, large ones cut."""
    gathered: list[bytes] = []
    size = 0
    for report in reports:
        for start in range(0, len(report), CHUNK_BYTES):
            piece = report[start : start + CHUNK_BYTES]
            if size + len(piece) > CHUNK_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
            gathered.append(piece)
            size += len(piece)
    if gathered:
        yield b"".join(gathered)


def _summary(reports: Iterable[bytes]) -> bytes:
    digests = sha256()
    for report in reports:
        digests.update(sha256(report).digest())
    return digests.digest()


def _signed(
    descriptor: Descriptor, counts: Counts, summary: bytes, aborted: str
) -> tuple[bytes, ...]:
    numbers = (counts.received, counts.forwarded, counts.dropped)
    encoded = b"".join(number.to_bytes(4, "big") for number in numbers)
    return descriptor.digest, encoded, summary, aborted.encode("utf-8")
