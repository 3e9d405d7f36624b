"""Connections are between parties: each proves its name, a stranger does not get as far as a call.

Real servers and channels on loopback.
"""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from silomix.demo.run import free_ports
from silomix_proto import mix_pb2, mix_pb2_grpc
from silomix_protocol.certificates import Authority
from silomix_protocol.keys import UnusableKey, write_secret
from silomix_protocol.tls import CHUNK_BYTES, CannotListen, Identity, ServerContext, peer_name
from support.mixes import RPC_S, run

NOW = datetime.now(UTC)
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


async def refusal(call: Coroutine[Any, Any, object]) -> grpc.StatusCode:
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
            options = [("grpc.ssl_target_name_override", "mix-1")]
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
            options = [("grpc.ssl_target_name_override", "mix-1")]  # a caller without our limits
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
