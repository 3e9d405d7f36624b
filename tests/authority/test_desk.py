"""What the authority grants, and what it does not whoever asks."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from silomix_authority.desk import Desk
from silomix_authority.errors import (
    InvitationExpired,
    InvitationUsed,
    NameTaken,
    NotGranted,
    PartyRevoked,
    RefusedRequest,
    TooManyCertificates,
    UnknownInvitation,
    UnknownParty,
    WrongClock,
)
from silomix_authority.register import Register
from silomix_core.toml_table import InvalidField
from silomix_proto import authority_pb2, ledger_pb2
from silomix_protocol.certificates.certificates import dialled_name, read_list, request
from silomix_protocol.enrolment.enrolment import PartyKeys, join_request
from silomix_protocol.enrolment.membership import Member, PartyKind, authority_fingerprint
from silomix_protocol.keys import SigningKey, node_proof
from silomix_protocol.rounds.heights import sign_height
from support.authorities import MIX, SILO, Office, office

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Office]:
    with office(tmp_path, NOW) as made:
        yield made


def parsed(answer: authority_pb2.Membership) -> x509.Certificate:
    return x509.load_pem_x509_certificate(answer.certificate)


def test_who_was_invited_gets_a_certificate_of_its_name_kind_and_hosts_for_two_weeks(
    here: Office,
) -> None:
    keys = here.keys(MIX)
    certificate = parsed(here.join(here.invite(MIX), keys))
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "mix-1"
    assert certificate.public_key() == keys.tls.public_key()
    assert certificate.not_valid_after_utc - NOW == timedelta(days=14)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [dialled_name("mix-1")]
    silo = parsed(here.join(here.invite(SILO), here.keys(SILO)))
    purposes = silo.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(purposes) == {ExtendedKeyUsageOID.CLIENT_AUTH}, "a silo must not serve"


def test_joining_again_with_the_same_keys_gives_the_same_certificate(here: Office) -> None:
    """Also long after: an answer that was lost is asked for again."""
    invitation, keys = here.invite(), here.keys()
    first = here.join(invitation, keys).certificate
    here.now += timedelta(days=5)
    assert here.join(invitation, keys).certificate == first


def test_a_used_invitation_is_worth_nothing_to_anybody_else(here: Office) -> None:
    invitation, keys = here.invite(), here.keys()
    here.join(invitation, keys)
    with pytest.raises(InvitationUsed, match="with other keys"):
        here.join(invitation, here.keys(folder="thief"))
    assert here.register.party("silo-1") is not None
    assert here.renew("silo-1", keys).certificate, "the first is still a member"


def test_a_stolen_invitation_is_noticed_by_its_owner(here: Office) -> None:
    """The thief was first: the owner is told, and the operator can undo it."""
    invitation, thief = here.invite(), here.keys(folder="thief")
    stolen = parsed(here.join(invitation, thief))
    with pytest.raises(InvitationUsed, match="tell the authority's operator"):
        here.join(invitation, here.keys())
    here.desk.revoke("silo-1", here.now)
    listed = read_list(here.desk.revocation_list(here.now), here.authority)
    assert stolen.serial_number in listed.serials
    here.join(here.invite(), here.keys())
    with pytest.raises(RefusedRequest):
        here.renew("silo-1", thief)


def test_an_invitation_expires_is_withdrawn_and_cannot_be_invented(here: Office) -> None:
    first, keys = here.invite(life=timedelta(hours=1)), here.keys()
    here.now += timedelta(hours=1)
    with pytest.raises(InvitationExpired):
        here.join(first, keys)
    second = here.invite()
    third = here.invite()
    with pytest.raises(UnknownInvitation, match="withdrawn"):
        here.join(second, keys)
    here.desk.revoke("silo-1", here.now)  # nobody joined yet: the invitation goes
    with pytest.raises(UnknownInvitation, match="withdrawn"):
        here.join(third, keys)
    with pytest.raises(UnknownInvitation, match="no such"):
        here.desk.join(authority_pb2.JoinRequest(version=1, invitation=bytes(32)), here.now)
    with pytest.raises(UnknownParty):
        here.desk.revoke("silo-9", here.now)


def test_an_invitation_without_its_secret_is_no_use(here: Office) -> None:
    """What the register holds of it, and what travels, is the public half."""
    invitation, keys = here.invite(), here.keys()

    def forge(question: authority_pb2.JoinRequest) -> None:
        question.signature = SigningKey.generate().sign("join", question.csr)

    with pytest.raises(RefusedRequest):
        here.join(invitation, keys, forge)
    secret = invitation.key.raw
    files = [path for path in (here.folder / "authority").rglob("*") if path.is_file()]
    assert files
    assert not any(secret in path.read_bytes() for path in files)


def csr_for(name: str, keys: ec.EllipticCurvePrivateKey, *hosts: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(keys, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def resigned(here: Office, key: SigningKey, question: authority_pb2.JoinRequest) -> None:
    parts = question.csr, question.sign_key, question.node_key, question.statement
    question.signature = key.sign("join", authority_fingerprint(here.authority), *parts)


def test_a_request_for_another_name_is_refused_and_its_wishes_are_not_looked_at(
    here: Office,
) -> None:
    invitation, keys = here.invite(MIX), here.keys(MIX)

    def wishing(name: str, *hosts: str) -> Callable[[authority_pb2.JoinRequest], None]:
        def edit(question: authority_pb2.JoinRequest) -> None:
            question.csr = csr_for(name, keys.tls, *hosts)
            resigned(here, invitation.key, question)

        return edit

    for name in ("silo-1", "server", "authority", ""):
        with pytest.raises(RefusedRequest, match=r"names|not a certificate"):
            here.join(invitation, keys, wishing(name or " "))
    certificate = parsed(here.join(invitation, keys, wishing("mix-1", "server", "silo-1")))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [dialled_name("mix-1")]


def test_whoever_joins_takes_over_nobodys_key(here: Office) -> None:
    """It must have the signing key and the TLS key, and no key may be another party's."""
    other = here.member(Member("silo-2", PartyKind.SILO))
    invitation, keys = here.invite(), here.keys()

    def with_sign_key(question: authority_pb2.JoinRequest) -> None:
        question.sign_key = other.sign.public
        resigned(here, invitation.key, question)

    def with_strange_key(question: authority_pb2.JoinRequest) -> None:
        question.sign_key = SigningKey.generate().public  # that of a party to come
        resigned(here, invitation.key, question)

    def with_csr(question: authority_pb2.JoinRequest) -> None:
        csr = bytearray(question.csr)
        csr[-1] ^= 1
        question.csr = bytes(csr)
        resigned(here, invitation.key, question)

    def with_node_key(question: authority_pb2.JoinRequest) -> None:
        question.node_key = other.node_public
        fingerprint = authority_fingerprint(here.authority)
        question.statement = SILO.state(keys.sign, other.node_public, fingerprint)
        resigned(here, invitation.key, question)

    for edit in (with_sign_key, with_strange_key, with_csr, with_node_key):
        with pytest.raises(RefusedRequest):
            here.join(invitation, keys, edit)
    assert here.join(invitation, keys).certificate


