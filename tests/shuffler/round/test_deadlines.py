"""Deadlines of rounds, and silos that come and go: who is waited for, and what an abort leaves."""

import asyncio
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.rounds.onion import Onion
from support.consortia import make_consortium
from support.mixes import (
    PlayedRound,
    SiloStream,
    abandon,
    chain_serving,
    collect,
    mix_serving,
    opened_round,
    run,
    sealed_reports,
    silo_stream,
    state_of,
    submission,
    submit,
    submit_all,
)
from support.submissions import counts

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
ROSTER = ("silo-1", "silo-2", "silo-3")


def digests(reports: tuple[bytes, ...]) -> set[bytes]:
    return {sha256(report).digest() for report in reports}


async def answer(played: PlayedRound, streams: dict[str, SiloStream]) -> None:
    """These silos answer the round."""
    reports = sealed_reports(played)
    for silo, stream in streams.items():
        frames = submission(played.made, silo, played.descriptor, reports[silo].sealed)
        assert (await stream.send(frames)).status == ACCEPTED


@pytest.mark.parametrize("mixes", [1, 3])
def test_below_the_minimum_the_deadline_gives_an_abort_that_every_mix_signed(
    tmp_path: Path, mixes: int
) -> None:
    """`collect` checks every mix's signature, also under a batch without reports."""
    made = make_consortium(tmp_path / "c", mixes=mixes, minimum_batch=2, deadline_s=0.3)

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            await submit_all(played, {"silo-1": reports["silo-1"]})
            batch = await collect(played)
            assert batch.reports == ()
            assert [each.aborted for each in batch.chain] == ["1 valid reports, 2 needed"] * mixes
            assert batch.chain[0].received == 1
            late = submission(made, "silo-2", played.descriptor, reports["silo-2"].sealed)
            (receipt,) = await submit(made, "silo-2", late)
            assert receipt.status == REFUSED, "an aborted round stays aborted"
            assert list((state_of(made, 0) / "batches").iterdir()) == []

    run(scene())


@pytest.mark.parametrize("mixes", [1, 2])
def test_with_the_minimum_the_deadline_seals_the_batch(tmp_path: Path, mixes: int) -> None:
    made = make_consortium(tmp_path / "c", mixes=mixes, minimum_batch=2, deadline_s=1.0)

    async def scene() -> None:
        async with (
            chain_serving(made),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
        ):
            played = await opened_round(made)
            await answer(played, {"silo-1": one, "silo-2": two})
            batch = await collect(played)
        assert (counts(batch.chain[-1]), batch.aborted) == ((2, 2, 0), "")

    run(scene())


def test_a_round_that_no_silo_answers_is_aborted_at_the_deadline(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, deadline_s=0.1)

    async def scene() -> None:
        async with chain_serving(made):
            batch = await collect(await opened_round(made))
        assert batch.aborted == "0 valid reports, 2 needed"
        assert counts(batch.chain[0]) == (0, 0, 0)

    run(scene())


