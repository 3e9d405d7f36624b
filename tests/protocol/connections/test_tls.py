"""Connections are between parties: each proves its name, a stranger does not get as far as a call.

Real servers and channels on loopback.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from silomix_lab.demo.run_demo import free_ports
from silomix_proto import authority_pb2, authority_pb2_grpc, mix_pb2, mix_pb2_grpc
from silomix_protocol.certificates.certificates import Authority, dialled_name
from silomix_protocol.connections import tls
from silomix_protocol.connections.tls import CannotListen, Identity, ServerContext, peer_name
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_protocol.keys import UnusableKey, write_secret
from support.mixes import RPC_S, run

NOW = datetime.now(UTC)
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
AUTHORITY = Authority.create("consortium", NOW)


def party(
    name: str,
    *,
    serves: bool,
    authority: Authority = AUTHORITY,
    trusts: Authority = AUTHORITY,
    now: datetime = NOW,
) -> Identity:
    """A party with a certificate of `authority` that trusts those of `trusts`."""
    issued = authority.issue(name, ("127.0.0.1", "localhost"), now, serves=serves)
    return Identity(name, trusts.pem, issued.certificate, issued.key)


MIX = party("mix-1", serves=True)
SILO = party("silo-1", serves=False)


class Greeter(mix_pb2_grpc.MixServicer):
    """Answers whatever is forwarded; remembers who called."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    async def Forward(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.BatchFrame],
        context: ServerContext,
    ) -> mix_pb2.ForwardReceipt:
        self.callers.append(peer_name(context))
        async for _ in request_iterator:
            pass
        return mix_pb2.ForwardReceipt()


@asynccontextmanager
async def serving(server_identity: Identity) -> AsyncIterator[tuple[Greeter, str]]:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server, greeter = server_identity.server(address), Greeter()
    mix_pb2_grpc.add_MixServicer_to_server(greeter, server)
    await server.start()
    try:
        yield greeter, address
    finally:
        await server.stop(None)


async def greet(channel: grpc.aio.Channel, content: bytes = b"hello") -> None:
    """One message; grpc.aio turns the failure of an empty stream into a cancellation."""
    async with channel:
        frames = iter([mix_pb2.BatchFrame(chunk=content)])
        await mix_pb2_grpc.MixStub(channel).Forward(frames, timeout=RPC_S)


