"""The life of a round at real mixes: keys, opening, deadlines, who is waited for, what is kept."""

import asyncio
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.rounds.onion import Onion
from silomix_protocol.rounds.round_keys import check_list, fingerprint
from silomix_shuffler.config import Limits
from silomix_shuffler.metrics import Metrics
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    PlayedRound,
    SiloStream,
    abandon,
    asked,
    calling,
    chain_serving,
    collect,
    described,
    invented_keys,
    mix_serving,
    open_at,
    opened_round,
    prepared_keys,
    refusal,
    refused_submission,
    run,
    sealed_reports,
    silo_stream,
    state_of,
    submission,
    submit,
    submit_all,
)

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
DENIED, OVER, TOO_MUCH = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
ROSTER = ("silo-1", "silo-2", "silo-3")


@pytest.fixture
def single(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


@pytest.fixture
def pair(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=20.0)


def counts(statement: round_pb2.HopStatement) -> tuple[int, int, int]:
    return statement.received, statement.forwarded, statement.dropped


def digests(reports: tuple[bytes, ...]) -> set[bytes]:
    return {sha256(report).digest() for report in reports}


async def answer(played: PlayedRound, streams: dict[str, SiloStream]) -> None:
    """These silos answer the round."""
    reports = sealed_reports(played)
    for silo, stream in streams.items():
        frames = submission(played.made, silo, played.descriptor, reports[silo].sealed)
        assert (await stream.send(frames)).status == ACCEPTED


# Keys ---------------------------------------------------------------------------------------------


async def prepare(
    made: Consortium, *, caller: str = "server", mix: str = "mix-1", **changed: object
) -> mix_pb2.PreparedRounds:
    request = mix_pb2.PrepareRequest(study=made.study.identity, attempt=1, first_round=1, rounds=1)
    for name, value in changed.items():
        setattr(request, name, value)
    async with calling(made, caller, mix) as stub:
        answer = await stub.Prepare(request, timeout=RPC_S, wait_for_ready=True)
    assert isinstance(answer, mix_pb2.PreparedRounds)
    return answer


def test_a_mix_vouches_for_fresh_keys_and_gives_the_same_ones_again(single: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(single, 0):
            first = await prepare(single, rounds=5)
        async with mix_serving(single, 0):
            assert await prepare(single, rounds=5) == first, "also after a restart"
        check_list(first.list, single.study, single.study.mixes[0])
        assert [fingerprint(keys) for keys in first.keys] == list(first.list.keys)
        assert len({keys.seal for keys in first.keys} | {k.release for k in first.keys}) == 10

    run(scene())


@pytest.mark.parametrize("gate", [True, False])
def test_a_release_key_exists_if_the_study_has_a_gate(tmp_path: Path, gate: bool) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, gate=gate)

    async def scene() -> mix_pb2.PreparedRounds:
        async with mix_serving(made, 0):
            return await prepare(made)

    assert bool(run(scene()).keys[0].release) is gate


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"caller": "silo-1"}, DENIED),
        ({"caller": "mix-1"}, DENIED),
        ({"study": bytes(32)}, OVER),
        ({"rounds": 0}, TOO_MUCH),
        ({"rounds": 65}, TOO_MUCH),
        ({"attempt": 0}, TOO_MUCH),
        ({"attempt": 9}, TOO_MUCH),
        ({"first_round": 0}, OVER),
        ({"first_round": 6}, OVER),
        ({"first_round": 3, "rounds": 4}, OVER),
        ({"first_round": 2**32 - 1, "rounds": 2}, OVER),
    ],
)
def test_keys_are_for_the_coordinator_and_for_rounds_of_the_study(
    single: Consortium, changed: dict[str, object], code: grpc.StatusCode
) -> None:
    async def scene() -> grpc.StatusCode:
        async with mix_serving(single, 0):
            return await refusal(prepare(single, **changed))  # type: ignore[arg-type]

    assert run(scene()) is code


