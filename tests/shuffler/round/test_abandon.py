"""Abandoning an attempt: a mix's word that nothing of it left and nothing will, and it is so."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.rounds.statements import check_abandoned
from silomix_shuffler.config import load
from silomix_shuffler.process import rotate
from silomix_shuffler.storage.store import Store
from silomix_shuffler.storage.writing_thread import WritingThread
from support.consortia import make_consortium
from support.mixes import (
    PlayedRound,
    abandon,
    chain_serving,
    collect,
    described,
    invented_keys,
    mix_played,
    mix_serving,
    open_at,
    opened_at,
    opened_payloads,
    opened_round,
    prepared_keys,
    refusal,
    refused_submission,
    run,
    sealed_reports,
    state_of,
    submission,
    submit,
    submit_all,
)

OVER, DENIED = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED
REFUSED = mix_pb2.Receipt.REFUSED


@pytest.fixture
def single(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


async def abandoned_by_all(played: PlayedRound) -> list[round_pb2.Abandonment]:
    """Every mix's statement, checked as a silo checks them before it seals again."""
    made = played.made
    statements = [await abandon(made, played.descriptor, mix.name) for mix in made.study.mixes]
    check_abandoned(statements, played.descriptor.digest, made.study)
    return statements


async def completes(made: Consortium, number: int = 1, attempt: int = 1) -> None:
    """This attempt goes through from keys to payloads."""
    played = await opened_round(made, number, attempt=attempt)
    reports = sealed_reports(played)
    await submit_all(played, reports)
    batch = await collect(played)
    assert len(await opened_payloads(played, batch)) == 3


async def submitted_and_sealed(played: PlayedRound, rounds: Any) -> None:
    await submit_all(played, sealed_reports(played))
    current = rounds.rounds.named(played.descriptor.digest)
    await current.closed.wait()
    assert current.batch.state.value == "sealed"


# Where it is possible -----------------------------------------------------------------------------


