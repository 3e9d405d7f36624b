"""A lease at a silo, against a coordinator and a mix that do what each test says."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds.lease import Ending
from silomix_core.accounting.events import PrivacyTarget
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.round_keys import sign_list
from support.leases import asking, refused
from support.scripted_lease import (
    ENDED,
    Event,
    Script,
    Stage,
    follow,
    gated_digest,
    opening,
    round_with,
    rounds_charged,
)
from support.silos import (
    abandonments,
    hostile,
    open_ledger,
    query_at,
    round_of,
    server_key,
    stretch_of,
)

ORIGIN = [0.0, 0.0, 0.0]


def playing(*numbers: int) -> Script:
    """Whole rounds with these numbers, on one connection."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in numbers:
            async for event in round_with(stage, number):
                yield event
        yield ENDED

    return script


def test_a_server_that_asks_a_silo_every_second_time_is_asked_no_more(
    made: Consortium, config: SiloConfig
) -> None:
    """The others are asked in between: their difference would tell what this one said."""
    followed = follow(made, config, playing(1, 3, 5))
    assert followed.outcome == (Ending.MISSING, 2)
    assert rounds_charged(config) == 2
    assert follow(made, config, playing(5)).outcome == (Ending.MISSING, 0)


def test_rounds_that_went_by_before_a_silo_was_there_do_not_stop_it(
    made: Consortium, config: SiloConfig
) -> None:
    for number in (2, 4):
        assert follow(made, config, playing(number)).outcome == (Ending.DONE, 1)
    assert follow(made, config, playing(5)).outcome == (Ending.DONE, 1)


def test_a_lease_whose_rounds_were_all_answered_is_done(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in range(1, 6):
            async for event in round_with(stage, number):
                yield event
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 5)
    assert rounds_charged(config) == 5
    assert followed.mix.left_over() == []
    assert [(entry.lease, entry.study) for entry in followed.coordinator.requests] == [
        ("lease-1", made.study.identity)
    ]