def node_part(here: Office, key: SigningKey, question: authority_pb2.JoinRequest) -> list[bytes]:
    """What a node key has to sign in a request made with this invitation."""
    fields = question.csr, question.sign_key, question.node_key, question.statement
    return [authority_fingerprint(here.authority), key.public, *fields]


def test_a_node_key_is_enrolled_by_its_holder_only(here: Office) -> None:
    """Not even where no party has it yet: the one that it belongs to could not join any more."""
    invitation, keys = here.invite(), here.keys()
    victim = here.keys(Member("silo-2", PartyKind.SILO))
    assert keys.node is not None
    assert victim.node is not None
    own, strange = keys.node, victim.node
    elsewhere = join_request(here.invite(Member("silo-2", PartyKind.SILO)), victim)

    def taking(proof: Callable[[list[bytes]], bytes]) -> Callable[[Any], None]:
        def edit(question: authority_pb2.JoinRequest) -> None:
            question.node_key = victim.node_public
            fingerprint = authority_fingerprint(here.authority)
            question.statement = SILO.state(keys.sign, victim.node_public, fingerprint)
            resigned(here, invitation.key, question)
            question.node_proof = proof(node_part(here, invitation.key, question))

        return edit

    as_flower_signs = strange.sign(b"2026-11-16T12:00:00", ec.ECDSA(hashes.SHA256()))
    for forged in (
        lambda parts: node_proof(own, *parts),
        lambda _: elsewhere.node_proof,  # seen on its way
        lambda _: as_flower_signs,
        lambda parts: node_proof(strange, *parts[1:]),
        lambda _: b"\0" * 103,
    ):
        with pytest.raises(RefusedRequest, match="not signed with the node key that it names"):
            here.join(invitation, keys, taking(forged))
    with pytest.raises(RefusedRequest, match="does not show that you have the node key; install"):
        here.join(invitation, keys, taking(lambda _: b""))
    assert here.desk.join(elsewhere, here.now).certificate, "the holder joins all the same"
    assert here.join(invitation, keys).certificate


