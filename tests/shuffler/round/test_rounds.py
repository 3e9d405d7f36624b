"""The life of a round at real mixes: its keys, who opens it, and what is kept of it."""

import asyncio
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.rounds.round_keys import check_list, fingerprint
from silomix_shuffler.config import Limits
from silomix_shuffler.metrics import Metrics
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    PlayedRound,
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
    state_of,
    submission,
    submit_all,
)
from support.submissions import counts

DENIED, OVER, TOO_MUCH = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


@pytest.fixture
def single(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


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
