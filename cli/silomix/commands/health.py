"""`silomix server health` and `authority health`: whether it answers, asked on its own machine."""

import socket
import ssl
from pathlib import Path

from silomix_core.toml_table import split_address
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.terminal import show

from silomix.commands.options import Config

_HEALTH_S = 5.0


def server_health(config: Config) -> None:
    """Ask the running server whether its doors are open; exit status 1 if one is not.

    CONFIG is its server.toml.  Both ports for silos must answer with this server's certificate.
    """
    with failures():
        from silomix_server.config import load

        settings = load(config)
        for address in (settings.fleet_listen, settings.channel_listen):
            _shake_hands(address, settings.name, settings.folder, certified=True)
        show(f"ok: {settings.name} answers at {settings.fleet_listen}, {settings.channel_listen}")


def authority_health(config: Config) -> None:
    """Ask the running authority whether its door is open; exit status 1 if it is not.

    CONFIG is its authority.toml.
    """
    with failures():
        from silomix_authority.config import load
        from silomix_protocol.connections.tls import AUTHORITY

        settings = load(config)
        _shake_hands(settings.listen, AUTHORITY, settings.folder, certified=False)
        show(f"ok: the authority answers at {settings.listen}")


def _shake_hands(address: str, name: str, folder: Path, *, certified: bool) -> None:
    """Make a TLS handshake with `name` at `address`; if `certified`, with a certificate of ours."""
    from silomix_protocol.certificates.certificates import dialled_name

    host, port = split_address(address)
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if certified:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection((near, port), _HEALTH_S) as plain,
            context.wrap_socket(plain, server_hostname=dialled_name(name)),
        ):
            return
    except (ssl.SSLError, OSError) as error:
        raise Failure(f"no {name} answers at {address}: {error}") from error
