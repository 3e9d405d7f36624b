"""A party's side: it accepts only what it asked for, and its keys stay its own."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from silomix_authority.desk import Desk
from silomix_authority.process import create
from silomix_authority.register import Register
from silomix_proto import authority_pb2
from silomix_protocol.certificates.certificates import (
    Authority,
    RefusedCertificate,
    dialled_name,
    key_pem,
)
from silomix_protocol.certificates.files import CertificateFiles
from silomix_protocol.certificates.revocation import CertifiedCaller, Revocations, Revoked
from silomix_protocol.connections.tls import Identity
from silomix_protocol.enrolment.enrolment import (
    AuthorityUnreachable,
    Enrolment,
    EnrolmentError,
    PartyKeys,
    accept_membership,
    join,
)
from silomix_protocol.enrolment.membership import Invitation, Member, PartyKind
from silomix_protocol.host.durable import write_durably
from silomix_protocol.keys import UnusableKey
from support.authorities import MIX, SILO, Office, office
from support.mixes import run


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Office]:
    with office(tmp_path) as made:
        yield made


def test_keys_and_invitations_are_for_their_owner_only_whatever_the_umask(here: Office) -> None:
    before = os.umask(0)
    try:
        invitation, keys = here.invite(), here.keys()
        invitation.save(here.folder / "invitation")
        answer = here.join(invitation, keys)
        accept_membership(invitation, keys, answer, here.folder / "silo-1", here.now)
    finally:
        os.umask(before)
    folder = here.folder / "silo-1"
    secrets = ["tls.key", "sign.key", "node.key"]
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in secrets} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((here.folder / "invitation").stat().st_mode) == 0o600
    assert stat.S_IMODE((here.config.folder / "ca.key").stat().st_mode) == 0o600


def test_an_invitation_survives_its_file_and_one_that_others_can_read_is_refused(
    here: Office,
) -> None:
    invitation, path = here.invite(MIX), here.folder / "invitation"
    invitation.save(path)
    loaded = Invitation.load(path)
    assert (loaded.member, loaded.authority) == (MIX, here.authority)
    assert loaded.key.public == invitation.key.public
    assert str(invitation.key.raw) not in repr(loaded)
    path.chmod(0o640)
    with pytest.raises(UnusableKey, match="chmod 600"):
        Invitation.load(path)


def lying(here: Office, keys: PartyKeys, how: str) -> bytes:
    """What a dishonest or confused authority might answer."""
    authority, now, days = here.config.authority(), here.now, timedelta(days=14)
    own, other = keys.tls.public_key(), here.keys(folder="other").tls.public_key()
    match how:
        case "another name":
            made = authority.certify("silo-2", (), own, now, days, serves=False)
        case "another key":
            made = authority.certify("silo-1", (), other, now, days, serves=False)
        case "another authority":
            impostor = Authority.create("test consortium", now)
            made = impostor.certify("silo-1", (), own, now, days, serves=False)
        case "expired":
            made = authority.certify("silo-1", (), own, now - 2 * days, days, serves=False)
        case _:  # not valid yet: one of the two clocks is wrong
            made = authority.certify("silo-1", (), own, now + days, days, serves=False)
    from cryptography.hazmat.primitives.serialization import Encoding

    return made.public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("another name", "names 'silo-2'"),
        ("another key", "for another key"),
        ("another authority", "another authority"),
        ("expired", "is this machine's clock right"),
        ("not yet valid", "is this machine's clock right"),
    ],
)
def test_a_certificate_that_was_not_asked_for_is_refused_and_not_written(
    here: Office, how: str, told: str
) -> None:
    invitation, keys = here.invite(), here.keys()
    honest = here.join(invitation, keys)
    answer = authority_pb2.Membership(certificate=lying(here, keys, how), list=honest.list)
    with pytest.raises(RefusedCertificate, match=told):
        accept_membership(invitation, keys, answer, here.folder / "silo-1", here.now)
    assert not (here.folder / "silo-1" / "tls.crt").exists()


def joined(here: Office) -> Enrolment:
    invitation, keys = here.invite(), here.keys()
    answer, folder = here.join(invitation, keys), here.folder / "silo-1"
    accept_membership(invitation, keys, answer, folder, here.now)
    return Enrolment.load(folder)


def test_a_folder_that_belongs_to_another_party_is_not_used_again(here: Office) -> None:
    folder = joined(here).folder
    with pytest.raises(EnrolmentError, match="belongs to silo-1"):
        run(join(here.invite(MIX), folder))


def test_an_authority_that_is_not_there_is_said_with_what_to_look_at(here: Office) -> None:
    with pytest.raises(AuthorityUnreachable, match="is the way to it open"):
        run(join(here.invite(), here.folder / "silo-1"))
    assert (here.folder / "silo-1" / "tls.key").exists(), "the same keys ask again"


@pytest.mark.parametrize("died", ["with a new key", "with a new certificate", "at the end"])
def test_a_renewal_that_breaks_off_leaves_a_certificate_with_its_key(
    here: Office, died: str
) -> None:
    enrolment = joined(here)
    files, before = enrolment.files, Identity.load("silo-1", enrolment.folder).certificate
    key = files.next_key()
    life = timedelta(days=14)
    issued = here.config.authority().certify(
        "silo-1", (), key.public_key(), here.now, life, serves=False
    )
    from cryptography.hazmat.primitives.serialization import Encoding

    renewed = issued.public_bytes(Encoding.PEM)
    if died != "with a new key":
        write_durably(enrolment.folder / "tls.crt", renewed)
    if died == "at the end":
        files.settle()
    loaded = CertificateFiles(enrolment.folder).load()
    assert loaded.certificate == (before if died == "with a new key" else renewed)
    files.settle()  # what the next start does
    assert files.next_key() != key or died == "with a new key"
    after = CertificateFiles(enrolment.folder).load()
    assert after == loaded
    assert (enrolment.folder / "tls.key").read_bytes() == after.key
    if died != "with a new key":
        assert after.key == key_pem(key)


def test_a_key_that_is_not_the_certificates_is_named(here: Office) -> None:
    folder = joined(here).folder
    write_durably(folder / "tls.key", key_pem(here.keys(folder="other").tls))
    with pytest.raises(UnusableKey, match=r"tls\.key is not the key"):
        Identity.load("silo-1", folder)


# The list of the revoked -------------------------------------------------------------------------


def caller(name: str = "silo-1", serial: int = 5) -> CertifiedCaller:
    return CertifiedCaller(name, serial, datetime.max.replace(tzinfo=UTC))


def test_a_list_bars_names_and_numbers_and_is_worth_nothing_when_old(here: Office) -> None:
    revocations, authority = joined(here).revocations, here.config.authority()
    hour = timedelta(hours=1)
    revocations.take(authority.revocation_list(3, [5], ["silo-9"], here.now, hour))
    revocations.admit(caller("silo-1", 6), here.now)
    with pytest.raises(Revoked, match="this certificate"):
        revocations.admit(caller("silo-1", 5), here.now)
    with pytest.raises(Revoked, match="silo-9"):
        revocations.admit(caller("silo-9", 6), here.now)
    with pytest.raises(Revoked, match="no valid revocation list"):
        revocations.admit(caller("silo-1", 6), here.now + hour)
    with pytest.raises(Revoked, match="expired"):
        revocations.admit(CertifiedCaller("silo-1", 6, here.now), here.now)


def test_a_list_is_taken_again_when_certificates_of_it_expired(here: Office) -> None:
    revocations, authority = joined(here).revocations, here.config.authority()
    life = timedelta(hours=1)
    for changes, serials, barred in (
        (["silo-1", "silo-2"], [5, 6], {"silo-1", "silo-2"}),
        (["silo-1", "silo-2"], [5], {"silo-1", "silo-2"}),
        (["silo-1", "silo-2"], [5, 6], {"silo-1", "silo-2"}),  # asked for earlier, came later
        (["silo-1", "silo-2", "silo-2"], [5], {"silo-1"}),  # silo-2 is back
        (["silo-2", "silo-1"] * 2 + ["silo-2"], [7], {"silo-2"}),
    ):
        content = authority.revocation_list(len(changes), serials, changes, here.now, life)
        assert revocations.take(content).barred == barred


def test_an_old_list_does_not_replace_a_fresher_one_that_says_the_same(here: Office) -> None:
    """Whoever repeats one would have this party without a valid list."""
    revocations, authority = joined(here).revocations, here.config.authority()
    second, hour = timedelta(seconds=1), timedelta(hours=1)

    def given(issued: datetime, *changes: str) -> bytes:
        return authority.revocation_list(1 + len(changes), [], ["silo-9", *changes], issued, hour)

    start = here.now.replace(microsecond=0)
    revocations.take(given(start))
    for age in (2 * hour, 61 * second):
        with pytest.raises(RefusedCertificate, match="was its clock put back"):
            revocations.take(given(start - age))
    assert revocations.take(given(start - second)).issued == start, "it came later: no mistake"
    assert revocations.current is not None
    assert revocations.current.issued == start
    assert revocations.take(given(start + second)).issued == start + second
    ahead = start + 1000 * hour  # by an authority whose clock is wrong: when it is right again
    for issued in (ahead, start + 2 * second):
        assert revocations.take(given(issued)).issued == issued
    assert revocations.take(given(start - hour, "silo-8")).barred == {"silo-8", "silo-9"}


def test_a_certificate_of_before_a_revocation_stays_out_when_its_number_is_forgotten(
    here: Office,
) -> None:
    """By an authority that was put back, and repeated the revocation."""
    revocations, authority = joined(here).revocations, here.config.authority()
    changes, hour = ["silo-9", "silo-9"], timedelta(hours=1)
    revocations.take(authority.revocation_list(2, [], changes, here.now, hour))
    old, new = ({dialled_name("silo-9", changes) for changes in known} for known in ((0,), (0, 2)))
    revocations.admit(replace(caller("silo-9"), names=frozenset(new)), here.now)
    with pytest.raises(Revoked, match="older than a revocation"):
        revocations.admit(replace(caller("silo-9"), names=frozenset(old)), here.now)


def put_back(here: Office, copy: Path) -> Office:
    """The authority as it was when the copy was made."""
    register = Register(copy)
    return replace(here, register=register, desk=Desk(here.config, register))


def copied(here: Office) -> Path:
    folder = here.folder / "copy"
    folder.mkdir()
    with (
        closing(sqlite3.connect(folder / "register.sqlite")) as copy,
        closing(sqlite3.connect(here.config.state / "register.sqlite")) as database,
    ):
        database.backup(copy)
    return folder


def test_an_authority_put_back_undoes_nothing_until_every_revocation_is_repeated(
    here: Office,
) -> None:
    """Whatever else it does meanwhile, and however its number grows."""
    revocations = joined(here).revocations
    two, three = (Member(name, PartyKind.SILO) for name in ("silo-2", "silo-3"))
    for member in (two, three):
        here.member(member)
    copy = copied(here)
    here.desk.revoke("silo-2", here.now)
    revocations.take(here.desk.revocation_list(here.now))
    restored = put_back(here, copy)
    with closing(restored.register):

        def given() -> bytes:
            return restored.desk.revocation_list(here.now)

        restored.desk.revoke("silo-3", here.now)
        with pytest.raises(RefusedCertificate, match="list 1, and 1 is known, with other"):
            revocations.take(given())
        for number in range(2, 6):  # it comes back, and is revoked again
            if number % 2:
                restored.desk.revoke("silo-3", here.now)
            else:
                restored.member(three, folder=f"silo-3-{number}")
            with pytest.raises(RefusedCertificate, match=f"list {number}, and 1 is known, with"):
                revocations.take(given())
            assert revocations.bars("silo-2")
        restored.desk.revoke("silo-2", here.now)
        assert revocations.take(given()).barred == {"silo-2", "silo-3"}


def test_an_authority_put_back_must_also_repeat_whose_return_it_forgot(here: Office) -> None:
    """Else the keys for which a party was revoked would be a member's again."""
    revocations = joined(here).revocations
    two = Member("silo-2", PartyKind.SILO)
    here.member(two)
    copy = copied(here)
    here.desk.revoke("silo-2", here.now)
    here.member(two, folder="new keys")
    revocations.take(here.desk.revocation_list(here.now))
    restored = put_back(here, copy)
    with closing(restored.register):
        for done in range(3):
            if done:
                restored.desk.revoke(f"silo-{done}", here.now)
            with pytest.raises(RefusedCertificate, match="was it put back"):
                revocations.take(restored.desk.revocation_list(here.now))
        restored.member(two, folder="newer keys")
        assert revocations.take(restored.desk.revocation_list(here.now)).barred == {"silo-1"}


