"""The life of a round at real mixes: who collects, what the deadline does, who is waited for."""

import asyncio
from pathlib import Path

import grpc
import pytest
from silomix.consortium import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.batches import Batch, Counts
from support.consortia import make_consortium
from support.mixes import (
    Sealed,
    SiloStream,
    chain_serving,
    collect,
    described,
    mix_serving,
    refusal,
    run,
    sealed_reports,
    silo_stream,
    submission,
    submit,
    submit_all,
)

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
ROSTER = ("silo-1", "silo-2", "silo-3")


@pytest.fixture
def pair(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=20.0)


async def answer(
    made: Consortium, number: int, streams: dict[str, SiloStream], roster: tuple[str, ...]
) -> None:
    """These silos answer a round that waits for the roster."""
    descriptor = described(made, number, silos=roster)
    reports = sealed_reports(made, descriptor)
    for silo, stream in streams.items():
        receipt = await stream.send(submission(made, silo, descriptor, reports[silo].onion))
        assert receipt.status == ACCEPTED


# Collect ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["silo-1", "mix-1", "mix-2"])
def test_only_the_coordinator_collects(pair: Consortium, caller: str) -> None:
    async def scene() -> grpc.StatusCode:
        async with mix_serving(pair, 1):
            return await refusal(collect(pair, described(pair), caller=caller))

    assert run(scene()) is grpc.StatusCode.PERMISSION_DENIED


def test_batches_are_collected_from_the_last_mix_only(pair: Consortium) -> None:
    """From an earlier one the server would see what later mixes have not permuted yet."""
    descriptor = described(pair)

    async def scene() -> grpc.StatusCode:
        async with chain_serving(pair):
            await submit_all(pair, descriptor, sealed_reports(pair, descriptor))
            await collect(pair, descriptor)
            return await refusal(collect(pair, descriptor, mix="mix-1"))

    assert run(scene()) is grpc.StatusCode.PERMISSION_DENIED


def test_collecting_an_unknown_study_is_refused(pair: Consortium, tmp_path: Path) -> None:
    other = make_consortium(tmp_path / "other")

    async def scene() -> grpc.StatusCode:
        async with mix_serving(pair, 1):
            return await refusal(collect(pair, described(other)))

    assert run(scene()) is grpc.StatusCode.FAILED_PRECONDITION


def test_the_coordinator_may_wait_before_the_first_report_and_ask_twice(pair: Consortium) -> None:
    descriptor = described(pair)

    async def scene() -> None:
        async with chain_serving(pair):
            waiting = asyncio.create_task(collect(pair, descriptor))
            await submit_all(pair, descriptor, sealed_reports(pair, descriptor))
            assert await waiting == await collect(pair, descriptor)

    run(scene())


def test_a_coordinator_that_hangs_up_can_come_back(pair: Consortium) -> None:
    descriptor = described(pair)

    async def scene() -> Batch:
        async with chain_serving(pair):
            waiting = asyncio.create_task(collect(pair, descriptor))
            first, *others = sealed_reports(pair, descriptor).items()
            await submit_all(pair, descriptor, dict([first]))
            waiting.cancel()
            await asyncio.wait([waiting])
            await submit_all(pair, descriptor, dict(others))
            return await collect(pair, descriptor)

    assert len(run(scene()).reports) == 3


def test_a_later_mix_that_restarted_does_not_open_the_round_again(pair: Consortium) -> None:
    descriptor = described(pair)

    async def scene() -> grpc.StatusCode:
        async with chain_serving(pair):
            await submit_all(pair, descriptor, sealed_reports(pair, descriptor))
            await collect(pair, descriptor)
        async with mix_serving(pair, 1):
            return await refusal(collect(pair, descriptor))

    assert run(scene()) is grpc.StatusCode.FAILED_PRECONDITION


# Deadlines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixes", [1, 2])
def test_below_the_minimum_the_deadline_gives_a_signed_aborted_batch(
    tmp_path: Path, mixes: int
) -> None:
    """`collect` checks the signature of the last mix, also under a batch without reports."""
    made = make_consortium(tmp_path / "c", mixes=mixes, minimum_batch=2, deadline_s=0.3)
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)

    async def scene() -> None:
        async with chain_serving(made):
            await submit_all(made, descriptor, {"silo-1": reports["silo-1"]})
            batch = await collect(made, descriptor)
            assert batch.reports == ()
            assert batch.aborted == "1 valid reports, 2 needed"
            assert batch.counts == Counts(received=1, forwarded=0, dropped=0)
            late = submission(made, "silo-2", descriptor, reports["silo-2"].onion)
            (receipt,) = await submit(made, "silo-2", late)
            assert receipt.status == REFUSED, "an aborted round stays aborted"

    run(scene())


