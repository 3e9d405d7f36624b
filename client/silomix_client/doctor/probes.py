"""One look at one connection that a silo needs: name, proxy, port, TLS, and what answers there.

For `silomix silo doctor`.  Each step is tried on its own and fails with a sentence and what to do,
where the running silo would only see that it gets no answer.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import grpc
import grpc.aio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from silomix_core.study.study import Study
from silomix_core.toml_table import split_address
from silomix_proto import channel_pb2_grpc, introduction_pb2, ledger_pb2, mix_pb2_grpc
from silomix_protocol.certificates.certificates import dialled_name
from silomix_protocol.connections.route import Proxy
from silomix_protocol.connections.tls import AUTHORITY, ENROLMENT, Identity
from silomix_protocol.connections.version import release
from silomix_protocol.host import logs
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.descriptor import VERSION

from silomix_client.network.outbound import OutboundNetwork, sentence

_STEP_S = 10.0
_LONGEST_HEAD = 16 * 1024
_EXPIRED, _NOT_YET, _OTHER_NAME = 10, 9, (62, 64)  # OpenSSL's X509_V_ERR_…


class Fault(Exception):
    """A step that failed: which, what was seen, what to do."""

    def __init__(self, step: str, seen: str, advice: str) -> None:
        super().__init__(seen)
        self.step, self.seen, self.advice = step, seen, advice


@dataclass(frozen=True, slots=True)
class Target:
    """A party at an address; `web` is Flower's Fleet API, all else is gRPC."""

    party: str
    address: str
    web: bool = False
    inspected: bool = False

    @property
    def host(self) -> str:
        return split_address(self.address)[0]

    @property
    def port(self) -> int:
        return split_address(self.address)[1]

    @property
    def source(self) -> str:
        """The place where this silo has the address from."""
        return ENROLMENT if self.party == AUTHORITY else "the study"

    @property
    def operator(self) -> str:
        return f"the operator of {'the ' if self.party == AUTHORITY else ''}{self.party}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a party, asked at the monotonic time `asked`.

    Its clock (seconds since 1970), a few words about it, and the height that it has of this silo's
    ledger.
    """

    clock: float | None
    asked: float
    words: str
    height: ledger_pb2.LedgerHeight | None = None


def check_name(host: str, what: str) -> str:
    """The addresses of a host; Fault if its name is unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Fault(
            "dns",
            f"the name {host} is not known here",
            f"check how {what} is spelled; ask your IT whether this machine may ask a name server",
        ) from error
    return ", ".join(sorted({str(entry[4][0]) for entry in found}))


def check_proxy(proxy: Proxy) -> None:
    """Check that something takes connections at the proxy's address."""
    check_name(proxy.host, "network.proxy in silo.toml")
    _dial(
        proxy.host, proxy.port, "proxy", "ask your IT for the proxy's address; see network.proxy"
    ).close()


def connect(target: Target, network: OutboundNetwork) -> socket.socket:
    """Connect to the target, through the proxy if there is one."""
    if network.proxy is None:
        check_name(target.host, f"the address of {target.party} in {target.source}")
        return _dial(
            target.host,
            target.port,
            "port",
            f"ask {target.operator} whether it is running; if it is, ask your IT to allow "
            f"{target.address} outbound",
        )
    proxy = network.proxy
    stream = _dial(proxy.host, proxy.port, "proxy", "ask your IT for the proxy's address")
    try:
        _ask_proxy(stream, proxy, target)
    except BaseException:
        stream.close()
        raise
    return stream


def _dial(host: str, port: int, step: str, advice: str) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout=_STEP_S)
    except OSError as error:
        raise Fault(step, f"{host} port {port}: {sentence(error)}", advice) from error


