"""Connections while certificates change: nothing is dropped but the calls of the revoked.

Real servers and channels on loopback.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from silomix_lab.demo.run_demo import free_ports
from silomix_proto import mix_pb2, mix_pb2_grpc
from silomix_protocol.certificates.certificates import request
from silomix_protocol.certificates.revocation import caller_of
from silomix_protocol.connections.tls import Identity
from silomix_protocol.enrolment.enrolment import Enrolment, accept_membership
from silomix_protocol.keys import SigningKey
from support.authorities import MIX, SILO, Office, office, shown_certificate
from support.mixes import RPC_S, run


class Echo(mix_pb2_grpc.MixServicer):
    """Answers every report on a stream with the number of the caller's certificate."""

    async def Submit(  # noqa: N802
        self, request_iterator: AsyncIterator[mix_pb2.SubmitFrame], context: Any
    ) -> AsyncIterator[mix_pb2.Receipt]:
        caller = caller_of(context)
        assert caller is not None
        async for _ in request_iterator:
            yield mix_pb2.Receipt(reason=str(caller.serial))

    async def Collect(  # noqa: N802
        self, request: mix_pb2.CollectRequest, context: Any
    ) -> AsyncIterator[mix_pb2.BatchFrame]:
        while True:
            yield mix_pb2.BatchFrame(chunk=b"more")
            await asyncio.sleep(0.02)


class Scene:
    """A mix that serves and a silo that calls it, both from their folders."""

    def __init__(self, here: Office, address: str) -> None:
        self._here, self.address = here, address
        self.mix, self.silo = self._joined(MIX), self._joined(SILO)
        self.channel: Any = self.dialled(address)
        self.stub = mix_pb2_grpc.MixStub(self.channel)

    def _joined(self, member: Any) -> Enrolment:
        here = self._here
        invitation, keys = here.invite(member), here.keys(member)
        folder = here.folder / member.name
        accept_membership(invitation, keys, here.join(invitation, keys), folder, here.now)
        return Enrolment.load(folder)

    def renew(self, enrolment: Enrolment) -> int:
        """As `renew` does, without the network; the number of the new certificate."""
        key = enrolment.files.next_key()
        member, life = enrolment.member, timedelta(days=14)
        issued = self._here.config.authority().certify(
            member.name, member.hosts, key.public_key(), self._here.now, life, serves=member.serves
        )
        enrolment.files.replace(issued.public_bytes(Encoding.PEM))
        return issued.serial_number

    def revoke(self, name: str) -> None:
        self._here.desk.revoke(name, self._here.now)
        content = self._here.desk.revocation_list(self._here.now)
        for enrolment in (self.mix, self.silo):
            enrolment.revocations.take(content)

    def back(self, enrolment: Enrolment) -> Enrolment:
        """The revoked party joins anew, in another folder, and everybody hears of it."""
        here, member = self._here, enrolment.member
        invitation, keys = here.invite(member), here.keys(member, "back")
        answer = here.join(invitation, keys)
        accept_membership(invitation, keys, answer, here.folder / "back", here.now)
        for other in (self.mix, self.silo):
            other.revocations.take(answer.list)
        return Enrolment.load(here.folder / "back")

    def renew_at_desk(self, enrolment: Enrolment) -> None:
        name, files = enrolment.member.name, enrolment.files
        sign_key = SigningKey.load(enrolment.folder / "sign.key")
        csr = request(name, files.next_key())
        question = self._here.renewal(name, sign_key, csr)
        files.replace(self._here.desk.renew(question, self._here.now).certificate)

    def dialled(self, address: str) -> Any:
        return Identity.load("silo-1", self.silo.folder).channel("mix-1", address)

    def stream(self) -> Any:
        return self.stub.Submit(timeout=RPC_S, wait_for_ready=True)

    async def shown(self) -> int:
        """The number of the certificate that the mix shows to somebody who connects now."""
        return await asyncio.to_thread(shown_certificate, self.address, self.silo.folder)


async def said(stream: Any) -> int:
    await stream.write(mix_pb2.SubmitFrame(chunk=b"?"))
    return int((await stream.read()).reason)


def serial(enrolment: Enrolment) -> int:
    content = (enrolment.folder / "tls.crt").read_bytes()
    return x509.load_pem_x509_certificate(content).serial_number


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with office(tmp_path) as here:
        made = Scene(here, here.config.address)
        async with serving(made.mix.folder, here.config.address):
            try:
                yield made
            finally:
                await made.channel.close()


@asynccontextmanager
async def serving(folder: Path, address: str = "") -> AsyncIterator[str]:
    """The mix of this folder, at an address of its own if none is given."""
    address = address or f"127.0.0.1:{free_ports(1)[0]}"
    server = Identity.load("mix-1", folder).server(address)
    mix_pb2_grpc.add_MixServicer_to_server(Echo(), server)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


def test_a_server_shows_its_new_certificate_and_drops_no_stream(tmp_path: Path) -> None:
    async def play() -> None:
        async with scene(tmp_path) as made:
            stream = made.stream()
            await said(stream)
            before = await made.shown()
            assert before == serial(made.mix)
            after = made.renew(made.mix)
            assert await made.shown() == after != before
            assert await said(stream)  # the connection of before

    run(play())