def test_what_reaches_the_mix_is_what_the_ledger_keeps(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        _, events = stage.opened(1)
        for event in events:
            yield event
        yield ENDED

    followed = follow(made, config, script)
    (onion,) = followed.mix.left_over()
    ledger = open_ledger(config)
    stored = ledger.account(made.study).stored(1)
    ledger.close()
    assert stored is not None
    assert stored.onion == onion


def test_a_lease_ends_at_its_deadline(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in round_with(stage, 1):
            yield event
        await asyncio.Event().wait()

    followed = follow(made, config, script, deadline_s=0.6)
    assert followed.outcome == (Ending.DEADLINE, 1)


def test_the_stop_signal_of_an_idle_lease_ends_it(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 0)
    assert rounds_charged(config) == 0


def test_a_lease_ends_when_the_budget_is_exhausted(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in range(1, 6):
            async for event in round_with(stage, number):
                yield event

    lowered = PrivacyTarget(0.9, made.study.target.delta)
    followed = follow(made, config, script, lifetime=lowered)
    assert followed.outcome == (Ending.BUDGET, 1)
    assert followed.mix.left_over() == []
    assert rounds_charged(config) == 1


@pytest.mark.parametrize("signer", ["mix-1", "silo-1"])
def test_a_descriptor_signed_by_another_party_ends_the_lease(
    made: Consortium, config: SiloConfig, signer: str
) -> None:
    query = query_at(ORIGIN)
    key = SigningKey.load(made.folder / signer / "sign.key")
    refused(made, config, opening(made, hostile(made, query, key), query))


@pytest.mark.parametrize("fields", [{"round": 6}, {"round": 0}, {"silos": b"\x06"}])
def test_a_round_outside_the_study_ends_the_lease(
    made: Consortium, config: SiloConfig, fields: dict[str, object]
) -> None:
    query = query_at(ORIGIN)
    refused(made, config, opening(made, hostile(made, query, **fields), query))


def test_a_point_outside_the_ball_ends_the_lease(made: Consortium, config: SiloConfig) -> None:
    query = query_at([50.1, 0.0, 0.0])
    refused(made, config, opening(made, hostile(made, query), query))


def test_a_query_announced_larger_than_the_study_allows_is_not_even_read(
    made: Consortium, config: SiloConfig
) -> None:
    signed = hostile(made, query_at(ORIGIN))
    opened = channel_pb2.RoundOpened(descriptor=signed, query_bytes=2**62)
    refused(made, config, [Event(opened=opened)])


def test_a_query_that_breaks_off_ends_the_lease(made: Consortium, config: SiloConfig) -> None:
    first, _ = opening(made, hostile(made, query_at(ORIGIN)), query_at(ORIGIN))
    refused(made, config, [first, Event(query_chunk=b"\x0a"), ENDED])


def test_a_query_longer_than_announced_ends_the_lease(made: Consortium, config: SiloConfig) -> None:
    first, chunk = opening(made, hostile(made, query_at(ORIGIN)), query_at(ORIGIN))
    refused(made, config, [first, Event(query_chunk=chunk.query_chunk + b"\0")])


def test_a_query_may_come_in_pieces(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        _, (first, chunk) = stage.opened(1)
        yield first
        for byte in chunk.query_chunk:
            yield Event(query_chunk=bytes([byte]))
        await stage.mix.onions.get()
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 1)


def test_the_same_round_with_another_query_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in round_with(stage, 1):
            yield event
        query = query_at([1.0, 0.0, 0.0])
        for event in opening(made, hostile(made, query), query):
            yield event
        await asyncio.Event().wait()

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.REFUSED, 1)
    assert followed.mix.left_over() == []
    assert rounds_charged(config) == 1


def test_a_server_key_that_the_descriptor_does_not_name_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    first, chunk = opening(made, hostile(made, query_at(ORIGIN)), query_at(ORIGIN))
    first.opened.server_key = round_of(made, 2).server.public
    refused(made, config, [first, chunk])


def test_mix_keys_that_the_descriptor_does_not_name_end_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    first, chunk = opening(made, hostile(made, query_at(ORIGIN)), query_at(ORIGIN))
    first.opened.mix_keys[0].CopyFrom(round_of(made, 2).mix_keys[0])
    refused(made, config, [first, chunk])


def test_mix_keys_that_no_mix_vouched_for_end_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    """No stretch was announced; or one, which the server signed itself."""
    asked = opening(made, hostile(made, query_at(ORIGIN)), query_at(ORIGIN))
    refused(made, config, asked, kind=False)
    stretch = stretch_of(made)
    keys = [round_of(made, 1 + each).mix_keys[0] for each in range(5)]
    stretch.lists[0].CopyFrom(sign_list(made.study, 1, 1, keys, server_key(made)))
    refused(made, config, [Event(stretch=stretch), *asked], kind=False)


@pytest.mark.parametrize(
    "event",
    [
        Event(),
        Event(query_chunk=b"out of turn"),
        Event(tokens=channel_pb2.TokenReply(first_round=1, evaluated=[b""] * 5)),
        Event(stretch=channel_pb2.StretchOpened()),
        Event(stretch=channel_pb2.StretchOpened(first_round=2**32 - 1)),
    ],
    ids=["nothing", "a-chunk", "tokens", "an-empty-stretch", "a-stretch-far-away"],
)
def test_an_event_that_has_no_place_here_ends_the_lease(
    made: Consortium, config: SiloConfig, event: Event
) -> None:
    refused(made, config, [event])


def test_an_abandoned_attempt_is_followed_by_another_at_no_charge(
    made: Consortium, config: SiloConfig
) -> None:
    """And it is no missing report, however often it happens."""
    onions: list[bytes] = []

    async def script(stage: Stage) -> AsyncIterator[Event]:
        abandoned: list[round_pb2.Abandonment] = []
        for attempt in (1, 2, 3, 4):
            descriptor, events = stage.opened(1, attempt, abandoned)
            for event in events:
                yield event
            onions.append(await stage.mix.onions.get())
            abandoned += abandonments(made, descriptor.digest)
        yield stage.committed(descriptor, [gated_digest(made, onions[-1], descriptor)])
        yield stage.closed(descriptor)
        async for event in round_with(stage, 2):
            yield event
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 5)
    assert len(set(onions)) == 4
    assert rounds_charged(config) == 2


def test_an_attempt_that_not_every_mix_abandoned_is_not_followed_by_another(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in asking(stage, 1):
            yield event
        await stage.mix.onions.get()
        wrong = abandonments(made, round_of(made, 2).digest)
        for event in stage.opened(1, 2, wrong)[1]:
            yield event
        await asyncio.Event().wait()

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.REFUSED, 1)
    assert followed.mix.left_over() == []
    assert rounds_charged(config) == 1
