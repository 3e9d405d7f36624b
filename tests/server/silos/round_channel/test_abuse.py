"""Silos that talk nonsense, ask for too much or do not read: the others do not notice."""

from pathlib import Path

import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.rounds.tokens import blind
from support.coordinators import following
from support.mixes import run
from support.round_channels import (
    asked,
    batch_of,
    confirmed,
    desk_open,
    outside,
    token_request,
    until,
)


@pytest.mark.parametrize(
    "nonsense",
    [
        channel_pb2.SiloFrame(),
        channel_pb2.SiloFrame(follow=channel_pb2.FollowRequest(lease="lease")),
        channel_pb2.SiloFrame(inspect=bytes(32)),
        channel_pb2.SiloFrame(inspect=b"x" * 100_000),
        channel_pb2.SiloFrame(tokens=channel_pb2.TokenRequest(first_round=9)),
        channel_pb2.SiloFrame(answer=channel_pb2.CommittedAnswer(digest=bytes(32))),
    ],
)
def test_a_silo_that_talks_nonsense_is_dismissed_and_the_others_stay(
    made: Consortium, tmp_path: Path, nonsense: channel_pb2.SiloFrame
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, "silo-1") as bad, following(made, "silo-2") as good:
                for stream in (bad, good):
                    await stream.hear("stretch")
                for _ in range(21):
                    await bad.call.write(nonsense)
                assert "nobody asked for" in (await bad.hear("ended")).ended.reason
                assert await bad.is_over()
                await good.say(tokens=token_request(made, "silo-2"))
                await good.hear("tokens")
                assert desk.channel.followers == {"silo-2"}

    run(scenario())


def test_an_echo_comes_behind_what_was_told_before_once_for_every_round(
    made: Consortium, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            rounds = [asked(made, number) for number in (1, 2)]
            desk.open_stretch(rounds)
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                await stream.say(echo=b"too early")
                await stream.say(tokens=token_request(made, rounds=2))
                await stream.hear("tokens")
                desk.open_round(rounds[0])
                await stream.hear("opened")
                await stream.say(echo=b"longer than it may be")
                await stream.say(echo=b"first")
                await stream.say(echo=b"a second one")
                await stream.hear("query_chunk")
                assert (await stream.hear("echo")).echo == b"first"
                await until(lambda: caplog.text.count("an echo that is not due") == 3)
                desk.open_round(rounds[1])
                await stream.say(echo=b"second")
                for kind in ("opened", "query_chunk"):
                    await stream.hear(kind)
                assert (await stream.hear("echo")).echo == b"second"

    run(scenario())


def test_an_answer_before_the_list_or_of_somebody_not_asked_counts_for_nothing(
    pairs: Consortium, tmp_path: Path
) -> None:
    made, (first, _), other = pairs, pairs.study.asked(1), outside(pairs)

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            batch, _, _ = batch_of(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            async with following(made, first) as one, following(made, other) as three:
                for kind in ("stretch", "opened", "query_chunk"):
                    await one.hear(kind)
                await three.hear("stretch")
                await one.say(answer=confirmed(made, round_, batch, first))  # too early
                await one.say(tokens=token_request(made, first))
                await one.hear("tokens")
                gate = desk.commit(round_, batch)
                await three.say(answer=confirmed(made, round_, batch, other))
                await three.say(tokens=token_request(made, other))
                await three.hear("tokens")
                assert gate.confirmations == []
                await one.say(answer=confirmed(made, round_, batch, first))
                await until(lambda: bool(gate.confirmations))

    run(scenario())


def test_a_request_for_thousands_of_tokens_is_not_looked_at(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                element = blind().blinded
                await stream.say(tokens=channel_pb2.TokenRequest(blinded=[element] * 29_000))
                await stream.say(tokens=token_request(made))
                assert len((await stream.hear("tokens")).tokens.evaluated) == 1

    run(scenario())


def test_a_silo_that_does_not_read_is_let_go(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk, following(made, "silo-1"):
            await until(lambda: bool(desk.channel.followers))
            for number in range(60):  # without giving it a chance to read
                desk.open_round(asked(made, 1 + number % 5))
            assert desk.channel.followers == frozenset()

    run(scenario())


def test_the_committed_list_is_that_of_the_current_round(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            committed = channel_pb2.RoundCommitted(digest=round_.digest, list=bytes(32))
            with pytest.raises(ValueError, match="another round"):
                desk.channel.commit(committed, (round_pb2.HopStatement(),), None)

    run(scenario())
