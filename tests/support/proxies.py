"""A hospital's way out, on loopback: an HTTP proxy (CONNECT), and one that looks into TLS.

Both are real: sockets, TLS with certificates made on the way as inspecting proxies make them (the
names of the original, the proxy's own authority).  What they are to refuse and what they saw is
plain attributes.  Every connection has a thread, which ends with the `with` block at the latest.
"""

import base64
import select
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from silomix_protocol.certificates.certificates import Authority, key_pem

_CHUNK = 64 * 1024
_LONGEST_HEAD = 16 * 1024
_ENDS_S = 10.0
_LOGIN_WANTED = '407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="way out"'


@dataclass
class Proxy:
    """A proxy that is running; `login` is what it asks for, if anything."""

    port: int
    login: str | None = None
    authority: Authority | None = None  # of its own certificates, if it inspects
    refuses: set[str] = field(default_factory=set)  # host:port
    asked: list[str] = field(default_factory=list)  # every host:port, in order
    seen: bytearray = field(default_factory=bytearray)  # the plain text, if it inspects
    tamper: Callable[[bytes], bytes] = lambda content: content  # with what goes out, if it inspects
    _open: set[socket.socket] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection that goes through it now."""
        for stream in list(self._open):
            with suppress(OSError):
                socket.socket.shutdown(stream, socket.SHUT_RDWR)


@contextmanager
def proxy(*, login: str | None = None, authority: Authority | None = None) -> Iterator[Proxy]:
    """A proxy on a free port; with an `authority` it inspects TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = Proxy(listener.getsockname()[1], login, authority)
        threads: list[threading.Thread] = []
        accepting = threading.Thread(target=_accept, args=(running, listener, threads), daemon=True)
        accepting.start()
        try:
            yield running
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(_ENDS_S)
            running.cut()
            for thread in threads:
                thread.join(_ENDS_S)
            assert not any(each.is_alive() for each in threads), "a connection did not end"


def _accept(running: Proxy, listener: socket.socket, threads: list[threading.Thread]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            running._open.add(client)
            thread = threading.Thread(target=_connection, args=(running, client), daemon=True)
            thread.start()
            threads.append(thread)


def _connection(running: Proxy, client: socket.socket) -> None:
    with client, suppress(OSError):
        target, shown = _request(client)
        running.asked.append(target)
        try:
            server = _connected(running, target, shown)
        except OSError as error:
            status = error.args[0] if isinstance(error, PermissionError) else "502 Bad Gateway"
            client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        with server:
            running._open.add(server)
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            if running.authority is None:
                _pump(running, client, server)
            else:
                _inspect(running, client, server, target.rpartition(":")[0].strip("[]"))
            running._open.discard(server)
    running._open.discard(client)


def _request(client: socket.socket) -> tuple[str, str]:
    """Where a CONNECT wants to go, and the login that it shows."""
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        part = client.recv(1)  # nothing of what comes after the head
        if not part or len(head) > _LONGEST_HEAD:
            raise OSError("no request")
        head += part
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    assert method == "CONNECT", first
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    scheme, _, shown = headers.get("proxy-authorization", "").partition(" ")
    return target, base64.b64decode(shown).decode() if scheme == "Basic" else ""


def _connected(running: Proxy, target: str, shown: str) -> socket.socket:
    if running.login is not None and shown != running.login:
        raise PermissionError(_LOGIN_WANTED)
    if target in running.refuses:
        raise PermissionError("403 Forbidden")
    host, _, port = target.rpartition(":")
    server = socket.create_connection((host.strip("[]"), int(port)), timeout=_ENDS_S)
    server.settimeout(None)
    return server


def _inspect(running: Proxy, client: socket.socket, server: socket.socket, host: str) -> None:
    """End the silo's TLS here; begin another to the server, without a certificate of its own."""
    assert running.authority is not None
    outer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outer.check_hostname, outer.verify_mode = False, ssl.CERT_NONE
    outer.set_alpn_protocols(["h2", "http/1.1"])
    inner = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with outer.wrap_socket(server, server_hostname=host) as towards_server:
        running._open.add(towards_server)
        original = towards_server.getpeercert(binary_form=True)
        assert original is not None
        _load(inner, running.authority, original)
        chosen = towards_server.selected_alpn_protocol()
        inner.set_alpn_protocols([chosen] if chosen else [])
        with inner.wrap_socket(client, server_side=True) as towards_client:
            running._open.add(towards_client)
            _pump(running, towards_client, towards_server)
            running._open.discard(towards_client)
        running._open.discard(towards_server)


def _load(context: ssl.SSLContext, authority: Authority, original: bytes) -> None:
    """A certificate with the names of the original, signed by the proxy's authority."""
    shown, key = x509.load_der_x509_certificate(original), ec.generate_private_key(ec.SECP256R1())
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    made = (
        x509.CertificateBuilder()
        .subject_name(shown.subject)
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(shown.not_valid_before_utc)
        .not_valid_after(shown.not_valid_after_utc)
        .add_extension(names, critical=False)
        .sign(authority._key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory() as folder:
        certificate, key_file = Path(folder) / "crt", Path(folder) / "key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(key_pem(key))
        context.load_cert_chain(certificate, key_file)


def _pump(running: Proxy, client: socket.socket, server: socket.socket) -> None:
    """Both ways in one thread: a TLS connection is nothing for two at a time."""
    other = {client: server, server: client}
    while True:
        ready = [each for each in other if isinstance(each, ssl.SSLSocket) and each.pending()]
        if not ready:
            ready, _, _ = select.select(list(other), [], [])
        for source in ready:
            content = _received(source)
            if content is None:
                continue
            if not content:
                return
            if running.authority is not None:
                running.seen += content
                content = running.tamper(content) if source is client else content
            other[source].sendall(content)


def _received(source: socket.socket) -> bytes | None:
    """What is there now; None if it was only something between the two ends of TLS."""
    source.setblocking(False)
    try:
        return source.recv(_CHUNK)
    except ssl.SSLWantReadError:
        return None
    finally:
        source.setblocking(True)
