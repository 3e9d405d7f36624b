"""`silomix authority init` and `run`: make the authority's folder, serve until told to stop."""

import asyncio
import signal
from datetime import datetime

import tomli_w
import uvloop
from silomix_core.toml_table import split_address
from silomix_proto import authority_pb2_grpc
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.certificates.files import CertifiedKey
from silomix_protocol.connections.tls import AUTHORITY, authority_server
from silomix_protocol.host import logs
from silomix_protocol.host.durable import make_folder, write_durably
from silomix_protocol.keys import write_secret

from silomix_authority.config import FILE, AuthorityConfig
from silomix_authority.desk import Desk, clock
from silomix_authority.errors import InvalidAuthorityConfig
from silomix_authority.register import Register
from silomix_authority.service import AuthorityService

_GRACE_S = 1.0


def create(config: AuthorityConfig, name: str, now: datetime) -> None:
    """Create an authority in the configuration's folder: key, certificate, authority.toml."""
    folder = config.folder
    make_folder(folder)
    if any(folder.iterdir()):
        raise InvalidAuthorityConfig(f"{folder} is not empty; choose another folder")
    authority = Authority.create(name, now)
    write_secret(folder / "ca.key", authority.key_pem)
    write_durably(folder / "ca.crt", authority.pem)
    write_durably(folder / FILE, tomli_w.dumps(config.table()).encode("utf-8"))


def run(config: AuthorityConfig) -> None:
    logs.configure(AUTHORITY)
    uvloop.run(_serve(config))


async def _serve(config: AuthorityConfig) -> None:
    register = Register(config.state)
    service = AuthorityService(Desk(config, register), clock)
    server = authority_server(config.listen, _OwnCertificate(config).shown)
    authority_pb2_grpc.add_AuthorityServicer_to_server(service, server)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    logs.event("authority_ready", listen=config.listen, parties=len(register.parties()))
    await stop.wait()
    await server.stop(_GRACE_S)
    register.close()
    logs.event("authority_stopped")


class _OwnCertificate:
    """The certificate that the service shows to callers; it makes a new one at half its life."""

    def __init__(self, config: AuthorityConfig) -> None:
        self._config, self._authority = config, config.authority()
        self._made: datetime | None = None

    def shown(self) -> CertifiedKey:
        now, life = clock(), self._config.certificate_life
        if self._made is None or not self._made <= now < self._made + life / 2:
            self._made = now
            hosts = (split_address(self._config.address)[0],)
            days = life.total_seconds() / 86_400
            issued = self._authority.issue(AUTHORITY, hosts, now, serves=True, days=days)
            self._shown = CertifiedKey(issued.certificate, issued.key)
        return self._shown
