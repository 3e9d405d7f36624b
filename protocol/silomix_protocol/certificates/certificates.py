"""Certificates and revocation lists: how the authority makes them, how parties read them.

A certificate carries a party's name, and lives for days.  It is valid for two kinds of DNS names
that never meet: the party's, in a zone that no host can be in (RFC 6761, `invalid`), and its hosts.
So a party cannot get another one's name by an address, nor a host's by its name.

A revocation list is an X.509 CRL with the numbers of certificates that are not to be trusted
although they have not expired, and how often each party was revoked or came back: a party is barred
after an odd number of such changes.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM, _DER = serialization.Encoding.PEM, serialization.Encoding.DER
_SKEW = timedelta(minutes=5)  # clocks differ a little: a certificate is valid that long before now
_PARTIES = "party.silomix.invalid"
_CHANGES = x509.ObjectIdentifier(
    "2.25.260726109626808476628550269579715049714"
)  # parties, each with its number of changes if not one: "silo-1,silo-2:2"


class RefusedCertificate(ValueError):
    """A certificate, request or revocation list is not what it has to be; the message says why."""


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RevocationList:
    """The content of a signed revocation list."""

    number: int  # grows with every change
    issued: datetime
    expires: datetime
    serials: frozenset[int]
    changes: Counter[str]  # how often each party was revoked or came back
    barred: frozenset[str]


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, name: str, now: datetime, days: int = 3650) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(name, name, key.public_key(), now, now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> "Authority":
        """Read an authority from PEM; RefusedCertificate if these are not certificate and key."""
        return cls(parse_certificate(certificate), parse_key(key))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(_PEM)

    @property
    def key_pem(self) -> bytes:
        return key_pem(self._key)

    def issue(
        self, name: str, hosts: tuple[str, ...], now: datetime, *, serves: bool, days: float = 90
    ) -> IssuedCertificate:
        """A certificate, as `certify` makes it, with a new key of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        life = timedelta(days=days)
        certificate = self.certify(name, hosts, key.public_key(), now, life, serves=serves)
        return IssuedCertificate(certificate.public_bytes(_PEM), key_pem(key))

    def certify(
        self,
        name: str,
        hosts: tuple[str, ...],
        key: ec.EllipticCurvePublicKey,
        now: datetime,
        life: timedelta,
        *,
        serves: bool,
        changes: int = 0,
    ) -> x509.Certificate:
        """A certificate for party `name` at `hosts`; `serves`: it may act as a server.

        `changes`: how often the party was revoked or came back.
        """
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if serves:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        end = min(now + life, self.certificate.not_valid_after_utc)
        builder = (
            _builder(name, common_name(self.certificate), key, now, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.SubjectAlternativeName(
                    [
                        *(x509.DNSName(each) for each in _party_names(name, changes)),
                        *map(_host, hosts),
                    ]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        return builder.sign(self._key, hashes.SHA256())

    def revocation_list(
        self,
        number: int,
        serials: Iterable[int],
        changes: Iterable[str],
        now: datetime,
        life: timedelta,
    ) -> bytes:
        """The signed revocation list in DER; `changes` names a party for each time it was revoked
        or came back."""
        counts = sorted(Counter(changes).items())
        names = ",".join(name if count == 1 else f"{name}:{count}" for name, count in counts)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now)
            .next_update(now + life)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(
                x509.UnrecognizedExtension(_CHANGES, names.encode("ascii")), critical=False
            )
        )
        for serial in serials:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(revoked.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(_DER)


@dataclass(frozen=True, slots=True)
class Life:
    """When a certificate was issued, is due for renewal, and expires."""

    issued: datetime
    expires: datetime

    @classmethod
    def of(cls, certificate: x509.Certificate) -> "Life":
        return cls(certificate.not_valid_before_utc + _SKEW, certificate.not_valid_after_utc)

    @property
    def renewal(self) -> datetime:
        """When the certificate is due for renewal: after two thirds of its life."""
        return self.issued + (self.expires - self.issued) * 2 / 3


def dialled_name(name: str, changes: int = 0) -> str:
    """The DNS name that a party is dialled by: its own, in a zone where no host is.

    The name is another one after the party was revoked and came back, so many `changes` in all:
    gRPC shows a client no certificate and reads no revocation list, but checks a name, and the
    certificates that were revoked do not carry the new name.
    """
    return f"after-{changes}.{name}.{_PARTIES}" if changes else f"{name}.{_PARTIES}"


def is_party_name(host: str) -> bool:
    """Return whether a host is in the zone of the parties' names, or is that zone itself."""
    return f".{host.lower().rstrip('.')}".endswith(f".{_PARTIES}")


def _party_names(name: str, changes: int) -> list[str]:
    return sorted({dialled_name(name), dialled_name(name, changes)})


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """All DNS names that a certificate is valid for: the party's and its hosts'."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    except Exception as error:  # whatever a parser makes of hostile bytes
        raise RefusedCertificate("not a certificate of a silomix authority") from error
    return frozenset(names.get_values_for_type(x509.DNSName))


def check_certificate(
    content: bytes, authority: bytes, name: str, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.Certificate:
    """The certificate, if this authority made it for this party and key and it is valid now."""
    certificate = parse_certificate(content)
    try:
        certificate.verify_directly_issued_by(parse_certificate(authority))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise RefusedCertificate("the certificate was made by another authority") from error
    if (found := common_name(certificate)) != name:
        raise RefusedCertificate(f"the certificate names {found!r}, not {name!r}")
    if certificate.public_key() != key:
        raise RefusedCertificate("the certificate is for another key")
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= now < end:
        raise RefusedCertificate(
            f"the certificate is valid from {shown(start)} to {shown(end)}, and here it is "
            f"{shown(now)}: is this machine's clock right?"
        )
    return certificate


def request(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate signing request in DER: it shows that whoever asks has the key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return builder.sign(key, hashes.SHA256()).public_bytes(_DER)


def requested_key(csr: bytes, name: str) -> ec.EllipticCurvePublicKey:
    """The key that a request of party `name` is for; nothing else in the request is read."""
    try:
        parsed = x509.load_der_x509_csr(csr)
        valid = parsed.is_signature_valid
        key, subject = parsed.public_key(), parsed.subject
    except Exception as error:  # whatever a parser makes of hostile bytes
        raise RefusedCertificate("not a certificate signing request") from error
    if not valid:
        raise RefusedCertificate("whoever signed the request has not the key that it names")
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise RefusedCertificate("a request must be for a P-256 key")
    if (found := _common_name(subject)) != name:
        raise RefusedCertificate(f"the request names {found!r:.80}, not {name!r}")
    return key


def read_list(content: bytes, authority: bytes) -> RevocationList:
    """The revocation list in these bytes, if this authority signed it."""
    issuer = parse_certificate(authority)
    key = issuer.public_key()
    try:
        crl = x509.load_der_x509_crl(content)
        genuine = (
            isinstance(key, ec.EllipticCurvePublicKey)
            and crl.issuer == issuer.subject
            and crl.is_signature_valid(key)
        )
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        names = crl.extensions.get_extension_for_oid(_CHANGES).value
        issued, expires = crl.last_update_utc, crl.next_update_utc
        serials = frozenset(entry.serial_number for entry in crl)
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise RefusedCertificate("not a revocation list") from error
    if not genuine:
        raise RefusedCertificate("the revocation list was signed by somebody else")
    if expires is None or not isinstance(names, x509.UnrecognizedExtension):
        raise RefusedCertificate("not a revocation list of a silomix authority")
    changes = _changes(names.value)
    barred = frozenset(name for name, count in changes.items() if count % 2)
    return RevocationList(number, issued, expires, serials, changes, barred)


def _changes(content: bytes) -> Counter[str]:
    found: Counter[str] = Counter()
    try:
        for entry in filter(None, content.decode("ascii").split(",")):
            name, _, count = entry.partition(":")
            found[name] += int(count or 1)
    except ValueError as error:
        raise RefusedCertificate("not a revocation list of a silomix authority") from error
    return found


def parse_certificate(content: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise RefusedCertificate("not a certificate in PEM") from error


def parse_key(content: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise RefusedCertificate("not an unencrypted private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RefusedCertificate("not an elliptic-curve key")
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def key_der(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(_DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def common_name(certificate: x509.Certificate) -> str:
    """The party that a certificate names."""
    return _common_name(certificate.subject)


def shown(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _common_name(subject: x509.Name) -> str:
    found = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def _builder(
    subject: str, issuer: str, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _SKEW)
        .not_valid_after(end.astimezone(UTC))
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    if is_party_name(host):
        raise RefusedCertificate(f"{host:.80} cannot be a host: parties' names are there")
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