def test_grpc_is_told_of_a_certificate_once_and_not_at_every_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told of it again it makes another TLS context, and dies when one goes with a handshake that
    nobody finished: 400 of them ended a server in about two tries of five."""
    told: list[object] = []
    configuration = grpc.ssl_server_certificate_configuration

    def noted(*args: Any) -> grpc.ServerCertificateConfiguration:
        told.append(args)
        return configuration(*args)

    monkeypatch.setattr(grpc, "ssl_server_certificate_configuration", noted)

    async def play() -> None:
        async with scene(tmp_path) as made:
            for _ in range(5):
                await made.shown()
            assert len(told) == 1
            after = made.renew(made.mix)
            assert [await made.shown() for _ in range(5)] == [after] * 5
            assert len(told) == 2

    run(play())


def test_a_caller_shows_its_new_certificate_from_its_next_call_on(tmp_path: Path) -> None:
    async def play() -> None:
        async with scene(tmp_path) as made:
            before, first = serial(made.silo), made.stream()
            assert await said(first) == before
            waiting = asyncio.create_task(first.read())
            after = made.renew(made.silo)
            second = made.stream()
            assert await said(second) == after
            await first.write(mix_pb2.SubmitFrame(chunk=b"?"))
            assert int((await waiting).reason) == before, "what is under way goes on"
            first.cancel()
            third = made.stream()
            assert await said(third) == after

    run(play())


def test_many_renewals_leave_no_connection_behind(tmp_path: Path) -> None:
    async def play() -> None:
        async with scene(tmp_path) as made:
            for _ in range(5):
                stream = made.stream()
                assert await said(stream) == serial(made.silo)
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF
                made.renew(made.silo)
            made.channel.get_state()
            await asyncio.wait_for(asyncio.gather(*made.channel._retiring), RPC_S)

    run(play())


async def code_of(stream: Any) -> tuple[grpc.StatusCode, str]:
    while (await stream.read()) is not grpc.aio.EOF:
        pass
    return await stream.code(), await stream.details()


def test_a_revoked_caller_is_refused_although_its_certificate_is_valid(tmp_path: Path) -> None:
    """At its next call, and on streams that are open: in what it says, and in what it hears."""

    async def play() -> None:
        async with scene(tmp_path) as made:
            speaking, hearing = made.stream(), made.stub.Collect(mix_pb2.CollectRequest())
            await said(speaking)
            await hearing.read()
            made.revoke("silo-1")
            denied = grpc.StatusCode.PERMISSION_DENIED, "the authority revoked silo-1"
            with pytest.raises(grpc.aio.AioRpcError) as heard:
                await code_of(hearing)
            assert (heard.value.code(), heard.value.details()) == denied
            await speaking.write(mix_pb2.SubmitFrame(chunk=b"?"))
            with pytest.raises(grpc.aio.AioRpcError):
                await code_of(speaking)
            with pytest.raises(grpc.aio.AioRpcError) as called:
                await said(made.stream())
            assert (called.value.code(), called.value.details()) == denied

    run(play())


def test_a_revoked_party_is_not_called_either(tmp_path: Path) -> None:
    async def play() -> None:
        async with scene(tmp_path) as made:
            await said(made.stream())
            made.revoke("mix-1")
            with pytest.raises(grpc.aio.AioRpcError, match="the authority revoked mix-1"):
                made.stream()

    run(play())


def test_who_has_the_old_key_of_a_party_that_came_back_does_not_pass_for_it(
    tmp_path: Path,
) -> None:
    """Its certificate has not expired, and its name is no longer barred."""

    async def play() -> None:
        async with scene(tmp_path) as made:
            await said(made.stream())
            made.revoke("mix-1")
            back = made.back(made.mix)
            with pytest.raises(grpc.aio.AioRpcError) as thief:
                await said(made.stub.Submit(timeout=RPC_S))
            assert thief.value.code() == grpc.StatusCode.UNAVAILABLE
            for stays in ("joined", "renewed"):
                async with serving(back.folder) as address, made.dialled(address) as channel:
                    stub = mix_pb2_grpc.MixStub(channel)
                    stream = stub.Submit(timeout=RPC_S, wait_for_ready=True)
                    assert await said(stream) == serial(made.silo), stays
                made.renew_at_desk(back)

    run(play())


def test_a_caller_that_came_back_is_heard_with_its_new_certificate_only(tmp_path: Path) -> None:
    async def play() -> None:
        async with scene(tmp_path) as made:
            made.revoke("silo-1")
            back = made.back(made.silo)
            with pytest.raises(grpc.aio.AioRpcError, match="revoked this certificate"):
                await said(made.stream())
            identity = Identity.load("silo-1", back.folder)
            async with identity.channel("mix-1", made.address) as channel:
                stream = mix_pb2_grpc.MixStub(channel).Submit(timeout=RPC_S)
                assert await said(stream) == serial(back)

    run(play())


def test_without_a_list_nobody_is_heard(tmp_path: Path) -> None:
    """Whoever cuts off the authority, or removes the list, does not undo a revocation."""

    async def play() -> None:
        async with scene(tmp_path) as made:
            (made.mix.folder / "revoked.crl").unlink()
            with pytest.raises(grpc.aio.AioRpcError, match="no valid revocation list"):
                await said(made.stream())

    run(play())
