"""A batch on the wire: what is read is what the mixes stated, or nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.batches import (
    BrokenBatch,
    chain_wait_s,
    check_report,
    digest_of,
    frames,
    incoming,
)
from silomix_protocol.rounds.statements import BrokenChain
from support.rounds import hop_statement, joined, make_parties, make_round

Frames = list[mix_pb2.BatchFrame]

LENGTH = 100
PARTIES = make_parties(silos=6, minimum=2)
STUDY = PARTIES.study
ROUND = make_round(STUDY, PARTIES.keys["server"])
REPORTS = [bytes([number]) * LENGTH for number in range(5)]


def chain_of(reports: list[bytes]) -> list[round_pb2.HopStatement]:
    """What two mixes state of which the second forwards these reports."""
    first = joined([report + b"sealed" for report in reports])
    return [
        hop_statement(PARTIES, ROUND.digest, 0, bytes(32), first),
        hop_statement(PARTIES, ROUND.digest, 1, sha256(first).digest(), joined(reports)),
    ]


def written(reports: list[bytes] = REPORTS) -> Frames:
    return list(frames(ROUND.digest, chain_of(reports), reports))


def read(messages: Iterable[mix_pb2.BatchFrame], length: int = LENGTH) -> list[bytes]:
    """Every report of the batch, checked."""

    async def source() -> AsyncIterator[mix_pb2.BatchFrame]:
        for message in messages:
            yield mix_pb2.BatchFrame.FromString(message.SerializeToString())

    async def reports() -> list[bytes]:
        rest = source()
        first = await anext(rest, None)
        digest_of(first)
        assert first is not None
        batch = incoming(first, rest, ROUND.descriptor, STUDY, 2, length)
        found = []
        async for report, digest in batch.reports():
            check_report(report, digest)
            found.append(bytes(report))
        return found

    return asyncio.run(reports())


def test_a_batch_is_read_as_it_was_written() -> None:
    assert read(written()) == REPORTS


def test_an_aborted_batch_says_why_and_has_no_reports() -> None:
    empty = sha256(b"").digest()
    chain = [
        hop_statement(PARTIES, ROUND.digest, 0, bytes(32), b"", dropped=1, aborted="1 of 2"),
        hop_statement(PARTIES, ROUND.digest, 1, empty, b"", aborted="mix-1: 1 of 2"),
    ]
    (header,) = messages = list(frames(ROUND.digest, chain, []))
    assert read(messages) == []

    async def nothing() -> AsyncIterator[mix_pb2.BatchFrame]:
        return
        yield

    batch = incoming(header, nothing(), ROUND.descriptor, STUDY, 2, LENGTH)
    assert (batch.aborted, batch.output) == ("mix-1: 1 of 2", b"")
    with pytest.raises(BrokenBatch, match="longer than stated"):
        read([header, mix_pb2.BatchFrame(chunk=bytes(LENGTH))])


def test_a_batch_that_came_through_was_not_aborted() -> None:
    batch = incoming(written()[0], None, ROUND.descriptor, STUDY, 2, LENGTH)  # type: ignore[arg-type]
    assert batch.aborted == ""
    assert batch.output == joined(REPORTS)
    assert [each.hop for each in batch.chain] == [0, 1]


# Chunks ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(2, 6),
    length=st.sampled_from([1, 7, 5000, 300_000])
    | st.sampled_from([-1, 0, 1]).map(lambda off: CHUNK_BYTES // 2 + off)
    | st.sampled_from([-1, 0, 1]).map(lambda off: CHUNK_BYTES + off)
    | st.just(2 * CHUNK_BYTES + 1),
)
def test_reports_of_any_length_arrive_in_chunks_that_fit_a_message(count: int, length: int) -> None:
    reports = [bytes([number]) * length for number in range(count)]
    messages = written(reports)
    chunks = [message.chunk for message in messages[1:]]
    assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks)
    assert b"".join(chunks) == b"".join(reports)
    assert read(messages, length) == reports


@settings(deadline=None, max_examples=100)
@given(cuts=st.sets(st.integers(1, LENGTH * len(REPORTS) - 1)))
def test_where_the_chunks_are_cut_changes_nothing(cuts: set[int]) -> None:
    header, body = written()[0], b"".join(REPORTS)
    places = [0, *sorted(cuts), len(body)]
    chunks = [body[start:end] for start, end in pairwise(places)]
    messages = [header, *(mix_pb2.BatchFrame(chunk=chunk) for chunk in chunks)]
    assert read(messages) == REPORTS


def test_small_reports_travel_together() -> None:
    assert len(written()) == 2


def test_reports_are_handed_over_as_they_come() -> None:
    """Nothing waits for the end of the batch: a reader holds one report at a time."""
    header, *_ = written()
    taken = 0

    async def source() -> AsyncIterator[mix_pb2.BatchFrame]:
        nonlocal taken
        for report in REPORTS:
            taken += 1
            yield mix_pb2.BatchFrame(chunk=report)

    async def scene() -> list[int]:
        batch = incoming(header, source(), ROUND.descriptor, STUDY, 2, LENGTH)
        return [taken async for _ in batch.reports()]

    assert asyncio.run(scene()) == [1, 2, 3, 4, 5]


# Broken batches ----------------------------------------------------------------------------------


def chunk(content: bytes) -> mix_pb2.BatchFrame:
    return mix_pb2.BatchFrame(chunk=content)


def body(change: Callable[[bytes], bytes]) -> Callable[[Frames], Frames]:
    return lambda messages: [messages[0], chunk(change(messages[1].chunk))]


def flipped(content: bytes) -> bytes:
    return content[:250] + bytes([content[250] ^ 1]) + content[251:]


BROKEN: dict[str, Callable[[Frames], Frames]] = {
    "nothing at all": lambda messages: [],
    "no header": lambda messages: messages[1:],
    "header only": lambda messages: messages[:1],
    "two headers": lambda messages: [messages[0], *messages],
    "a header in between": lambda messages: [*messages, messages[0]],
    "an empty frame first": lambda messages: [mix_pb2.BatchFrame(), *messages],
    "an empty frame": lambda messages: [messages[0], mix_pb2.BatchFrame(), messages[1]],
    "an empty frame last": lambda messages: [*messages, mix_pb2.BatchFrame()],
    "an empty chunk": lambda messages: [messages[0], chunk(b""), messages[1]],
    "a byte behind": lambda messages: [*messages, chunk(b"x")],
    "an empty chunk behind": lambda messages: [*messages, chunk(b"")],
    "a report behind": lambda messages: [*messages, chunk(REPORTS[0])],
    "a truncated report": body(lambda content: content[:-1]),
    "a byte more": body(lambda content: content + b"\0"),
    "a report more": body(lambda content: content + content[:LENGTH]),
    "a report fewer": body(lambda content: content[LENGTH:]),
    "a flipped bit": body(flipped),
    "two reports swapped": body(
        lambda content: content[LENGTH : 2 * LENGTH] + content[:LENGTH] + content[2 * LENGTH :]
    ),
    "a report twice": body(lambda content: content[:LENGTH] + content[:-LENGTH]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_batch_that_is_not_what_was_stated_is_broken(name: str) -> None:
    with pytest.raises(BrokenBatch):
        read(BROKEN[name](written()))


@pytest.mark.parametrize("length", [LENGTH - 1, LENGTH + 1, LENGTH // 2, 5 * LENGTH])
def test_a_reader_that_expects_another_length_refuses(length: int) -> None:
    with pytest.raises(BrokenBatch):
        read(written(), length)


def test_an_endless_batch_is_refused_while_it_streams() -> None:
    """The reader stops at the stated size: it does not keep what follows."""
    taken = 0

    def endless() -> Iterable[mix_pb2.BatchFrame]:
        nonlocal taken
        yield written()[0]
        while True:
            report = bytes([taken % 256]) * LENGTH
            taken += 1
            yield chunk(report)

    with pytest.raises(BrokenBatch, match="longer than stated"):
        read(endless())
    assert taken == len(REPORTS) + 1


# Whose batch it is -------------------------------------------------------------------------------


def test_a_batch_names_its_round_first() -> None:
    header, body_frame = written()
    assert digest_of(header) == ROUND.digest
    for wrong in (None, body_frame, mix_pb2.BatchFrame()):
        with pytest.raises(BrokenBatch, match="starts with its header"):
            digest_of(wrong)


def test_a_batch_of_another_round_is_refused() -> None:
    other = make_round(STUDY, PARTIES.keys["server"], 2)
    messages = list(frames(other.digest, chain_of(REPORTS), REPORTS))
    with pytest.raises(BrokenBatch, match="another round"):
        read(messages)


def test_a_batch_needs_the_statements_of_all_mixes_before() -> None:
    chain = chain_of(REPORTS)
    with pytest.raises(BrokenChain, match="2 statements are needed"):
        read(frames(ROUND.digest, chain[1:], REPORTS))
    with pytest.raises(BrokenChain, match="out of order"):
        read(frames(ROUND.digest, chain[::-1], REPORTS))


def test_a_batch_under_a_forged_statement_is_refused() -> None:
    chain = chain_of(REPORTS)
    chain[1].output = joined(REPORTS[::-1])
    with pytest.raises(ForgedSignature):
        read(frames(ROUND.digest, chain, REPORTS[::-1]))


def test_a_report_is_known_by_its_digest() -> None:
    check_report(b"report", sha256(b"report").digest())
    for digest in (sha256(b"other").digest(), b"", bytes(32)):
        with pytest.raises(BrokenBatch, match="not the one that was stated"):
            check_report(b"report", digest)


def test_a_reader_waits_longer_for_a_longer_chain() -> None:
    waits = [chain_wait_s(5.0, hops) for hops in (1, 2, 5)]
    assert waits == sorted(waits)
    assert min(waits) > 2 * 5.0
