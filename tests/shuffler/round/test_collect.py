"""Collecting a batch: by the coordinator, from the last mix, once it can never be taken back."""

import asyncio
import threading
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_protocol.rounds.descriptor import RoundDigest
from silomix_shuffler.storage.store import Store
from silomix_shuffler.storage.writing_thread import WritingThread
from support.consortia import make_consortium
from support.mixes import (
    abandon,
    chain_serving,
    collect,
    described,
    invented_keys,
    mix_serving,
    opened_round,
    refusal,
    run,
    sealed_reports,
    state_of,
    submit_all,
)

OVER, DENIED = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
def single(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


@pytest.mark.parametrize("caller", ["silo-1", "mix-1", "mix-2"])
def test_only_the_coordinator_collects(pair: Consortium, caller: str) -> None:
    async def scene() -> grpc.StatusCode:
        async with chain_serving(pair):
            return await refusal(collect(await opened_round(pair), caller=caller))

    assert run(scene()) is DENIED


def test_batches_are_collected_from_the_last_mix_only(pair: Consortium) -> None:
    """From an earlier one the server would see what later mixes have not permuted yet."""

    async def scene() -> grpc.StatusCode:
        async with chain_serving(pair):
            played = await opened_round(pair)
            await submit_all(played, sealed_reports(played))
            await collect(played)
            return await refusal(collect(played, mix="mix-1"))

    assert run(scene()) is DENIED


def test_a_round_that_is_not_open_has_no_batch(pair: Consortium) -> None:
    async def scene() -> grpc.StatusCode:
        async with mix_serving(pair, 1):
            return await refusal(collect(described(pair, invented_keys(pair))))

    assert run(scene()) is OVER


def test_the_coordinator_may_wait_before_the_first_report_and_ask_again(pair: Consortium) -> None:
    """Also after a restart: the same bytes in the same order."""

    async def scene() -> None:
        async with chain_serving(pair):
            played = await opened_round(pair)
            waiting = asyncio.create_task(collect(played))
            await submit_all(played, sealed_reports(played))
            batch = await waiting
            assert await collect(played) == batch
        async with mix_serving(pair, 1):
            assert await collect(played) == batch

    run(scene())


def test_a_coordinator_that_hangs_up_can_come_back(pair: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(pair):
            played = await opened_round(pair)
            waiting = asyncio.create_task(collect(played))
            first, *others = sealed_reports(played).items()
            await submit_all(played, dict([first]))
            waiting.cancel()
            await asyncio.wait([waiting])
            await submit_all(played, dict(others))
            assert len((await collect(played)).reports) == 3

    run(scene())


def test_waiting_for_a_batch_that_never_comes_ends(
    pair: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix_shuffler.service.chain_wait_s", lambda deadline_s, hops: -4.9)

    async def scene() -> grpc.StatusCode:
        async with chain_serving(pair):
            return await refusal(collect(await opened_round(pair)))

    assert run(scene()) is grpc.StatusCode.DEADLINE_EXCEEDED


# Nothing leaves before it is written down that it may ---------------------------------------------


class HeldStore(Store):
    """Waits, before it writes down that a batch may leave, until it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reached, self.may_go = threading.Event(), threading.Event()

    def forwarded(self, digest: RoundDigest) -> None:
        self.reached.set()
        assert self.may_go.wait(10.0)
        super().forwarded(digest)


def test_no_collector_gets_a_byte_before_the_disk_knows(single: Consortium) -> None:
    """Neither the one that the disk works for nor one that comes meanwhile."""
    store = HeldStore(state_of(single, 0))

    async def scene() -> None:
        async with mix_serving(single, 0, disk=WritingThread(store)) as rounds:
            played = await opened_round(single)
            await submit_all(played, sealed_reports(played))
            await rounds.rounds.named(played.descriptor.digest).closed.wait()
            first = asyncio.create_task(collect(played))
            assert await asyncio.to_thread(store.reached.wait, 10.0)
            second = asyncio.create_task(collect(played))
            done, _ = await asyncio.wait([first, second], timeout=0.2)
            assert not done
            store.may_go.set()
            assert await first == await second

    run(scene())


def test_a_batch_abandoned_in_that_moment_does_not_leave(single: Consortium) -> None:
    store = HeldStore(state_of(single, 0))

    async def scene() -> None:
        async with mix_serving(single, 0, disk=WritingThread(store)) as rounds:
            played = await opened_round(single)
            await submit_all(played, sealed_reports(played))
            await rounds.rounds.named(played.descriptor.digest).closed.wait()
            collecting = asyncio.create_task(refusal(collect(played)))
            assert await asyncio.to_thread(store.reached.wait, 10.0)
            abandoning = asyncio.create_task(abandon(single, played.descriptor, "mix-1"))
            while rounds.rounds.named(played.descriptor.digest).reason == "":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            store.may_go.set()
            await abandoning
            assert await collecting is OVER
        async with mix_serving(single, 0):
            assert await refusal(collect(played)) is OVER

    run(scene())
