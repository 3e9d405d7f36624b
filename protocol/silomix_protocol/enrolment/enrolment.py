"""A party's side of enrolment: its keys, what it asks of the authority, what it accepts.

Keys are made in the party's folder and stay there.  Whatever breaks off can be repeated: the same
keys ask again, and the authority gives the same certificate.  Every request is signed and every
answer held against the authority's certificate, so a proxy on the route that looks into TLS can
read and break off requests, and nothing else.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import tomli_w
from cryptography.hazmat.primitives.asymmetric import ec
from silomix_proto import authority_pb2, authority_pb2_grpc

from silomix_protocol.certificates.certificates import (
    Life,
    check_certificate,
    key_pem,
    parse_key,
    request,
)
from silomix_protocol.certificates.files import CERTIFICATE, KEY, CertificateFiles
from silomix_protocol.certificates.revocation import Revocations
from silomix_protocol.connections.route import DIRECT, Route
from silomix_protocol.connections.tls import AUTHORITY, ENROLMENT, authority_channel
from silomix_protocol.enrolment.membership import (
    VERSION,
    Invitation,
    Member,
    PartyKind,
    authority_fingerprint,
)
from silomix_protocol.host import logs
from silomix_protocol.host.durable import make_folder, write_durably
from silomix_protocol.host.operator_files import named, read_own_table
from silomix_protocol.host.ownership import read_own
from silomix_protocol.keys import (
    SigningKey,
    generate_node_key,
    load_node_key,
    node_proof,
    node_public_bytes,
    read_secret,
)
from silomix_protocol.rounds.heights import OwnLedger

_ANSWER_S = 10.0
_REFUSALS = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)

Answer = TypeVar("Answer")


class EnrolmentError(Exception):
    """Joining or renewing did not work; the message says what to do."""


class NotEnrolled(EnrolmentError):
    """The folder is not that of a party which joined through an authority."""


class AuthorityUnreachable(EnrolmentError):
    """No authority with the right certificate answers."""


class AuthorityRefused(EnrolmentError):
    """The authority answered, with a refusal."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What a party's folder says about its membership (enrolment.toml and ca.crt)."""

    folder: Path
    member: Member
    address: str  # of the authority
    authority: bytes  # its certificate in PEM

    @classmethod
    def load(cls, folder: Path) -> "Enrolment":
        path = folder / ENROLMENT
        if not path.exists():
            raise NotEnrolled(f"{folder} has no {ENROLMENT}: it did not join through an authority")
        with named(path, NotEnrolled):
            table = read_own_table(path)
            member, address = Member.read(table), table.address("authority")
            table.finish()
            authority = read_own(folder / "ca.crt")
        return cls(folder, member, address, authority)

    def save(self) -> None:
        write_durably(self.folder / "ca.crt", self.authority)
        table = self.member.table() | {"authority": self.address}
        write_durably(self.folder / ENROLMENT, tomli_w.dumps(table).encode("utf-8"))

    @property
    def files(self) -> CertificateFiles:
        return CertificateFiles(self.folder)

    @property
    def revocations(self) -> Revocations:
        return Revocations(self.folder, self.authority)


@dataclass(frozen=True, slots=True)
class PartyKeys:
    tls: ec.EllipticCurvePrivateKey = field(repr=False)
    sign: SigningKey = field(repr=False)
    node: ec.EllipticCurvePrivateKey | None = field(repr=False)

    @classmethod
    def make(cls, folder: Path, kind: PartyKind) -> "PartyKeys":
        """The keys in the folder; missing ones are made, for their owner's eyes only."""
        make_folder(folder)
        # Durably, before anybody certifies them: a party with other keys could not join again.
        if not (path := folder / KEY).exists():
            write_durably(path, key_pem(ec.generate_private_key(ec.SECP256R1())))
        if not (path := folder / "sign.key").exists():
            write_durably(path, SigningKey.generate().raw)
        if kind is PartyKind.SILO and not (path := folder / "node.key").exists():
            write_durably(path, key_pem(generate_node_key()))
        return cls(
            parse_key(read_secret(folder / KEY)),
            SigningKey.load(folder / "sign.key"),
            load_node_key(folder / "node.key") if kind is PartyKind.SILO else None,
        )

    @property
    def node_public(self) -> bytes:
        return node_public_bytes(self.node) if self.node is not None else b""


def join_request(invitation: Invitation, keys: PartyKeys) -> authority_pb2.JoinRequest:
    member, authority = invitation.member, authority_fingerprint(invitation.authority)
    csr, node_key = request(member.name, keys.tls), keys.node_public
    statement = member.state(keys.sign, node_key, authority)
    parts = authority, csr, keys.sign.public, node_key, statement
    return authority_pb2.JoinRequest(
        version=VERSION,
        invitation=invitation.key.public,
        csr=csr,
        sign_key=keys.sign.public,
        node_key=node_key,
        statement=statement,
        signature=invitation.key.sign("join", *parts),
        node_proof=_node_proof(invitation, keys.node, *parts),
    )


