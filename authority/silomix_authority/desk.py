"""The authority's decisions: whom it invites, what it certifies, whom it revokes.

Everything that a party asks is decided here, by what it signed and what the register says; the
network is elsewhere (service.py).  What a decision changes is on disk before anybody hears of it,
so that a request can be repeated after any crash, and gets the same answer.
"""

from datetime import UTC, datetime, timedelta

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from silomix_proto import authority_pb2, ledger_pb2
from silomix_protocol.certificates.certificates import (
    Authority,
    Life,
    RefusedCertificate,
    key_der,
    requested_key,
    shown,
)
from silomix_protocol.enrolment.membership import (
    VERSION,
    Invitation,
    Member,
    PartyKind,
    authority_fingerprint,
)
from silomix_protocol.keys import ForgedSignature, SigningKey, verify, verify_node_proof
from silomix_protocol.rounds.heights import Height, HeightBook, check_height

from silomix_authority.config import AuthorityConfig
from silomix_authority.errors import (
    InvitationExpired,
    InvitationUsed,
    NameTaken,
    PartyRevoked,
    RefusedRequest,
    TooManyCertificates,
    UnknownInvitation,
    UnknownParty,
    WrongClock,
)
from silomix_authority.register import Invited, Issued, Party, Register

_CLOCKS = timedelta(minutes=10)  # how far from now a signed request may be
_SIGN_KEY_BYTES = 32
_ENOUGH = 8  # valid certificates of a party: with so many it gets one more only after a pause
_PAUSE = (
    20  # the pause is 1/_PAUSE of a certificate's life: the revocation list must not grow endlessly
)