def test_an_open_round_is_abandoned_for_good_and_the_next_attempt_works(pair: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(pair):
            played = await opened_round(pair)
            reports = sealed_reports(played)
            await submit_all(played, {"silo-1": reports["silo-1"]})
            first = await abandoned_by_all(played)
            assert {each.reason for each in first} == {"abandoned by the coordinator"}
            assert await abandoned_by_all(played) == first, "said again"
            frames = submission(pair, "silo-2", played.descriptor, reports["silo-2"].sealed)
            (receipt,) = await submit(pair, "silo-2", frames)
            assert receipt.status == REFUSED
            assert await refusal(open_at(pair, played.descriptor, "mix-1")) is OVER
            assert await refusal(collect(played)) is OVER
            for index in (0, 1):
                assert list((state_of(pair, index) / "batches").iterdir()) == []
            await completes(pair, attempt=2)
        async with chain_serving(pair):
            assert await abandoned_by_all(played) == first, "after a restart too"

    run(scene())


def test_a_sealed_batch_that_did_not_leave_is_abandoned(pair: Consortium) -> None:
    """The second mix is down; when it is back, it never gets the batch of the first attempt."""

    async def scene() -> None:
        async with mix_serving(pair, 0) as rounds:
            async with mix_serving(pair, 1):
                played = await opened_round(pair)
            await submitted_and_sealed(played, rounds)
            await abandon(pair, played.descriptor, "mix-1")
            async with mix_serving(pair, 1) as second:
                await abandoned_by_all(played)
                await completes(pair, attempt=2)
                first = second.rounds.named(played.descriptor.digest)
                assert first.chain == ()
                assert first.reason == "abandoned by the coordinator"

    run(scene())


def test_a_batch_below_the_minimum_says_so_when_it_is_abandoned(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=0.5)

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            await submit_all(played, {"silo-1": sealed_reports(played)["silo-1"]})
            assert (await collect(played)).aborted
            statements = await abandoned_by_all(played)
            assert {each.reason for each in statements} == {"1 valid reports, 2 needed"}
            assert (await collect(played)).aborted == "1 valid reports, 2 needed"
        async with chain_serving(made):
            assert await abandoned_by_all(played) == statements

    run(scene())


@pytest.mark.parametrize("restart", [False, True])
def test_a_round_that_a_mix_never_saw_is_abandoned_and_can_never_be_opened(
    single: Consortium, restart: bool
) -> None:
    """The statement says "and never will be": it holds for an Open that comes late, too."""

    async def afterwards(played: PlayedRound, statement: round_pb2.Abandonment) -> None:
        assert await abandon(single, played.descriptor, "mix-1") == statement
        assert await refusal(open_at(single, played.descriptor, "mix-1")) is OVER
        rival = described(single, played.mix_keys, query=b"rival").descriptor
        assert await refusal(open_at(single, rival, "mix-1")) is OVER
        await completes(single, attempt=2)

    async def scene() -> None:
        async with mix_serving(single, 0):
            played = described(single, await prepared_keys(single))
            statement = await abandon(single, played.descriptor, "mix-1")
            check_abandoned([statement], played.descriptor.digest, single.study)
            if not restart:
                await afterwards(played, statement)
        if restart:
            async with mix_serving(single, 0):
                await afterwards(played, statement)

    run(scene())


def test_after_a_rotation_the_attempt_is_abandoned_and_the_next_one_works(
    pair: Consortium,
) -> None:
    """The operator rotates while the mix runs, after the keys were announced."""

    async def scene() -> None:
        async with chain_serving(pair):
            keys = await prepared_keys(pair)
            assert rotate(load(pair.mixes[1])) == 1
            played = described(pair, keys)
            await open_at(pair, played.descriptor, "mix-1")
            assert await refusal(open_at(pair, played.descriptor, "mix-2")) is OVER
            await abandoned_by_all(played)
            await completes(pair, attempt=2)

    run(scene())


def test_keys_made_after_a_rotation_do_not_serve_a_descriptor_made_before(
    single: Consortium,
) -> None:
    async def scene() -> None:
        async with mix_serving(single, 0):
            old = described(single, await prepared_keys(single))
            rotate(load(single.mixes[0]))
            new = described(single, await prepared_keys(single))
            assert await refusal(open_at(single, old.descriptor, "mix-1")) is OVER
            await open_at(single, new.descriptor, "mix-1")

    run(scene())


# Where it is not ----------------------------------------------------------------------------------


def test_what_may_have_left_is_not_abandoned_and_has_no_second_attempt(pair: Consortium) -> None:
    """Forwarded, delivered, released, after a restart: both mixes refuse."""

    async def refused(played: PlayedRound) -> None:
        for mix in ("mix-1", "mix-2"):
            assert await refusal(abandon(pair, played.descriptor, mix)) is OVER
            second = described(pair, await prepared_keys(pair, attempt=2), attempt=2)
            assert await refusal(open_at(pair, second.descriptor, mix)) is OVER
            assert await refusal(abandon(pair, second.descriptor, mix)) is OVER

    async def scene() -> None:
        async with chain_serving(pair):
            played = await opened_round(pair)
            await submit_all(played, sealed_reports(played))
            batch = await collect(played)
            await refused(played)
            await opened_payloads(played, batch)
            await refused(played)
        async with chain_serving(pair):
            await refused(played)

    run(scene())


def test_a_batch_that_the_next_mix_did_not_acknowledge_may_have_left(pair: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(pair, 0), mix_played(pair, 1, answers=False) as second:
            played, _ = await opened_at(pair, [0])
            await submit_all(played, sealed_reports(played))
            await second.next_batch()
            assert await refusal(abandon(pair, played.descriptor, "mix-1")) is OVER

    run(scene())


@pytest.mark.parametrize("caller", ["silo-1", "mix-1", "mix-2"])
def test_only_the_coordinator_abandons(pair: Consortium, caller: str) -> None:
    async def scene() -> None:
        async with chain_serving(pair):
            played = await opened_round(pair)
            call = abandon(pair, played.descriptor, "mix-2", caller=caller)
            assert await refusal(call) is DENIED
            await submit_all(played, sealed_reports(played))
            assert len((await collect(played)).reports) == 3

    run(scene())


def test_the_next_attempt_is_not_opened_before_the_first_is_aborted(single: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(single, 0):
            first = await opened_round(single)
            keys = await prepared_keys(single, attempt=2)
            second = described(single, keys, attempt=2)
            assert await refusal(open_at(single, second.descriptor, "mix-1")) is OVER
            await abandon(single, first.descriptor, "mix-1")
            await open_at(single, second.descriptor, "mix-1")

    run(scene())


def test_a_report_for_an_unknown_attempt_is_refused(single: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(single, 0):
            await opened_round(single)
            never = described(single, invented_keys(single), attempt=2)
            onion = sealed_reports(never)["silo-1"].sealed
            frames = submission(single, "silo-1", never.descriptor, onion)
            assert await refused_submission(single, "silo-1", frames) is OVER

    run(scene())


# In a bad moment ----------------------------------------------------------------------------------


class FaultyStore(Store):
    """One kind of step waits, or fails, once."""

    def __init__(self, folder: Path, step: str, *, waits: bool = False) -> None:
        super().__init__(folder)
        self.reached, self.may_go = threading.Event(), threading.Event()
        really: Callable[..., object] = getattr(self, step)
        self._left = 1

        def faulty(*args: object, **kwargs: object) -> object:
            self.reached.set()
            if waits:
                assert self.may_go.wait(10.0)
            elif self._left:
                self._left -= 1
                raise sqlite3.OperationalError("database or disk is full")
            return really(*args, **kwargs)

        setattr(self, step, faulty)


def test_a_batch_abandoned_while_it_is_sealed_never_leaves(pair: Consortium) -> None:
    """The disk is just writing its order down.  The next round shows that the chain works."""
    store = FaultyStore(state_of(pair, 0), "seal", waits=True)

    async def scene() -> None:
        async with mix_serving(pair, 0, disk=WritingThread(store)) as rounds:
            played, _ = await opened_at(pair, [0])
            await submit_all(played, sealed_reports(played))
            assert await asyncio.to_thread(store.reached.wait, 10.0)
            abandoning = asyncio.create_task(abandon(pair, played.descriptor, "mix-1"))
            current = rounds.rounds.named(played.descriptor.digest)
            while current.reason == "":  # noqa: ASYNC110 it has heard
                await asyncio.sleep(0.01)
            store.may_go.set()
            await abandoning
            async with mix_played(pair, 1) as second:
                later, _ = await opened_at(pair, [0], 2)
                await submit_all(later, sealed_reports(later))
                await second.next_batch()
            assert second.heard_of == {later.descriptor.digest}
        async with mix_serving(pair, 0), mix_played(pair, 1) as second:
            statement = await abandon(pair, played.descriptor, "mix-1")
            assert statement.reason == "abandoned by the coordinator"
            assert second.heard_of == set()

    run(scene())


def test_a_batch_that_could_not_be_written_down_is_neither_collected_nor_lost_as_an_attempt(
    single: Consortium,
) -> None:
    store = FaultyStore(state_of(single, 0), "seal")

    async def scene() -> None:
        async with mix_serving(single, 0, disk=WritingThread(store)):
            played = await opened_round(single)
            await submit_all(played, sealed_reports(played))
            for _ in range(2):
                assert await refusal(collect(played)) is OVER
            (statement,) = await abandoned_by_all(played)
            assert statement.reason == "this mix could not write the batch down"
            await completes(single, attempt=2)

    run(scene())


@pytest.mark.parametrize("step", ["forwarded", "delivered"])
def test_a_disk_that_fails_while_a_batch_is_handed_on_delays_it(
    pair: Consortium, step: str
) -> None:
    """The next mix may get it twice, the very same bytes."""
    store = FaultyStore(state_of(pair, 0), step)

    async def scene() -> None:
        async with (
            mix_serving(pair, 0, disk=WritingThread(store)) as rounds,
            mix_played(pair, 1) as second,
        ):
            played, _ = await opened_at(pair, [0])
            await submit_all(played, sealed_reports(played))
            current = rounds.rounds.named(played.descriptor.digest)
            while not current.delivered:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert len(set(second.batches)) == 1
            assert list((state_of(pair, 0) / "batches").iterdir()) == []

    run(scene())


def test_an_abandonment_is_on_disk_before_it_is_said(single: Consortium) -> None:
    store = FaultyStore(state_of(single, 0), "aborted")

    async def scene() -> None:
        async with mix_serving(single, 0, disk=WritingThread(store)):
            played = await opened_round(single)
            code = await refusal(abandon(single, played.descriptor, "mix-1"))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            await abandoned_by_all(played)
        async with mix_serving(single, 0):
            await completes(single, attempt=2)

    run(scene())
