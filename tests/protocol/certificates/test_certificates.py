"""Certificates: each names one party, and only parties that serve may serve."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.toml_table import InvalidField
from silomix_protocol.certificates.certificates import (
    Authority,
    IssuedCertificate,
    RefusedCertificate,
    dialled_name,
    is_party_name,
)
from silomix_protocol.enrolment.membership import Member, PartyKind

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
    assert found.get_values_for_type(x509.DNSName) == [dialled_name("mix-1"), "mix.example"]
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
    builder.build_server_verifier(x509.DNSName(dialled_name("mix-1"))).verify(issued, [])
    for other in (dialled_name("mix-2"), dialled_name("mix-1", 2), "mix-1"):
        with pytest.raises(VerificationError):
            builder.build_server_verifier(x509.DNSName(other)).verify(issued, [])


@given(
    name=st.from_regex(r"[0-9A-Za-z]([0-9A-Za-z-]{0,20}[0-9A-Za-z])?", fullmatch=True),
    host=st.from_regex(r"[0-9a-z-]{1,9}(\.[0-9a-z-]{1,9}){0,3}", fullmatch=True),
    changes=st.sampled_from([0, 2, 4]),
)
def test_no_host_is_any_partys_name(name: str, host: str, changes: int) -> None:
    assert dialled_name(name, changes).lower() != host
    assert not is_party_name(host)
    assert is_party_name(dialled_name(name, changes))


@pytest.mark.parametrize(
    "host",
    [
        dialled_name("server"),
        dialled_name("server").upper() + ".",
        dialled_name("authority"),
        dialled_name("mix-1", 2),
        "party.silomix.invalid",
    ],
)
def test_no_certificate_is_made_for_a_host_where_parties_names_are(host: str) -> None:
    with pytest.raises(RefusedCertificate, match="cannot be a host"):
        AUTHORITY.issue("mix-9", (host,), NOW, serves=True)
    with pytest.raises(InvalidField, match=r"parties' names are there|not host:port"):
        Member("mix-9", PartyKind.MIX, (f"{host}:9101",))


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
