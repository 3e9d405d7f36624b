"""Who a party of the consortium is, and the invitation with which it joins.

A member has a name, a kind and, if others dial it, addresses; all three are the authority's
decision, made when it invites.  The party signs them together with its node key: this statement
stands in the roster, so that nobody can give its key another name or address.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from silomix_core.toml_table import InvalidField, TomlTable, split_address

from silomix_protocol.certificates.certificates import (
    RefusedCertificate,
    is_party_name,
    parse_certificate,
)
from silomix_protocol.connections.tls import AUTHORITY
from silomix_protocol.host.durable import write_durably
from silomix_protocol.host.operator_files import named, read_table
from silomix_protocol.keys import SigningKey, read_secret, verify

VERSION = 1  # of invitations, rosters and the messages to the authority
_NAME = re.compile(r"[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class InvalidInvitation(ValueError):
    """The file is not an invitation that can be used; the message names it."""


class PartyKind(Enum):
    SILO = "silo"
    MIX = "mix"
    SERVER = "server"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that others dial, by their keys in a study file."""
        return {
            PartyKind.SILO: (),
            PartyKind.MIX: ("address",),
            PartyKind.SERVER: ("fleet_address", "channel_address"),
        }[self]


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    kind: PartyKind
    addresses: tuple[str, ...] = ()  # as many as its kind has

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.lower() == AUTHORITY:
            raise InvalidField(
                f"{self.name!r:.80} cannot be a party's name: use up to 63 letters, digits and "
                f"hyphens inside, and not {AUTHORITY!r}, in capitals or not"
            )
        wanted = self.kind.addresses
        if len(self.addresses) != len(wanted):
            needs = " and ".join(wanted) or "no address"
            raise InvalidField(f"a {self.kind.value} has {needs}; got {len(self.addresses)}")
        for key, address in zip(wanted, self.addresses, strict=True):
            TomlTable({key: address}).address(key)
            if is_party_name(split_address(address)[0]):
                raise InvalidField(f"{key}: {address:.80} cannot be: parties' names are there")

    @classmethod
    def read(cls, table: TomlTable) -> "Member":
        name, kind = table.text("name"), table.choice("kind", [each.value for each in PartyKind])
        return cls(name, PartyKind(kind), table.texts("addresses"))

    def table(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind.value, "addresses": list(self.addresses)}

    @property
    def serves(self) -> bool:
        return self.kind is not PartyKind.SILO

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the member's certificate; a server's own processes meet on loopback."""
        hosts = {split_address(address)[0] for address in self.addresses}
        hosts |= set(_LOOPBACK) if self.kind is PartyKind.SERVER else set()
        return tuple(sorted(hosts))

    def state(self, key: SigningKey, node_key: bytes, authority: bytes) -> bytes:
        """Sign what the roster says of this member: the party's own statement."""
        return key.sign("membership", *self._parts(node_key, authority))

    def check(self, statement: bytes, sign_key: bytes, node_key: bytes, authority: bytes) -> None:
        """Raise ForgedSignature unless the holder of `sign_key` made this statement."""
        verify(sign_key, statement, "membership", *self._parts(node_key, authority))

    def _parts(self, node_key: bytes, authority: bytes) -> list[bytes]:
        words = (self.name, self.kind.value, *self.addresses)
        return [authority, *(word.encode("utf-8") for word in words), node_key]


@dataclass(frozen=True, slots=True)
class Invitation:
    """An invitation for one party: until it expires, whoever has it can join once in its name.

    The key signs the party's request and never travels; the authority keeps its public half.
    """

    member: Member
    address: str  # of the authority
    authority: bytes  # its certificate in PEM
    expires: datetime
    key: SigningKey = field(repr=False)

    def save(self, path: Path) -> None:
        """Write the invitation to a file that only its owner can read; refuse an existing one."""
        if path.exists():
            raise InvalidInvitation(f"{path}: there is already a file of this name")
        certificate = parse_certificate(self.authority)
        table = {
            "version": VERSION,
            **self.member.table(),
            "authority": self.address,
            "expires": self.expires.astimezone(UTC).isoformat(timespec="seconds"),
            "ca": text_of(certificate.public_bytes(serialization.Encoding.DER)),
            "secret": text_of(self.key.raw),
        }
        head = (
            "# An invitation to a silomix consortium, for one party and one use. Keep it secret.\n"
        )
        write_durably(path, (head + tomli_w.dumps(table)).encode("utf-8"))

    @classmethod
    def load(cls, path: Path) -> "Invitation":
        read_secret(path)  # others may have used one that they could read
        with named(path, InvalidInvitation):
            table = read_table(path)
            if (version := table.whole("version")) != VERSION:
                raise InvalidField(f"version {version} is not supported; this release: {VERSION}")
            member, address = Member.read(table), table.address("authority")
            expires = table.text("expires")
            authority, secret = bytes_of(table, "ca"), bytes_of(table, "secret")
            table.finish()
            return table.build(
                lambda: cls(
                    member,
                    address,
                    _pem(authority),
                    datetime.fromisoformat(expires).astimezone(UTC),
                    SigningKey.from_raw(secret),
                )
            )


def authority_fingerprint(authority: bytes) -> bytes:
    """SHA-256 of the authority's certificate: which consortium something belongs to."""
    certificate = parse_certificate(authority)
    return sha256(certificate.public_bytes(serialization.Encoding.DER)).digest()


def text_of(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def bytes_of(table: TomlTable, key: str) -> bytes:
    try:
        return b64decode(table.text(key), validate=True)
    except NotBase64 as error:
        raise InvalidField(f"{key}: not base64") from error


def _pem(certificate: bytes) -> bytes:
    try:
        parsed = x509.load_der_x509_certificate(certificate)
    except ValueError as error:
        raise RefusedCertificate("ca: not a certificate") from error
    return parsed.public_bytes(serialization.Encoding.PEM)