def test_the_proof_of_a_node_key_is_of_no_use_in_another_request(here: Office) -> None:
    """Whatever else of it is another: consortium, invitation, TLS key, signing key."""
    keys, fresh = here.keys(), here.keys(folder="fresh")
    earlier = join_request(here.invite(), keys)
    invitation = here.invite()
    with office(here.folder / "other", NOW) as other:
        elsewhere = join_request(other.invite(), keys)
    others = [replace(keys, tls=fresh.tls), replace(keys, sign=fresh.sign)]
    proofs = [earlier, elsewhere, *(join_request(invitation, each) for each in others)]
    for each in proofs:

        def edit(question: authority_pb2.JoinRequest, seen: bytes = each.node_proof) -> None:
            question.node_proof = seen

        with pytest.raises(RefusedRequest, match="not signed with the node key"):
            here.join(invitation, keys, edit)
    assert here.join(invitation, keys).certificate


def test_who_has_no_node_key_proves_none(here: Office) -> None:
    def edit(question: authority_pb2.JoinRequest) -> None:
        question.node_proof = b"x"

    with pytest.raises(RefusedRequest, match="a mix has no node key"):
        here.join(here.invite(MIX), here.keys(MIX), edit)
    assert join_request(here.invite(MIX), here.keys(MIX)).node_proof == b""


