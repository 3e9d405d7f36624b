"""Backup and restore of what a silo cannot make again: its ledger, its keys, its configuration.

A backup is taken while the silo runs (SQLite's online copy) and holds no records: neither data nor
snapshots nor reports, nor the secrets that noise follows from.  Files that silo.toml or the policy
name (a database's address, a proxy's login) are in it if they are in the silo's folder.

A ledger that is put back is one of the past.  What happened between is lost: rounds of studies that
were open, and whole studies that were approved later.  So a restored ledger never has *more* room
than the lost one:

- every study that was open in the backup is closed, and all that it had reserved counts as spent:
  approval reserved it beforehand, so no more can have been spent on it;
- studies that the operator names as approved later are entered, closed, and count in full;
- unless the operator states that there was no other, all of the budget counts as spent, whatever
  it is, and nothing is approved any more.

The audit log comes along, whole and never ahead of the ledger; a backup and a restore are lines in
it.
"""

import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from silomix_core.study.reader import parse_study
from silomix_core.study.study import Study, StudyId
from silomix_protocol.host.durable import make_folder, one_moment, sync_folder, write_durably
from silomix_protocol.host.operator_files import named, read_own_table
from silomix_protocol.keys import SigningKey, UnusableKey, fingerprint, write_secret

from silomix_client.approval.approve import operator
from silomix_client.audit_log.log import FILE as AUDIT_LOG
from silomix_client.audit_log.log import AuditLog, audit_log
from silomix_client.audit_log.verify_log import check_chain, note_unlogged
from silomix_client.backup.encrypted_file import Unopenable
from silomix_client.config.silo_config import MAIN, SiloConfig, load
from silomix_client.errors import InvalidSiloConfig, LedgerBroken, NotApproved, SiloError
from silomix_client.ledger import hash_chain
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import verify
from silomix_client.ledger.witnessed_height import FILE as HEIGHT
from silomix_client.ledger.witnessed_height import Witness
from silomix_client.random_stream import KEY_BYTES
from silomix_client.rounds.complaint_files import FOLDER as COMPLAINTS

_NOTE, _LEDGER, _SIGN_KEY = "backup.json", "state/ledger.sqlite", "sign.key"
_LOG = f"state/{AUDIT_LOG}"
_PASSING = ("reports", "tokens", "controls")  # tables of the ledger that a backup has empty
_KEPT = ("*.toml", "*.crt", "*.pem", "*.key")  # of the silo's folder
_KEPT_STATE = (AUDIT_LOG, HEIGHT, f"{COMPLAINTS}/*.json")  # of state/, beside the ledger
_NAMING = {"url_file", "proxy_login", "ca"}  # keys that name a file which is no data
_MOST_BYTES = 2**31


@dataclass(frozen=True, slots=True)
class Note:
    """What a backup says of itself."""

    silo: str
    at: str
    entries: int
    head: str
    config: str  # the name of silo.toml


@dataclass(frozen=True, slots=True)
class Described:
    """What an opened backup says of itself, and the fingerprint of its sign.key."""

    note: Note
    sign_key: str


@dataclass(frozen=True, slots=True)
class Since:
    """What the operator knows of the time after the backup.

    The studies that were approved then, each with its population (None: not said, which will do
    if there is only one); `complete`: no other was approved; the policy, if it changed.
    """

    studies: Sequence[tuple[bytes, str | None]] = ()
    complete: bool = False
    policy: bytes | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    config: Path
    note: Note
    given_up: tuple[Study, ...]  # open in the backup, or named by the operator


def collect(config: SiloConfig, file_name: str, now: datetime) -> tuple[Note, bytes]:
    """Collect the silo as it is now into bytes to seal; LedgerBroken if its ledger is not whole.

    `file_name` is that of its silo.toml.  AuditLogBroken if the audit log is not whole.
    """
    if config.policy_file.resolve().parent != config.folder.resolve():
        raise SiloError(f"{config.policy_file}: a backup has it only if it is in {config.folder}")
    check_chain(config.state)
    files = _kept(config, file_name)  # before the ledger: no line names an entry that it has not
    with closing(Ledger(config.state, config.policy)) as ledger, one_moment(ledger.database):
        verified, copied = verify(ledger), _lasting(ledger.database)
    note = Note(config.name, now.isoformat(), verified.entries, verified.head.hex(), file_name)
    described = json.dumps({field: getattr(note, field) for field in Note.__slots__}).encode()
    return note, _packed(files | {_NOTE: described, _LEDGER: copied})


