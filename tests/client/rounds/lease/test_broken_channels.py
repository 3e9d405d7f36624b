"""Channels that break, and rounds that come again: the same bytes, a few times, at no charge."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds.lease import Ending, LeaseTerms
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.host import free_disk
from support.leases import TRIES, refused
from support.scripted_lease import (
    ENDED,
    Event,
    PlayedCoordinator,
    PlayedMix,
    Stage,
    follow,
    gated_digest,
    holding,
    round_with,
    rounds_charged,
    serving,
)
from support.silos import open_ledger


def test_a_silo_that_lost_the_channel_answers_the_same_round_with_the_same_bytes(
    made: Consortium, config: SiloConfig
) -> None:
    taken: list[bytes] = []

    async def broken(stage: Stage) -> AsyncIterator[Event]:
        _, events = stage.opened(1)
        for event in events:
            yield event
        taken.append(await stage.mix.onions.get())
        await stage.broken()

    async def again(stage: Stage) -> AsyncIterator[Event]:
        descriptor, events = stage.opened(1)
        for event in events:
            yield event
        taken.append(await stage.mix.onions.get())
        yield stage.committed(descriptor, [gated_digest(made, taken[-1], descriptor)])
        yield stage.closed(descriptor)
        yield ENDED

    breaks = TRIES + 2  # more than a silent channel would be forgiven: each brought a round
    followed = follow(made, config, *[broken] * breaks, again)
    assert followed.ending is Ending.DONE
    assert len(followed.coordinator.requests) == len(taken) == breaks + 1
    assert len(set(taken)) == 1
    assert rounds_charged(config) == 1


def test_a_new_lease_that_asks_the_answered_round_again_gets_the_same_bytes(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        _, events = stage.opened(1)
        for event in events:
            yield event
        yield ENDED

    onions = [follow(made, config, script).mix.left_over() for _ in range(2)]
    assert len(onions[0]) == 1
    assert onions[0] == onions[1]
    assert rounds_charged(config) == 1


def test_a_round_that_is_asked_again_and_again_is_sent_a_few_times_then_refused(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for _ in range(100):
            for event in stage.opened(1)[1]:
                yield event
        await asyncio.Event().wait()

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.REFUSED, 16)
    assert len(followed.mix.left_over()) == 16
    assert rounds_charged(config) == 1


def test_below_the_floor_of_free_disk_nothing_is_computed_sent_or_charged(
    made: Consortium,
    config: SiloConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The lease goes on: the next round may find more room."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        while "disk_full" not in caplog.text:  # noqa: ASYNC110 the silo tells nobody else
            await asyncio.sleep(0.01)
        monkeypatch.setattr(*floor, 1)
        async for event in round_with(stage, 2):
            yield event
        yield ENDED

    floor = (free_disk, "LEAST_FREE_BYTES")
    monkeypatch.setattr(*floor, 2**62)
    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 1)
    assert rounds_charged(config) == 1
    (told,) = (each.message for each in caplog.records if "disk_full" in each.message)
    assert "MB are free in" in told
    assert "round=1" in told


def test_a_message_of_more_events_than_a_coordinator_sends_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    many = Event(closed=channel_pb2.RoundClosed(), more=[Event()] * 257)
    refused(made, config, [many])


def test_a_channel_that_closes_without_ending_the_lease_is_dialled_a_few_times_then_lost(
    made: Consortium, config: SiloConfig
) -> None:
    async def silent(stage: Stage) -> AsyncIterator[Event]:
        for event in ():
            yield event

    followed = follow(made, config, silent)
    assert followed.outcome == (Ending.CHANNEL_LOST, 0)
    assert len(followed.coordinator.requests) == TRIES


def test_a_channel_that_keeps_breaking_is_lost(made: Consortium, config: SiloConfig) -> None:
    async def breaking(stage: Stage) -> AsyncIterator[Event]:
        await stage.broken()
        yield ENDED

    followed = follow(made, config, breaking)
    assert followed.outcome == (Ending.CHANNEL_LOST, 0)
    assert len(followed.coordinator.requests) == TRIES


def test_a_lease_that_the_coordinator_does_not_know_is_lost_at_once(
    made: Consortium, config: SiloConfig
) -> None:
    async def unknown(stage: Stage) -> AsyncIterator[Event]:
        await stage.context.abort(grpc.StatusCode.PERMISSION_DENIED, "that lease is not open")
        yield ENDED

    followed = follow(made, config, unknown)
    assert followed.outcome == (Ending.CHANNEL_LOST, 0)
    assert len(followed.coordinator.requests) == 1


def unanswered(made: Consortium, config: SiloConfig, party: str | None) -> PlayedCoordinator:
    """A lease that is lost, with nobody or the wrong party at the coordinator's address."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event

    async def play() -> PlayedCoordinator:
        mix = PlayedMix(made)
        coordinator = PlayedCoordinator(made, mix, [script])
        channel = coordinator if party else None
        async with (
            serving(made, channel, mix, party or ""),
            holding(config, made, open_ledger(config)) as holder,
        ):
            ending, answered = await holder.follow(LeaseTerms("lease-1", 30.0))
        assert (ending, answered) == (Ending.CHANNEL_LOST, 0)
        assert mix.onions.empty()
        return coordinator

    return asyncio.run(asyncio.wait_for(play(), 20.0))


def test_a_lease_with_nobody_at_the_channel_is_lost_without_a_charge(
    made: Consortium, config: SiloConfig
) -> None:
    unanswered(made, config, None)
    assert rounds_charged(config) == 0


@pytest.mark.parametrize("party", ["mix-1", "silo-2"])
def test_nobody_but_the_server_can_stand_at_the_channel(
    made: Consortium, config: SiloConfig, party: str
) -> None:
    """A certificate of the same authority with another name: the silo does not say a word."""
    assert unanswered(made, config, party).requests == []
    assert rounds_charged(config) == 0
