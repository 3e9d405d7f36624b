"""A lease at a silo, against a coordinator and a mix that do what each test says."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds.lease import Ending, LeaseTerms
from silomix_core.accounting.events import PrivacyTarget
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2, round_pb2
from silomix_protocol.host import free_disk
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.round_keys import sign_list
from silomix_protocol.rounds.tokens import issuer
from support.consortia import make_consortium
from support.scripted_lease import (
    ENDED,
    Event,
    PlayedCoordinator,
    PlayedMix,
    Script,
    Stage,
    follow,
    gated_digest,
    holding,
    opening,
    round_with,
    rounds_charged,
    serving,
)
from support.silos import (
    abandonments,
    approved_silo,
    copied,
    give_tokens,
    hostile,
    open_ledger,
    query_at,
    round_of,
    server_key,
    stretch_of,
    tokens_for,
    written,
)

ORIGIN = [0.0, 0.0, 0.0]
TRIES = 3


@pytest.fixture(scope="module")
def one_mix(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("one-mix") / "consortium"
    return make_consortium(folder, mixes=1, minimum_batch=1)


@pytest.fixture
def made(one_mix: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Consortium:
    """Three silos behind one mix; pauses between tries are taken out, connecting takes 0.3 s."""
    no_pause = SimpleNamespace(uniform=lambda low, high: 0.0)
    monkeypatch.setattr("silomix_protocol.host.backoff.random", no_pause)
    monkeypatch.setattr("silomix_client.rounds.submit._CONNECT_S", 0.3)
    monkeypatch.setattr("silomix_client.rounds.lease._CHANNEL_TRIES", TRIES)
    return copied(one_mix, tmp_path / "consortium")


@pytest.fixture
def config(made: Consortium) -> SiloConfig:
    return approved_silo(made)


async def asking(stage: Stage, number: int = 1) -> AsyncIterator[Event]:
    """A round is opened, and that is all."""
    for event in stage.opened(number)[1]:
        yield event


# Rounds that nobody tells of ---------------------------------------------------------------------


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


# How a lease ends --------------------------------------------------------------------------------


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


# What a lease refuses ----------------------------------------------------------------------------


def refused(
    made: Consortium, config: SiloConfig, events: list[Event], *, kind: bool = True
) -> None:
    """These events end the lease as refused; nothing is charged, nothing is sent."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in events:
            yield event
        await asyncio.Event().wait()

    ledger = open_ledger(config)
    give_tokens(ledger, made.study)
    ledger.close()
    before = written(config)
    followed = follow(made, config, script, kind=kind)
    assert followed.outcome == (Ending.REFUSED, 0)
    assert followed.mix.left_over() == []
    assert written(config) == before


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


# Tokens ------------------------------------------------------------------------------------------