async def refusal(call: Awaitable[object]) -> grpc.StatusCode:
    """The code that this call is refused with."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    raise AssertionError(f"not refused: {answer!r}")


def outcome(server: Identity, caller: Identity, party_name: str) -> tuple[list[str], object]:
    """Who got through, and the code of the refusal, when `caller` dials `party_name`."""

    async def scene() -> tuple[list[str], object]:
        async with serving(server) as (greeter, address):
            code = await refusal(greet(caller.channel(party_name, address)))
            return greeter.callers, code

    return run(scene())


def test_a_call_arrives_under_the_callers_name() -> None:
    async def scene() -> list[str]:
        async with serving(MIX) as (greeter, address):
            await greet(SILO.channel("mix-1", address))
            await greet(party("silo-2", serves=False).channel("mix-1", address))
            return greeter.callers

    assert run(scene()) == ["silo-1", "silo-2"]


def test_a_channel_refuses_a_server_with_another_partys_certificate() -> None:
    """Also at the right host: the certificate of mix-2 is valid for 127.0.0.1 and localhost."""
    reached = outcome(party("mix-2", serves=True), SILO, "mix-1")
    assert reached == ([], grpc.StatusCode.UNAVAILABLE)


def test_a_silos_certificate_cannot_serve() -> None:
    """Not even under its own name: a stolen silo certificate makes no false mix."""
    assert outcome(SILO, MIX, "silo-1") == ([], grpc.StatusCode.UNAVAILABLE)

    async def scene() -> list[str]:
        async with serving(party("silo-1", serves=True)) as (greeter, address):
            await greet(MIX.channel("silo-1", address))
            return greeter.callers

    assert run(scene()) == ["mix-1"], "it was refused for something else"


@pytest.mark.parametrize("name", ["server", "authority", "mix-1", "after-2.mix-1"])
def test_an_address_gives_a_party_no_other_partys_name(name: str) -> None:
    """A mix that was invited at a host which is called as somebody else is."""
    issued = AUTHORITY.issue("mix-9", (name,), NOW, serves=True)
    stranger = Identity("mix-9", AUTHORITY.pem, issued.certificate, issued.key)
    assert outcome(stranger, SILO, name) == ([], grpc.StatusCode.UNAVAILABLE)

    async def scene() -> list[str]:
        async with serving(stranger) as (greeter, address):
            await greet(SILO.channel("mix-9", address))
            return greeter.callers

    assert run(scene()) == ["silo-1"], "it was refused for something else"


def test_a_caller_of_another_authority_is_refused() -> None:
    other = Authority.create("consortium", NOW)  # the same name, another key
    stranger = party("silo-1", serves=False, authority=other)
    assert outcome(MIX, stranger, "mix-1") == ([], grpc.StatusCode.UNAVAILABLE)


def test_a_server_of_another_authority_is_refused() -> None:
    other = Authority.create("consortium", NOW)
    impostor = party("mix-1", serves=True, authority=other)
    assert outcome(impostor, SILO, "mix-1") == ([], grpc.StatusCode.UNAVAILABLE)


def test_a_caller_whose_certificate_expired_is_refused() -> None:
    expired = party("silo-1", serves=False, now=NOW - timedelta(days=91))
    assert outcome(MIX, expired, "mix-1") == ([], grpc.StatusCode.UNAVAILABLE)


def test_a_caller_without_a_certificate_is_refused() -> None:
    async def scene() -> tuple[list[str], object]:
        async with serving(MIX) as (greeter, address):
            credentials = grpc.ssl_channel_credentials(AUTHORITY.pem)
            options = [("grpc.ssl_target_name_override", dialled_name("mix-1"))]
            channel = grpc.aio.secure_channel(address, credentials, options=options)
            return greeter.callers, await refusal(greet(channel))

    assert run(scene()) == ([], grpc.StatusCode.UNAVAILABLE)


def test_a_caller_without_tls_is_refused() -> None:
    async def scene() -> tuple[list[str], object]:
        async with serving(MIX) as (greeter, address):
            return greeter.callers, await refusal(greet(grpc.aio.insecure_channel(address)))

    assert run(scene()) == ([], grpc.StatusCode.UNAVAILABLE)


def test_a_chunk_passes_and_a_larger_message_does_not() -> None:
    async def scene() -> object:
        async with serving(MIX) as (_, address):
            await greet(SILO.channel("mix-1", address), bytes(CHUNK_BYTES))
            credentials = grpc.ssl_channel_credentials(AUTHORITY.pem, SILO._key, SILO.certificate)
            # a caller without our limits
            options = [("grpc.ssl_target_name_override", dialled_name("mix-1"))]
            channel = grpc.aio.secure_channel(address, credentials, options=options)
            return await refusal(greet(channel, bytes(2 * CHUNK_BYTES)))

    assert run(scene()) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_party_loads_its_identity_from_its_folder(tmp_path: Path) -> None:
    issued = AUTHORITY.issue("mix-1", (), NOW, serves=True)
    for name, content in (
        ("ca.crt", AUTHORITY.pem),
        ("tls.crt", issued.certificate),
        ("tls.key", issued.key),
    ):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    loaded = Identity.load("mix-1", tmp_path)
    assert (loaded.name, loaded.authority) == ("mix-1", AUTHORITY.pem)
    assert "PRIVATE" not in repr(loaded)
    with pytest.raises(UnusableKey, match=r"ca\.crt: No such file"):
        Identity.load("mix-1", tmp_path / "nowhere")


def test_a_tls_key_open_to_others_is_refused(tmp_path: Path) -> None:
    issued = AUTHORITY.issue("mix-1", (), NOW, serves=True)
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.pem)
    (tmp_path / "tls.crt").write_bytes(issued.certificate)
    write_secret(tmp_path / "tls.key", issued.key)
    Identity.load("mix-1", tmp_path)
    (tmp_path / "tls.key").chmod(0o640)
    with pytest.raises(UnusableKey, match="chmod 600"):
        Identity.load("mix-1", tmp_path)


def test_two_servers_cannot_share_an_address() -> None:
    """An impostor on the same machine cannot take a share of a mix's callers."""

    async def scene() -> None:
        async with serving(MIX) as (_, address):
            with pytest.raises(CannotListen, match="in use"):
                MIX.server(address)

    run(scene())


def test_a_compressed_message_is_refused() -> None:
    async def scene() -> grpc.StatusCode:
        async with serving(MIX) as (_, address), SILO.channel("mix-1", address) as channel:
            stub, gzip = mix_pb2_grpc.MixStub(channel), grpc.Compression.Gzip
            frames = iter([mix_pb2.BatchFrame(chunk=bytes(10_000))])
            return await refusal(stub.Forward(frames, timeout=RPC_S, compression=gzip))

    assert run(scene()) is grpc.StatusCode.UNIMPLEMENTED


# What others can cost ----------------------------------------------------------------------------


