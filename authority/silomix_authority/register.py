"""The authority's register: invitations, parties, every certificate it made; SQLite.

The running service and its operator's commands use it at the same time, each in whole
transactions.  An invitation is kept as the public half of its key: who reads the register cannot
use one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from silomix_protocol.enrolment.membership import Member, PartyKind
from silomix_protocol.host.durable import one_moment, open_database, transaction
from silomix_protocol.rounds.heights import SCHEMA as HEIGHTS
from silomix_protocol.rounds.heights import Height, keep_height, kept_heights

_VERSION = 2
_UPGRADES = {
    1: """
CREATE TABLE used_keys (key BLOB PRIMARY KEY);
INSERT OR IGNORE INTO used_keys SELECT sign_key FROM parties;
INSERT OR IGNORE INTO used_keys SELECT node_key FROM parties WHERE node_key != x''
"""
}
_SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS invitations (
  key BLOB PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, addresses TEXT NOT NULL,
  expires REAL NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parties (
  name TEXT PRIMARY KEY, kind TEXT NOT NULL, addresses TEXT NOT NULL, sign_key BLOB NOT NULL,
  node_key BLOB NOT NULL, statement BLOB NOT NULL, invitation BLOB NOT NULL,
  joined REAL NOT NULL, revoked REAL);
CREATE TABLE IF NOT EXISTS certificates (
  serial TEXT PRIMARY KEY, name TEXT NOT NULL, key BLOB NOT NULL, pem BLOB NOT NULL,
  issued REAL NOT NULL, expires REAL NOT NULL, revoked REAL);
CREATE INDEX IF NOT EXISTS certificates_of ON certificates (name, issued);
CREATE TABLE IF NOT EXISTS revocations (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT);
CREATE TABLE IF NOT EXISTS used_keys (key BLOB PRIMARY KEY);
"""
    + HEIGHTS
)


@dataclass(frozen=True, slots=True)
class Invited:
    key: bytes
    member: Member
    expires: datetime
    state: str  # open, used or withdrawn


@dataclass(frozen=True, slots=True)
class Party:
    member: Member
    sign_key: bytes
    node_key: bytes
    statement: bytes
    invitation: bytes  # key of the invitation that it joined with
    joined: datetime
    revoked: datetime | None


@dataclass(frozen=True, slots=True)
class Issued:
    serial: int
    name: str
    key: bytes  # DER
    pem: bytes
    issued: datetime
    expires: datetime