def compressed(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A P-384 public key in DER as others may write it: the same key in other bytes."""
    form = serialization.PublicFormat.CompressedPoint
    point = key.public_key().public_bytes(serialization.Encoding.X962, form)
    algorithm = bytes.fromhex("301006072a8648ce3d020106052b81040022")
    bits = b"\x03" + bytes([len(point) + 1, 0]) + point
    return b"\x30" + bytes([len(algorithm + bits)]) + algorithm + bits


def test_a_node_key_that_a_party_has_is_not_enrolled_again_in_other_bytes(here: Office) -> None:
    other = here.member(Member("silo-2", PartyKind.SILO)).node
    assert other is not None
    invitation, keys, again = here.invite(), here.keys(), compressed(other)
    assert serialization.load_der_public_key(again) == other.public_key()

    def with_node_key(question: authority_pb2.JoinRequest) -> None:
        question.node_key = again
        question.statement = SILO.state(keys.sign, again, authority_fingerprint(here.authority))
        resigned(here, invitation.key, question)

    with pytest.raises(RefusedRequest, match="uncompressed"):
        here.join(invitation, keys, with_node_key)


def test_a_party_renews_its_own_certificate_and_nobody_elses(here: Office) -> None:
    silo, mix = here.member(SILO), here.member(MIX)
    here.now += timedelta(days=10)
    fresh = here.keys(folder="fresh")
    own = here.renewal("silo-1", silo.sign, request("silo-1", fresh.tls))
    renewed = parsed(here.desk.renew(own, here.now))
    assert renewed.public_key() == fresh.tls.public_key()
    assert here.desk.renew(own, here.now).certificate == here.desk.renew(own, here.now).certificate
    hostile = [
        here.renewal("silo-1", mix.sign, request("silo-1", mix.tls)),  # the mix as the silo
        here.renewal("mix-1", mix.sign, request("silo-1", mix.tls)),  # for the silo's name
        here.renewal("silo-1", silo.sign, request("mix-1", silo.tls)),
        here.renewal("nobody", mix.sign, request("nobody", mix.tls)),
        authority_pb2.RenewRequest(version=2, name="silo-1"),
    ]
    for question in hostile:
        with pytest.raises(NotGranted):
            here.desk.renew(question, here.now)


def test_an_expired_certificate_can_be_renewed_until_its_party_is_revoked(here: Office) -> None:
    """A hospital that was offline for weeks comes back by itself."""
    keys = here.member()
    here.now += timedelta(days=60)
    fresh = parsed(here.renew("silo-1", keys))
    assert fresh.not_valid_after_utc == here.now + timedelta(days=14)
    here.desk.revoke("silo-1", here.now)
    with pytest.raises(PartyRevoked):
        here.renew("silo-1", keys)


def test_who_renews_without_end_gets_few_certificates_and_the_list_stays_small(
    here: Office,
) -> None:
    """Else revoking it would make a list that is too long for a message."""
    silo, refused = here.member(), 0

    def renewal() -> authority_pb2.RenewRequest:
        key = ec.generate_private_key(ec.SECP256R1())
        return here.renewal("silo-1", silo.sign, request("silo-1", key))

    for _ in range(400):
        here.now += timedelta(hours=1)  # more than the life of a certificate in all
        try:
            last = renewal()
            given = here.desk.renew(last, here.now)
            granted = last, given.certificate
        except TooManyCertificates:
            refused += 1
    assert refused > 350
    question, certificate = granted
    question = here.renewal("silo-1", silo.sign, question.csr)
    assert here.desk.renew(question, here.now).certificate == certificate, "a repeated request"
    with pytest.raises(TooManyCertificates, match="ask for another one after 2026-12-03"):
        here.desk.renew(renewal(), here.now)
    here.now += timedelta(hours=17)  # a party's own time to renew is long after that
    assert here.desk.renew(renewal(), here.now).certificate
    here.desk.revoke("silo-1", here.now)
    content = here.desk.revocation_list(here.now)
    assert len(read_list(content, here.authority).serials) < 30
    assert len(content) < 2000


def test_a_request_of_another_time_is_refused_with_the_difference(here: Office) -> None:
    keys = here.member()
    with pytest.raises(WrongClock, match="10800 s behind"):
        here.renew("silo-1", keys, at=here.now - timedelta(hours=3))
    with pytest.raises(WrongClock, match="86400 s ahead of"):
        here.renew("silo-1", keys, at=here.now + timedelta(days=1))
    assert here.renew("silo-1", keys, at=here.now - timedelta(minutes=9)).certificate


def test_a_revoked_party_is_listed_until_its_certificates_expired_and_may_come_back_with_new_keys(
    here: Office,
) -> None:
    def listed() -> tuple[int, frozenset[int], frozenset[str]]:
        found = read_list(here.desk.revocation_list(here.now), here.authority)
        return found.number, found.serials, found.barred

    invitation, keys = here.invite(), here.keys()
    serial = parsed(here.join(invitation, keys)).serial_number
    with pytest.raises(NameTaken, match="revoke it first"):
        here.invite()
    assert listed() == (0, frozenset(), frozenset())
    here.desk.revoke("silo-1", here.now)
    assert listed() == (1, {serial}, {"silo-1"})
    with pytest.raises(PartyRevoked):
        here.join(invitation, keys)
    with pytest.raises(RefusedRequest, match="make new ones"):
        here.join(here.invite(), keys)  # keys that were revoked do not come back
    here.join(here.invite(), here.keys(folder="new"))
    assert listed() == (2, {serial}, frozenset()), "the old certificate stays out"
    here.now += timedelta(days=14)
    assert listed() == (2, frozenset(), frozenset())
    here.desk.revoke("silo-1", here.now)
    assert (listed()[0], listed()[2]) == (3, {"silo-1"})
    found = read_list(here.desk.revocation_list(here.now), here.authority)
    assert found.changes == {"silo-1": 3}, "what parties hold a later list against"


def test_keys_that_were_revoked_never_come_back(here: Office) -> None:
    """Nor one of them alone, nor in another name."""
    old = [here.member(folder="first")]
    for folder in ("second", "third"):
        here.desk.revoke("silo-1", here.now)
        old.append(here.member(folder=folder))
    here.desk.revoke("silo-1", here.now)
    fresh, other = here.keys(folder="fresh"), Member("silo-2", PartyKind.SILO)
    for keys in old:
        for member in (SILO, other):
            for tried in (keys, replace(keys, sign=fresh.sign), replace(keys, node=fresh.node)):
                with pytest.raises(RefusedRequest, match="make new ones"):
                    here.join(here.invite(member), tried)
    assert here.join(here.invite(), fresh).certificate


def test_a_register_of_format_1_is_taken_over_with_its_keys(here: Office) -> None:
    silo, mix = here.member(), here.member(MIX)
    with closing(sqlite3.connect(here.config.state / "register.sqlite")) as database:
        database.executescript("DROP TABLE used_keys; PRAGMA user_version = 1")
    with closing(Register(here.config.state)) as register:
        assert register.knows_key(silo.sign.public, b"")
        assert register.knows_key(bytes(32), silo.node_public)
        assert register.knows_key(mix.sign.public, b"")
        assert not register.knows_key(bytes(32), b"")


def test_what_was_signed_for_one_consortium_is_refused_by_another(
    here: Office, tmp_path: Path
) -> None:
    keys = here.member()
    question = here.renewal("silo-1", keys.sign, request("silo-1", keys.tls))
    with office(tmp_path / "other", NOW) as other:
        other.join(other.invite(), keys)
        with pytest.raises(RefusedRequest):
            other.desk.renew(question, NOW)


def test_names_that_differ_in_capitals_only_are_one_name_to_tls(here: Office) -> None:
    shouting = Member("MIX-1", PartyKind.MIX, ("127.0.0.1:9102",))
    here.invite(MIX)
    with pytest.raises(NameTaken, match="there is mix-1"):
        here.invite(shouting)
    here.member(MIX)
    with pytest.raises(NameTaken, match="there is mix-1"):
        here.invite(shouting)
    here.desk.revoke("mix-1", here.now)
    with pytest.raises(NameTaken, match="there is mix-1"):
        here.invite(shouting)
    assert here.invite(MIX)
    silo = Member("SILO-1", PartyKind.SILO)
    here.invite(SILO)
    here.desk.revoke("silo-1", here.now)  # nobody joined: the name is free
    assert here.invite(silo)


@pytest.mark.parametrize(
    "name", ["authority", "Authority", "AUTHORITY", "", "-x", "a" * 64, "a,b", "a b", "sílo", "a.b"]
)
def test_no_party_can_have_the_authoritys_name_or_one_that_reads_as_two(name: str) -> None:
    with pytest.raises(InvalidField):
        Member(name, PartyKind.SILO)


# How far silos' ledgers are ----------------------------------------------------------------------


def height_of(keys: PartyKeys, entries: int, name: str = "silo-1") -> ledger_pb2.LedgerHeight:
    return sign_height(name, (0, entries), bytes([entries]) * 32, keys.sign).to_wire()


def test_a_silo_is_shown_the_highest_height_that_it_left_with_whatever_request(
    here: Office,
) -> None:
    keys = here.member()
    assert here.desk.witnessed("silo-1", height_of(keys, 5)) is None
    renewed = here.renewal("silo-1", keys.sign, request("silo-1", keys.tls))
    renewed.height.CopyFrom(height_of(keys, 7))
    assert here.desk.renew(renewed, here.now).height == height_of(keys, 5)
    renewed.height.CopyFrom(height_of(keys, 6))
    assert here.desk.renew(renewed, here.now).height == height_of(keys, 7), "it was put back"
    assert here.desk.witnessed("silo-1", height_of(keys, 7)) is None, "it knows that itself"
    again = Desk(here.config, here.register)  # the authority started again
    shown = again.witnessed("silo-1", height_of(keys, 6))
    assert shown is not None
    assert shown.to_wire() == height_of(keys, 7)


def test_a_height_that_no_member_signed_is_neither_kept_nor_answered(here: Office) -> None:
    keys, thief = here.member(), here.keys(folder="thief")
    here.desk.witnessed("silo-1", height_of(keys, 5))
    for name, shown in (
        ("silo-1", ledger_pb2.LedgerHeight()),
        ("silo-1", height_of(thief, 9)),
        ("silo-1", height_of(keys, 9, name="silo-2")),
        ("silo-9", height_of(keys, 9, name="silo-9")),
        ("", height_of(keys, 9)),
    ):
        assert here.desk.witnessed(name, shown) is None
    assert [each.entries for each in here.register.heights().values()] == [5]
    plain = here.renewal("silo-1", keys.sign, request("silo-1", keys.tls))
    assert not here.desk.renew(plain, here.now).HasField("height")
