"""Who is let in on the round channel, and the tokens without which nobody is asked."""

from pathlib import Path

import grpc
import grpc.aio
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, channel_pb2_grpc
from silomix_protocol.rounds.tokens import blind
from support.coordinators import following, identity
from support.mixes import refusal, run
from support.round_channels import asked, desk_open, token_request


def test_only_enrolled_silos_with_the_open_lease_are_let_in(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            for silo, lease, study in (
                ("mix-1", "lease", None),
                ("silo-1", "another", None),
                ("silo-1", "", None),
                ("silo-1", "lease", bytes(32)),
            ):
                async with following(made, silo, lease, study=study) as stream:
                    code = await refusal(_read(stream.call))
                    assert code is grpc.StatusCode.PERMISSION_DENIED
            assert desk.channel.followers == frozenset()

    run(scenario())


async def _read(call: "grpc.aio.StreamStreamCall[object, object]") -> object:
    return await call.read()


@pytest.mark.parametrize("first", [None, channel_pb2.SiloFrame(inspect=bytes(32))])
def test_who_does_not_say_which_lease_is_sent_away(
    made: Consortium, tmp_path: Path, first: channel_pb2.SiloFrame | None
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path):
            server = made.study.server
            own = identity(made, "silo-1")
            async with own.channel(server.name, server.channel_address) as connection:
                call = channel_pb2_grpc.RoundChannelStub(connection).Follow(wait_for_ready=True)
                if first is not None:
                    await call.write(first)
                assert await refusal(call.read()) is grpc.StatusCode.PERMISSION_DENIED

    run(scenario())


def test_a_second_connection_of_a_silo_ends_the_first(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, "silo-1") as first:
                await first.hear("stretch")
                async with following(made, "silo-1") as second:
                    await second.hear("stretch")
                    assert "took over" in (await first.hear("ended")).ended.reason
                    assert await first.is_over()
                    assert desk.channel.followers == {"silo-1"}

    run(scenario())


def test_a_silo_is_asked_only_when_it_has_its_tokens(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk, following(made, "silo-1") as early:
            await desk.channel.wait_for(frozenset({"silo-1"}), 1, 0.2)
            assert desk.channel.followers == {"silo-1"}
            desk.open_stretch([asked(made, 1), asked(made, 2)])
            await early.hear("stretch")
            assert desk.channel.ready(1) == frozenset()
            async with following(made, "silo-2") as late:
                await late.hear("stretch")
                request = token_request(made, "silo-2", 1, 2)
                await late.say(tokens=request)
                reply = (await late.hear("tokens")).tokens
                assert [len(each) for each in reply.evaluated] == [96, 96]
                ready = await desk.channel.wait_for(frozenset({"silo-2"}), 1, 5.0)
                assert ready == desk.channel.ready(2) == {"silo-2"}
            async with following(made, "silo-2") as again:  # its tokens are at home
                await again.hear("stretch")
                assert "silo-2" in desk.channel.ready(2)
                assert desk.channel.ready(3) == frozenset()

    run(scenario())


def test_a_silo_that_lost_a_token_is_not_asked_in_that_round(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.tokens.issue("silo-1", token_request(made, "silo-1", 2, 1))
            desk.open_stretch([asked(made, 1), asked(made, 2)])
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                await stream.say(tokens=token_request(made, "silo-1", 1, 2))
                reply = (await stream.hear("tokens")).tokens
                assert [bool(each) for each in reply.evaluated] == [True, False]
                await desk.channel.wait_for(frozenset({"silo-1"}), 1, 5.0)
                assert desk.channel.ready(1) == {"silo-1"}
                assert desk.channel.ready(2) == frozenset()

    run(scenario())


def test_tokens_are_given_once_for_a_stretch_and_only_for_its_rounds(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made, 1), asked(made, 2)])
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                await stream.say(tokens=token_request(made, "silo-1", 2, 2))
                await stream.say(tokens=token_request(made, "silo-1", 1, 5))
                await stream.say(tokens=token_request(made, "silo-1", 1, 2))
                assert (await stream.hear("tokens")).tokens.first_round == 1
                await stream.say(tokens=token_request(made, "silo-1", 1, 2))
                desk.open_stretch([asked(made, 3)])
                await stream.hear("stretch")  # and no reply before it
                await stream.say(tokens=token_request(made, "silo-1", 3, 1))
                assert (await stream.hear("tokens")).tokens.first_round == 3

    run(scenario())


def test_a_silo_s_certificate_alone_gets_none_of_its_tokens(
    made: Consortium, tmp_path: Path
) -> None:
    """Who stole it could have reports summed in that silo's place."""

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                own = token_request(made)
                unsigned = channel_pb2.TokenRequest(first_round=1, blinded=own.blinded)
                changed = channel_pb2.TokenRequest(
                    first_round=1, blinded=[blind().blinded], signature=own.signature
                )
                for request in (unsigned, changed, token_request(made, "silo-2")):
                    await stream.say(tokens=request)
                await stream.say(tokens=own)
                await stream.hear("tokens")
                assert desk.tokens.has_all("silo-1", range(1, 2))
                register = desk.tokens._register.issued("silo-1", range(1, 2))
                assert register == {1: own.blinded[0]}

    run(scenario())
