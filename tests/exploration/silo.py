"""A real silo as a machine: its desk, ledger, stored report and inclusion, in any state.

Everything on disk (the database and the small files beside it) and in memory is taken out and put
back; a crash loses what is in memory.  What it is told comes from a stated vocabulary:

    ("ask", D, enclosed)    a round is opened, with every mix's abandonments of the D's enclosed
    ("receipt", D)          the first mix's receipt for its report of D
    ("list", D, mine, others, doubled, tag, signers)
                            a list of D that these mixes signed, with its report or without it;
                            lists with different tags have different reports of others
    ("closed", D, void, ended)   the round is over; ended: every mix says that nothing opens
    ("crash",)              killed and started again
    ("power",)              the same, and what was not synced is gone: what became of its report

What it says: ("report", D, payload), ("confirmed", D, tag), ("complained", D, tag), ("silent", D)
if it has a receipt and neither confirms nor complains, ("refused",), ("stopped",).
"""

import copy
import json
import os
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from exploration.machines import Event, Machine, Output
from exploration.questions import Name, Questions
from google.protobuf.message import Message
from silomix_client.errors import SiloError
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.ledger_tables import TABLES
from silomix_client.ledger.study_account import StudyAccount
from silomix_client.rounds import answer, complaint_files
from silomix_client.rounds.inclusion import Inclusion
from silomix_client.rounds.missing_report import Inquiry
from silomix_client.rounds.stop_rule import StopRule
from silomix_core.study.study import Study
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import SigningKey
from silomix_protocol.keys import number as packed
from silomix_protocol.rounds.onion import Onion
from silomix_protocol.rounds.statements import (
    sign_abandonment,
    sign_closing,
    sign_commitment,
    sign_receipt,
    sign_voided,
)
from support.silos import approved_silo, open_desk, open_ledger

_FOLDERS = ("reports", "neglect", complaint_files.FOLDER)
_AFTERWARDS = ".afterwards"
_GATED_BY_OTHERS = b"of another silo"


@dataclass(frozen=True, slots=True)
class SiloState:
    """All of a silo: its database, its small files, what is in memory."""

    database: bytes = field(repr=False)
    files: dict[str, bytes] = field(repr=False)
    inclusion: Inclusion = field(repr=False)
    key: Hashable
    charged_twice: bool