def test_a_round_without_a_token_is_passed_over_and_the_lease_goes_on(
    made: Consortium, config: SiloConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        yield Event(stretch=stretch_of(made))
        reply = tokens_for(made.study, (await stage.said("tokens")).tokens)
        reply.evaluated[0] = b""
        yield Event(tokens=reply)
        async for event in asking(stage, 1):
            yield event
        async for event in round_with(stage, 2):
            yield event
        yield ENDED

    followed = follow(made, config, script, kind=False)
    assert followed.outcome == (Ending.DONE, 1)
    assert "token_missing round=1" in caplog.text
    assert rounds_charged(config) == 1
    assert followed.mix.left_over() == []


def test_a_round_that_comes_before_its_token_is_answered_when_the_token_is_there(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        yield Event(stretch=stretch_of(made))
        async for event in asking(stage, 1):
            yield event
        request = (await stage.said("tokens")).tokens
        assert stage.mix.onions.empty()
        yield Event(tokens=tokens_for(made.study, request))
        await stage.mix.onions.get()
        yield ENDED

    assert follow(made, config, script, kind=False).outcome == (Ending.DONE, 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the silo measures silences with; it stands still unless a script moves it."""
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr("silomix_client.rounds.channel_call.monotonic", lambda: made.now)
    return made


def test_after_a_silence_only_the_round_that_is_still_open_is_answered(
    made: Consortium,
    config: SiloConfig,
    clock: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Four silences: two rounds come after the first, the next is closed meanwhile, the next
    committed, and in the last the echo is held up as well."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        stage.echoing = False
        clock.now += 100.0
        for number in (1, 2):
            async for event in asking(stage, number):
                yield event
        yield Event(echo=(await stage.said("echo")).echo)
        await stage.mix.onions.get()
        for number in (3, 4, 5):
            clock.now += 100.0
            yield stage.closed(stage.opened(number - 1)[0], void=True)
            descriptor, events = stage.opened(number)
            for event in events:
                yield event
            asked_back = (await stage.said("echo")).echo
            if number == 3:
                yield stage.closed(descriptor)
            elif number == 4:
                yield stage.committed(descriptor, [bytes(32)])
            else:
                clock.now += 100.0
            yield Event(echo=asked_back)
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 1)
    assert rounds_charged(config) == 1
    assert followed.mix.left_over() == []
    passed_over = [f"round_passed_over round={number}" in caplog.text for number in range(1, 6)]
    assert passed_over == [True, False, True, True, True]


def test_rounds_that_follow_each_other_ask_for_no_echo(
    made: Consortium, config: SiloConfig, clock: SimpleNamespace
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        stage.echoing = False
        for number in (1, 2, 3):
            clock.now += 0.4 * made.study.batching.deadline_s
            async for event in round_with(stage, number):
                yield event
        assert stage.frames.empty()
        yield ENDED

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.DONE, 3)


def test_without_the_echo_that_it_asked_for_a_silo_answers_nothing(
    made: Consortium, config: SiloConfig, clock: SimpleNamespace
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        stage.echoing = False
        clock.now += 100.0
        async for event in asking(stage, 1):
            yield event
        await stage.said("echo")
        yield Event(echo=b"something else")
        yield ENDED

    assert follow(made, config, script).outcome == (Ending.DONE, 0)
    assert rounds_charged(config) == 0


def test_tokens_are_asked_for_once_and_again_only_with_the_same_elements(
    made: Consortium, config: SiloConfig
) -> None:
    """The connection breaks before the server answered; then after it did."""
    requests: list[channel_pb2.TokenRequest] = []

    async def breaking(stage: Stage) -> AsyncIterator[Event]:
        yield Event(stretch=stretch_of(made))
        requests.append((await stage.said("tokens")).tokens)
        if len(requests) == 2:
            yield Event(tokens=tokens_for(made.study, requests[-1]))
        await stage.broken()

    async def ending(stage: Stage) -> AsyncIterator[Event]:
        yield Event(stretch=stretch_of(made))
        requests.append((await stage.said("tokens")).tokens)
        yield ENDED

    follow(made, config, breaking, breaking, ending, kind=False)
    assert requests[0] == requests[1]
    assert list(requests[2].blinded) == [b""] * 5


@pytest.mark.parametrize("cut", [0, 1])
def test_a_token_whose_proof_does_not_hold_ends_the_lease(
    made: Consortium, config: SiloConfig, cut: int
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        yield Event(stretch=stretch_of(made))
        reply = tokens_for(made.study, (await stage.said("tokens")).tokens)
        reply.evaluated[3] = reply.evaluated[4][: 96 - cut]
        yield Event(tokens=reply)
        await asyncio.Event().wait()

    before = written(config)
    assert follow(made, config, script, kind=False).outcome == (Ending.REFUSED, 0)
    assert written(config) == before


def test_a_token_of_another_key_than_the_round_s_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    other = issuer(bytes(32), made.study.identity)

    async def script(stage: Stage) -> AsyncIterator[Event]:
        stretch = stretch_of(made)
        stretch.token_keys[0] = other.public_key(1)
        yield Event(stretch=stretch)
        request = (await stage.said("tokens")).tokens
        reply = tokens_for(made.study, request)
        reply.evaluated[0] = other.evaluate(1, request.blinded[0])
        yield Event(tokens=reply)
        async for event in asking(stage, 1):
            yield event
        await asyncio.Event().wait()

    followed = follow(made, config, script, kind=False)
    assert followed.outcome == (Ending.REFUSED, 0)
    assert rounds_charged(config) == 0
    assert followed.mix.left_over() == []


# Attempts ----------------------------------------------------------------------------------------


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


# Broken channels ---------------------------------------------------------------------------------


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


# The mix -----------------------------------------------------------------------------------------


def test_a_report_is_sent_again_with_the_same_bytes_when_the_mix_breaks_off(
    made: Consortium, config: SiloConfig
) -> None:
    taken: list[bytes] = []

    async def script(stage: Stage) -> AsyncIterator[Event]:
        descriptor, events = stage.opened(1)
        for event in events:
            yield event
        taken.extend([await stage.mix.onions.get() for _ in range(2)])
        yield stage.committed(descriptor, [gated_digest(made, taken[1], descriptor)])
        yield stage.closed(descriptor)
        async for event in round_with(stage, 2):
            yield event
        yield ENDED

    def break_once(mix: PlayedMix) -> None:
        mix.breaks = 1

    followed = follow(made, config, script, prepare=break_once)
    assert followed.outcome == (Ending.DONE, 2)
    assert taken[0] == taken[1]
    assert followed.mix.left_over() == []


def test_a_mix_that_always_breaks_off_costs_a_few_tries_and_the_lease_goes_on(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        yield ENDED

    def break_always(mix: PlayedMix) -> None:
        mix.breaks = 1000

    followed = follow(made, config, script, prepare=break_always)
    assert followed.outcome == (Ending.DONE, 1)
    onions = followed.mix.left_over()
    assert len(onions) == 4
    assert len(set(onions)) == 1


def test_a_mix_that_says_the_round_is_over_is_not_asked_again(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in asking(stage, 1):
            yield event
        yield ENDED

    def over(mix: PlayedMix) -> None:
        mix.breaks, mix.code = 1000, grpc.StatusCode.FAILED_PRECONDITION

    followed = follow(made, config, script, prepare=over)
    assert followed.outcome == (Ending.DONE, 1)
    assert len(followed.mix.left_over()) == 1


def test_a_refusing_mix_does_not_end_the_lease(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        yield ENDED

    def refuse(mix: PlayedMix) -> None:
        receipt = mix_pb2.Receipt(status=mix_pb2.Receipt.REFUSED, reason="this round is over")
        mix.reply = lambda digest, report: receipt

    followed = follow(made, config, script, prepare=refuse)
    assert followed.outcome == (Ending.DONE, 1)
    assert len(followed.mix.left_over()) == 1


def test_a_receipt_that_the_mix_did_not_sign_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        await asyncio.Event().wait()

    def forge(mix: PlayedMix) -> None:
        mix.reply = lambda digest, report: mix.accept(digest, bytes(32))

    followed = follow(made, config, script, prepare=forge)
    assert followed.outcome == (Ending.REFUSED, 1)


def test_a_receipt_for_another_silo_ends_the_lease_and_is_not_kept(
    made: Consortium, config: SiloConfig
) -> None:
    """With it the silo could not complain: the receipt says whose report it is for."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in asking(stage):
            yield event
        await asyncio.Event().wait()

    def another_s(mix: PlayedMix) -> None:
        mix.reply = lambda digest, report: mix.accept(digest, report, place=1)

    followed = follow(made, config, script, prepare=another_s)
    assert followed.outcome == (Ending.REFUSED, 1)
    ledger = open_ledger(config)
    known = ledger.account(made.study).outcome(round_of(made, 1).digest)
    ledger.close()
    assert known.receipt is None
