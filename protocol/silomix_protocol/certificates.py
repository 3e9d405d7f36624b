"""The consortium's certificate authority: one certificate per party, carrying its name.

Enrolment with join tokens and short-lived certificates comes on top of this; here an authority
key in the hands of whoever sets up the consortium signs what the parties need.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, name: str, now: datetime, days: int = 365) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(name, name, key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(_PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self._key)

    def issue(
        self, name: str, hosts: tuple[str, ...], now: datetime, *, serves: bool, days: int = 90
    ) -> IssuedCertificate:
        """A certificate for party `name` at `hosts`; `serves`: it may act as a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        authority_name = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if serves:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            _builder(name, str(authority_name.value), key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_host(host) for host in (name, *hosts)]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        return IssuedCertificate(certificate.public_bytes(_PEM), _key_pem(key))


def _builder(
    subject: str, issuer: str, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    start = now.astimezone(UTC) - timedelta(minutes=5)  # clocks differ a little
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
    )


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
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