class SiloMachine(Machine[SiloState]):
    """One silo of a consortium, approved and supplied with tokens."""

    def __init__(self, questions: Questions) -> None:
        super().__init__()
        self.rounds = questions.study.rounds  # that may be asked
        self._questions, self._study = questions, questions.study
        self._config = approved_silo(questions.made)
        self._ledger: Ledger = open_ledger(self._config)
        self._sign_key = questions.silo_keys[0]
        self._desk = open_desk(self._config, self._study, self._ledger)
        self._desk._fixed_time.seconds = 0.0  # how long an answer takes is not looked at
        _seal_alike()
        self._inclusion = self._new_inclusion()
        self.first = self.number(self._taken())

    def close(self) -> None:
        self._ledger.close()

    # What it is told ----------------------------------------------------------------------------

    def take(self, snapshot: SiloState, event: Event) -> tuple[SiloState, Output]:
        self._put_back(snapshot)
        kind, *rest = event
        try:
            said: Output = getattr(self, f"_{kind}")(*rest)
        except (SiloError, ValueError):
            said = (("refused",),)
        return self._taken(), said

    def _ask(self, name: Name, enclosed: tuple[Name, ...]) -> Output:
        statements = [
            sign_abandonment(self._questions.secrets(each).digest, "ended", key)
            for each in enclosed
            for key in self._questions.mix_keys
        ]
        asked = replace(self._questions.asked(name), abandoned=tuple(statements))
        self._inclusion.told(asked.descriptor.round)
        self._inclusion.opened(asked.descriptor)
        if self._inclusion.stop_rule.stops:
            return (("stopped",),)
        report = self._desk.answer(asked)
        self._inclusion.answered(report)
        sent = self._questions.name(report.descriptor.digest)
        return (("report", sent, sha256(report.payload).digest()[:8]),)

    def _receipt(self, name: Name) -> Output:
        stored = self._ledger.account(self._study).last_report()
        if stored is None or self._questions.name(stored.descriptor.digest) != name:
            return ()
        digest = stored.descriptor.digest
        onion = sha256(stored.onion).digest()
        receipt = sign_receipt(digest, 0, onion, self._questions.mix_keys[0])
        self._ledger.account(self._study).note_receipt(digest, receipt)
        return ()

    def _list(
        self, name: Name, mine: bool, others: int, doubled: int, tag: int, signers: tuple[int, ...]
    ) -> Output:
        digest = self._questions.secrets(name).digest
        known = self._ledger.account(self._study).outcome(digest)
        committed = self._committed(name, self._listing(mine, others, doubled, tag), signers)
        said: list[tuple[Hashable, ...]] = []
        for frame in self._inclusion.committed(committed):
            if frame.answer.HasField("confirmation"):
                said.append(("confirmed", name, tag))
            if frame.answer.HasField("complaint"):
                said.append(("complained", name, tag))
        stored = self._ledger._tables.reports.digest(self._study.identity)
        if not said and known.receipt is not None and stored == digest:
            said.append(("silent", name))
        return tuple(said)

    def _listing(self, mine: bool, others: int, doubled: int, tag: int) -> bytes:
        stored = self._ledger.account(self._study).last_report()
        own = [stored.trail[-1]] if mine and stored is not None else []
        rest = [
            sha256(_GATED_BY_OTHERS + packed(tag) + packed(each)).digest() for each in range(others)
        ]
        listing = [*own, *rest]
        return b"".join([*listing, *listing[:doubled]])

    def _committed(
        self, name: Name, listing: bytes, signers: tuple[int, ...]
    ) -> channel_pb2.RoundCommitted:
        """The list, with a forged signature of every mix that did not sign."""
        digest, list_hash = self._questions.secrets(name).digest, sha256(listing).digest()
        keys = [
            key if hop in signers else self._questions.server_key
            for hop, key in enumerate(self._questions.mix_keys)
        ]
        signatures = [sign_commitment(digest, list_hash, key) for key in keys]
        return channel_pb2.RoundCommitted(digest=digest, list=listing, signatures=signatures)

    def _closed(self, name: Name, void: bool, ended: bool) -> Output:
        digest = self._questions.secrets(name).digest
        endings = [sign_voided(digest, "void", b"", key) for key in self._questions.mix_keys]
        key = self._questions.server_key
        self._inclusion.closed(sign_closing(digest, endings if ended else (), key, void=void))
        return ()

    def _crash(self) -> Output:
        self._inclusion = self._new_inclusion()
        return ()

    def _power(self) -> Output:
        self._ledger._tables.reports.close()
        for path in (self._config.state / "reports").glob(f"*{_AFTERWARDS}"):
            path.write_bytes(b"")
        return self._crash()

    # State in and out -----------------------------------------------------------------------------

    def _new_inclusion(self) -> Inclusion:
        return Inclusion(
            self._study, self._config.name, self._ledger, self._sign_key, self._config.state
        )

    def _put_back(self, snapshot: SiloState) -> None:
        self._ledger._tables.reports.close()
        self._ledger.database.deserialize(snapshot.database)
        self._ledger.account(self._study)._decided = None
        for name in self._files.keys() - snapshot.files.keys():
            (self._config.state / name).unlink()
        for name, content in snapshot.files.items():
            if self._files.get(name) != content:
                path = self._config.state / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
        self._files = snapshot.files
        self._inclusion = _copy(snapshot.inclusion)

    def _taken(self) -> SiloState:
        self._ledger._tables.reports.close()
        image = bytearray(self._ledger.database.serialize())
        image[18:20] = b"\1\1"  # not in write-ahead mode: a database in memory has no such file
        self._files = {
            f"{folder}/{entry.name}": Path(entry.path).read_bytes()
            for folder in _FOLDERS
            if (self._config.state / folder).exists()
            for entry in os.scandir(self._config.state / folder)
        }
        return SiloState(
            bytes(image),
            self._files,
            _copy(self._inclusion),
            self._key(self._files),
            self._charged_twice(),
        )

    def _charged_twice(self) -> bool:
        """Whether the chain has two charges of one round."""
        rows = self._ledger.database.execute("SELECT line FROM entries").fetchall()
        charged = [
            body["round"] for (line,) in rows if (body := json.loads(line))["kind"] == "charge"
        ]
        return len(set(charged)) < len(charged)

    def charged_twice(self, number: int) -> bool:
        return self.snapshot(number).charged_twice

    def key(self, snapshot: SiloState) -> Hashable:
        return snapshot.key

    def used(self, number: int) -> tuple[Name, bool | None] | None:
        """The last report that it answered with, and whether it was used; None: it is not known."""
        self._put_back(self.snapshot(number))
        stored = self._ledger.account(self._study).last_report()
        if stored is None:
            return None
        digest = stored.descriptor.digest
        known = self._ledger.account(self._study).outcome(digest)
        return self._questions.name(digest), known.used if known.settled else None

    def unsettled(self, number: int) -> bytes | None:
        """D of the last report, if the silo would ask what became of it."""
        self._put_back(self.snapshot(number))
        return self._inclusion.unsettled

    def _key(self, files: dict[str, bytes]) -> Hashable:
        """All rows, files and attributes, but for what nothing in the vocabulary reads again.

        That is: an operator's copies of complaints, and the inquiry that collects for them; what
        became of a report that is no longer the stored one; which rounds were told of, once no
        later one can be left out.
        """
        rows = [
            self._ledger.database.execute(f"SELECT * FROM {each}").fetchall()  # noqa: S608
            for each in TABLES
        ]
        stored = self._ledger._tables.reports.digest(self._study.identity) or b""
        read = [
            each
            for each in sorted(files.items())
            if not each[0].startswith(complaint_files.FOLDER)
            and not (each[0].endswith(_AFTERWARDS) and not each[1].startswith(stored or b"-"))
        ]
        memory = vars(self._inclusion) | {"_inquiry": None}
        told = max(memory["_told"], memory["_last_answered"])
        if told + 1 >= self.rounds:
            memory |= {"_told": 0, "_last_answered": 0, "_listening": False}
        return sha256(repr((rows, read, _plain(memory))).encode()).digest()


