"""Mutual TLS between parties: each presents the certificate of its own name.

A connection is to a *party*, not to a host: the certificate must carry the party's name, in the
zone of parties' names (`certificates`), whatever address it was reached at.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from silomix_protocol.certificates.certificates import dialled_name
from silomix_protocol.certificates.files import CertificateFiles, CertifiedKey
from silomix_protocol.certificates.revocation import Guard, Revocations
from silomix_protocol.certificates.revocation import UnknownPeer as UnknownPeer
from silomix_protocol.connections.route import DIRECT, Route
from silomix_protocol.connections.version import user_agent
from silomix_protocol.grpc_calls import last_word
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES, CallLimits, Turnstile
from silomix_protocol.grpc_calls.call_limits import certified_name as certified_name
from silomix_protocol.grpc_calls.live_channel import LiveChannel
from silomix_protocol.host.file_descriptors import connections
from silomix_protocol.host.ownership import OpenToOthers, read_own
from silomix_protocol.keys import UnusableKey

if TYPE_CHECKING:
    ServerContext = grpc.aio.ServicerContext[Any, Any]
else:
    ServerContext = grpc.aio.ServicerContext

AUTHORITY = "authority"  # the name in the authority's own certificate, which no party can have
ENROLMENT = "enrolment.toml"  # in a party's folder: where its authority is
SUBMIT_BYTES = 2**18  # of an onion in one message to the first mix, which gets many at once
LARGEST_MESSAGE = CHUNK_BYTES + 64 * 1024
_OPTIONS = [
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # identity only: nothing is decompressed
]
_RECEIVED = ("grpc.max_receive_message_length", LARGEST_MESSAGE)  # of answers
_SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.server_handshake_timeout_ms", 10_000),  # a connection without a certificate ends here
]
_MOST_CONNECTIONS = 4096  # of a server; those that do not get through a handshake have 10 s
_TO_STRANGERS = [  # where callers have no certificate: short calls, and nothing is held for long
    ("grpc.max_connection_idle_ms", 20_000),
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
]
_MOST_OF_STRANGERS = 512  # calls in all: each may keep a message of 64 KiB for 10 s
_STRANGERS = CallLimits(64 * 1024, of_an_address=32, on_a_connection=8, awaited=_MOST_OF_STRANGERS)

PARTIES = CallLimits(message_bytes=LARGEST_MESSAGE)
_SMALL_WINDOWS = [  # of fixed size: probing the bandwidth lets a hundred senders fill the memory
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", SUBMIT_BYTES // 2),
]


class CannotListen(OSError):
    """The address to listen on is taken or not this machine's."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A party's own certificate and the authority that it shares with the others.

    An identity loaded from a folder follows what happens there: a new certificate is shown from
    the next connection on, and whoever is on the revocation list is neither heard nor called.
    """

    name: str
    authority: bytes
    certificate: bytes
    _key: bytes = field(repr=False)
    _files: CertificateFiles | None = field(default=None, repr=False, compare=False)
    revocations: Revocations | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, name: str, folder: Path) -> "Identity":
        """Load ca.crt, tls.crt and tls.key from a party's folder; revoked.crl if it enrolled."""
        authority, files = _trusted(folder / "ca.crt"), CertificateFiles(folder)
        own = files.load()
        enrolled = (folder / ENROLMENT).exists()
        revocations = Revocations(folder, authority) if enrolled else None
        return cls(name, authority, own.certificate, own.key, files, revocations)

    @property
    def shown(self) -> bytes:
        """The certificate that this party shows now."""
        return self._now().certificate

    def channel(self, party: str, address: str, route: Route = DIRECT) -> grpc.aio.Channel:
        """A channel to `party` at `address`, which must prove that it is `party`."""
        if self._files is None:
            return self._dial(dialled_name(party), address, route)

        def refusal() -> str | None:
            barred = self.revocations is not None and self.revocations.bars(party)
            return f"the authority revoked {party}" if barred else None

        def name() -> str:
            revocations = self.revocations
            return dialled_name(party) if revocations is None else revocations.dialled(party)

        files = self._files
        return LiveChannel(
            lambda: self._dial(name(), address, route), lambda: (files.version, name()), refusal
        )

    def _dial(self, name: str, address: str, route: Route) -> grpc.aio.Channel:
        last_word.keep()
        own = self._now()
        authorities = self.authority + b"\n" + route.authorities
        credentials = grpc.ssl_channel_credentials(authorities, own.key, own.certificate)
        options = [
            *_OPTIONS,
            _RECEIVED,
            *_through(route),
            ("grpc.primary_user_agent", user_agent()),
            ("grpc.ssl_target_name_override", name),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 5_000),  # also how long a connection may take
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ]
        return grpc.aio.secure_channel(address, credentials, options=options)

    def server(
        self,
        address: str,
        *,
        many_senders: bool = False,
        inspected: str | None = None,
        limits: CallLimits = PARTIES,
    ) -> grpc.aio.Server:
        """A server at `address` that only parties with a certificate can talk to.

        With `many_senders` of large messages at once, each gets little memory.  At the address
        `inspected`, if given, the server asks for no certificate: callers there introduce
        themselves (introduction.py).
        """
        credentials = _showing(self._now, self.authority, asks=True)
        guards = [Guard(self.revocations)] if self.revocations is not None else []
        windows = _SMALL_WINDOWS if many_senders else []
        server = grpc.aio.server(
            interceptors=[Turnstile(limits), *guards],
            options=[*_server_options(), *limits.options, *windows],
            compression=grpc.Compression.NoCompression,
        )
        listening(server, address, credentials)
        if inspected is not None:  # gRPC asks for a certificate always or never: two addresses
            listening(server, inspected, _showing(self._now, self.authority, asks=False))
        return server

    def _now(self) -> CertifiedKey:
        """The certificate and key in the folder; those that were loaded if it has none to read."""
        if self._files is not None:
            with suppress(UnusableKey):
                return self._files.load()
        return CertifiedKey(self.certificate, self._key)