def test_an_opened_attempt_gets_no_keys_again(single: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(single, 0):
            await opened_round(single)
            assert await refusal(prepare(single)) is OVER

    run(scene())


# Opening ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["silo-1", "mix-1", "mix-2"])
def test_only_the_coordinator_opens_rounds(pair: Consortium, caller: str) -> None:
    async def scene() -> grpc.StatusCode:
        async with chain_serving(pair):
            played = described(pair, await prepared_keys(pair))
            return await refusal(open_at(pair, played.descriptor, "mix-1", caller=caller))

    assert run(scene()) is DENIED


def test_a_round_is_opened_once_however_often_it_is_asked_for(single: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(single, 0):
            played = described(single, await prepared_keys(single))
            again = [open_at(single, played.descriptor, "mix-1") for _ in range(4)]
            await asyncio.gather(*again)
            reports = sealed_reports(played)
            await submit_all(played, {"silo-1": reports["silo-1"]})
            await open_at(single, played.descriptor, "mix-1")
            await submit_all(played, reports)
            assert counts((await collect(played)).chain[0]) == (3, 3, 0)
            await open_at(single, played.descriptor, "mix-1")
        async with mix_serving(single, 0):
            await open_at(single, played.descriptor, "mix-1")

    run(scene())


def test_an_attempt_has_one_descriptor(single: Consortium) -> None:
    """Also after a restart, and also of two that come together."""

    async def scene() -> None:
        async with mix_serving(single, 0):
            keys = await prepared_keys(single)
            rivals = [described(single, keys, query=b"%d" % n).descriptor for n in range(3)]
            results = await asyncio.gather(
                *(open_at(single, rival, "mix-1") for rival in rivals), return_exceptions=True
            )
            assert sorted(str(type(each).__name__) for each in results) == [
                "AioRpcError",
                "AioRpcError",
                "NoneType",
            ]
        async with mix_serving(single, 0):
            late = described(single, keys, query=b"late").descriptor
            assert await refusal(open_at(single, late, "mix-1")) is OVER

    run(scene())


def test_a_server_that_shows_silos_two_models_gets_no_batch_of_the_second(
    tmp_path: Path,
) -> None:
    """Silos that were shown D2 cannot report: nobody opened it.  The rest is below the minimum."""
    made = make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=0.3)

    async def scene() -> None:
        async with chain_serving(made):
            one = await opened_round(made, query=b"one")
            two = described(made, one.mix_keys, query=b"two")
            for mix in ("mix-1", "mix-2"):
                assert await refusal(open_at(made, two.descriptor, mix)) is OVER
            await submit_all(one, {"silo-1": sealed_reports(one)["silo-1"]})
            for silo in ("silo-2", "silo-3"):
                onion = sealed_reports(two)[silo].sealed
                frames = submission(made, silo, two.descriptor, onion)
                assert await refused_submission(made, silo, frames) is OVER
            assert await refusal(collect(two)) is OVER
            batch = await collect(one)
            assert (batch.reports, batch.aborted) == ((), "1 valid reports, 2 needed")

    run(scene())


def test_reports_made_for_the_other_model_do_not_fill_a_batch(tmp_path: Path) -> None:
    """Silos shown D2 whose onions are submitted under D1 count as dropped."""
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)

    async def scene() -> None:
        async with chain_serving(made):
            one = await opened_round(made, query=b"one")
            two = described(made, one.mix_keys, query=b"two")
            mixed = {**sealed_reports(two), "silo-1": sealed_reports(one)["silo-1"]}
            await submit_all(one, mixed)
            batch = await collect(one)
            assert batch.aborted == "1 valid reports, 2 needed"

    run(scene())


