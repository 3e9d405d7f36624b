"""Mutual TLS between parties: each presents the certificate of its own name.

A connection is to a *party*, not to a host: the certificate must carry the party's name, whatever
address it was reached at.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from silomix_protocol.keys import UnusableKey, read_secret

if TYPE_CHECKING:
    ServerContext = grpc.aio.ServicerContext[Any, Any]
else:
    ServerContext = grpc.aio.ServicerContext

CHUNK_BYTES = 2**20  # of a batch or a query
SUBMIT_BYTES = 2**18  # of a report on its way to the first mix, which has many of them at once
_OPTIONS = [
    ("grpc.max_receive_message_length", CHUNK_BYTES + 64 * 1024),
    ("grpc.max_send_message_length", CHUNK_BYTES + 64 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
]
_SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.server_handshake_timeout_ms", 10_000),  # a connection without a certificate ends here
    ("grpc.compression_enabled_algorithms_bitset", 1),  # identity only: nothing is decompressed
]


_SMALL_WINDOWS = [  # of fixed size: probing the bandwidth lets a hundred senders fill the memory
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", SUBMIT_BYTES // 2),
]


class CannotListen(OSError):
    """The address to listen on is taken or not this machine's."""


class UnknownPeer(PermissionError):
    """The caller's certificate does not name a party that may make this call."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A party's own certificate and the authority that it shares with the others."""

    name: str
    authority: bytes
    certificate: bytes
    _key: bytes = field(repr=False)

    @classmethod
    def load(cls, name: str, folder: Path) -> "Identity":
        """From ca.crt, tls.crt and tls.key in a party's folder."""
        return cls(
            name=name,
            authority=_read(folder / "ca.crt"),
            certificate=_read(folder / "tls.crt"),
            _key=read_secret(folder / "tls.key"),
        )

    def channel(self, party: str, address: str) -> grpc.aio.Channel:
        """A channel to `party` at `address`, which must prove that it is `party`."""
        credentials = grpc.ssl_channel_credentials(self.authority, self._key, self.certificate)
        options = [
            *_OPTIONS,
            ("grpc.ssl_target_name_override", party),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 5_000),  # also how long a connection may take
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ]
        return grpc.aio.secure_channel(address, credentials, options=options)

    def server(self, address: str, *, many_senders: bool = False) -> grpc.aio.Server:
        """A server at `address` that only parties with a certificate can talk to.

        With `many_senders` of large messages at once, each gets little memory.
        """
        credentials = grpc.ssl_server_credentials(
            [(self._key, self.certificate)], self.authority, require_client_auth=True
        )
        server = grpc.aio.server(
            options=[*_SERVER_OPTIONS, *(_SMALL_WINDOWS if many_senders else [])],
            compression=grpc.Compression.NoCompression,
        )
        try:
            server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address}: is it in use?") from error
        return server


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnusableKey(f"{path}: {error.strerror}") from error


def peer_name(context: ServerContext) -> str:
    """The party that the caller's certificate names."""
    names = list(context.auth_context().get("x509_common_name", []))
    if len(names) != 1:
        raise UnknownPeer("the certificate names no party")
    return names[0].decode("utf-8")