@asynccontextmanager
async def bombing(identity: Identity) -> AsyncIterator[str]:
    """A server that answers everything with 64 MB, packed into little."""

    async def answer(_request: bytes, _context: ServerContext) -> bytes:
        return bytes(2**26)

    method = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.aio.server(
        compression=grpc.Compression.Gzip, options=[("grpc.max_send_message_length", -1)]
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("x", {"y": method})])
    credentials = grpc.ssl_server_credentials([(identity._key, identity.certificate)])
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


def test_a_compressed_answer_is_refused_and_never_unpacked() -> None:
    """gRPC would unpack it before it looks how large it is."""

    async def scene() -> None:
        async with bombing(MIX) as address, SILO.channel("mix-1", address) as channel:
            assert await refusal(channel.unary_unary("/x/y")(b"", timeout=RPC_S)) is UNIMPLEMENTED
        own = party(tls.AUTHORITY, serves=True)
        async with (
            bombing(own) as address,
            tls.authority_channel(address, AUTHORITY.pem) as channel,
        ):
            assert await refusal(channel.unary_unary("/x/y")(b"", timeout=RPC_S)) is UNIMPLEMENTED

    run(scene())


def still_open(streams: list[socket.socket]) -> int:
    count = 0
    for stream in streams:
        stream.setblocking(False)
        try:
            count += bool(stream.recv(1))
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def test_strangers_take_a_bounded_number_of_connections_and_nobody_s_call_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls, "_MOST_CONNECTIONS", 20)

    async def scene() -> None:
        async with serving(MIX) as (greeter, address), SILO.channel("mix-1", address) as channel:
            stub = mix_pb2_grpc.MixStub(channel)
            await stub.Forward(iter([mix_pb2.BatchFrame()]), timeout=RPC_S)
            host, _, port = address.rpartition(":")
            strangers = [socket.create_connection((host, int(port))) for _ in range(100)]
            end = asyncio.get_running_loop().time() + RPC_S
            while still_open(strangers) > 20:  # gRPC closes the others when it gets to them
                assert asyncio.get_running_loop().time() < end
                await asyncio.sleep(0.05)
            await stub.Forward(iter([mix_pb2.BatchFrame()]), timeout=RPC_S)
            for stranger in strangers:
                stranger.close()
            await greet(party("silo-2", serves=False).channel("mix-1", address))
            assert greeter.callers == ["silo-1", "silo-1", "silo-2"]

    run(scene())


class Clerk(authority_pb2_grpc.AuthorityServicer):
    async def List(  # noqa: N802
        self, _request: authority_pb2.ListRequest, _context: ServerContext
    ) -> authority_pb2.RevocationList:
        return authority_pb2.RevocationList(list=b"nobody")


@asynccontextmanager
async def authority() -> AsyncIterator[grpc.aio.Channel]:
    """The authority's own server, and a caller without a certificate and without our limits."""
    issued = AUTHORITY.issue(tls.AUTHORITY, ("127.0.0.1",), NOW, serves=True)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    own = tls.CertifiedKey(issued.certificate, issued.key)
    server = tls.authority_server(address, lambda: own)
    authority_pb2_grpc.add_AuthorityServicer_to_server(Clerk(), server)
    await server.start()
    credentials = grpc.ssl_channel_credentials(AUTHORITY.pem)
    options = [("grpc.ssl_target_name_override", dialled_name(tls.AUTHORITY))]
    try:
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            yield channel
    finally:
        await server.stop(None)


def test_a_stranger_sends_the_authority_little_at_once() -> None:
    async def scene() -> object:
        async with authority() as channel:
            stub = authority_pb2_grpc.AuthorityStub(channel)
            answer = await stub.List(authority_pb2.ListRequest(), timeout=RPC_S)
            assert answer.list == b"nobody"
            large = authority_pb2.JoinRequest(csr=bytes(64 * 1024))
            return await refusal(stub.Join(large, timeout=RPC_S))

    assert run(scene()) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_stranger_holds_no_call_at_the_authority_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call whose request never comes ends with the life of its connection."""
    short = [(name, 300 if "age" in name else value) for name, value in tls._TO_STRANGERS]
    monkeypatch.setattr(tls, "_TO_STRANGERS", short)

    async def scene() -> None:
        async with authority() as channel:
            call = channel.stream_unary("/silomix.v1.Authority/List")(timeout=60.0)
            began = asyncio.get_running_loop().time()
            assert await refusal(call) is grpc.StatusCode.UNAVAILABLE
            assert 0.2 < asyncio.get_running_loop().time() - began < RPC_S

    run(scene())
