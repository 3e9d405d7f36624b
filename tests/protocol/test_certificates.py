"""Certificates: each names one party, and only parties that serve may serve."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from silomix_protocol.certificates import Authority, IssuedCertificate

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
AUTHORITY = Authority.create("consortium", NOW)


def certificate(issued: IssuedCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(issued.certificate)


def names(entry: x509.Certificate) -> list[str]:
    return [str(name.value) for name in entry.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def alternatives(entry: x509.Certificate) -> x509.SubjectAlternativeName:
    return entry.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def purposes(entry: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(entry.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_certificate_names_its_party_for_both_directions() -> None:
    """The common name is what a server reads, the alternative name what a client checks."""
    issued = certificate(AUTHORITY.issue("mix-1", ("127.0.0.1", "mix.example"), NOW, serves=True))
    assert names(issued) == ["mix-1"]
    found = alternatives(issued)
    assert found.get_values_for_type(x509.DNSName) == ["mix-1", "mix.example"]
    assert [str(address) for address in found.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_a_party_that_serves_may_do_both() -> None:
    issued = certificate(AUTHORITY.issue("mix-1", (), NOW, serves=True))
    assert purposes(issued) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}


def test_a_silo_may_only_call() -> None:
    issued = certificate(AUTHORITY.issue("silo-1", (), NOW, serves=False))
    assert purposes(issued) == {ExtendedKeyUsageOID.CLIENT_AUTH}


def test_an_independent_verifier_accepts_a_party_and_refuses_another_name() -> None:
    issued = certificate(AUTHORITY.issue("mix-1", (), NOW, serves=True))
    builder = PolicyBuilder().store(Store([AUTHORITY.certificate])).time(NOW)
    builder.build_server_verifier(x509.DNSName("mix-1")).verify(issued, [])
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("mix-2")).verify(issued, [])


def test_a_party_cannot_issue_certificates() -> None:
    issued = certificate(AUTHORITY.issue("mix-1", (), NOW, serves=True))
    constraints = issued.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = issued.extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical
    assert not constraints.value.ca
    assert usage.critical
    assert not usage.value.key_cert_sign


def test_the_authority_signs_parties_only_and_no_further_authority() -> None:
    constraints = AUTHORITY.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.value.ca
    assert constraints.value.path_length == 0


def test_a_certificate_is_valid_around_now_and_expires() -> None:
    issued = certificate(AUTHORITY.issue("mix-1", (), NOW, serves=True, days=90))
    assert issued.not_valid_before_utc < NOW < issued.not_valid_after_utc
    assert issued.not_valid_after_utc <= NOW + timedelta(days=90)


def test_every_certificate_has_its_own_key_and_number() -> None:
    first, second = (certificate(AUTHORITY.issue("mix-1", (), NOW, serves=True)) for _ in range(2))
    assert first.serial_number != second.serial_number
    assert first.public_key() != second.public_key()


def test_private_keys_stay_out_of_sight() -> None:
    issued = AUTHORITY.issue("mix-1", (), NOW, serves=True)
    for shown in (repr(issued), repr(AUTHORITY)):
        assert "PRIVATE" not in shown
    assert b"PRIVATE KEY" in issued.key
    assert b"PRIVATE KEY" in AUTHORITY.key_pem