def _showing(
    shown: Callable[[], CertifiedKey], authority: bytes | None, *, asks: bool
) -> grpc.ServerCredentials:
    """Credentials with the certificate that is `shown` when a handshake begins.

    gRPC asks before every handshake and is told of another certificate only, never of the same one
    again: each that it is told of gets a TLS context of its own, and a context that is freed with a
    handshake that timed out can crash the process (docs/decisions/0010).
    """
    last = shown()

    def configuration(own: CertifiedKey) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(own.key, own.certificate)], authority)

    def another() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        own = shown()
        if own == last:
            return None
        last = own
        return configuration(own)

    return grpc.dynamic_ssl_server_credentials(
        configuration(last),
        another,  # type: ignore[arg-type]  # None: unchanged, as its documentation says
        require_client_authentication=asks,
    )


def listening(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials
) -> grpc.aio.Server:
    try:
        server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {address}: is it in use?") from error
    return server


def authority_server(address: str, shown: Callable[[], CertifiedKey]) -> grpc.aio.Server:
    """The authority's server: callers have no certificate yet, or show themselves by signatures."""
    credentials = _showing(shown, None, asks=False)
    server = grpc.aio.server(
        interceptors=[Turnstile(_STRANGERS)],
        options=[*_server_options(), *_STRANGERS.options, *_TO_STRANGERS],
        maximum_concurrent_rpcs=_MOST_OF_STRANGERS,
        compression=grpc.Compression.NoCompression,
    )
    return listening(server, address, credentials)


def _server_options() -> list[tuple[str, int]]:
    """The options, with fewer connections than descriptors, so that some are left for files."""
    most = connections(_MOST_CONNECTIONS)
    return [*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most)]


def authority_channel(address: str, authority: bytes, route: Route = DIRECT) -> grpc.aio.Channel:
    """A channel to the authority at `address`, for whoever has its certificate."""
    last_word.keep()
    credentials = grpc.ssl_channel_credentials(authority + b"\n" + route.authorities)
    name = ("grpc.ssl_target_name_override", dialled_name(AUTHORITY))
    options = [*_OPTIONS, _RECEIVED, *_through(route), name]
    return grpc.aio.secure_channel(address, credentials, options=options)


def _through(route: Route) -> list[tuple[str, str | int]]:
    """The channel options of a route: its proxy, or none, whatever the environment says."""
    if route.proxy is None:
        return [("grpc.enable_http_proxy", 0)]
    return [("grpc.http_proxy", route.proxy.url)]


def _trusted(path: Path) -> bytes:
    try:
        return read_own(path)
    except OSError as error:
        raise UnusableKey(f"{path}: {error.strerror}") from error
    except OpenToOthers as error:
        raise UnusableKey(str(error)) from error


def peer_name(context: ServerContext) -> str:
    """The party that the caller's certificate names."""
    name = certified_name(context)
    if name is None:
        raise UnknownPeer("the certificate names no party")
    return name
