"""A party's certificate and key on disk: replaced while processes run, which notice by themselves.

A renewal makes its key first (tls.next.key), then puts the new certificate in place (tls.crt),
then renames the key to tls.key.  Whatever moment a process or the power ends at, the key that
belongs to tls.crt is one of the two.
"""

from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from silomix_protocol.certificates.certificates import (
    RefusedCertificate,
    key_pem,
    parse_certificate,
    parse_key,
)
from silomix_protocol.host.durable import sync_folder, write_durably
from silomix_protocol.keys import UnusableKey, read_secret

CERTIFICATE, KEY, NEXT_KEY = "tls.crt", "tls.key", "tls.next.key"
_TRIES = 5  # a renewal may come between two reads


@dataclass(frozen=True, slots=True)
class CertifiedKey:
    certificate: bytes
    key: bytes = field(repr=False)


class CertificateFiles:
    """tls.crt and the key that belongs to it, in a party's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / CERTIFICATE

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes when the certificate does."""
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def load(self) -> CertifiedKey:
        for _ in range(_TRIES):
            certificate = _read(self._folder / CERTIFICATE)
            for name in (KEY, NEXT_KEY):
                path = self._folder / name
                if name == NEXT_KEY and not path.exists():
                    continue
                key = read_secret(path)
                if _belong(certificate, key, path):
                    return CertifiedKey(certificate, key)
        raise UnusableKey(f"{self._folder / KEY} is not the key that tls.crt was made for")

    def next_key(self) -> ec.EllipticCurvePrivateKey:
        """The key of the next certificate, made if there is none yet."""
        path = self._folder / NEXT_KEY
        if not path.exists():
            write_durably(path, key_pem(ec.generate_private_key(ec.SECP256R1())))
        return _key(path)

    def replace(self, certificate: bytes) -> None:
        """Use this certificate, which was made for the next key, from now on."""
        write_durably(self._folder / CERTIFICATE, certificate)
        self.settle()

    def settle(self) -> None:
        """Give the next key its final name if the certificate in place is already its own."""
        if not self.settled:
            (self._folder / NEXT_KEY).replace(self._folder / KEY)
            sync_folder(self._folder)

    @property
    def settled(self) -> bool:
        """Whether the key that belongs to the certificate has its final name."""
        path = self._folder / NEXT_KEY
        if not path.exists():
            return True
        return not _belong(_read(self._folder / CERTIFICATE), read_secret(path), path)


def _belong(certificate: bytes, key: bytes, path: Path) -> bool:
    try:
        parsed = parse_key(key)
    except RefusedCertificate as error:
        raise UnusableKey(f"{path}: {error}") from error
    try:
        return parse_certificate(certificate).public_key() == parsed.public_key()
    except RefusedCertificate as error:
        raise UnusableKey(f"{path.with_name(CERTIFICATE)}: {error}") from error


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        return parse_key(read_secret(path))
    except RefusedCertificate as error:
        raise UnusableKey(f"{path}: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnusableKey(f"{path}: {error.strerror}") from error