def _seal_alike() -> None:
    """The same payload sealed for the same D gives the same bytes: states can be compared."""
    if hasattr(answer.seal, "cache_info"):
        return

    real = answer.seal

    @cache
    def seal(
        payload: bytes, server_key: bytes, keys: tuple[bytes, ...], digest: bytes, ungated: int
    ) -> Onion:
        parsed = [round_pb2.RoundKeys.FromString(each) for each in keys]
        return real(payload, server_key, parsed, digest, ungated=ungated)

    def sealed(payload, server_key, keys, digest, *, ungated):
        return seal(
            payload, server_key, tuple(each.SerializeToString() for each in keys), digest, ungated
        )

    sealed.cache_info = seal.cache_info  # type: ignore[attr-defined]
    answer.seal = sealed


def _copy(inclusion: Inclusion) -> Inclusion:
    """What it has is frozen, or shared by all, but for a tally and an inquiry."""
    copied = copy.copy(inclusion)
    for name, value in vars(inclusion).items():
        if isinstance(value, StopRule | Inquiry):
            setattr(copied, name, copy.copy(value))
    return copied


def _plain(value: Any) -> Any:
    """A value whose repr is the same for the same content."""
    if isinstance(value, Message):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, StudyAccount | Study | SigningKey | Path):
        return None  # the same in every state
    if isinstance(value, dict):
        return sorted((str(name), _plain(each)) for name, each in value.items())
    if isinstance(value, list | tuple | deque):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return [_plain(getattr(value, each.name)) for each in fields(value)]
    return _plain(vars(value)) if hasattr(value, "__dict__") else value