def _ask_proxy(stream: socket.socket, proxy: Proxy, target: Target) -> None:
    lines = [f"CONNECT {target.address} HTTP/1.1", f"Host: {target.address}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    try:
        stream.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
        status = _status(_head(stream))
    except OSError as error:
        seen = f"the proxy at {proxy.address} gave no answer: {sentence(error)}"
        raise Fault("proxy", seen, "is network.proxy in silo.toml really an HTTP proxy?") from error
    if status == 407:
        raise Fault(
            "proxy",
            f"the proxy at {proxy.address} "
            + ("does not accept the login" if proxy.user else "asks for a login"),
            "put user:password into a file of mode 600 and name it in network.proxy_login "
            "(Basic is the only scheme that works)",
        )
    if status in (502, 503, 504):
        raise Fault(
            "port",
            f"the proxy cannot reach {target.address} (it answered {status})",
            f"ask {target.operator} whether it is running",
        )
    if status != 200:
        raise Fault(
            "proxy",
            f"the proxy at {proxy.address} refuses to connect to {target.address} ({status})",
            f"ask your IT to allow CONNECT to {target.address} (deploy/README.md has all ports)",
        )


def _head(stream: socket.socket) -> str:
    head, end = bytearray(), time.monotonic() + _STEP_S
    while not head.endswith(b"\r\n\r\n"):
        part = stream.recv(1)  # what follows belongs to TLS
        if not part or len(head) > _LONGEST_HEAD or time.monotonic() > end:
            raise ConnectionResetError(0, "the connection was closed")
        head += part
    return head.decode("latin-1")


def _status(head: str) -> int:
    parts = head.split(" ", 2)
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


def check_tls(
    stream: socket.socket, target: Target, folder: Path, network: OutboundNetwork
) -> tuple[ssl.SSLSocket, str]:
    """Do TLS over the connection, as the silo does; also returns who looks into it ("": nobody)."""
    authority = (folder / "ca.crt").read_text(encoding="ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority)
    if network.authorities and (target.web or target.inspected):
        context.load_verify_locations(cadata=network.authorities.decode("ascii"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["http/1.1" if target.web else "h2"])
    name = target.host if target.web else dialled_name(target.party)
    try:
        secured = context.wrap_socket(stream, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        raise _not_accepted(error, target) from error
    except OSError as error:
        raise Fault(
            "tls",
            f"no TLS with {target.party} at {target.address}: {sentence(error)}",
            "a firewall or proxy in between may break TLS: ask your IT to let it pass untouched",
        ) from error
    shown = secured.getpeercert(binary_form=True)
    certificate = x509.load_der_x509_certificate(shown or b"")
    ours = x509.load_pem_x509_certificate(authority.encode("ascii"))
    return secured, "" if _issued_by(certificate, ours) else _name(certificate.issuer)


def _not_accepted(error: ssl.SSLCertVerificationError, target: Target) -> Fault:
    where = f"{target.party} at {target.address}"
    if error.verify_code == _EXPIRED:
        seen, advice = f"the certificate of {where} has expired", f"tell {target.operator}"
    elif error.verify_code == _NOT_YET:
        seen = f"the certificate of {where} is not valid yet"
        advice = f"check this machine's clock; if it is right, tell {target.operator}"
    elif error.verify_code in _OTHER_NAME:
        wanted = target.host if target.web else target.party
        seen = f"what answers at {target.address} is not {wanted}"
        advice = f"ask {target.operator} for the right address"
    else:
        seen = f"the certificate of {where} is not the consortium's: {error.verify_message}"
        advice = (
            "either ca.crt is not your consortium's, or a proxy looks into TLS: then ask your IT "
            "to exempt this address, or see docs/network.md, TLS inspection"
        )
    return Fault("tls", seen, advice)


def _issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _name(name: x509.Name) -> str:
    return name.rfc4514_string()[:100]


_NOTHING_HERE = 404  # what a SuperLink answers to a question without a meaning


def ask_web(stream: ssl.SSLSocket, target: Target) -> Answer:
    """Ask over HTTP what time it is there; Fault if HTTP is not spoken."""
    request = f"GET /v1/fleet/ HTTP/1.1\r\nHost: {target.address}\r\nConnection: close\r\n\r\n"
    asked = time.monotonic()
    try:
        stream.sendall(request.encode("ascii"))
        head = _head(stream)
    except OSError as error:
        seen = f"no HTTP at {target.address}: {sentence(error)}"
        raise Fault("answer", seen, f"ask {target.operator} for the right address") from error
    dates = [line for line in head.split("\r\n") if line.lower().startswith("date:")]
    clock: datetime | None = None
    with _unreadable_is_none():
        clock = parsedate_to_datetime(dates[0].partition(":")[2].strip())
    status = _status(head)
    seen = "answers" if status == _NOTHING_HERE else f"HTTP {status}"
    return Answer(clock.timestamp() if clock else None, asked, seen)


def described(
    what: str, target: Target, network: OutboundNetwork, answer: Answer, inspector: str
) -> str:
    """A line of text that says what was reached, and how."""
    way = f" through {network.proxy.address}" if network.proxy is not None else ""
    looks = f"; {inspector} looks into it" if inspector else ""
    return f"{what} at {target.address}{way}: {answer.words}{looks}"


@contextmanager
def _unreadable_is_none() -> Iterator[None]:
    try:
        yield
    except (IndexError, ValueError):
        return


def greet(
    target: Target, study: Study, network: OutboundNetwork, identity: Identity, sign_key: SigningKey
) -> Answer:
    """Greet the party as the silo; Fault if it does not know us, or has another version."""
    asked = time.monotonic()
    try:
        answer = asyncio.run(_greet(target, study, network, identity, sign_key))
    except grpc.aio.AioRpcError as error:
        raise _refused(error, target) from error
    if answer.version != VERSION:
        raise Fault(
            "version",
            f"{target.party} speaks version {answer.version} of the protocol (silomix "
            f"{answer.release:.40}), this is version {VERSION} (silomix {release()})",
            "install the same release on both sides",
        )
    height = answer.height if answer.HasField("height") else None
    return Answer(answer.time_ms / 1000, asked, f"silomix {answer.release:.40}", height)


async def _greet(
    target: Target, study: Study, network: OutboundNetwork, identity: Identity, sign_key: SigningKey
) -> introduction_pb2.Welcome:
    party = target.party
    introduced = network.introduction(identity, party, study, sign_key)
    async with network.channel(identity, party, target.address) as channel:
        is_server = party == study.server.name
        stub = (
            channel_pb2_grpc.RoundChannelStub(channel)
            if is_server
            else mix_pb2_grpc.MixStub(channel)
        )
        answer: introduction_pb2.Welcome = await stub.Greet(
            introduction_pb2.Greeting(study=study.identity),
            timeout=_STEP_S,
            metadata=None if introduced is None else introduced.metadata,
        )
        return answer


def _refused(error: grpc.aio.AioRpcError, target: Target) -> Fault:
    details = logs.foreign(error.details() or error.code().name)
    match error.code():
        case grpc.StatusCode.FAILED_PRECONDITION:
            return Fault("version", f"{target.party} says: {details}", "as it says")
        case grpc.StatusCode.UNIMPLEMENTED:
            return Fault(
                "version",
                f"{target.party} runs an older silomix than this ({release()})",
                "install the same release on both sides",
            )
        case grpc.StatusCode.PERMISSION_DENIED:
            advice = f"ask {target.operator} which study it serves, and under which keys"
            if "clock" in details:
                advice = "set this machine's clock by a time server (timedatectl set-ntp true)"
            return Fault("enrolment", f"{target.party} says: {details}", advice)
        case _:
            return Fault(
                "tls",
                f"{target.party} does not talk to this silo: {details}",
                "your certificate may have expired or been revoked, or a proxy looks into TLS and "
                "takes it away (docs/network.md, TLS inspection)",
            )