@pytest.mark.parametrize("mixes", [1, 2])
def test_with_the_minimum_the_deadline_releases_the_batch(tmp_path: Path, mixes: int) -> None:
    made = make_consortium(tmp_path / "c", mixes=mixes, minimum_batch=2, deadline_s=1.0)

    async def scene() -> Batch:
        async with (
            chain_serving(made),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
        ):
            await answer(made, 1, {"silo-1": one, "silo-2": two}, ROSTER)
            return await collect(made, described(made))

    batch = run(scene())
    assert (batch.counts, batch.aborted) == (Counts(2, 2, 0), "")


def test_a_round_that_no_silo_answers_is_aborted_at_the_deadline(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, deadline_s=0.2)

    async def scene() -> Batch:
        async with chain_serving(made):
            return await collect(made, described(made))

    batch = run(scene())
    assert batch.aborted == "0 valid reports, 2 needed"
    assert batch.counts == Counts(0, 0, 0)


def test_an_aborted_rounds_reports_do_not_enter_the_next(pair: Consortium) -> None:
    """Round 1 is complete with one report and two pieces of garbage: too few."""
    first, second = described(pair, 1), described(pair, 2)
    old, new = sealed_reports(pair, first), sealed_reports(pair, second)
    garbage = (
        Sealed(bytes(len(old["silo-2"].onion)), b""),
        Sealed(b"x" * len(old["silo-3"].onion), b""),
    )

    async def scene() -> Batch:
        async with chain_serving(pair):
            spoilt = dict(zip(ROSTER, (old["silo-1"], *garbage), strict=True))
            await submit_all(pair, first, spoilt)
            aborted = await collect(pair, first)
            assert (aborted.reports, aborted.counts) == ((), Counts(3, 0, 2))
            await submit_all(pair, second, new)
            return await collect(pair, second)

    batch = run(scene())
    assert sorted(batch.reports) == sorted(report.inner for report in new.values())


def test_a_silo_that_stalls_in_its_report_holds_nobody_up(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=1.0)
    descriptor = described(made)
    onion = sealed_reports(made, descriptor)["silo-3"].onion
    stalling = submission(made, "silo-3", descriptor, onion, chunk_bytes=1000)

    async def scene() -> Batch:
        async with (
            chain_serving(made),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
            silo_stream(made, "silo-3") as slow,
        ):
            await slow.write(stalling[:2])
            await answer(made, 1, {"silo-1": one, "silo-2": two}, ROSTER)
            return await collect(made, descriptor)

    assert len(run(scene()).reports) == 2


def test_rounds_that_are_open_together_do_not_mix(pair: Consortium) -> None:
    rounds = [described(pair, number) for number in (1, 2)]
    reports = [sealed_reports(pair, descriptor) for descriptor in rounds]

    async def scene() -> list[Batch]:
        async with chain_serving(pair):
            for silo in ROSTER:
                for descriptor, sealed in zip(rounds, reports, strict=True):
                    await submit_all(pair, descriptor, {silo: sealed[silo]})
            return [await collect(pair, descriptor) for descriptor in rounds]

    for batch, sealed in zip(run(scene()), reports, strict=True):
        assert sorted(batch.reports) == sorted(report.inner for report in sealed.values())


def test_old_rounds_are_forgotten_but_not_reopened(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, rounds=12, deadline_s=20.0)

    async def scene() -> None:
        async with mix_serving(made, 0) as service:
            for number in range(1, 13):
                descriptor = described(made, number)
                await submit_all(made, descriptor, sealed_reports(made, descriptor))
                assert len((await collect(made, descriptor)).reports) == 3
            assert len(service._rounds) < 8, "memory does not grow with the rounds"
            first = described(made, 1)
            again = sealed_reports(made, first)["silo-1"].onion
            (receipt,) = await submit(made, "silo-1", submission(made, "silo-1", first, again))
            assert (receipt.status, receipt.signature) == (REFUSED, b"")
            code = await refusal(collect(made, first))
            assert code is grpc.StatusCode.FAILED_PRECONDITION

    run(scene())


# Silos that come and go -------------------------------------------------------------------------


