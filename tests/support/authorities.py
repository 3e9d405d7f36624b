"""An authority in a test's own folder, and the parties that deal with it."""

import asyncio
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from silomix_authority import process as running_authority
from silomix_authority.config import AuthorityConfig, load
from silomix_authority.desk import Desk
from silomix_authority.process import create
from silomix_authority.register import Register
from silomix_authority.service import AuthorityService
from silomix_lab.demo.run_demo import free_ports
from silomix_proto import authority_pb2
from silomix_protocol.certificates.certificates import request
from silomix_protocol.enrolment.enrolment import PartyKeys, join_request
from silomix_protocol.enrolment.membership import (
    VERSION,
    Invitation,
    Member,
    PartyKind,
    authority_fingerprint,
)
from silomix_protocol.keys import SigningKey
from silomix_server.flower.child_processes import end, spawn

from support.processes import wait_until

SILO = Member("silo-1", PartyKind.SILO)
MIX = Member("mix-1", PartyKind.MIX, ("127.0.0.1:9101",))


@dataclass
class Office:
    """An authority that is asked without a network, at a time that the test sets."""

    folder: Path
    config: AuthorityConfig
    register: Register
    desk: Desk
    now: datetime

    def invite(self, member: Member = SILO, life: timedelta | None = None) -> Invitation:
        return self.desk.invite(member, self.now, life)

    def join(
        self,
        invitation: Invitation,
        keys: PartyKeys,
        edit: Callable[[authority_pb2.JoinRequest], None] = lambda _: None,
    ) -> authority_pb2.Membership:
        question = join_request(invitation, keys)
        edit(question)
        return self.desk.join(question, self.now)

    def member(self, member: Member = SILO, folder: str | None = None) -> PartyKeys:
        """A party that joined, with its keys in its folder."""
        keys = self.keys(member, folder)
        self.join(self.invite(member), keys)
        return keys

    def keys(self, member: Member = SILO, folder: str | None = None) -> PartyKeys:
        return PartyKeys.make(self.folder / (folder or member.name), member.kind)

    @property
    def authority(self) -> bytes:
        return self.config.authority().pem

    def renewal(
        self, name: str, signed_by: SigningKey, csr: bytes, at: datetime | None = None
    ) -> authority_pb2.RenewRequest:
        time_s = int((at or self.now).timestamp())
        parts = name.encode(), csr, time_s.to_bytes(8, "big")
        fingerprint = authority_fingerprint(self.authority)
        signature = signed_by.sign("renewal", fingerprint, *parts)
        return authority_pb2.RenewRequest(
            version=VERSION, name=name, csr=csr, time_s=time_s, signature=signature
        )

    def renew(
        self, name: str, keys: PartyKeys, at: datetime | None = None
    ) -> authority_pb2.Membership:
        question = self.renewal(name, keys.sign, request(name, keys.tls), at)
        return self.desk.renew(question, self.now)


@contextmanager
def office(folder: Path, now: datetime | None = None, **lives: timedelta) -> Iterator[Office]:
    now = now or datetime.now(UTC)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = replace(AuthorityConfig(folder / "authority", address, address), **lives)
    create(config, "test consortium", now)
    register = Register(config.state)
    try:
        yield Office(folder, config, register, Desk(config, register), now)
    finally:
        register.close()


@contextmanager
def authority_process(config: Path) -> Iterator[Path]:
    """`silomix authority run`, ready; its log.  Gone afterwards, whatever happens."""
    log = config.parent / "authority.log"
    before = log.read_text().count("authority_ready") if log.exists() else 0
    child = spawn([sys.executable, "-m", "silomix", "authority", "run", str(config)], log)
    try:
        wait_until(lambda: log.read_text().count("authority_ready") > before, "authority ready")
        yield log
    finally:
        end(child)


def shown_certificate(address: str, folder: Path) -> int:
    """The number of the certificate that whoever serves at `address` shows now to this party."""
    host, port = address.split(":")
    trusted = ssl.create_default_context(cadata=(folder / "ca.crt").read_text())
    trusted.check_hostname = False
    trusted.set_alpn_protocols(["h2", "http/1.1"])
    trusted.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    with (
        socket.create_connection((host, int(port)), 10.0) as plain,
        trusted.wrap_socket(plain) as connection,
    ):
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


def serve_and_die(config: str) -> None:
    """An authority whose process is killed after its first decision, before anybody hears of it."""

    class Dying(AuthorityService):
        async def Join(self, request: Any, context: Any) -> Any:  # noqa: N802
            self._desk.join(request, self._clock())
            os.kill(os.getpid(), signal.SIGKILL)

    vars(running_authority)["AuthorityService"] = Dying
    asyncio.run(running_authority._serve(load(Path(config))))