def test_an_earlier_or_foreign_list_is_not_taken(here: Office) -> None:
    """Otherwise whoever puts an old list back would undo a revocation."""
    revocations, authority = joined(here).revocations, here.config.authority()
    life = timedelta(hours=1)
    revocations.take(authority.revocation_list(3, [5], ["silo-1"], here.now, life))
    with pytest.raises(RefusedCertificate, match="list 2, and 3 is known"):
        revocations.take(authority.revocation_list(2, [], [], here.now, life))
    for number, serials, changes in (
        (3, [6], ["silo-2"]),
        (3, [], []),
        (3, [6], ["silo-1"]),
        (3, [5], ["silo-1", "silo-1"]),
        (4, [5, 6], ["silo-2"]),
        (9, [5], ["silo-2", "silo-3"]),  # however many changes: one was forgotten
    ):
        with pytest.raises(RefusedCertificate, match="with other parties: was it put back"):
            revocations.take(authority.revocation_list(number, serials, changes, here.now, life))
    impostor = Authority.create("test consortium", here.now)
    foreign = impostor.revocation_list(4, [], [], here.now, life)
    with pytest.raises(RefusedCertificate, match="somebody else"):
        revocations.take(foreign)
    assert revocations.bars("silo-1")
    (here.folder / "silo-1" / "revoked.crl").write_bytes(foreign)  # on disk: as good as none
    other = Revocations(here.folder / "silo-1", here.authority)
    with pytest.raises(Revoked, match="no valid revocation list"):
        other.admit(caller(), here.now)


def test_an_authority_is_not_made_over_another(here: Office) -> None:
    with pytest.raises(Exception, match="not empty"):
        create(here.config, "again", here.now)
    assert here.member(SILO).node is not None
    assert PartyKind.SILO.addresses == ()
