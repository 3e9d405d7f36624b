"""Reports from silos to the first mix: what is accepted, what is refused and how.

A real service on a real mutual-TLS server in this process.
"""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from silomix.consortium import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.batches import Counts
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import verify
from silomix_protocol.onion import UnopenableLayer, open_layer
from silomix_protocol.tls import CHUNK_BYTES
from support.consortia import make_consortium
from support.mixes import (
    Sealed,
    calling,
    chain_serving,
    collect,
    described,
    mix_serving,
    opener,
    refusal,
    refused_submission,
    run,
    sealed_reports,
    silo_stream,
    submission,
    submit,
    submit_all,
    wide_task,
)

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
Frames = list[mix_pb2.SubmitFrame]


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


@pytest.fixture
def pair(tmp_path: Path) -> Consortium:
    """With two mixes."""
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=20.0)


def inners(reports: dict[str, Sealed]) -> list[bytes]:
    return sorted(report.inner for report in reports.values())


# What is accepted -------------------------------------------------------------------------------


@pytest.mark.parametrize("mixes", [1, 2, 3])
def test_the_server_collects_exactly_what_the_silos_sealed(tmp_path: Path, mixes: int) -> None:
    made = make_consortium(tmp_path / "c", mixes=mixes, deadline_s=20.0)
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)

    async def scene() -> None:
        async with chain_serving(made):
            receipts = await submit_all(made, descriptor, reports)
            batch = await collect(made, descriptor)
        assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
        assert sorted(batch.reports) == inners(reports)
        assert batch.counts == Counts(3, 3, 0)
        assert (batch.descriptor, batch.aborted) == (descriptor, "")

    run(scene())


def test_the_order_of_arrival_is_gone(tmp_path: Path) -> None:
    """Ten reports leave in the order they came in with probability 1/10! = 3e-7."""
    made = make_consortium(tmp_path / "c", records=(40,) * 10, deadline_s=20.0)
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)

    async def scene() -> None:
        async with chain_serving(made):
            await submit_all(made, descriptor, reports)
            batch = await collect(made, descriptor)
        assert sorted(batch.reports) == inners(reports)
        assert list(batch.reports) != [report.inner for report in reports.values()]

    run(scene())


def test_a_receipt_is_signed_by_the_mix_over_round_and_report(made: Consortium) -> None:
    descriptor = described(made)
    onion = sealed_reports(made, descriptor)["silo-1"].onion

    async def scene() -> mix_pb2.Receipt:
        async with chain_serving(made):
            (receipt,) = await submit(made, "silo-1", submission(made, "silo-1", descriptor, onion))
            return receipt

    receipt = run(scene())
    assert receipt.digest == descriptor.digest
    mix_key = made.study.mixes[0].sign_key
    verify(mix_key, receipt.signature, "receipt", descriptor.digest, receipt.report)


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1136])
def test_a_report_may_come_in_pieces(made: Consortium, chunk_bytes: int) -> None:
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)

    async def scene() -> None:
        async with chain_serving(made):
            for silo, report in reports.items():
                cut = submission(made, silo, descriptor, report.onion, chunk_bytes=chunk_bytes)
                assert len(cut) > 1
                (receipt,) = await submit(made, silo, cut)
                assert receipt.status == ACCEPTED
            assert sorted((await collect(made, descriptor)).reports) == inners(reports)

    run(scene())


def test_reports_larger_than_a_message_pass_the_whole_chain(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", records=(1, 1), deadline_s=20.0, task=wide_task(300_000))
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)
    assert len(reports["silo-1"].onion) > CHUNK_BYTES

    async def scene() -> None:
        async with chain_serving(made):
            for silo, report in reports.items():
                cut = submission(made, silo, descriptor, report.onion, chunk_bytes=CHUNK_BYTES)
                (receipt,) = await submit(made, silo, cut)
                assert receipt.status == ACCEPTED
            assert sorted((await collect(made, descriptor)).reports) == inners(reports)

    run(scene())


def test_one_stream_carries_the_reports_of_many_rounds(made: Consortium) -> None:
    async def scene() -> None:
        async with (
            chain_serving(made),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
            silo_stream(made, "silo-3") as three,
        ):
            for number in (1, 2, 3):
                descriptor = described(made, number)
                reports = sealed_reports(made, descriptor)
                for stream, (silo, report) in zip((one, two, three), reports.items(), strict=True):
                    receipt = await stream.send(submission(made, silo, descriptor, report.onion))
                    assert receipt.status == ACCEPTED
                assert sorted((await collect(made, descriptor)).reports) == inners(reports)

    run(scene())


# The same again, and something else -------------------------------------------------------------


