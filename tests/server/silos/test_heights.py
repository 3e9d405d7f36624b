"""The coordinator as a witness of silos' ledgers: what it is told with a lease, and shows."""

from pathlib import Path

import grpc
import grpc.aio
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, channel_pb2_grpc, introduction_pb2
from silomix_protocol.rounds.heights import Height, check_height
from silomix_server.silos.round_channel import RoundChannel
from support.consortia import make_consortium
from support.coordinators import frame_reader, identity, signer
from support.heights import some_height
from support.mixes import RPC_S, refusal, run

Event = channel_pb2.ChannelEvent


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("heights") / "consortium")


class Channel:
    """The round channel at its address, with an open lease and an announced stretch."""

    def __init__(self, made: Consortium, state: Path) -> None:
        study, self.made = made.study, made
        self.channel = RoundChannel(study, frame_reader(made, state))
        self._server = identity(made, "server").server(study.server.channel_address)
        channel_pb2_grpc.add_RoundChannelServicer_to_server(self.channel, self._server)

    async def __aenter__(self) -> "Channel":
        await self._server.start()
        self.channel.open_lease("lease")
        self.channel.open_stretch(channel_pb2.StretchOpened(first_round=1))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def told(self, height: Height | None, silo: str = "silo-1") -> list[Event]:
        """What a silo that follows with this height is told at first."""
        server = self.made.study.server
        async with identity(self.made, silo).channel(server.name, server.channel_address) as own:
            call = channel_pb2_grpc.RoundChannelStub(own).Follow(wait_for_ready=True, timeout=RPC_S)
            request = channel_pb2.FollowRequest(lease="lease", study=self.made.study.identity)
            if height is not None:
                request.height.CopyFrom(height.to_wire())
            await call.write(channel_pb2.SiloFrame(follow=request))
            event = await call.read()
            call.cancel()
        assert isinstance(event, Event)
        return [event, *event.more]

    async def greeted(self, silo: str = "silo-1") -> introduction_pb2.Welcome:
        server = self.made.study.server
        async with identity(self.made, silo).channel(server.name, server.channel_address) as own:
            stub = channel_pb2_grpc.RoundChannelStub(own)
            greeting = introduction_pb2.Greeting(study=self.made.study.identity)
            answer = await stub.Greet(greeting, timeout=RPC_S, wait_for_ready=True)
        assert isinstance(answer, introduction_pb2.Welcome)
        return answer


def kinds(events: list[Event]) -> list[str | None]:
    return [event.WhichOneof("event") for event in events]


def test_a_silo_is_shown_the_highest_before_all_else_and_when_it_greets(
    made: Consortium, tmp_path: Path
) -> None:
    key = signer(made, "silo-1").public
    high, low = some_height(made, "silo-1", 9), some_height(made, "silo-1", 4)
    fork = some_height(made, "silo-1", 9, story="of a copy")

    async def scene() -> None:
        async with Channel(made, tmp_path) as channel:
            assert kinds(await channel.told(high)) == ["stretch"], "it is the first"
            assert kinds(await channel.told(high)) == ["stretch"], "it knows that itself"
            for other in (low, fork, some_height(made, "silo-1", 10)):
                events = await channel.told(other)
                assert kinds(events) == ["height", "stretch"]
                assert check_height(events[0].height, "silo-1", key) == high
            answer = await channel.greeted()
            assert check_height(answer.height, "silo-1", key).entries == 10
            assert not (await channel.greeted("silo-2")).HasField("height")

    run(scene())


@pytest.mark.parametrize("whose", [None, "silo-2"])
def test_a_silo_follows_only_with_a_height_that_it_signed(
    made: Consortium, tmp_path: Path, whose: str | None
) -> None:
    height = None if whose is None else some_height(made, whose)

    async def scene() -> None:
        async with Channel(made, tmp_path) as channel:
            code = await refusal(channel.told(height))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert channel.channel.followers == frozenset()

    run(scene())
