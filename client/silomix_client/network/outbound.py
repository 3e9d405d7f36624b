"""How a silo gets out of its hospital's network: silo.toml's [network], and nothing else.

    [network]
    proxy = "http://proxy.hospital.example:3128"
    proxy_login = "proxy.login"     # a file that only you can read: user:password
    ca = "inspection.pem"           # if the proxy looks into TLS: its authority

    [[network.inspected]]           # then also where each party takes introductions
    party = "server"
    address = "server.example:9095"

The silo dials out; nothing here lets anybody in.  What a proxy that looks into TLS sees and can do
is in docs/network.md.
"""

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
from silomix_core.study.study import Study
from silomix_core.toml_table import InvalidField, TomlTable
from silomix_protocol.connections.introduction import Introduced, introduce
from silomix_protocol.connections.route import Proxy, Route
from silomix_protocol.connections.tls import Identity
from silomix_protocol.host import logs
from silomix_protocol.host.operator_files import named, read_own_table
from silomix_protocol.host.ownership import read_own
from silomix_protocol.keys import SigningKey, UnusableKey, read_secret

from silomix_client.errors import InvalidSiloConfig


@dataclass(frozen=True, slots=True)
class OutboundNetwork:
    """The way out; `inspected` says where parties listen for silos whose certificate is lost."""

    proxy: Proxy | None = None
    authorities: bytes = field(default=b"", repr=False)
    inspected: dict[str, str] = field(default_factory=dict)

    def address(self, party: str, address: str) -> str:
        """Where this silo reaches `party`, whom the study says to be at `address`."""
        return self.inspected.get(party, address)

    def route(self, party: str) -> Route:
        """The route to a party; a proxy's authority is believed only where it has to be."""
        return Route(self.proxy, self.authorities if party in self.inspected else b"")

    @property
    def web(self) -> Route:
        """The route to Flower's Fleet API and the authority: a silo's signature counts anyway."""
        return Route(self.proxy, self.authorities)

    def channel(self, identity: Identity, party: str, address: str) -> grpc.aio.Channel:
        return identity.channel(party, self.address(party, address), self.route(party))

    def introduction(
        self, own: Identity, party: str, study: Study, sign_key: SigningKey
    ) -> Introduced | None:
        """An introduction for one call, if the certificate does not reach the party."""
        return introduce(own, party, study, sign_key) if party in self.inspected else None


def network_of(path: Path) -> OutboundNetwork:
    """What the silo.toml at `path` says about the way out, whatever else it says."""
    with named(path, InvalidSiloConfig):
        table = read_own_table(path)
        return (
            read_network(table.table("network"), path.parent)
            if table.has("network")
            else OutboundNetwork()
        )


def read_network(table: TomlTable, folder: Path) -> OutboundNetwork:
    """Read silo.toml's [network] table."""
    proxy = _proxy(table, folder) if table.has("proxy") else None
    authorities = _authorities(folder / table.text("ca")) if table.has("ca") else b""
    inspected: dict[str, str] = {}
    for row in table.tables("inspected") if table.has("inspected") else ():
        party = row.short_text("party")
        if party in inspected:
            raise InvalidField(f"network.inspected: {party!r} is there twice")
        inspected[party] = row.address("address")
        row.finish()
    if inspected and not authorities:
        raise InvalidField("network.inspected needs network.ca: the proxy's authority")
    table.finish()
    return OutboundNetwork(proxy, authorities, inspected)


def _proxy(table: TomlTable, folder: Path) -> Proxy:
    text = table.text("proxy")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidField("network.proxy: not http://HOST:PORT") from error
    if parts.username is not None or parts.password is not None:
        raise InvalidField(
            "network.proxy: a login does not belong here; put user:password into a file that only "
            "you can read and name it in proxy_login"
        )
    if parts.scheme == "https":
        raise InvalidField(
            "network.proxy: give it as http://HOST:PORT; what goes through it is TLS in any case"
        )
    whole = parts.scheme == "http" and parts.hostname and port and parts.path in ("", "/")
    if not whole or parts.query or parts.fragment or parts.hostname is None or port is None:
        raise InvalidField("network.proxy: not http://HOST:PORT")
    if not table.has("proxy_login"):
        return Proxy(parts.hostname, port)
    user, password = _login(folder / table.text("proxy_login"))
    return Proxy(parts.hostname, port, user, password)


def _login(path: Path) -> tuple[str, str]:
    try:
        content = read_secret(path).decode("utf-8").rstrip("\r\n")
    except UnusableKey as error:
        raise InvalidSiloConfig(str(error)) from error
    except UnicodeDecodeError:
        raise InvalidSiloConfig(f"{path}: not text; expected user:password") from None
    user, colon, password = content.partition(":")
    if not (user and colon and password) or not content.isprintable():
        raise InvalidSiloConfig(f"{path}: expected one line, user:password")
    return user, password


def _authorities(path: Path) -> bytes:
    with named(path, InvalidSiloConfig):
        content = read_own(path)
    try:
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusted.load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidSiloConfig(f"{path}: not certificates in PEM") from error
    return content


def sentence(error: BaseException) -> str:
    """What went wrong on the way, for an operator: the first cause that says it plainly."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or cause}"
        if isinstance(cause, socket.gaierror):
            return "its name is not known (DNS)"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, TimeoutError):
            return "no answer in time"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    return f"{type(error).__name__}: {logs.foreign(error)}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