def test_the_same_bytes_again_get_the_same_receipt_and_count_once(made: Consortium) -> None:
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)
    frames = submission(made, "silo-1", descriptor, reports["silo-1"].onion)

    async def scene() -> None:
        async with chain_serving(made):
            first, second = await submit(made, "silo-1", [*frames, *frames])
            assert first.status == ACCEPTED
            assert second == first
            await submit_all(made, descriptor, reports)
            batch = await collect(made, descriptor)
            assert batch.counts == Counts(3, 3, 0)
            late = await submit(made, "silo-1", frames)
            assert late == [first], "also when the batch has left"

    run(scene())


def test_other_bytes_for_the_same_round_are_refused_and_the_first_stand(made: Consortium) -> None:
    descriptor = described(made)
    reports, others = sealed_reports(made, descriptor), sealed_reports(made, descriptor)

    async def scene() -> None:
        async with chain_serving(made):
            first = submission(made, "silo-1", descriptor, reports["silo-1"].onion)
            second = submission(made, "silo-1", descriptor, others["silo-1"].onion)
            accepted, refused, again = await submit(made, "silo-1", [*first, *second, *first])
            assert (accepted.status, again) == (ACCEPTED, accepted)
            assert refused.status == REFUSED
            assert "another report" in refused.reason
            assert refused.signature == b"", "a refusal is no receipt"
            await submit_all(made, descriptor, {**reports})
            assert sorted((await collect(made, descriptor)).reports) == inners(reports)

    run(scene())


def test_a_report_after_the_batch_has_left_is_refused(made: Consortium) -> None:
    descriptor = described(made, silos=("silo-1", "silo-2"))
    reports = sealed_reports(made, descriptor)
    late = sealed_reports(made, described(made))["silo-3"].onion

    async def scene() -> None:
        async with chain_serving(made):
            await submit_all(made, descriptor, reports)
            assert len((await collect(made, descriptor)).reports) == 2
            (receipt,) = await submit(made, "silo-3", submission(made, "silo-3", descriptor, late))
            assert (receipt.status, receipt.signature) == (REFUSED, b"")

    run(scene())


def test_a_round_has_one_descriptor(made: Consortium) -> None:
    """A server that shows two silos different queries splits its own batch."""
    one, two = described(made, query=b"one"), described(made, query=b"two")

    async def scene() -> None:
        async with chain_serving(made):
            (first,) = await submit(
                made, "silo-1", submission(made, "silo-1", one, _onion(made, one, "silo-1"))
            )
            (second,) = await submit(
                made, "silo-2", submission(made, "silo-2", two, _onion(made, two, "silo-2"))
            )
            assert first.status == ACCEPTED
            assert (second.status, second.signature) == (REFUSED, b"")
            assert "another descriptor" in second.reason
            code = await refusal(collect(made, two))
            assert code is grpc.StatusCode.FAILED_PRECONDITION

    run(scene())


# Reports that are not what they should be -------------------------------------------------------


def _onion(made: Consortium, descriptor: Descriptor, silo: str) -> bytes:
    return sealed_reports(made, descriptor)[silo].onion


def _length(made: Consortium, descriptor: Descriptor, change: Callable[[bytes], bytes]) -> Frames:
    return submission(made, "silo-1", descriptor, change(_onion(made, descriptor, "silo-1")))


def too_short(made: Consortium, descriptor: Descriptor) -> Frames:
    return _length(made, descriptor, lambda onion: onion[:-1])


def too_long(made: Consortium, descriptor: Descriptor) -> Frames:
    return _length(made, descriptor, lambda onion: onion + b"\0")


