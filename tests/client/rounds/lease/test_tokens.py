"""A round needs its token, and after a silence an echo: what a silo asks and waits for."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.rounds.tokens import issuer
from support.leases import asking
from support.scripted_lease import ENDED, Event, Stage, follow, round_with, rounds_charged
from support.silos import stretch_of, tokens_for, written


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