def test_a_descriptor_with_keys_that_are_not_the_mixs_is_refused(single: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(single, 0):
            never = described(single, invented_keys(single))
            assert await refusal(open_at(single, never.descriptor, "mix-1")) is OVER
            await prepared_keys(single)
            other = described(single, invented_keys(single))
            assert await refusal(open_at(single, other.descriptor, "mix-1")) is OVER
            assert list((state_of(single, 0) / "batches").iterdir()) == []

    run(scene())


def test_a_descriptor_that_is_not_the_coordinators_is_refused(
    single: Consortium, tmp_path: Path
) -> None:
    other = make_consortium(tmp_path / "other", mixes=1)

    async def scene() -> None:
        async with mix_serving(single, 0), calling(single, "server", "mix-1") as stub:
            keys = await prepared_keys(single)
            signed = described(single, keys).descriptor.to_wire()
            signed.signature = bytes(64)
            foreign = described(other, invented_keys(other)).descriptor.to_wire()
            garbage = round_pb2.SignedDescriptor(descriptor=b"\xff\xff", signature=bytes(64))
            for wrong in (signed, foreign, garbage):
                assert await refusal(asked(stub.Open, wrong)) is OVER
                assert await refusal(_awaited(stub.Abandon(wrong, timeout=RPC_S))) is OVER

    run(scene())


async def _awaited(call: object) -> object:
    return await call  # type: ignore[misc]


def test_only_so_many_rounds_are_open_at_once(single: Consortium) -> None:
    """One that is finished makes room, one that is abandoned too."""

    async def scene() -> None:
        async with mix_serving(single, 0, limits=Limits(open_rounds=2)):
            first, second = await opened_round(single, 1), await opened_round(single, 2)
            assert await refusal(opened_round(single, 3)) is TOO_MUCH
            await submit_all(first, sealed_reports(first))
            await collect(first)
            await opened_round(single, 3)
            assert await refusal(opened_round(single, 4)) is TOO_MUCH
            await abandon(single, second.descriptor, "mix-1")
            await opened_round(single, 4)

    run(scene())


@pytest.mark.parametrize(
    "limits", [Limits(disk_bytes=5_000), Limits(free_disk_bytes=2**60)], ids=["share", "free"]
)
def test_without_room_for_its_batch_a_round_is_not_opened(
    single: Consortium, limits: Limits
) -> None:
    """Room is checked for the whole batch, before any silo spends budget on it."""

    async def scene() -> None:
        async with mix_serving(single, 0, limits=limits):
            assert await refusal(opened_round(single)) is TOO_MUCH
            assert list((state_of(single, 0) / "batches").iterdir()) == []
        async with mix_serving(single, 0):
            played = await opened_round(single)
            await submit_all(played, sealed_reports(played))
            assert len((await collect(played)).reports) == 3

    run(scene())


# Deadlines --------------------------------------------------------------------------------------


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


# What is kept, and for how long -------------------------------------------------------------------


def test_old_rounds_are_forgotten_but_not_reopened(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, rounds=8, deadline_s=20.0)

    async def scene() -> None:
        metrics = Metrics()
        async with mix_serving(made, 0, metrics=metrics) as service:
            played = [await finished(number) for number in range(1, 9)]
            assert len(list(service.rounds)) <= 3, "memory does not grow with the rounds"
            assert len(list((state_of(made, 0) / "batches").iterdir())) <= 3, "nor the disk"
            value = metrics.registry.get_sample_value("silomix_mix_rounds_open")
            assert value == 0
            first = played[0]
            again = submission(
                made, "silo-1", first.descriptor, sealed_reports(first)["silo-1"].sealed
            )
            assert await refused_submission(made, "silo-1", again) is OVER
            assert await refusal(collect(first)) is OVER
            assert await refusal(open_at(made, first.descriptor, "mix-1")) is OVER
            assert await refusal(abandon(made, first.descriptor, "mix-1")) is OVER

    async def finished(number: int) -> PlayedRound:
        played = await opened_round(made, number)
        await submit_all(played, sealed_reports(played))
        assert len((await collect(played)).reports) == 3
        return played

    run(scene())


def test_what_nobody_asked_about_for_long_is_purged_and_an_open_round_is_not(
    single: Consortium,
) -> None:
    async def scene() -> None:
        async with mix_serving(single, 0, limits=Limits(retention_s=0.2)):
            done, waiting = await opened_round(single, 1), await opened_round(single, 2)
            await submit_all(done, sealed_reports(done))
            await collect(done)
            await submit_all(waiting, {"silo-1": sealed_reports(waiting)["silo-1"]})
            folder, left = state_of(single, 0) / "batches", waiting.descriptor.digest.hex()
            while [path.name for path in folder.iterdir()] != [left]:  # noqa: ASYNC110 time passes
                await asyncio.sleep(0.02)
            assert await refusal(collect(done)) is OVER
            reports = sealed_reports(waiting)
            del reports["silo-1"]
            await submit_all(waiting, reports)
            assert len((await collect(waiting)).reports) == 3, "its time counts from its sealing"

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