class Desk:
    def __init__(self, config: AuthorityConfig, register: Register) -> None:
        self._config, self._register = config, register
        self._authority: Authority = config.authority()
        self._fingerprint = authority_fingerprint(self._authority.pem)
        self._heights = HeightBook(register.heights(), register.keep_height)

    # The operator -------------------------------------------------------------------------------

    def invite(self, member: Member, now: datetime, life: timedelta | None = None) -> Invitation:
        """Invite a party that is no member; earlier invitations of that name become useless."""
        key = SigningKey.generate()
        expires = now + (life or self._config.invitation_life)
        with self._register.change():
            party = self._register.party(member.name)
            if party is not None and party.revoked is None:
                raise NameTaken(
                    f"{member.name} is a member; if it lost its keys, revoke it first: its old "
                    "certificates must not go on working"
                )
            if (other := self._register.spelled_otherwise(member.name)) is not None:
                raise NameTaken(
                    f"there is {other}, a party or an invitation, and in TLS capitals make no "
                    "difference: choose another name, or the same spelling"
                )
            self._register.withdraw_invitations(member.name)
            self._register.add_invitation(Invited(key.public, member, expires, "open"))
        return Invitation(member, self._config.address, self._authority.pem, expires, key)

    def revoke(self, name: str, now: datetime) -> None:
        """Withdraw this party's membership, its certificates and its open invitations."""
        with self._register.change():
            withdrawn = self._register.withdraw_invitations(name)
            party = self._register.party(name)
            if party is None and not withdrawn:
                raise UnknownParty(f"no party and no open invitation has the name {name!r}")
            if party is not None and party.revoked is None:
                self._register.revoke(name, now)

    # Parties ------------------------------------------------------------------------------------

    def join(self, request: authority_pb2.JoinRequest, now: datetime) -> authority_pb2.Membership:
        _check_version(request.version)
        invited = self._invited(request)
        self._check_join(request, invited)
        key = _requested(request.csr, invited.member.name)
        with self._register.change():
            invited = self._invited(request)  # again, now that nobody else can use it
            if invited.state == "used":
                issued = self._joined_before(request, invited, key)
            else:
                issued = self._first(request, invited, key, now)
            return self._membership(issued, now)

    def _invited(self, request: authority_pb2.JoinRequest) -> Invited:
        invited = self._register.invitation(request.invitation)
        if invited is None:
            raise UnknownInvitation("this authority made no such invitation")
        return invited

    def _check_join(self, request: authority_pb2.JoinRequest, invited: Invited) -> None:
        """Refuse whoever lacks the invitation's key, or the signing or node key that it wants to
        enrol.  The TLS key's owner signed the request for its certificate."""
        parts = (request.csr, request.sign_key, request.node_key, request.statement)
        try:
            verify(request.invitation, request.signature, "join", self._fingerprint, *parts)
            statement, keys = request.statement, (request.sign_key, request.node_key)
            invited.member.check(statement, *keys, self._fingerprint)
        except ForgedSignature as error:
            raise RefusedRequest(str(error)) from error
        if len(request.sign_key) != _SIGN_KEY_BYTES:
            raise RefusedRequest("a signing key has 32 bytes")
        if invited.member.kind is PartyKind.SILO:
            self._check_node_proof(request, _node_key(request.node_key))
        elif request.node_key or request.node_proof:
            raise RefusedRequest(f"a {invited.member.kind.value} has no node key")

    def _check_node_proof(
        self, request: authority_pb2.JoinRequest, key: ec.EllipticCurvePublicKey
    ) -> None:
        """Refuse whoever lacks the node key: it could enrol, and keep out, a party yet to come."""
        if not request.node_proof:
            raise RefusedRequest(
                "the request does not show that you have the node key; install the same release "
                "of silomix as the authority's"
            )
        asked = (request.invitation, request.csr, request.sign_key, request.node_key)
        parts = (self._fingerprint, *asked, request.statement)
        try:
            verify_node_proof(key, request.node_proof, *parts)
        except ForgedSignature as error:
            raise RefusedRequest(
                "the request is not signed with the node key that it names: nobody can join with "
                "another's key"
            ) from error

    def _first(
        self,
        request: authority_pb2.JoinRequest,
        invited: Invited,
        key: ec.EllipticCurvePublicKey,
        now: datetime,
    ) -> Issued:
        if invited.state != "open":
            raise UnknownInvitation("this invitation was withdrawn; ask for a new one")
        if now >= invited.expires:
            raise InvitationExpired("this invitation has expired; ask for a new one")
        if self._register.knows_key(request.sign_key, request.node_key):
            raise RefusedRequest("a party has or had this signing or node key: make new ones")
        was_barred = self._register.party(invited.member.name) is not None
        self._register.set_party(
            Party(
                member=invited.member,
                sign_key=request.sign_key,
                node_key=request.node_key,
                statement=request.statement,
                invitation=request.invitation,
                joined=now,
                revoked=None,
            )
        )
        if was_barred:
            self._register.count_change(invited.member.name)
        self._register.use_invitation(request.invitation)
        return self._issue(invited.member, key, now)

    def _joined_before(
        self,
        request: authority_pb2.JoinRequest,
        invited: Invited,
        key: ec.EllipticCurvePublicKey,
    ) -> Issued:
        """The certificate of a party that asks again with the keys that it joined with."""
        party = self._register.party(invited.member.name)
        if party is None or party.invitation != invited.key or party.sign_key != request.sign_key:
            raise InvitationUsed(
                "this invitation was used with other keys: if not by you, tell the authority's "
                "operator at once"
            )
        if party.revoked is not None:
            raise PartyRevoked(f"{invited.member.name} was revoked")
        issued = self._register.certificate(invited.member.name, key_der(key))
        if issued is None or party.node_key != request.node_key:
            raise InvitationUsed("you joined already, with another key; renew instead")
        return issued

    def renew(self, request: authority_pb2.RenewRequest, now: datetime) -> authority_pb2.Membership:
        _check_version(request.version)
        with self._register.change():
            party = self._register.party(request.name)
            if party is None:
                raise RefusedRequest("no party of this name is a member")
            self._check_renewal(request, party, now)
            key = _requested(request.csr, party.member.name)
            issued = self._register.certificate(party.member.name, key_der(key))
            if issued is None or now >= issued.expires:
                self._check_enough(party.member.name, now)
                issued = self._issue(party.member, key, now)
            membership = self._membership(issued, now)
        if (earlier := self.witnessed(request.name, request.height)) is not None:
            membership.height.CopyFrom(earlier.to_wire())
        return membership

    def witnessed(self, silo: str, height: ledger_pb2.LedgerHeight) -> Height | None:
        """Keep the height of a silo's ledger; return the one before, to show it, if it differs.

        None if the silo did not sign it: the list is for anybody, whatever comes with a request.
        """
        party = self._register.party(silo) if height.signature else None
        if party is None:
            return None
        try:
            checked = check_height(height, silo, party.sign_key)
        except ForgedSignature:
            return None
        return self._heights.exchange(party.sign_key, checked)

    def _check_enough(self, name: str, now: datetime) -> None:
        valid = self._register.valid_certificates(name, now)
        if len(valid) < _ENOUGH:
            return
        again = valid[0].issued + self._config.certificate_life / _PAUSE
        if now < again:
            raise TooManyCertificates(
                f"{name} has {len(valid)} certificates that have not expired; ask for another one "
                f"after {shown(again)}. If you did not ask for them, tell the authority's operator"
            )

    def _check_renewal(
        self, request: authority_pb2.RenewRequest, party: Party, now: datetime
    ) -> None:
        parts = request.name.encode("utf-8"), request.csr, request.time_s.to_bytes(8, "big")
        try:
            verify(party.sign_key, request.signature, "renewal", self._fingerprint, *parts)
        except ForgedSignature as error:
            raise RefusedRequest(f"not signed with the key of {party.member.name}") from error
        if party.revoked is not None:
            raise PartyRevoked(f"{party.member.name} was revoked")
        ahead_s = request.time_s - now.timestamp()
        if abs(ahead_s) > _CLOCKS.total_seconds():
            raise WrongClock(
                f"your clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} "
                "the authority's; set it"
            )

    def revocation_list(self, now: datetime) -> bytes:
        register = self._register
        with register.reading():  # an operator may revoke meanwhile, and a number names one list
            changes, serials = register.changes(), register.revoked_serials(now)
        life = self._config.list_life
        return self._authority.revocation_list(len(changes), serials, changes, now, life)

    def _issue(self, member: Member, key: ec.EllipticCurvePublicKey, now: datetime) -> Issued:
        certificate = self._authority.certify(
            member.name,
            member.hosts,
            key,
            now,
            self._config.certificate_life,
            serves=member.serves,
            changes=self._register.changes().count(member.name),
        )
        issued = Issued(
            serial=certificate.serial_number,
            name=member.name,
            key=key_der(key),
            pem=certificate.public_bytes(serialization.Encoding.PEM),
            issued=now,
            expires=Life.of(certificate).expires,
        )
        self._register.add_certificate(issued)
        return issued

    def _membership(self, issued: Issued, now: datetime) -> authority_pb2.Membership:
        return authority_pb2.Membership(certificate=issued.pem, list=self.revocation_list(now))


def clock() -> datetime:
    return datetime.now(UTC)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise RefusedRequest(
            f"version {version} of the enrolment messages is not spoken here, only {VERSION}; "
            "install the same release of silomix"
        )


def _requested(csr: bytes, name: str) -> ec.EllipticCurvePublicKey:
    try:
        return requested_key(csr, name)
    except RefusedCertificate as error:
        raise RefusedRequest(str(error)) from error


def _node_key(node_key: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_der_public_key(node_key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RefusedRequest("the node key is not a key") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise RefusedRequest("the node key must be a P-384 key")
    if key_der(key) != node_key:  # a known key, encoded otherwise, would pass for a new one
        raise RefusedRequest("the node key must be in DER, its point uncompressed")
    return key
