"""Batches from mix to mix: one per round, from the pinned predecessor, opened and permuted again.

The second mix is real; the test plays the first.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from silomix.consortium import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.batches import Batch, Counts, frames
from silomix_protocol.descriptor import Descriptor
from silomix_protocol.onion import open_layer
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    calling,
    collect,
    described,
    forward,
    mix_serving,
    opener,
    refusal,
    run,
    sealed_reports,
    signer,
    wide_task,
)

Frames = list[mix_pb2.BatchFrame]


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=20.0)


def peeled(made: Consortium, descriptor: Descriptor) -> Batch:
    """What an honest first mix releases."""
    key = opener(made, "mix-1")
    reports = tuple(
        open_layer(report.onion, key, 0, descriptor.digest)
        for report in sealed_reports(made, descriptor).values()
    )
    return Batch(descriptor, reports, Counts(len(reports), len(reports), 0))


def inner(made: Consortium, batch: Batch) -> list[bytes]:
    key = opener(made, "mix-2")
    return sorted(open_layer(report, key, 1, batch.descriptor.digest) for report in batch.reports)


def with_reports(batch: Batch, *reports: bytes) -> Batch:
    counts = Counts(len(reports), len(reports), 0)
    return replace(batch, reports=reports, counts=counts)


def written(made: Consortium, batch: Batch, by: str = "mix-1") -> Frames:
    return list(frames(batch, signer(made, by)))


def test_a_batch_of_the_predecessor_is_opened_and_kept_for_the_server(made: Consortium) -> None:
    batch = peeled(made, described(made))

    async def scene() -> Batch:
        async with mix_serving(made, 1):
            await forward(made, "mix-1", written(made, batch), mix="mix-2")
            return await collect(made, batch.descriptor)

    collected = run(scene())
    assert sorted(collected.reports) == inner(made, batch)
    assert collected.counts == Counts(3, 3, 0)


def test_the_second_mix_permutes_too(tmp_path: Path) -> None:
    """Ten reports keep their order with probability 1/10! = 3e-7."""
    made = make_consortium(tmp_path / "c", records=(40,) * 10, deadline_s=20.0)
    batch = peeled(made, described(made))
    key = opener(made, "mix-2")
    in_order = [open_layer(report, key, 1, batch.descriptor.digest) for report in batch.reports]

    async def scene() -> Batch:
        async with mix_serving(made, 1):
            await forward(made, "mix-1", written(made, batch), mix="mix-2")
            return await collect(made, batch.descriptor)

    collected = run(scene())
    assert sorted(collected.reports) == sorted(in_order)
    assert list(collected.reports) != in_order


@pytest.mark.parametrize("caller", ["silo-1", "server", "mix-2"])
def test_only_the_predecessor_forwards(made: Consortium, caller: str) -> None:
    """Whatever it holds: the batch is genuine and signed by the first mix."""
    batch = peeled(made, described(made))

    async def scene() -> None:
        async with mix_serving(made, 1):
            code = await refusal(forward(made, caller, written(made, batch), mix="mix-2"))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            await forward(made, "mix-1", written(made, batch), mix="mix-2")
            assert len((await collect(made, batch.descriptor)).reports) == 3

    run(scene())


@pytest.mark.parametrize("caller", ["mix-1", "mix-2", "silo-1", "server"])
def test_nobody_forwards_to_the_first_mix(made: Consortium, caller: str) -> None:
    batch = peeled(made, described(made))

    async def scene() -> grpc.StatusCode:
        async with mix_serving(made, 0):
            return await refusal(forward(made, caller, written(made, batch), mix="mix-1"))

    assert run(scene()) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("again", ["the same batch", "another batch", "an aborted batch"])
def test_a_second_batch_for_a_round_is_refused(made: Consortium, again: str) -> None:
    descriptor = described(made)
    first = peeled(made, descriptor)
    second = {
        "the same batch": first,
        "another batch": peeled(made, descriptor),
        "an aborted batch": Batch(descriptor, (), Counts(1, 0, 0), "1 valid reports, 2 needed"),
    }[again]

    async def scene() -> None:
        async with mix_serving(made, 1):
            await forward(made, "mix-1", written(made, first), mix="mix-2")
            code = await refusal(forward(made, "mix-1", written(made, second), mix="mix-2"))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            collected = await collect(made, descriptor)
        assert sorted(collected.reports) == inner(made, first)

    run(scene())


def test_a_second_batch_is_refused_after_a_restart_too(made: Consortium) -> None:
    batch = peeled(made, described(made))

    async def scene() -> None:
        async with mix_serving(made, 1):
            await forward(made, "mix-1", written(made, batch), mix="mix-2")
        async with mix_serving(made, 1):
            code = await refusal(forward(made, "mix-1", written(made, batch), mix="mix-2"))
            assert code is grpc.StatusCode.FAILED_PRECONDITION

    run(scene())


def test_a_batch_with_another_descriptor_for_the_round_is_refused(made: Consortium) -> None:
    first, second = (peeled(made, described(made, query=query)) for query in (b"one", b"two"))

    async def scene() -> None:
        async with mix_serving(made, 1):
            await forward(made, "mix-1", written(made, first), mix="mix-2")
            code = await refusal(forward(made, "mix-1", written(made, second), mix="mix-2"))
            assert code is grpc.StatusCode.FAILED_PRECONDITION

    run(scene())


# Batches that are not what they should be -------------------------------------------------------


def signed_by_another_mix(made: Consortium, batch: Batch) -> Frames:
    return written(made, batch, by="mix-2")


def with_a_count_changed(made: Consortium, batch: Batch) -> Frames:
    messages = written(made, batch)
    messages[-1].trailer.received = 7
    return messages


def with_a_report_changed(made: Consortium, batch: Batch) -> Frames:
    messages = written(made, batch)
    messages[1].chunk = messages[1].chunk[:-1] + bytes([messages[1].chunk[-1] ^ 1])
    return messages


def without_a_trailer(made: Consortium, batch: Batch) -> Frames:
    return written(made, batch)[:-1]


def without_a_header(made: Consortium, batch: Batch) -> Frames:
    return written(made, batch)[1:2]


def with_too_many_reports(made: Consortium, batch: Batch) -> Frames:
    extra = with_reports(batch, *batch.reports, batch.reports[0])
    return written(made, extra)[:1]


def with_reports_of_another_length(made: Consortium, batch: Batch) -> Frames:
    return written(made, with_reports(batch, *(report[:-1] for report in batch.reports)))


def with_layers_still_on(made: Consortium, batch: Batch) -> Frames:
    onions = (report.onion for report in sealed_reports(made, batch.descriptor).values())
    return written(made, with_reports(batch, *onions))[:2]


def of_an_unknown_study(made: Consortium, batch: Batch) -> Frames:
    other = make_consortium(made.folder / "other")
    return list(frames(peeled(other, described(other)), signer(made, "mix-1")))[:1]


def with_a_forged_descriptor(made: Consortium, batch: Batch) -> Frames:
    messages = written(made, batch)[:1]
    messages[0].header.descriptor.signature = bytes(64)
    return messages


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (signed_by_another_mix, grpc.StatusCode.PERMISSION_DENIED),
        (with_a_count_changed, grpc.StatusCode.PERMISSION_DENIED),
        (with_a_report_changed, grpc.StatusCode.INVALID_ARGUMENT),
        (without_a_trailer, grpc.StatusCode.INVALID_ARGUMENT),
        (without_a_header, grpc.StatusCode.INVALID_ARGUMENT),
        (with_too_many_reports, grpc.StatusCode.INVALID_ARGUMENT),
        (with_reports_of_another_length, grpc.StatusCode.INVALID_ARGUMENT),
        (with_layers_still_on, grpc.StatusCode.INVALID_ARGUMENT),
        (of_an_unknown_study, grpc.StatusCode.FAILED_PRECONDITION),
        (with_a_forged_descriptor, grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_a_bad_batch_is_refused_and_does_not_use_up_the_round(
    made: Consortium, broken: Callable[[Consortium, Batch], Frames], code: grpc.StatusCode
) -> None:
    batch = peeled(made, described(made))

    async def scene() -> None:
        async with mix_serving(made, 1):
            bad = broken(made, batch)
            assert await refusal(forward(made, "mix-1", bad, mix="mix-2")) is code
            await forward(made, "mix-1", written(made, batch), mix="mix-2")
            collected = await collect(made, batch.descriptor)
        assert sorted(collected.reports) == inner(made, batch)

    run(scene())


def collected_after(made: Consortium, batch: Batch) -> Batch:
    async def scene() -> Batch:
        async with mix_serving(made, 1):
            await forward(made, "mix-1", written(made, batch), mix="mix-2")
            return await collect(made, batch.descriptor)

    return run(scene())


def test_garbage_and_copies_in_a_batch_are_dropped_and_counted(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", records=(40,) * 4, minimum_batch=2, deadline_s=20.0)
    batch = peeled(made, described(made))
    one, two, *_ = batch.reports
    collected = collected_after(made, with_reports(batch, one, bytes(len(one)), two, one))
    assert sorted(collected.reports) == inner(made, with_reports(batch, one, two))
    assert collected.counts == Counts(received=4, forwarded=2, dropped=2)


def test_a_predecessor_cannot_thin_out_a_batch_below_the_minimum(made: Consortium) -> None:
    """Nor fill it up with copies or garbage: the second mix checks the minimum again."""
    batch = peeled(made, described(made))
    one = batch.reports[0]
    for number, reports in enumerate([(one,), (one, one), (one, bytes(len(one)))], start=1):
        descriptor = described(made, number)
        fresh = peeled(made, descriptor)
        replaced = [fresh.reports[0] if report is one else report for report in reports]
        collected = collected_after(made, with_reports(fresh, *replaced))
        assert collected.reports == ()
        assert collected.aborted == "1 valid reports, 2 needed"


def test_an_aborted_batch_is_passed_on_as_aborted(made: Consortium) -> None:
    batch = Batch(described(made), (), Counts(1, 0, 0), "1 valid reports, 2 needed")
    assert collected_after(made, batch) == batch


def test_of_two_batches_that_arrive_together_one_is_taken(tmp_path: Path) -> None:
    """Large layers are opened in threads: the second batch arrives meanwhile."""
    made = make_consortium(
        tmp_path / "c", records=(1,) * 10, deadline_s=20.0, task=wide_task(20_000)
    )
    descriptor = described(made)
    batches = [peeled(made, descriptor) for _ in range(2)]

    async def scene() -> None:
        async with mix_serving(made, 1), calling(made, "mix-1", "mix-2") as stub:
            calls = [stub.Forward(timeout=RPC_S, wait_for_ready=True) for _ in batches]
            messages = [written(made, batch) for batch in batches]
            for call, sent in zip(calls, messages, strict=True):
                for message in sent[:-1]:
                    await call.write(message)
            await asyncio.gather(
                *(call.write(sent[-1]) for call, sent in zip(calls, messages, strict=True))
            )
            await asyncio.gather(*(call.done_writing() for call in calls))
            codes = [await call.code() for call in calls]
            assert sorted(codes, key=str) == [
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.OK,
            ]
            collected = await collect(made, descriptor)
        assert sorted(collected.reports) == inner(made, batches[codes.index(grpc.StatusCode.OK)])

    run(scene())


def test_a_batch_goes_on_when_the_mix_that_sent_it_hangs_up(tmp_path: Path) -> None:
    """The third mix is still down when the first one's patience with the second ends."""
    made = make_consortium(tmp_path / "c", mixes=3, minimum_batch=2, deadline_s=20.0)
    batch = peeled(made, described(made))

    async def scene() -> Batch:
        async with mix_serving(made, 1):
            async with calling(made, "mix-1", "mix-2") as stub:
                call = stub.Forward(iter(written(made, batch)), timeout=2.0, wait_for_ready=True)
                with suppress(grpc.aio.AioRpcError):
                    await call
            async with mix_serving(made, 2):
                return await collect(made, batch.descriptor)

    assert run(scene()).counts == Counts(3, 3, 0)