def _lasting(database: sqlite3.Connection) -> bytes:
    """A copy of the ledger without what only an open study needs.

    That is reports, tokens, control variates, and the secrets of approvals, which take the noise
    off reports.  A restore closes every study.  The copy is in memory, and written anew: no page
    keeps a trace.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        copy.execute("PRAGMA temp_store = MEMORY")
        database.backup(copy)
        for table in _PASSING:
            copy.execute(f"DELETE FROM {table}")  # noqa: S608
        copy.execute("UPDATE studies SET partition = x''")
        copy.execute("VACUUM")
        return copy.serialize()


def _kept(config: SiloConfig, file_name: str) -> dict[str, bytes]:
    """The files of a backup, but for the ledger, by their names in the folder."""
    paths = [
        path
        for folder, patterns in ((config.folder, _KEPT), (config.state, _KEPT_STATE))
        for pattern in patterns
        for path in folder.glob(pattern)
    ]
    texts = (config.folder / file_name).read_bytes(), config.policy_file.read_bytes()
    named = [config.folder / name for name in named_files(texts) if _is_inside(name)]
    paths += [path for path in named if path.is_file()]
    contents = {
        path.relative_to(config.folder).as_posix(): path.read_bytes() for path in sorted(set(paths))
    }
    log = contents.get(_LOG, b"")  # a line is perhaps being added to it
    return contents | ({_LOG: log[: log.rfind(b"\n") + 1]} if log else {})


def left_out(config: SiloConfig, file_name: str) -> list[str]:
    """The files that the configuration names and a backup has not: they are elsewhere."""
    texts = (config.folder / file_name).read_bytes(), config.policy_file.read_bytes()
    return sorted(name for name in named_files(texts) if not _is_inside(name))


def named_files(texts: Sequence[bytes]) -> set[str]:
    """The files, other than data, that these configurations name."""
    tables = [tomllib.loads(text.decode("utf-8")) for text in texts]
    return {name for table in tables for name in _names_in(table)}


def _names_in(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _names_in(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in _NAMING and isinstance(each, str):
                yield PurePosixPath(each).as_posix()
            else:
                yield from _names_in(each)


def _is_inside(name: str) -> bool:
    """Whether a path is inside the silo's folder, not the folder itself, nor in its state."""
    path = PurePosixPath(name)
    return bool(path.parts) and not (
        path.is_absolute() or ".." in path.parts or path.parts[0] == "state"
    )


def record_backup(config: SiloConfig, note: Note, file: Path) -> None:
    """Write to the audit log what was saved, where, by whom."""
    with audit_log(config) as log:
        log.append(
            "backup_made",
            file=file.absolute(),
            ledger_entries=note.entries,
            ledger_head=note.head,
            user=operator(),
        )


def describe(packed: bytes) -> Described:
    """Describe a backup to the operator before a restore; nothing is written.

    `restore` refuses a ledger with another head, or another number of entries.  The date is only
    what the backup says.
    """
    files = _unpacked(packed)
    try:
        sign_key = SigningKey.from_raw(files.get(_SIGN_KEY, b"")).public
    except UnusableKey as error:
        raise Unopenable(f"the backup has no usable {_SIGN_KEY}") from error
    return Described(_note(files.get(_NOTE, b"")), fingerprint(sign_key).hex())


def restore(packed: bytes, folder: Path, since: Since, now: datetime) -> Restored:
    """Make the silo's folder anew, with a ledger that has forgotten nothing that counts.

    The folder appears only when all of it is there.
    """
    files = _unpacked(packed)
    note = _note(files.pop(_NOTE, b""))
    _check_names(files, note)
    if folder.exists():
        raise SiloError(f"{folder} exists; a backup is put back into a new folder only")
    make_folder(folder.parent, mode=0o777)
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(files, partial)
        if since.policy is not None:
            write_durably(_policy_of(partial / note.config), since.policy)
        config = load(partial / note.config)
        with audit_log(config) as log:
            given_up = _settle(config, log, note, since, now)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # keys lie in it
    sync_folder(folder.parent)
    return Restored(folder / note.config, note, given_up)


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        make_folder((folder / name).parent)
        write_secret(folder / name, content)


def _settle(
    config: SiloConfig, log: AuditLog, note: Note, since: Since, now: datetime
) -> tuple[Study, ...]:
    """Count everything that may have been spent since the backup."""
    with closing(Ledger(config.state, config.policy)) as ledger:
        verified = verify(ledger)
        found = config.name, verified.entries, verified.head.hex()
        if found != (note.silo, note.entries, note.head):
            raise LedgerBroken("the backup's ledger is not the one that it names")
        note_unlogged(ledger, log, check_chain(config.state))
        for content, population in since.studies:
            _enter(ledger, config, content, population, now)
        body = {"at": now.isoformat(), "backup": note.at, "head": note.head}
        ledger.put_back(body | _above(config, ledger) | {"complete": since.complete})
        (config.state / HEIGHT).unlink(missing_ok=True)
        given_up = [each for each in ledger.approvals() if not each.closed]
        for approval in given_up:
            ledger.forfeit(approval.study.identity, now)
        verify(ledger)
        _record_restore(ledger, log, note, since, given_up)
    return tuple(approval.study for approval in given_up)


