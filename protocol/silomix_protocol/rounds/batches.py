"""A batch on the wire: what every mix so far states about it, then reports of one length.

Written by a mix, read by the next mix or by the coordinator, a report at a time: neither holds a
batch in memory.  The last statement lists the digest of every report, so that a reader knows each
one when it arrives.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from silomix_core.study.study import Study
from silomix_proto import mix_pb2, round_pb2

from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest
from silomix_protocol.rounds.statements import check_chain, digests


class BrokenBatch(ValueError):
    """The batch is malformed, incomplete or not what the mix stated that it is."""


def chain_wait_s(deadline_s: float, hops: int) -> float:
    """The wait for a batch that `hops` mixes handle first, in seconds from the round's opening.

    The first mix counts its deadline from the first report, which itself may take that long.
    """
    return 2 * deadline_s + 2.0 * hops


def frames(
    digest: RoundDigest,
    chain: Sequence[round_pb2.HopStatement],
    reports: Iterable[bytes],
    commitment: bytes = b"",
) -> Iterator[mix_pb2.BatchFrame]:
    """A batch as messages; `reports` in the order of the last statement's output, maybe cut up."""
    header = mix_pb2.BatchHeader(digest=digest, chain=chain, commitment=commitment)
    yield mix_pb2.BatchFrame(header=header)
    for chunk in _chunks(reports):
        yield mix_pb2.BatchFrame(chunk=chunk)


def digest_of(first: mix_pb2.BatchFrame | None) -> RoundDigest:
    """The round digest in a batch's first message (nothing is verified yet)."""
    if first is None or first.WhichOneof("frame") != "header":
        raise BrokenBatch("a batch starts with its header")
    return RoundDigest(first.header.digest)


@dataclass(frozen=True, slots=True)
class IncomingBatch:
    """A batch whose statements were checked and whose reports are still on the way."""

    chain: tuple[round_pb2.HopStatement, ...]
    commitment: bytes  # not checked here
    _source: AsyncIterator[mix_pb2.BatchFrame]
    _length: int

    @property
    def aborted(self) -> str:
        return self.chain[-1].aborted

    @property
    def output(self) -> bytes:
        """The joined digests of the reports, in their order."""
        return self.chain[-1].output

    async def reports(self) -> AsyncIterator[tuple[bytes | bytearray, bytes]]:
        """Every report with the digest that it must have (see `check_report`).

        A report is good until the next one is asked for: large reports share one buffer.
        """
        expected = digests(self.output)
        partial, have, count = bytearray(self._length), 0, 0
        while count < len(expected):
            frame = await anext(self._source, None)
            if frame is None:
                raise BrokenBatch("incomplete")
            chunk, start = frame.chunk, 0  # read once: protobuf makes a copy every time
            if not chunk:
                raise BrokenBatch("unexpected frame")
            if len(chunk) > (len(expected) - count) * self._length - have:
                raise BrokenBatch("longer than stated")
            while start < len(chunk):
                taken = min(self._length - have, len(chunk) - start)
                if taken < self._length:
                    partial[have : have + taken] = memoryview(chunk)[start : start + taken]
                start, have = start + taken, have + taken
                if have == self._length:
                    report = chunk[start - taken : start] if taken == have else partial
                    yield report, expected[count]
                    have, count = 0, count + 1
        if await anext(self._source, None) is not None:
            raise BrokenBatch("longer than stated")


def incoming(
    first: mix_pb2.BatchFrame,
    rest: AsyncIterator[mix_pb2.BatchFrame],
    descriptor: Descriptor,
    study: Study,
    hops: int,
    length: int,
) -> IncomingBatch:
    """The batch that starts with `first`, after `hops` mixes, its reports `length` bytes long."""
    if digest_of(first) != descriptor.digest:
        raise BrokenBatch("the batch belongs to another round")
    chain = tuple(first.header.chain)
    check_chain(chain, descriptor, study, hops)
    return IncomingBatch(chain, first.header.commitment, rest, length)


def check_report(report: bytes | bytearray, digest: bytes) -> None:
    if sha256(report).digest() != digest:
        raise BrokenBatch("a report is not the one that was stated")


def _cut(report: bytes) -> Sequence[bytes | memoryview]:
    """Pieces of a report, each of at most a chunk; a report that fits into one is not copied."""
    if len(report) <= CHUNK_BYTES:
        return (report,)
    view = memoryview(report)
    return [view[at : at + CHUNK_BYTES] for at in range(0, len(report), CHUNK_BYTES)]


def _chunks(reports: Iterable[bytes]) -> Iterator[bytes]:
    """Report bytes in pieces of about a chunk: many small reports together, large ones cut."""
    gathered: list[bytes | memoryview] = []
    size = 0
    for report in reports:
        for piece in _cut(report):
            if size + len(piece) > CHUNK_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
            gathered.append(piece)
            size += len(piece)
    if gathered:
        yield b"".join(gathered)