def test_a_later_mix_that_gets_no_batch_aborts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first mix is down for good; waiting ends, and the round can be abandoned."""
    monkeypatch.setattr(
        "silomix_shuffler.round.deadlines.chain_wait_s", lambda deadline_s, hops: 0.2
    )
    made = make_consortium(tmp_path / "c", mixes=2, deadline_s=0.1)

    async def scene() -> None:
        async with mix_serving(made, 1):
            async with mix_serving(made, 0):
                played = await opened_round(made)
            with pytest.raises(grpc.aio.AioRpcError, match="no batch came in time"):
                await collect(played)
            statement = await abandon(made, played.descriptor, "mix-2")
            assert statement.reason == "no batch came in time"

    run(scene())


def test_an_aborted_rounds_reports_do_not_enter_the_next(pair: Consortium) -> None:
    """Round 1 is complete with one report and two pieces of garbage: too few."""

    async def scene() -> None:
        async with chain_serving(pair):
            first = await opened_round(pair, 1)
            old = sealed_reports(first)
            length = len(old["silo-1"].sealed)
            spoilt = {
                "silo-1": old["silo-1"],
                "silo-2": Onion(bytes(length), ()),
                "silo-3": Onion(b"x" * length, ()),
            }
            await submit_all(first, spoilt)
            assert (await collect(first)).aborted == "1 valid reports, 2 needed"
            second = await opened_round(pair, 2)
            new = sealed_reports(second)
            await submit_all(second, new)
            batch = await collect(second)
        assert digests(batch.reports) == {onion.trail[-1] for onion in new.values()}

    run(scene())


def test_a_silo_that_stalls_in_its_report_holds_nobody_up(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=1.0)

    async def scene() -> None:
        async with (
            chain_serving(made),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
            silo_stream(made, "silo-3") as slow,
        ):
            played = await opened_round(made)
            onion = sealed_reports(played)["silo-3"].sealed
            stalling = submission(made, "silo-3", played.descriptor, onion, chunk_bytes=1000)
            await slow.write(stalling[:2])
            await answer(played, {"silo-1": one, "silo-2": two})
            assert len((await collect(played)).reports) == 2

    run(scene())


def test_rounds_that_are_open_together_do_not_mix(pair: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(pair):
            rounds = [await opened_round(pair, number) for number in (1, 2)]
            reports = [sealed_reports(played) for played in rounds]
            for silo in ROSTER:
                for played, sealed in zip(rounds, reports, strict=True):
                    await submit_all(played, {silo: sealed[silo]})
            batches = [await collect(played) for played in rounds]
        for batch, sealed in zip(batches, reports, strict=True):
            assert digests(batch.reports) == {onion.trail[-1] for onion in sealed.values()}

    run(scene())


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
                played = await opened_round(made, 1)
                await answer(played, {"silo-1": one, "silo-2": two, "silo-3": three})
                assert len((await collect(played)).reports) == 3
                if farewell == "leaves":
                    await three.leave()
            for number in (2, 3):
                played = await opened_round(made, number)
                await answer(played, {"silo-1": one, "silo-2": two})
                assert counts((await collect(played)).chain[0]) == (2, 2, 0)

    run(scene())


def test_a_silo_that_comes_back_in_time_is_waited_for(tmp_path: Path) -> None:
    """silo-4 leaves after silo-3 came back, so once the mix has given up on silo-4 (round 2, where
    silo-3 has answered), silo-3's grace is over too; round 3 still waits for silo-3."""
    made = make_consortium(
        tmp_path / "c", records=(40,) * 4, mixes=1, minimum_batch=2, deadline_s=600.0
    )

    async def scene() -> None:
        async with (
            chain_serving(made, grace_s=0.4),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
        ):
            couple = {"silo-1": one, "silo-2": two}
            first = await opened_round(made, 1)
            async with silo_stream(made, "silo-3") as three, silo_stream(made, "silo-4") as four:
                await answer(first, {**couple, "silo-3": three, "silo-4": four})
                await three.leave()
                async with silo_stream(made, "silo-3") as back:
                    await show(first, back)
                    await four.leave()
                    second = await opened_round(made, 2)
                    await answer(second, {**couple, "silo-3": back})
                    assert counts((await collect(second)).chain[0]) == (3, 3, 0)
                    third = await opened_round(made, 3)
                    await answer(third, {**couple, "silo-3": back})
                    assert counts((await collect(third)).chain[0]) == (3, 3, 0)

    async def show(played: PlayedRound, stream: SiloStream) -> None:
        """Any receipt, even a refusal, shows that the mix knows the new stream."""
        onion = sealed_reports(played)["silo-3"].sealed
        receipt = await stream.send(submission(made, "silo-3", played.descriptor, onion))
        assert receipt.status == REFUSED

    run(scene())


def test_a_silo_that_never_came_is_not_waited_for(tmp_path: Path) -> None:
    """The round asks it, as the study says; two reports are enough, and the deadline is far."""
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=600.0)

    async def scene() -> None:
        async with (
            mix_serving(made, 0, grace_s=0.05),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
        ):
            for number in (1, 2):
                played = await opened_round(made, number)
                await answer(played, {"silo-1": one, "silo-2": two})
                assert counts((await collect(played)).chain[0]) == (2, 2, 0)

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
            couple = {"silo-1": one, "silo-2": two}
            async with silo_stream(made, "silo-3") as three:
                await answer(await opened_round(made, 1), {**couple, "silo-3": three})
            second = await opened_round(made, 2)
            await answer(second, couple)
            assert counts((await collect(second)).chain[0]) == (2, 2, 0)
            async with silo_stream(made, "silo-3") as back:
                while not service.admission._expected.streams("silo-3"):  # noqa: ASYNC110 not seen yet
                    await asyncio.sleep(0.01)
                third = await opened_round(made, 3)
                await answer(third, {**couple, "silo-3": back})
                assert counts((await collect(third)).chain[0]) == (3, 3, 0)

    run(scene())


def test_a_silo_that_missed_a_deadline_is_not_waited_for_until_it_sends_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """silo-3 stays connected and silent; only round 1 runs into its deadline."""
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=1.0)

    async def scene() -> None:
        async with (
            chain_serving(made),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
            silo_stream(made, "silo-3") as three,
        ):
            couple = {"silo-1": one, "silo-2": two}
            for number in (1, 2):
                played = await opened_round(made, number)
                await answer(played, couple)
                assert counts((await collect(played)).chain[0]) == (2, 2, 0)
            late = sealed_reports(played)["silo-3"].sealed
            receipt = await three.send(submission(made, "silo-3", played.descriptor, late))
            assert receipt.status == REFUSED
            third = await opened_round(made, 3)
            await answer(third, {"silo-3": three, **couple})
            assert counts((await collect(third)).chain[0]) == (3, 3, 0)

    with caplog.at_level("WARNING", logger="silomix"):
        run(scene())
    deadlines = [line for line in caplog.messages if line.startswith("round_deadline")]
    assert deadlines == ["round_deadline round=1"]