class Register:
    def __init__(self, folder: Path) -> None:
        self._database = open_database(
            folder / "register.sqlite", _SCHEMA, _VERSION, upgrades=_UPGRADES
        )

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Write everything inside or nothing, as part of a change around it if there is one; nobody
        else writes meanwhile."""
        if self._database.in_transaction:
            yield
            return
        with transaction(self._database):
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read everything inside as of one moment, that of a change around it if there is one."""
        if self._database.in_transaction:
            yield
            return
        with one_moment(self._database):
            yield

    # Invitations --------------------------------------------------------------------------------

    def add_invitation(self, invited: Invited) -> None:
        self._database.execute(
            "INSERT INTO invitations VALUES (?, ?, ?, ?, ?, ?)",
            (
                invited.key,
                *_member_values(invited.member),
                invited.expires.timestamp(),
                invited.state,
            ),
        )

    def invitation(self, key: bytes) -> Invited | None:
        rows = self._rows("SELECT * FROM invitations WHERE key = ?", key)
        return _invited(rows[0]) if rows else None

    def invitations(self) -> list[Invited]:
        """The open invitations, expired ones too."""
        rows = self._rows("SELECT * FROM invitations WHERE state = 'open' ORDER BY name")
        return [_invited(row) for row in rows]

    def use_invitation(self, key: bytes) -> None:
        self._database.execute("UPDATE invitations SET state = 'used' WHERE key = ?", (key,))

    def withdraw_invitations(self, name: str) -> int:
        """Withdraw the open invitations of this name; return how many there were."""
        return self._database.execute(
            "UPDATE invitations SET state = 'withdrawn' WHERE name = ? AND state = 'open'", (name,)
        ).rowcount

    # Parties ------------------------------------------------------------------------------------

    def set_party(self, party: Party) -> None:
        """Add a party; a revoked one comes back with new keys, its old keys stay known."""
        self._database.executemany(
            "INSERT INTO used_keys VALUES (?)",
            [(key,) for key in (party.sign_key, party.node_key) if key],
        )
        self._database.execute(
            "INSERT OR REPLACE INTO parties VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            (
                *_member_values(party.member),
                party.sign_key,
                party.node_key,
                party.statement,
                party.invitation,
                party.joined.timestamp(),
            ),
        )

    def party(self, name: str) -> Party | None:
        rows = self._rows("SELECT * FROM parties WHERE name = ?", name)
        return _party(rows[0]) if rows else None

    def parties(self) -> list[Party]:
        return [_party(row) for row in self._rows("SELECT * FROM parties ORDER BY kind, name")]

    def spelled_otherwise(self, name: str) -> str | None:
        """A party, revoked or not, or one with an open invitation, whose name is the same but for
        capitals: TLS does not tell them apart."""
        rows = self._rows(
            "SELECT name FROM parties UNION SELECT name FROM invitations WHERE state = 'open'"
        )
        return next(
            (each for (each,) in rows if each != name and each.lower() == name.lower()), None
        )

    def knows_key(self, sign_key: bytes, node_key: bytes) -> bool:
        """Whether a party, revoked or not, has or ever had one of these keys."""
        return bool(self._rows("SELECT 1 FROM used_keys WHERE key IN (?, ?)", sign_key, node_key))

    def revoke(self, name: str, now: datetime) -> None:
        """Revoke a party and every certificate of it."""
        moment = now.timestamp()
        self._database.execute("UPDATE parties SET revoked = ? WHERE name = ?", (moment, name))
        self._database.execute(
            "UPDATE certificates SET revoked = ? WHERE name = ? AND revoked IS NULL",
            (moment, name),
        )
        self.count_change(name)

    # How far silos' ledgers are -----------------------------------------------------------------

    def heights(self) -> dict[bytes, Height]:
        """The highest height of every silo's ledger, by the silo's signing key."""
        return kept_heights(self._database)

    def keep_height(self, sign_key: bytes, height: Height) -> None:
        with self.change():
            keep_height(self._database, sign_key, height)

    # Certificates -------------------------------------------------------------------------------

    def add_certificate(self, issued: Issued) -> None:
        self._database.execute(
            "INSERT INTO certificates VALUES (?, ?, ?, ?, ?, ?, NULL)",
            (
                str(issued.serial),
                issued.name,
                issued.key,
                issued.pem,
                issued.issued.timestamp(),
                issued.expires.timestamp(),
            ),
        )

    def certificate(self, name: str, key: bytes) -> Issued | None:
        """The party's latest certificate for this key that is not revoked."""
        rows = self._rows(
            "SELECT * FROM certificates WHERE name = ? AND key = ? AND revoked IS NULL "
            "ORDER BY issued DESC LIMIT 1",
            name,
            key,
        )
        return _issued(rows[0]) if rows else None

    def latest_certificate(self, name: str) -> Issued | None:
        rows = self._rows(
            "SELECT * FROM certificates WHERE name = ? ORDER BY issued DESC LIMIT 1", name
        )
        return _issued(rows[0]) if rows else None

    def valid_certificates(self, name: str, now: datetime) -> list[Issued]:
        """The party's certificates that are neither revoked nor expired, the latest first."""
        rows = self._rows(
            "SELECT * FROM certificates WHERE name = ? AND revoked IS NULL AND expires > ? "
            "ORDER BY issued DESC",
            name,
            now.timestamp(),
        )
        return [_issued(row) for row in rows]

    # What the revocation list says --------------------------------------------------------------

    def count_change(self, name: str) -> None:
        """Count that a member is barred, or a barred party is a member again: these take turns."""
        self._database.execute("INSERT INTO revocations (name) VALUES (?)", (name,))

    def changes(self) -> list[str]:
        """The parties that were revoked or came back, one name for each time."""
        return [str(name) for (name,) in self._rows("SELECT name FROM revocations ORDER BY number")]

    def revoked_serials(self, now: datetime) -> list[int]:
        """The numbers of the revoked certificates that have not expired."""
        rows = self._rows(
            "SELECT serial FROM certificates WHERE revoked IS NOT NULL AND expires > ?",
            now.timestamp(),
        )
        return [int(serial) for (serial,) in rows]

    def _rows(self, query: str, *values: object) -> list[Any]:
        return self._database.execute(query, values).fetchall()


def _member_values(member: Member) -> tuple[str, str, str]:
    return member.name, member.kind.value, " ".join(member.addresses)


def _member(name: str, kind: str, addresses: str) -> Member:
    return Member(name, PartyKind(kind), tuple(addresses.split()))


def _invited(row: Any) -> Invited:
    return Invited(row[0], _member(*row[1:4]), _moment(row[4]), row[5])


def _party(row: Any) -> Party:
    revoked = _moment(row[8]) if row[8] is not None else None
    return Party(_member(*row[:3]), row[3], row[4], row[5], row[6], _moment(row[7]), revoked)


def _issued(row: Any) -> Issued:
    return Issued(int(row[0]), row[1], row[2], row[3], _moment(row[4]), _moment(row[5]))


def _moment(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)
