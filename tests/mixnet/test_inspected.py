"""Server and mix where callers have no certificate, and callers that speak another version.

Real services with real TLS on loopback; at their second address they ask for no certificate.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from silomix_authority.config import load as load_authority
from silomix_authority.desk import Desk
from silomix_authority.register import Register
from silomix_client.network.connection_status import LinkCondition, Links
from silomix_client.network.outbound import OutboundNetwork
from silomix_client.rounds.lease import Ending, LeaseTerms
from silomix_lab.consortium.create import Consortium
from silomix_proto import (
    channel_pb2,
    channel_pb2_grpc,
    introduction_pb2,
    mix_pb2,
    mix_pb2_grpc,
    round_pb2,
)
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.connections import route
from silomix_protocol.connections.introduction import Door, Introduced, introduce
from silomix_protocol.keys import ForgedSignature
from silomix_server.silos.round_channel import RoundChannel
from support.consortia import make_consortium
from support.coordinators import frame_reader, identity, signer
from support.heights import some_height
from support.mixes import RPC_S, described, invented_keys, mix_serving, run
from support.parties import beside
from support.proxies import Proxy, proxy
from support.scripted_lease import holding
from support.silos import approved_silo, copied, open_ledger

LEASE = "lease"
DENIED = grpc.StatusCode.PERMISSION_DENIED, "the authority revoked silo-1"


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("inspected") / "consortium", tokens=False)


@pytest.fixture
def made(consortium: Consortium, tmp_path: Path) -> Consortium:
    return copied(consortium, tmp_path / "consortium")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="silomix")
    return caplog


@asynccontextmanager
async def serving(made: Consortium, *, inspected: bool = True) -> AsyncIterator[RoundChannel]:
    """The round channel with an open lease, and the first mix."""
    study, state = made.study, made.server.parent / "state"
    state.mkdir(exist_ok=True)
    own = identity(made, "server")
    door = Door("server", own.authority, (study,) if inspected else ())
    reader = frame_reader(made, state)
    channel = RoundChannel(study, reader, door, signer(made, "server"))
    address = study.server.channel_address
    server = own.server(address, inspected=beside(address))
    channel_pb2_grpc.add_RoundChannelServicer_to_server(channel, server)
    await server.start()
    channel.open_lease(LEASE)
    try:
        async with mix_serving(made, 0, inspected=inspected):
            yield channel
    finally:
        await server.stop(None)


@asynccontextmanager
async def dialled(
    made: Consortium, party: str, address: str
) -> AsyncIterator[tuple[channel_pb2_grpc.RoundChannelStub, mix_pb2_grpc.MixStub]]:
    """As somebody without a certificate that is asked for."""
    async with identity(made, "silo-1").channel(party, beside(address)) as channel:
        yield channel_pb2_grpc.RoundChannelStub(channel), mix_pb2_grpc.MixStub(channel)


def introduced(made: Consortium, party: str, silo: str = "silo-1") -> Introduced:
    return introduce(identity(made, silo), party, made.study, signer(made, silo))


def first_frame(made: Consortium, silo: str = "silo-1") -> channel_pb2.SiloFrame:
    height = some_height(made, silo).to_wire()
    request = channel_pb2.FollowRequest(lease=LEASE, study=made.study.identity, height=height)
    return channel_pb2.SiloFrame(follow=request)


async def code_of(call: object) -> tuple[grpc.StatusCode, str]:
    try:
        await call.read()  # type: ignore[attr-defined]
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("not refused")


# Introduced silos --------------------------------------------------------------------------------


def test_an_introduced_silo_follows_and_every_event_is_signed(made: Consortium) -> None:
    async def scene() -> None:
        address = made.study.server.channel_address
        async with serving(made) as channel, dialled(made, "server", address) as (stub, _):
            silo = introduced(made, "server")
            call = stub.Follow(metadata=silo.metadata, timeout=RPC_S)
            frame = silo.speaker.signed(first_frame(made).SerializeToString())
            await call.write(channel_pb2.SiloFrame(signed=frame))
            while "silo-1" not in channel.followers:  # noqa: ASYNC110 nobody tells
                await asyncio.sleep(0.01)
            channel.close_lease("all rounds done")
            event = await call.read()
            content = silo.listener.content(event.signed)
            told = channel_pb2.ChannelEvent.FromString(content)
            assert told.ended.reason == "all rounds done"
            with pytest.raises(ForgedSignature):
                silo.listener.content(event.signed)
            call.cancel()

    run(scene())


def test_an_introduced_silo_gets_its_echo_signed_behind_the_round(made: Consortium) -> None:
    async def scene() -> list[channel_pb2.ChannelEvent]:
        address = made.study.server.channel_address
        async with serving(made) as channel, dialled(made, "server", address) as (stub, _):
            silo = introduced(made, "server")
            call = stub.Follow(metadata=silo.metadata, timeout=RPC_S)

            async def say(frame: channel_pb2.SiloFrame) -> None:
                signed = silo.speaker.signed(frame.SerializeToString())
                await call.write(channel_pb2.SiloFrame(signed=signed))

            await say(first_frame(made))
            while "silo-1" not in channel.followers:  # noqa: ASYNC110 nobody tells
                await asyncio.sleep(0.01)
            descriptor = described(made, invented_keys(made)).descriptor
            channel.open_round(descriptor, channel_pb2.RoundOpened(), b"query")
            await say(channel_pb2.SiloFrame(echo=b"are you there"))
            heard: list[channel_pb2.ChannelEvent] = []
            while not heard or not heard[-1].echo:
                content = silo.listener.content((await call.read()).signed)
                event = channel_pb2.ChannelEvent.FromString(content)
                heard += [event, *event.more]
            call.cancel()
            return heard

    heard = run(scene())
    assert [event.WhichOneof("event") for event in heard] == ["opened", "query_chunk", "echo"]
    assert heard[-1].echo == b"are you there"


def test_a_frame_that_the_silo_did_not_sign_ends_its_stream(made: Consortium) -> None:
    """What an inspecting proxy adds to a stream is no word of the silo."""

    async def scene() -> str:
        address = made.study.server.channel_address
        async with serving(made), dialled(made, "server", address) as (stub, _):
            silo = introduced(made, "server")
            call = stub.Follow(metadata=silo.metadata, timeout=RPC_S)
            frame = silo.speaker.signed(first_frame(made).SerializeToString())
            await call.write(channel_pb2.SiloFrame(signed=frame))
            await call.write(channel_pb2.SiloFrame(inspect=bytes(32)))
            event = await call.read()
            content = silo.listener.content(event.signed)
            call.cancel()
            return channel_pb2.ChannelEvent.FromString(content).ended.reason

    assert run(scene()) == "a message on the way was changed, added or left out"


def revoke(made: Consortium, silo: str) -> None:
    """As the authority does; server and first mix have its list at once."""
    settings, now = load_authority(made.authority), datetime.now(UTC)
    with closing(Register(settings.state)) as register:
        desk = Desk(settings, register)
        desk.revoke(silo, now)
        content = desk.revocation_list(now)
    for party in (made.server, made.mixes[0]):
        (party.parent / "revoked.crl").write_bytes(content)


def test_an_introduced_silo_that_is_revoked_loses_its_streams_and_begins_no_other(
    made: Consortium,
) -> None:
    async def scene() -> None:
        address = made.study.server.channel_address
        async with serving(made) as channel, dialled(made, "server", address) as (stub, _):

            async def followed(name: str) -> tuple[Introduced, Any]:
                silo = introduced(made, "server", name)
                call = stub.Follow(metadata=silo.metadata, timeout=RPC_S)
                frame = silo.speaker.signed(first_frame(made, name).SerializeToString())
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # refused already
                    await call.write(channel_pb2.SiloFrame(signed=frame))
                return silo, call

            (silo, talking), (_, other) = await followed("silo-1"), await followed("silo-2")
            while channel.followers != {"silo-1", "silo-2"}:  # noqa: ASYNC110 nobody tells
                await asyncio.sleep(0.01)
            revoke(made, "silo-1")
            frame = silo.speaker.signed(channel_pb2.SiloFrame().SerializeToString())
            await talking.write(channel_pb2.SiloFrame(signed=frame))
            assert await code_of(talking) == DENIED
            _, again = await followed("silo-1")
            assert await code_of(again) == DENIED
            assert channel.followers == {"silo-2"}, "others go on"
            channel.close_lease("all rounds done")
            assert (await other.read()).HasField("signed")
            other.cancel()

    run(scene())


def test_a_mix_takes_nothing_more_from_an_introduced_silo_that_is_revoked(
    made: Consortium,
) -> None:
    async def scene() -> tuple[grpc.StatusCode, str]:
        address = made.study.mixes[0].address
        async with (
            mix_serving(made, 0, inspected=True) as rounds,
            dialled(made, "mix-1", address) as (_, mix),
        ):
            call = mix.Submit(metadata=introduced(made, "mix-1").metadata, timeout=RPC_S)
            while not rounds.admission._expected.streams("silo-1"):  # noqa: ASYNC110 nobody tells
                await asyncio.sleep(0.01)
            revoke(made, "silo-1")
            await call.write(mix_pb2.SubmitFrame())
            return await code_of(call)

    assert run(scene()) == DENIED


def test_an_unsigned_first_frame_is_refused(made: Consortium) -> None:
    async def scene() -> tuple[grpc.StatusCode, str]:
        address = made.study.server.channel_address
        async with serving(made), dialled(made, "server", address) as (stub, _):
            call = stub.Follow(metadata=introduced(made, "server").metadata, timeout=RPC_S)
            await call.write(first_frame(made))
            return await code_of(call)

    assert run(scene())[0] is grpc.StatusCode.PERMISSION_DENIED


def test_without_an_introduction_nobody_is_let_in(made: Consortium) -> None:
    async def scene() -> list[grpc.StatusCode]:
        study = made.study
        async with (
            serving(made),
            dialled(made, "server", study.server.channel_address) as (server, _),
            dialled(made, "mix-1", study.mixes[0].address) as (_, mix),
        ):
            calls = [server.Follow(timeout=RPC_S), mix.Submit(timeout=RPC_S)]
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # refused already
                await calls[0].write(first_frame(made))
            return [(await code_of(call))[0] for call in calls]

    assert run(scene()) == [grpc.StatusCode.PERMISSION_DENIED] * 2


def test_an_operator_who_does_not_allow_introductions_gets_none(made: Consortium) -> None:
    """Even if something that asks for no certificate were listening."""

    async def scene() -> tuple[grpc.StatusCode, str]:
        address = made.study.server.channel_address
        async with serving(made, inspected=False), dialled(made, "server", address) as (stub, _):
            call = stub.Follow(metadata=introduced(made, "server").metadata, timeout=RPC_S)
            return await code_of(call)

    code, said = run(scene())
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "takes no introductions" in said


def test_an_introduced_silo_can_submit_and_greet_and_nothing_else(made: Consortium) -> None:
    """The coordinator's and the other mixes' calls need a certificate at any address."""

    async def scene() -> dict[str, grpc.StatusCode]:
        study, codes = made.study, dict[str, grpc.StatusCode]()
        async with serving(made), dialled(made, "mix-1", study.mixes[0].address) as (_, mix):

            def metadata() -> tuple[tuple[str, bytes], ...]:
                return introduced(made, "mix-1").metadata

            greeting = introduction_pb2.Greeting(study=study.identity)
            welcome = await mix.Greet(greeting, metadata=metadata(), timeout=RPC_S)
            assert welcome.version == 1
            signed = round_pb2.SignedDescriptor()
            unary = {
                "Prepare": (mix.Prepare, mix_pb2.PrepareRequest(study=study.identity, rounds=1)),
                "Abandon": (mix.Abandon, signed),
            }
            for name, (method, request) in unary.items():
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await method(request, metadata=metadata(), timeout=RPC_S)
                codes[name] = refused.value.code()
            forward = mix.Forward(iter([mix_pb2.BatchFrame()]), metadata=metadata(), timeout=RPC_S)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await forward
            codes["Forward"] = refused.value.code()
            return codes

    codes = run(scene())
    assert codes["Prepare"] is grpc.StatusCode.PERMISSION_DENIED
    assert codes["Forward"] is grpc.StatusCode.PERMISSION_DENIED
    assert codes["Abandon"] in (
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
    )


def test_a_silo_whose_inspecting_proxy_broke_off_comes_back_within_its_lease(
    made: Consortium,
) -> None:
    """With a fresh introduction: the first one is used up."""
    config, study = approved_silo(made), made.study
    server, mix = beside(study.server.channel_address), beside(study.mixes[0].address)
    inspection = Authority.create("inspection", datetime.now(UTC))

    async def another_follower(channel: RoundChannel, than: object) -> object:
        while (found := channel._followers.get("silo-1")) in (None, than):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found

    async def scene(running: Proxy) -> tuple[Ending, int]:
        way_out = route.Proxy("127.0.0.1", running.port)
        network = OutboundNetwork(way_out, inspection.pem, {"server": server, "mix-1": mix})
        ledger = open_ledger(config)
        async with serving(made) as channel, holding(config, made, ledger, network) as holder:
            lease = asyncio.create_task(holder.follow(LeaseTerms(LEASE, 60.0)))
            first = await asyncio.wait_for(another_follower(channel, None), 20.0)
            running.cut()
            await asyncio.wait_for(another_follower(channel, first), 20.0)
            channel.close_lease("all rounds done")
            return await asyncio.wait_for(lease, 20.0)

    with proxy(authority=inspection) as running:
        assert run(scene(running)) == (Ending.DONE, 0)


# Another version ---------------------------------------------------------------------------------


@pytest.mark.parametrize("inspected", [False, True])
def test_another_version_is_refused_with_a_sentence_on_both_sides(
    made: Consortium,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    inspected: bool,
) -> None:
    """The silo speaks version 2; the lease ends at once, and both logs say why."""
    config = approved_silo(made)
    study = made.study
    network = OutboundNetwork()
    if inspected:
        server, mix = study.server.channel_address, study.mixes[0].address
        ca = identity(made, "silo-1").authority
        network = OutboundNetwork(None, ca, {"server": beside(server), "mix-1": beside(mix)})
        monkeypatch.setattr("silomix_protocol.connections.introduction.VERSION", 2)
    else:
        monkeypatch.setattr(
            "silomix_protocol.connections.tls.user_agent", lambda: "silomix/9.9 protocol/2"
        )
    links = Links()

    async def scene() -> tuple[Ending, int]:
        ledger = open_ledger(config)
        async with serving(made), holding(config, made, ledger, network, links) as holder:
            return await asyncio.wait_for(holder.follow(LeaseTerms(LEASE, 60.0)), 20.0)

    assert run(scene()) == (Ending.CHANNEL_LOST, 0)
    said = "you speak version 2 of the protocol"
    server_side = [line for line in log.messages if line.startswith("follower_refused")]
    silo_side = [line for line in log.messages if line.startswith("rounds_refused")]
    assert len(silo_side) == 1, "it was tried again, or not told"
    assert len(server_side) == 1
    assert said in server_side[0]
    assert said in silo_side[0]
    conditions = {link.purpose: link.condition for link in links._links.values()}
    assert conditions["rounds"] == LinkCondition.REFUSED.value
