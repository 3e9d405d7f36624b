"""The roster: the members' names, addresses and public keys, as the authority hands them out.

Whoever puts a study together takes them from here.  Every entry bears its party's own signature,
so the authority can leave a party out, or invent one, but cannot give a party's key another name,
kind or address; whether a key is really that party's is for people to compare.
"""

import tomllib
from dataclasses import dataclass
from typing import Any

import tomli_w
from silomix_core.toml_table import InvalidField, TomlTable

from silomix_protocol.enrolment.membership import VERSION, Member, PartyKind, bytes_of, text_of
from silomix_protocol.keys import ForgedSignature


@dataclass(frozen=True, slots=True)
class RosterEntry:
    member: Member
    sign_key: bytes
    node_key: bytes  # of a silo; empty for others
    statement: bytes


@dataclass(frozen=True, slots=True)
class Roster:
    consortium: bytes  # fingerprint of the authority's certificate
    entries: tuple[RosterEntry, ...]

    def __post_init__(self) -> None:
        for entry in self.entries:
            try:
                keys = entry.sign_key, entry.node_key
                entry.member.check(entry.statement, *keys, self.consortium)
            except ForgedSignature as error:
                raise InvalidField(
                    f"{entry.member.name} did not sign its entry: somebody changed it"
                ) from error

    @classmethod
    def parse(cls, content: bytes) -> "Roster":
        top = TomlTable(tomllib.loads(content.decode("utf-8")))
        if (version := top.whole("version")) != VERSION:
            raise InvalidField(f"version {version} is not supported; this release: {VERSION}")
        consortium = top.text("consortium")
        entries = [_entry(row) for row in top.tables("parties")] if top.has("parties") else []
        top.finish()
        return top.build(lambda: cls(bytes.fromhex(consortium), tuple(entries)))

    def content(self) -> bytes:
        rows = [
            entry.member.table()
            | {"sign_key": text_of(entry.sign_key), "node_key": text_of(entry.node_key)}
            | {"statement": text_of(entry.statement)}
            for entry in self.entries
        ]
        table = {"version": VERSION, "consortium": self.consortium.hex(), "parties": rows}
        return tomli_w.dumps(table).encode("utf-8")

    def entry(self, name: object, kind: PartyKind) -> RosterEntry:
        found = [entry for entry in self.entries if entry.member.name == name]
        if not found:
            raise InvalidField(
                f"the roster has no party {name!r:.80}: it has not joined yet, or was revoked"
            )
        if found[0].member.kind is not kind:
            actual = found[0].member.kind.value
            raise InvalidField(f"{name} is a {actual} in the roster, not a {kind.value}")
        return found[0]


def completed(outline: dict[str, Any], roster: Roster) -> dict[str, Any]:
    """The outline of a study with its parties' keys and addresses."""
    study = dict(outline)
    study["server"] = _completed(outline.get("server"), PartyKind.SERVER, roster, "server")
    for key, kind in (("mixes", PartyKind.MIX), ("silos", PartyKind.SILO)):
        rows = outline.get(key)
        if not isinstance(rows, list):
            raise InvalidField(f"missing key: {key} (an array of tables)")
        study[key] = [_completed(row, kind, roster, key) for row in rows]
    return study


def _completed(row: object, kind: PartyKind, roster: Roster, where: str) -> dict[str, Any]:
    if not isinstance(row, dict) or "name" not in row:
        raise InvalidField(f"{where}: expected a table with a name")
    entry = roster.entry(row["name"], kind)
    known = dict(zip(kind.addresses, entry.member.addresses, strict=True))
    known["sign_key"] = text_of(entry.sign_key)
    if entry.node_key:
        known["node_key"] = text_of(entry.node_key)
    for key, value in known.items():
        if row.get(key, value) != value:
            raise InvalidField(f"{where}: {key} of {entry.member.name} is another in the roster")
    return dict(row) | known


def _entry(row: TomlTable) -> RosterEntry:
    member = Member.read(row)
    keys = bytes_of(row, "sign_key"), bytes_of(row, "node_key")
    entry = RosterEntry(member, *keys, bytes_of(row, "statement"))
    row.finish()
    return entry