def _above(config: SiloConfig, ledger: Ledger) -> dict[str, int]:
    """The restore time to stand above, if others had shown one by the time of the backup."""
    sign_key = SigningKey.load(config.folder / _SIGN_KEY)
    shown_ms = Witness(ledger, config.name, sign_key).shown_restored_ms()
    return {"above_ms": shown_ms} if shown_ms else {}


def _record_restore(
    ledger: Ledger, log: AuditLog, note: Note, since: Since, given_up: Sequence[Approval]
) -> None:
    """Write to the audit log what was closed and counts as spent, and the entries that say so."""
    for approval in given_up:
        log.append(
            "study_counted_in_full",
            warning=True,
            study=approval.study.identity.hex(),
            name=approval.study.name,
            population=approval.population,
            epsilon=approval.mechanism.epsilon(approval.participant),
            delta=approval.participant.target.delta,
        )
    *_, last = hash_chain.checked(ledger.database)
    log.append(
        "ledger_put_back",
        warning=True,
        backup=note.at,
        backup_head=note.head,
        studies_closed=len(given_up),
        studies_named=len(since.studies),
        budget="as recorded" if since.complete else "counts as spent",
        user=operator(),
        first_entry=note.entries + 1,
        entry=last.number,
        head=last.short,
    )


def _policy_of(config: Path) -> Path:
    with named(config, InvalidSiloConfig):
        return config.parent / read_own_table(config).text("policy")


def _enter(
    ledger: Ledger, config: SiloConfig, content: bytes, population: str | None, now: datetime
) -> None:
    """Enter a study that was approved after the backup, as if the backup had it.

    It was inside the policy when it was approved; what counts here is that nothing is left out.
    """
    study = parse_study(content)
    if population is None and len(config.policy.budgets) > 1:
        raise NotApproved(
            f"study {study.short_id}: your policy has several populations; say for which one it "
            "was approved: --study POPULATION:FILE, or --study :FILE for the main one"
        )
    population = population or MAIN
    if ledger.knows(StudyId(study.identity)):
        return
    if study.silo(config.name) is None:
        raise NotApproved(f"study {study.short_id} does not name {config.name!r} among its silos")
    if population not in config.policy.budgets:
        raise NotApproved(f"your policy names no population {population!r}")
    approval = Approval(
        study=study,
        silo=config.name,
        snapshot=b"",
        partition=os.urandom(KEY_BYTES),
        population=population,
    )
    ledger.enter(approval, content, now)


def _packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _unpacked(packed: bytes) -> dict[str, bytes]:
    """The backup's files by name; refuse all but plain files in the folder and in its state."""
    files: dict[str, bytes] = {}
    left = _MOST_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            for entry in archive:
                left -= entry.size
                stored = archive.extractfile(entry) if entry.isfile() else None
                if stored is None or left < 0 or not _may_be_ours(entry.name):
                    raise _foreign(entry.name)
                files[entry.name] = stored.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Unopenable("the backup is not whole") from error
    if _LEDGER not in files:
        raise Unopenable("the backup has no ledger")
    return files


def _check_names(files: Mapping[str, bytes], note: Note) -> None:
    """Refuse all files but those that every silo has, or this one's configuration names."""
    try:
        own = files[note.config]
        policy = files[tomllib.loads(own.decode("utf-8"))["policy"]]
        named = named_files((own, policy))
    except (KeyError, TypeError, ValueError) as error:
        raise Unopenable("the backup has no configuration that can be read") from error
    for name in files:
        if not _is_kept(name) and name not in named:
            raise _foreign(name)


def _foreign(name: str) -> Unopenable:
    return Unopenable(f"the backup has a file that no silo has: {name!r}")


def _may_be_ours(name: str) -> bool:
    return _is_kept(name) or _is_inside(name)


def _is_kept(name: str) -> bool:
    path = PurePosixPath(name)
    if name in (_NOTE, _LEDGER):
        return True
    if path.parts[:1] == ("state",):
        kept = path.relative_to("state")
        return ".." not in path.parts and any(kept.match(each) for each in _KEPT_STATE)
    return len(path.parts) == 1 and any(path.match(each) for each in _KEPT)


def _note(content: bytes) -> Note:
    """Read what the backup says of itself; refuse texts that a terminal would not show as is."""
    try:
        note = Note(**json.loads(content))
        datetime.fromisoformat(note.at)
        texts_are_plain = all(each.isprintable() for each in (note.silo, note.at, note.config))
        head_is_one = re.fullmatch("([0-9a-f]{64})?", note.head) is not None
    except (ValueError, TypeError, AttributeError) as error:
        raise Unopenable("the backup does not say what it is") from error
    if not texts_are_plain or not head_is_one or type(note.entries) is not int:
        raise Unopenable("the backup does not say what it is")
    if PurePosixPath(note.config).name != note.config:
        raise Unopenable("the backup names no configuration")
    return note