def announced_huge(made: Consortium, descriptor: Descriptor) -> Frames:
    frames = submission(made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"))
    frames[0].header.bytes = 2**40
    return frames


def longer_than_announced(made: Consortium, descriptor: Descriptor) -> Frames:
    frames = submission(made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"))
    frames[0].chunk += bytes(1000)
    return frames


def overflowing_in_the_second_piece(made: Consortium, descriptor: Descriptor) -> Frames:
    frames = submission(
        made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"), chunk_bytes=2000
    )
    frames[1].chunk += bytes(1000)
    return frames


def truncated(made: Consortium, descriptor: Descriptor) -> Frames:
    onion = _onion(made, descriptor, "silo-1")
    return submission(made, "silo-1", descriptor, onion, chunk_bytes=1000)[:-1]


def interrupted_by_another(made: Consortium, descriptor: Descriptor) -> Frames:
    frames = submission(
        made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"), chunk_bytes=1000
    )
    return [frames[0], frames[0]]


def with_an_empty_piece(made: Consortium, descriptor: Descriptor) -> Frames:
    onion = _onion(made, descriptor, "silo-1")
    first = submission(made, "silo-1", descriptor, onion, chunk_bytes=1000)[0]
    return [first, mix_pb2.SubmitFrame()]


def signed_by_another_silo(made: Consortium, descriptor: Descriptor) -> Frames:
    onion = _onion(made, descriptor, "silo-1")
    return submission(made, "silo-1", descriptor, onion, signed_by="silo-2")


def sent_for_another_silo(made: Consortium, descriptor: Descriptor) -> Frames:
    return submission(made, "silo-2", descriptor, _onion(made, descriptor, "silo-2"))


def not_signed(made: Consortium, descriptor: Descriptor) -> Frames:
    frames = submission(made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"))
    frames[0].header.signature = b""
    return frames


def changed_after_signing(made: Consortium, descriptor: Descriptor) -> Frames:
    frames = submission(made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"))
    frames[0].chunk = frames[0].chunk[:-1] + bytes([frames[0].chunk[-1] ^ 1])
    return frames


def signed_for_another_round(made: Consortium, descriptor: Descriptor) -> Frames:
    onion = _onion(made, descriptor, "silo-1")
    other = submission(made, "silo-1", described(made, 2), onion)
    frames = submission(made, "silo-1", descriptor, onion)
    frames[0].header.signature = other[0].header.signature
    return frames


def without_a_header(made: Consortium, descriptor: Descriptor) -> Frames:
    return [mix_pb2.SubmitFrame(chunk=_onion(made, descriptor, "silo-1"))]


def of_an_unknown_study(made: Consortium, descriptor: Descriptor) -> Frames:
    other = make_consortium(made.folder / "other", mixes=1)
    foreign = described(other)
    return submission(made, "silo-1", foreign, _onion(other, foreign, "silo-1"))


def with_a_forged_descriptor(made: Consortium, descriptor: Descriptor) -> Frames:
    frames = submission(made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"))
    frames[0].header.descriptor.signature = bytes(64)
    return frames


def with_garbage_for_a_descriptor(made: Consortium, descriptor: Descriptor) -> Frames:
    frames = submission(made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"))
    frames[0].header.descriptor.descriptor = b"\xff\xff\xff"
    return frames


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (too_short, grpc.StatusCode.INVALID_ARGUMENT),
        (too_long, grpc.StatusCode.INVALID_ARGUMENT),
        (announced_huge, grpc.StatusCode.INVALID_ARGUMENT),
        (longer_than_announced, grpc.StatusCode.INVALID_ARGUMENT),
        (overflowing_in_the_second_piece, grpc.StatusCode.INVALID_ARGUMENT),
        (truncated, grpc.StatusCode.INVALID_ARGUMENT),
        (interrupted_by_another, grpc.StatusCode.INVALID_ARGUMENT),
        (with_an_empty_piece, grpc.StatusCode.INVALID_ARGUMENT),
        (signed_by_another_silo, grpc.StatusCode.PERMISSION_DENIED),
        (sent_for_another_silo, grpc.StatusCode.PERMISSION_DENIED),
        (not_signed, grpc.StatusCode.PERMISSION_DENIED),
        (changed_after_signing, grpc.StatusCode.PERMISSION_DENIED),
        (signed_for_another_round, grpc.StatusCode.PERMISSION_DENIED),
        (without_a_header, grpc.StatusCode.FAILED_PRECONDITION),
        (of_an_unknown_study, grpc.StatusCode.FAILED_PRECONDITION),
        (with_a_forged_descriptor, grpc.StatusCode.FAILED_PRECONDITION),
        (with_garbage_for_a_descriptor, grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_a_bad_report_is_refused_and_leaves_the_round_to_the_others(
    made: Consortium,
    frames: Callable[[Consortium, Descriptor], Frames],
    code: grpc.StatusCode,
) -> None:
    """Nothing of it is stored: afterwards the same silo sends a good one, and all three count."""
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)

    async def scene() -> None:
        async with chain_serving(made):
            bad, ends = frames(made, descriptor), frames is truncated
            assert await refused_submission(made, "silo-1", bad, ends=ends) is code
            receipts = await submit_all(made, descriptor, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(made, descriptor)
            assert sorted(batch.reports) == inners(reports)
            assert batch.counts == Counts(3, 3, 0)

    run(scene())


def test_what_follows_a_report_on_the_stream_is_not_part_of_it(made: Consortium) -> None:
    descriptor = described(made)
    frames = submission(made, "silo-1", descriptor, _onion(made, descriptor, "silo-1"))
    trailing = mix_pb2.SubmitFrame(chunk=b"more")

    async def scene() -> grpc.StatusCode:
        async with chain_serving(made):
            return await refused_submission(made, "silo-1", [*frames, trailing])

    assert run(scene()) is grpc.StatusCode.FAILED_PRECONDITION


def test_garbage_of_the_right_length_is_dropped_and_counted_and_nothing_else(
    made: Consortium,
) -> None:
    """The sender gets a receipt like any other: what is inside answers no questions."""
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)
    garbage = bytes(len(reports["silo-3"].onion))

    async def scene() -> None:
        async with chain_serving(made):
            reports["silo-3"] = Sealed(garbage, b"")
            receipts = await submit_all(made, descriptor, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(made, descriptor)
        del reports["silo-3"]
        assert sorted(batch.reports) == inners(reports)
        assert batch.counts == Counts(received=3, forwarded=2, dropped=1)
        assert not batch.aborted

    run(scene())


@pytest.mark.parametrize("sealed_for", ["another round", "another study"])
def test_an_onion_made_for_elsewhere_is_dropped(made: Consortium, sealed_for: str) -> None:
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)
    if sealed_for == "another round":
        foreign = sealed_reports(made, described(made, 2))["silo-3"]
    else:
        other = make_consortium(made.folder / "other", mixes=1)
        foreign = sealed_reports(other, described(other))["silo-3"]

    async def scene() -> None:
        async with chain_serving(made):
            await submit_all(made, descriptor, {**reports, "silo-3": foreign})
            batch = await collect(made, descriptor)
        assert foreign.inner not in batch.reports
        assert batch.counts == Counts(received=3, forwarded=2, dropped=1)

    run(scene())


def test_a_copy_of_another_silos_onion_counts_once(made: Consortium) -> None:
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)
    reports["silo-3"] = reports["silo-1"]

    async def scene() -> None:
        async with chain_serving(made):
            await submit_all(made, descriptor, reports)
            batch = await collect(made, descriptor)
        assert sorted(batch.reports) == sorted([reports["silo-1"].inner, reports["silo-2"].inner])
        assert batch.counts == Counts(received=3, forwarded=2, dropped=1)

    run(scene())


# Who may submit, and where ----------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["server", "mix-1", "mix-2"])
def test_only_silos_submit(pair: Consortium, caller: str) -> None:
    descriptor = described(pair)
    frames = submission(pair, "silo-1", descriptor, _onion(pair, descriptor, "silo-1"))

    async def scene() -> grpc.StatusCode:
        async with mix_serving(pair, 0):
            return await refused_submission(pair, caller, frames)

    assert run(scene()) is grpc.StatusCode.PERMISSION_DENIED


def test_reports_go_to_the_first_mix_only(pair: Consortium) -> None:
    """A report put in behind the first mix would miss its shuffle."""
    descriptor = described(pair)
    onion = _onion(pair, descriptor, "silo-1")
    inside = open_layer(onion, opener(pair, "mix-1"), 0, descriptor.digest)

    async def scene() -> None:
        async with mix_serving(pair, 1):
            for content in (onion, inside):
                frames = submission(pair, "silo-1", descriptor, content)
                code = await refused_submission(pair, "silo-1", frames, mix="mix-2")
                assert code is grpc.StatusCode.PERMISSION_DENIED

    run(scene())


def test_a_silo_that_the_round_does_not_wait_for_is_refused(made: Consortium) -> None:
    descriptor = described(made, silos=("silo-1", "silo-2"))
    onion = sealed_reports(made, described(made))["silo-3"].onion

    async def scene() -> None:
        async with chain_serving(made):
            (receipt,) = await submit(made, "silo-3", submission(made, "silo-3", descriptor, onion))
            assert (receipt.status, receipt.signature) == (REFUSED, b"")
            assert "does not expect" in receipt.reason

    run(scene())


def test_one_mix_alone_cannot_see_the_report(made: Consortium) -> None:
    """What a mix of a chain of one holds after opening is still sealed to the server."""
    descriptor = described(made)
    report = sealed_reports(made, descriptor)["silo-1"]
    mix_key = opener(made, "mix-1")
    inside = open_layer(report.onion, mix_key, 0, descriptor.digest)
    assert inside == report.inner
    for hop in (0, 1, 0xFFFF):
        with pytest.raises(UnopenableLayer):
            open_layer(inside, mix_key, hop, descriptor.digest)


def test_a_refusal_tells_nothing_about_the_sender_or_the_report(made: Consortium) -> None:
    descriptor = described(made)
    frames = signed_by_another_silo(made, descriptor)

    async def scene() -> str:
        async with chain_serving(made), calling(made, "silo-1", "mix-1") as stub:
            call = stub.Submit(iter(frames), timeout=5.0)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
            return str(raised.value.details())

    assert run(scene()) == "the signature on this report is not valid"