@pytest.mark.parametrize("farewell", ["leaves", "breaks off"])
def test_a_silo_that_disconnects_is_not_waited_for_in_later_rounds(
    tmp_path: Path, farewell: str
) -> None:
    """The deadline is ten minutes away; only giving up on silo-3 can end rounds 2 and 3."""
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=600.0)

    async def scene() -> None:
        async with (
            chain_serving(made, grace_s=0.05),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
        ):
            async with silo_stream(made, "silo-3") as three:
                streams = {"silo-1": one, "silo-2": two, "silo-3": three}
                await answer(made, 1, streams, ROSTER)
                assert len((await collect(made, described(made, 1))).reports) == 3
                if farewell == "leaves":
                    await three.leave()
            for number in (2, 3):
                await answer(made, number, {"silo-1": one, "silo-2": two}, ROSTER)
                batch = await collect(made, described(made, number))
                assert batch.counts == Counts(2, 2, 0)

    run(scene())


def test_a_silo_that_comes_back_in_time_is_waited_for(tmp_path: Path) -> None:
    """silo-4 leaves after silo-3 came back, so once the mix has given up on silo-4 (round 2),
    silo-3's grace is over too; round 3 still waits for silo-3."""
    made = make_consortium(
        tmp_path / "c", records=(40,) * 4, mixes=1, minimum_batch=2, deadline_s=600.0
    )

    async def scene() -> None:
        async with (
            chain_serving(made, grace_s=0.4),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
        ):
            pair = {"silo-1": one, "silo-2": two}
            roster = tuple(silo.name for silo in made.study.silos)
            async with (
                silo_stream(made, "silo-3") as three,
                silo_stream(made, "silo-4") as four,
            ):
                await answer(made, 1, {**pair, "silo-3": three, "silo-4": four}, roster)
                await three.leave()
                async with silo_stream(made, "silo-3") as back:
                    await answer_again(made, back)
                    await four.leave()
                    await answer(made, 2, pair, ("silo-1", "silo-2", "silo-4"))
                    second = described(made, 2, silos=("silo-1", "silo-2", "silo-4"))
                    assert (await collect(made, second)).counts == Counts(2, 2, 0)
                    await answer(made, 3, {**pair, "silo-3": back}, ROSTER)
                    third = described(made, 3, silos=ROSTER)
                    assert (await collect(made, third)).counts == Counts(3, 3, 0)

    async def answer_again(made: Consortium, stream: SiloStream) -> None:
        """Any receipt, even a refusal, shows that the mix knows the new stream."""
        descriptor = described(made, 1)
        onion = sealed_reports(made, descriptor)["silo-3"].onion
        receipt = await stream.send(submission(made, "silo-3", descriptor, onion))
        assert receipt.status == REFUSED

    run(scene())


def test_a_silo_given_up_on_is_waited_for_again_when_it_is_back(tmp_path: Path) -> None:
    """In round 3 it is the last to answer, and its report is in the batch."""
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=600.0)

    async def scene() -> None:
        async with (
            mix_serving(made, 0, grace_s=0.05) as service,
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
        ):
            pair = {"silo-1": one, "silo-2": two}
            async with silo_stream(made, "silo-3") as three:
                await answer(made, 1, {**pair, "silo-3": three}, ROSTER)
            await answer(made, 2, pair, ROSTER)
            assert (await collect(made, described(made, 2))).counts == Counts(2, 2, 0)
            async with silo_stream(made, "silo-3") as back:
                while not service._attendance.streams("silo-3"):  # noqa: ASYNC110 not seen yet
                    await asyncio.sleep(0.01)
                await answer(made, 3, {**pair, "silo-3": back}, ROSTER)
                assert (await collect(made, described(made, 3))).counts == Counts(3, 3, 0)

    run(scene())


def test_a_silo_that_missed_a_deadline_is_not_waited_for_until_it_sends_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """silo-3 stays connected and silent; only round 1 runs into its deadline."""
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=1.5)
    late = sealed_reports(made, described(made, 2))["silo-3"].onion

    async def scene() -> None:
        async with (
            chain_serving(made),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
            silo_stream(made, "silo-3") as three,
        ):
            pair = {"silo-1": one, "silo-2": two}
            for number in (1, 2):
                await answer(made, number, pair, ROSTER)
                assert (await collect(made, described(made, number))).counts == Counts(2, 2, 0)
            receipt = await three.send(submission(made, "silo-3", described(made, 2), late))
            assert receipt.status == REFUSED
            await answer(made, 3, {**pair, "silo-3": three}, ROSTER)
            assert (await collect(made, described(made, 3))).counts == Counts(3, 3, 0)

    with caplog.at_level("WARNING", logger="silomix"):
        run(scene())
    deadlines = [line for line in caplog.messages if line.startswith("round_deadline")]
    assert deadlines == ["round_deadline round=1"]