def _node_proof(
    invitation: Invitation, key: ec.EllipticCurvePrivateKey | None, authority: bytes, *parts: bytes
) -> bytes:
    """The proof of the node key, of no use for a request with other keys or invitation."""
    return node_proof(key, authority, invitation.key.public, *parts) if key is not None else b""


def accept_membership(
    invitation: Invitation,
    keys: PartyKeys,
    answer: authority_pb2.Membership,
    folder: Path,
    now: datetime,
) -> Life:
    """Check the authority's answer and write it into the folder, the certificate last."""
    member, authority = invitation.member, invitation.authority
    public = keys.tls.public_key()
    certificate = check_certificate(answer.certificate, authority, member.name, public, now)
    enrolment = Enrolment(folder, member, invitation.address, authority)
    enrolment.save()
    enrolment.revocations.take(answer.list)
    write_durably(folder / CERTIFICATE, answer.certificate)
    return Life.of(certificate)


async def join(
    invitation: Invitation, folder: Path, route: Route = DIRECT
) -> tuple[PartyKeys, Life]:
    """Join the consortium with the keys in this folder; call it again if it breaks off."""
    _check_folder(invitation, folder)
    keys = PartyKeys.make(folder, invitation.member.kind)
    question = join_request(invitation, keys)
    async with authority_channel(invitation.address, invitation.authority, route) as channel:
        stub = authority_pb2_grpc.AuthorityStub(channel)
        answer = await _asked(stub.Join, question, invitation.address)
    life = accept_membership(invitation, keys, answer, folder, datetime.now(UTC))
    return keys, life


def _check_folder(invitation: Invitation, folder: Path) -> None:
    """Refuse another party's folder: keys that belong to somebody else are not used again."""
    try:
        found = Enrolment.load(folder)
    except NotEnrolled:
        return
    same = found.member.name == invitation.member.name
    if not same or found.authority != invitation.authority:
        raise EnrolmentError(
            f"{folder} belongs to {found.member.name} already; choose another folder"
        )


async def renew(
    enrolment: Enrolment, route: Route = DIRECT, ledger: OwnLedger | None = None
) -> Life:
    """Get the next certificate, for a new key, and put both in place."""
    files, name, now = enrolment.files, enrolment.member.name, datetime.now(UTC)
    files.settle()
    key = files.next_key()
    csr, time_s = request(name, key), int(now.timestamp())
    sign_key = SigningKey.load(enrolment.folder / "sign.key")
    parts = name.encode("ascii"), csr, time_s.to_bytes(8, "big")
    question = authority_pb2.RenewRequest(
        version=VERSION,
        name=name,
        csr=csr,
        time_s=time_s,
        signature=sign_key.sign("renewal", authority_fingerprint(enrolment.authority), *parts),
        height=None if ledger is None else ledger.height(),
    )
    async with authority_channel(enrolment.address, enrolment.authority, route) as channel:
        stub = authority_pb2_grpc.AuthorityStub(channel)
        answer = await _asked(stub.Renew, question, enrolment.address)
    _hear(answer, ledger)
    public, authority = key.public_key(), enrolment.authority
    certificate = check_certificate(answer.certificate, authority, name, public, datetime.now(UTC))
    enrolment.revocations.take(answer.list)
    files.replace(answer.certificate)
    return Life.of(certificate)


async def fetch_list(
    enrolment: Enrolment, route: Route = DIRECT, ledger: OwnLedger | None = None
) -> bytes:
    async with authority_channel(enrolment.address, enrolment.authority, route) as channel:
        stub = authority_pb2_grpc.AuthorityStub(channel)
        question = authority_pb2.ListRequest(version=VERSION)
        if ledger is not None:
            question.name = enrolment.member.name
            question.height.CopyFrom(ledger.height())
        answer: authority_pb2.RevocationList = await _asked(stub.List, question, enrolment.address)
    _hear(answer, ledger)
    return answer.list


def _hear(
    answer: authority_pb2.Membership | authority_pb2.RevocationList, ledger: OwnLedger | None
) -> None:
    if ledger is not None and answer.HasField("height"):
        ledger.hear(answer.height, AUTHORITY)


async def _asked(
    method: Callable[..., Awaitable[Answer]], question: object, address: str
) -> Answer:
    try:
        return await method(question, timeout=_ANSWER_S)
    except grpc.aio.AioRpcError as error:
        if error.code() in _REFUSALS:
            said = logs.foreign(error.details() or "without a reason")
            raise AuthorityRefused(f"the authority refused: {said}") from error
        raise AuthorityUnreachable(
            f"no authority of this consortium answers at {address} ({error.code().name}); is it "
            "running, is the way to it open, is this machine's clock right?"
        ) from error
