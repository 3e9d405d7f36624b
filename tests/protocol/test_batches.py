"""A batch on the wire: what is read is what a mix signed, or nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix.consortium import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.batches import (
    Batch,
    BrokenBatch,
    Counts,
    descriptor_of,
    frames,
    read_batch,
)
from silomix_protocol.descriptor import RefusedDescriptor
from silomix_protocol.keys import ForgedSignature, SigningKey
from silomix_protocol.tls import CHUNK_BYTES
from support.consortia import make_consortium
from support.mixes import described, signer

Frames = list[mix_pb2.BatchFrame]
LENGTH = 100
REPORTS = tuple(bytes([number]) * LENGTH for number in range(5))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder: Path = tmp_path_factory.mktemp("batches")
    return make_consortium(folder / "c", records=(40,) * 6, minimum_batch=2)


@pytest.fixture(scope="module")
def key(made: Consortium) -> SigningKey:
    return signer(made, "mix-1")


def batch(made: Consortium, reports: tuple[bytes, ...] = REPORTS, aborted: str = "") -> Batch:
    counts = Counts(received=len(reports) + 1, forwarded=len(reports), dropped=1)
    return Batch(described(made), reports, counts, aborted)


def read(
    made: Consortium,
    messages: Iterable[mix_pb2.BatchFrame],
    length: int = LENGTH,
    by: str = "mix-1",
) -> Batch:
    async def source() -> AsyncIterator[mix_pb2.BatchFrame]:
        for message in messages:
            yield mix_pb2.BatchFrame.FromString(message.SerializeToString())

    sender = next(mix.sign_key for mix in made.study.mixes if mix.name == by)
    return asyncio.run(read_batch(source(), made.study, sender, length))


def test_a_batch_is_read_as_it_was_written(made: Consortium, key: SigningKey) -> None:
    written = batch(made)
    assert read(made, frames(written, key)) == written


def test_an_aborted_batch_says_why(made: Consortium, key: SigningKey) -> None:
    written = Batch(described(made), (), Counts(1, 0, 0), "1 valid reports, 2 needed")
    messages = list(frames(written, key))
    assert len(messages) == 2
    assert read(made, messages) == written


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(0, 6),
    length=st.sampled_from([1, 7, 5000, 300_000])
    | st.sampled_from([-1, 0, 1]).map(lambda off: CHUNK_BYTES // 2 + off)
    | st.sampled_from([-1, 0, 1]).map(lambda off: CHUNK_BYTES + off)
    | st.just(2 * CHUNK_BYTES + 1),
)
def test_reports_of_any_length_arrive_in_chunks_that_fit_a_message(
    made: Consortium, key: SigningKey, count: int, length: int
) -> None:
    written = batch(made, tuple(bytes([number]) * length for number in range(count)))
    messages = list(frames(written, key))
    chunks = [message.chunk for message in messages[1:-1]]
    assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks)
    assert b"".join(chunks) == b"".join(written.reports)
    assert read(made, messages, length) == written


def test_small_reports_travel_together(made: Consortium, key: SigningKey) -> None:
    assert len(list(frames(batch(made), key))) == 3


def test_a_batch_names_its_descriptor_first(made: Consortium, key: SigningKey) -> None:
    written = batch(made)
    header, *_, trailer = frames(written, key)
    assert descriptor_of(header) == written.descriptor.to_wire()
    with pytest.raises(BrokenBatch, match="header"):
        descriptor_of(trailer)


# Tampering, by somebody on the way who cannot sign ----------------------------------------------


def edit(position: int, change: Callable[[mix_pb2.BatchFrame], None]) -> Callable[[Frames], Frames]:
    def tamper(messages: Frames) -> Frames:
        change(messages[position])
        return messages

    return tamper


def put(position: int, part: str, name: str, value: object) -> Callable[[Frames], Frames]:
    return edit(position, lambda message: setattr(getattr(message, part), name, value))


def flip_a_bit(messages: Frames) -> Frames:
    body = bytearray(messages[1].chunk)
    body[250] ^= 1
    messages[1].chunk = bytes(body)
    return messages


def swap_reports(messages: Frames) -> Frames:
    body = messages[1].chunk
    messages[1].chunk = body[LENGTH : 2 * LENGTH] + body[:LENGTH] + body[2 * LENGTH :]
    return messages


def drop_a_report(messages: Frames) -> Frames:
    messages[0].header.reports -= 1
    messages[1].chunk = messages[1].chunk[LENGTH:]
    return messages


def repeat_a_report(messages: Frames) -> Frames:
    messages[0].header.reports += 1
    messages[1].chunk += messages[1].chunk[:LENGTH]
    return messages


def lose_the_last_byte(messages: Frames) -> Frames:
    messages[1].chunk = messages[1].chunk[:-1]
    return messages


def one_byte_more(messages: Frames) -> Frames:
    messages[1].chunk += b"\0"
    return messages


EXTRA = mix_pb2.BatchFrame(chunk=b"x")
BROKEN: dict[str, Callable[[Frames], Frames]] = {
    "nothing at all": lambda messages: [],
    "no header": lambda messages: messages[1:],
    "header only": lambda messages: messages[:1],
    "no trailer": lambda messages: messages[:-1],
    "no reports": lambda messages: [messages[0], messages[-1]],
    "two headers": lambda messages: [messages[0], *messages],
    "two trailers": lambda messages: [*messages, messages[-1]],
    "a chunk behind the trailer": lambda messages: [*messages, EXTRA],
    "a chunk too many": lambda messages: [*messages[:-1], EXTRA, messages[-1]],
    "trailer first": lambda messages: [messages[0], messages[2], messages[1]],
    "an empty frame": lambda messages: [*messages[:-1], mix_pb2.BatchFrame(), messages[-1]],
    "a truncated report": lose_the_last_byte,
    "a byte more": one_byte_more,
    "a flipped bit": flip_a_bit,
    "two reports swapped": swap_reports,
    "a report dropped": drop_a_report,
    "a report repeated": repeat_a_report,
    "header counts more": put(0, "header", "reports", len(REPORTS) + 1),
    "header counts fewer": put(0, "header", "reports", len(REPORTS) - 1),
    "header counts more than there are silos": put(0, "header", "reports", 7),
    "header counts very many": put(0, "header", "reports", 2**32 - 1),
    "forwarded changed": put(2, "trailer", "forwarded", len(REPORTS) - 1),
    "another summary": put(2, "trailer", "reports", bytes(32)),
    "no summary": put(2, "trailer", "reports", b""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_batch_tampered_with_is_broken(made: Consortium, key: SigningKey, name: str) -> None:
    with pytest.raises(BrokenBatch):
        read(made, BROKEN[name](list(frames(batch(made), key))))


FORGED: dict[str, Callable[[Frames], Frames]] = {
    "received changed": put(2, "trailer", "received", 5),
    "dropped changed": put(2, "trailer", "dropped", 0),
    "a reason added": put(2, "trailer", "aborted", "because"),
    "no signature": put(2, "trailer", "signature", b""),
    "another signature": put(2, "trailer", "signature", bytes(64)),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_mixs_signature_covers_its_counts_and_reason(
    made: Consortium, key: SigningKey, name: str
) -> None:
    with pytest.raises(ForgedSignature):
        read(made, FORGED[name](list(frames(batch(made), key))))


def test_a_batch_of_another_mix_is_forged(made: Consortium, key: SigningKey) -> None:
    with pytest.raises(ForgedSignature):
        read(made, frames(batch(made), key), by="mix-2")


def test_a_batch_does_not_move_to_another_round(made: Consortium, key: SigningKey) -> None:
    messages = list(frames(batch(made), key))
    other = described(made, 2).to_wire()
    messages[0].header.descriptor.CopyFrom(other)
    with pytest.raises(ForgedSignature):
        read(made, messages)


def test_a_batch_needs_a_descriptor_of_the_study(made: Consortium, key: SigningKey) -> None:
    messages = list(frames(batch(made), key))
    messages[0].header.descriptor.signature = bytes(64)
    with pytest.raises(RefusedDescriptor):
        read(made, messages)


def test_a_reader_that_expects_another_length_refuses(made: Consortium, key: SigningKey) -> None:
    for length in (LENGTH - 1, LENGTH + 1, LENGTH // 2):
        with pytest.raises(BrokenBatch):
            read(made, frames(batch(made), key), length)


def test_an_endless_batch_is_refused_while_it_streams(made: Consortium, key: SigningKey) -> None:
    """The reader stops at the announced size: it does not keep what follows."""
    taken = 0

    def endless() -> Iterable[mix_pb2.BatchFrame]:
        nonlocal taken
        yield next(iter(frames(batch(made), key)))
        while True:
            taken += 1
            yield mix_pb2.BatchFrame(chunk=bytes(LENGTH))

    with pytest.raises(BrokenBatch, match="longer"):
        read(made, endless())
    assert taken == len(REPORTS) + 1


def test_an_aborted_batch_carries_no_reports(made: Consortium, key: SigningKey) -> None:
    """Else a mix would pass them on unopened and the coordinator would count them."""
    with pytest.raises(BrokenBatch, match="aborted"):
        read(made, frames(batch(made, aborted="because"), key))


def test_a_batch_has_no_more_reports_than_its_round_has_silos(
    made: Consortium, key: SigningKey
) -> None:
    descriptor = described(made, silos=("silo-1", "silo-2"))
    for count in (2, 3):
        written = Batch(descriptor, REPORTS[:count], Counts(count, count, 0))
        if count == 2:
            assert read(made, frames(written, key)) == written
        else:
            with pytest.raises(BrokenBatch, match="more reports than silos"):
                read(made, frames(written, key))
