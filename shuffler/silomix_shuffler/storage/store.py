"""What a mix keeps on disk: rounds, keys, reports, so that a crash in any state loses nothing.

Metadata in one SQLite file, bodies in one spool file per batch (written and synced before the
metadata that names them).  Every method is one step, durable where somebody relies on it; nothing
is cached here.  Private round keys live from `prepare` on: seal keys until the batch is sealed, or
behind a gate until it is released or purged, release keys until it is voided or purged.  Deleted
content is overwritten (`durable`) and the write-ahead log cut short at every `tidy`.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from silomix_core.study.study import StudyId
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.host.durable import (
    UnusableDatabase,
    cut_log,
    make_folder,
    note,
    open_database,
    transaction,
)
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest
from silomix_protocol.rounds.heights import SCHEMA as HEIGHTS
from silomix_protocol.rounds.heights import Height, keep_height, kept_heights

from silomix_shuffler.batch import State
from silomix_shuffler.errors import WrongRound

_SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS rounds (
    digest BLOB PRIMARY KEY, study BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    descriptor BLOB NOT NULL, signature BLOB NOT NULL, state TEXT NOT NULL,
    sequence BLOB, chain BLOB, delivered INTEGER NOT NULL DEFAULT 0, reason TEXT, committed BLOB,
    disclosure BLOB, uncertain INTEGER NOT NULL DEFAULT 0, UNIQUE (study, round, attempt)
);
CREATE TABLE IF NOT EXISTS reports (
    digest BLOB NOT NULL REFERENCES rounds, slot INTEGER NOT NULL, silo TEXT, onion BLOB,
    output BLOB, signature BLOB, PRIMARY KEY (digest, slot)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys (
    study BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    seal BLOB, release BLOB, made_at REAL NOT NULL, PRIMARY KEY (study, round, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS boot (id TEXT NOT NULL);
"""
    + HEIGHTS
)
_VERSION = 3
_UPGRADES = {
    1: "ALTER TABLE reports ADD COLUMN signature BLOB; "
    "ALTER TABLE rounds ADD COLUMN disclosure BLOB",
    2: "ALTER TABLE rounds ADD COLUMN uncertain INTEGER NOT NULL DEFAULT 0",
}
_PURGED = "nobody asked to open it"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StoreBroken(Exception):
    """The state folder is not one that this release can use; the message says what to do."""


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A report as the first mix keeps it: its slot, who sent it, its digest before and after."""

    slot: int
    silo: str
    onion: bytes
    output: bytes | None  # None: the report was dropped and has no body
    signature: bytes | None = None  # the silo's; None if an earlier release took it
    height: tuple[bytes, Height] | None = None  # sender's signing key and ledger height


@dataclass(frozen=True, slots=True)
class SavedRound:
    """A round as a restarted mix finds it."""

    signed: round_pb2.SignedDescriptor
    state: State
    sequence: tuple[int, ...]
    chain: tuple[round_pb2.HopStatement, ...]
    delivered: bool
    reason: str
    committed: bytes
    disclosed: bytes
    uncertain: bool
    reports: tuple[KeptReport, ...]


class Over(NamedTuple):
    """A round to be purged, and whether its gate was never opened, as far as this mix can know:
    then it is void."""

    descriptor: Descriptor
    unopened: bool = False
    uncertain: bool = False


class Store:
    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.bodies = folder / "batches"
        make_folder(self.bodies)
        try:
            path = folder / "mix.sqlite"
            self._database = open_database(
                path, _SCHEMA, _VERSION, upgrades=_UPGRADES, any_thread=True
            )
        except UnusableDatabase as error:
            raise StoreBroken(
                f"{error}; a mix without its state does not know what it forwarded: end the "
                "studies it served, then move the folder away"
            ) from error

    # Keys ---------------------------------------------------------------------------------------

    def prepare(
        self, study: StudyId, attempt: int, rounds: range, *, gate: bool
    ) -> list[tuple[SealKey, SealKey | None]]:
        """The seal and release keys of these rounds: those made before, or fresh ones.

        Rounds go up, so unused keys of earlier rounds are thrown away.
        """
        with note(self._database):  # keys that a power cut loses are made anew
            opened = self._database.execute(
                "SELECT round FROM rounds WHERE study = ? AND attempt = ? "
                "AND round BETWEEN ? AND ?",
                (study, attempt, rounds[0], rounds[-1]),
            ).fetchone()
            if opened is not None:
                raise WrongRound(f"attempt {attempt} of round {opened[0]} was opened already")
            self._database.execute(
                "DELETE FROM keys WHERE study = ? AND round < ? AND NOT EXISTS (SELECT 1 FROM "
                "rounds WHERE rounds.study = keys.study AND rounds.round = keys.round "
                "AND rounds.attempt = keys.attempt)",
                (study, rounds[0]),
            )
            return [self._prepared(study, attempt, each, gate=gate) for each in rounds]

    def _prepared(
        self, study: StudyId, attempt: int, number: int, *, gate: bool
    ) -> tuple[SealKey, SealKey | None]:
        row = self._database.execute(
            "SELECT seal, release FROM keys WHERE study = ? AND round = ? AND attempt = ?",
            (study, number, attempt),
        ).fetchone()
        if row is not None:
            return SealKey.from_raw(row[0]), None if row[1] is None else SealKey.from_raw(row[1])
        made = SealKey.generate(), SealKey.generate() if gate else None
        self._database.execute(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)",
            (study, number, attempt, made[0].raw, made[1].raw if made[1] else None, time.time()),
        )
        return made

    def keys(self, descriptor: Descriptor) -> tuple[SealKey | None, SealKey | None]:
        """The seal and the release key of an attempt, as far as they are still there."""
        row = self._database.execute(
            "SELECT seal, release FROM keys WHERE study = ? AND round = ? AND attempt = ?",
            (descriptor.study, descriptor.round, descriptor.attempt),
        ).fetchone()
        seal, release = row or (None, None)
        return (
            None if seal is None else SealKey.from_raw(seal),
            None if release is None else SealKey.from_raw(release),
        )

    def rotate(self) -> int:
        """Throw away every key that no round uses yet; return how many rounds' keys those were."""
        with transaction(self._database):
            gone = self._database.execute(
                "DELETE FROM keys WHERE NOT EXISTS (SELECT 1 FROM rounds WHERE "
                "rounds.study = keys.study AND rounds.round = keys.round "
                "AND rounds.attempt = keys.attempt)"
            ).rowcount
        self.tidy()
        return gone

    # Rounds -------------------------------------------------------------------------------------

    def open(
        self,
        descriptor: Descriptor,
        seal_key: SealKey | None = None,
        *,
        abandoned: str = "",
        over: Iterable[Over] = (),
    ) -> None:
        """Bind this attempt to its descriptor for good; attempt a+1 only after a was aborted.

        `seal_key` must still be the attempt's: somebody may have rotated it away.  With a reason
        in `abandoned` the attempt is never opened at all, only remembered as aborted.  Rounds
        that are `over` are purged on the way.
        """
        key = descriptor.study, descriptor.round, descriptor.attempt
        with transaction(self._database):
            earlier = self._database.execute(
                "SELECT digest, attempt, state, reason FROM rounds WHERE study = ? AND round = ?",
                key[:2],
            ).fetchall()
            if any(digest == descriptor.digest for digest, _, _, _ in earlier):
                raise WrongRound("this round is over")
            if any(attempt >= descriptor.attempt for _, attempt, _, _ in earlier):
                raise WrongRound("this round was opened with another descriptor")
            if any(not was_aborted(State(state), reason) for _, _, state, reason in earlier):
                raise WrongRound("an earlier attempt of this round was not aborted here")
            if not abandoned and (seal_key is None or self._seal_key(key) != seal_key.raw):
                raise WrongRound("the keys of this round are gone; ask for keys again")
            state = State.ABORTED if abandoned else State.OPEN
            self._database.execute(
                "INSERT INTO rounds (digest, study, round, attempt, descriptor, signature, state, "
                "reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    descriptor.digest,
                    *key,
                    descriptor.encoded,
                    descriptor.signature,
                    state.value,
                    abandoned or None,
                ),
            )
            if abandoned:
                self._forget_keys(descriptor)
            self._purge(over)

    def _seal_key(self, key: tuple[StudyId, int, int]) -> bytes | None:
        row = self._database.execute(
            "SELECT seal FROM keys WHERE study = ? AND round = ? AND attempt = ?", key
        ).fetchone()
        return None if row is None else row[0]

    def known(self, digest: RoundDigest) -> tuple[State, str] | None:
        """A round's state, and why it was aborted or voided; known as long as this mix lives."""
        row = self._database.execute(
            "SELECT state, reason FROM rounds WHERE digest = ?", (digest,)
        ).fetchone()
        return None if row is None else (State(row[0]), row[1] or "")

    def void_for_good(self, digest: RoundDigest) -> tuple[str, bool] | None:
        """Why a round is void, and whether its key may be out all the same; None if it is not void.

        All is on disk when this returns: a purge does not wait for the disk, and a power cut could
        bring the key back.
        """
        with transaction(self._database):  # a commit that writes nothing waits for nothing
            self._database.execute(f"PRAGMA user_version = {_VERSION}")
        row = self._database.execute(
            "SELECT reason, uncertain FROM rounds WHERE digest = ? AND state = ?",
            (digest, State.VOIDED.value),
        ).fetchone()
        return None if row is None else (row[0] or "", bool(row[1]))

    def add(self, entries: Sequence[tuple[RoundDigest, KeptReport]]) -> None:
        """Keep reports whose bodies are synced, and their senders' ledger heights: after this
        they are never lost."""
        with transaction(self._database):
            self._database.executemany(
                "INSERT INTO reports VALUES (?, ?, ?, ?, ?, ?)", _rows(entries)
            )
            for _, kept in entries:
                if kept.height is not None:
                    keep_height(self._database, *kept.height)

    def heights(self) -> dict[bytes, Height]:
        """The highest ledger height of every silo that sent a report, by the silo's signing key."""
        return kept_heights(self._database)

    def seal(
        self,
        descriptor: Descriptor,
        sequence: Sequence[int],
        chain: Sequence[round_pb2.HopStatement],
        state: State,
        reason: str = "",
        committed: bytes = b"",
        *,
        gate: bool,
    ) -> None:
        """Close a batch: write down its order and what this mix states about it.

        All reports are opened by now: the seal key goes, if nobody may ever ask for it.
        """
        digest = descriptor.digest
        packed = b"".join(slot.to_bytes(4, "little") for slot in sequence)
        stated = mix_pb2.BatchHeader(digest=digest, chain=chain).SerializeToString()
        with transaction(self._database):
            self._database.execute(
                "UPDATE rounds SET sequence = ?, chain = ?, state = ?, reason = ?, committed = ? "
                "WHERE digest = ?",
                (packed, stated, state.value, reason or None, committed or None, digest),
            )
            if not gate or state is State.ABORTED:
                self._forget_seal_key(descriptor)

    def forwarded(self, digest: RoundDigest) -> None:
        """Record a batch as forwarded, before its first byte leaves."""
        with transaction(self._database):
            self._set_state(digest, State.FORWARDED)

    def delivered(self, digest: RoundDigest, *, forget: bool) -> None:
        """Record a batch as delivered; with `forget`, forget which report came from where."""
        with note(self._database):  # if lost, the batch is handed on again
            self._database.execute("UPDATE rounds SET delivered = 1 WHERE digest = ?", (digest,))
            if forget:
                self._forget_order(digest)

    def committed(self, digest: RoundDigest, list_hash: bytes) -> None:
        """Record the one list that this mix is about to sign."""
        with transaction(self._database):
            self._database.execute(
                "UPDATE rounds SET committed = ? WHERE digest = ?", (list_hash, digest)
            )

    def doubt(self) -> None:
        """Mark, after a power cut, every round whose list was signed: its key may be out.

        What the last process noted is there, unless the machine was started again since.
        """
        try:
            boot = _BOOT_ID.read_text().strip()
        except OSError:
            boot = ""
        row = self._database.execute("SELECT id FROM boot").fetchone()
        if boot and row == (boot,):
            return
        with transaction(self._database):
            self._database.execute(
                "UPDATE rounds SET uncertain = 1 WHERE state = ? AND committed IS NOT NULL",
                (State.FORWARDED.value,),
            )
            self._database.execute("DELETE FROM boot")
            self._database.execute("INSERT INTO boot VALUES (?)", (boot,))

    def released(self, descriptor: Descriptor, *, last: bool, over: Iterable[Over] = ()) -> None:
        """Record, before it is, that the release key is given away; forget what came from where.

        The server then has what the last mix had.  Rounds that are `over` are purged on the way.
        """
        with note(self._database):  # a power cut may lose it, and `doubt` follows
            digest = descriptor.digest
            self._set_state(digest, State.RELEASED)
            if last:
                self._database.execute(
                    "UPDATE rounds SET delivered = 1 WHERE digest = ?", (digest,)
                )
            self._forget_order(digest)
            self._forget_seal_key(descriptor)
            self._purge(over)

    def voided(
        self, descriptor: Descriptor, reason: str, disclosure: bytes, *, uncertain: bool = False
    ) -> None:
        """Destroy a void round's keys; what is disclosed instead stays until it is purged."""
        with transaction(self._database):
            self._set_state(descriptor.digest, State.VOIDED)
            self._database.execute(
                "UPDATE rounds SET reason = ?, disclosure = ?, uncertain = ?, delivered = 1 "
                "WHERE digest = ?",
                (reason, disclosure or None, uncertain, descriptor.digest),
            )
            self._forget_order(descriptor.digest)
            self._forget_keys(descriptor)
        self.tidy()  # the release key must not live on in the log either

    def reports(self, digest: RoundDigest) -> list[KeptReport]:
        """The reports that the first mix took for a round, in the order of their slots."""
        rows = self._database.execute(
            "SELECT slot, silo, onion, output, signature FROM reports WHERE digest = ? "
            "ORDER BY slot",
            (digest,),
        )
        return [KeptReport(*row) for row in rows]

    def _forget_order(self, digest: RoundDigest) -> None:
        """Keep only who sent which onion, for receipts, in the order of silo names, no slots."""
        self._database.execute("UPDATE rounds SET sequence = NULL WHERE digest = ?", (digest,))
        senders = self._database.execute(
            "SELECT silo, onion FROM reports WHERE digest = ? AND silo IS NOT NULL ORDER BY silo",
            (digest,),
        ).fetchall()
        self._database.execute("DELETE FROM reports WHERE digest = ?", (digest,))
        self._database.executemany(
            "INSERT INTO reports VALUES (?, ?, ?, ?, NULL, NULL)",
            [(digest, place, *sender) for place, sender in enumerate(senders)],
        )

    def aborted(self, descriptor: Descriptor, reason: str) -> None:
        with transaction(self._database):
            self._set_state(descriptor.digest, State.ABORTED)
            self._database.execute(
                "UPDATE rounds SET reason = ?, sequence = NULL, chain = NULL WHERE digest = ?",
                (reason, descriptor.digest),
            )
            self._database.execute("DELETE FROM reports WHERE digest = ?", (descriptor.digest,))
            self._forget_keys(descriptor)

    def purge(self, over: Iterable[Over]) -> None:
        """Forget all of these rounds but that they were, and why any was aborted or voided."""
        with note(self._database):  # if lost, they are purged again
            self._purge(over)

    def _purge(self, over: Iterable[Over]) -> None:
        for descriptor, unopened, uncertain in over:
            if unopened:  # its key is gone now: nobody will ever open it
                self._database.execute(
                    "UPDATE rounds SET reason = ?, uncertain = ? "
                    "WHERE digest = ? AND reason IS NULL",
                    (_PURGED, uncertain, descriptor.digest),
                )
            self._set_state(descriptor.digest, State.VOIDED if unopened else State.PURGED)
            self._database.execute(
                "UPDATE rounds SET sequence = NULL, chain = NULL, disclosure = NULL "
                "WHERE digest = ?",
                (descriptor.digest,),
            )
            self._database.execute("DELETE FROM reports WHERE digest = ?", (descriptor.digest,))
            self._forget_keys(descriptor)

    def unfinished(self) -> Iterator[SavedRound]:
        """Every round that was not purged, oldest first."""
        rows = self._database.execute(
            "SELECT digest, descriptor, signature, state, sequence, chain, delivered, reason, "
            "committed, disclosure, uncertain FROM rounds "
            "WHERE state != ? AND NOT (state = ? AND chain IS NULL) ORDER BY study, round, attempt",
            (State.PURGED.value, State.VOIDED.value),
        ).fetchall()
        for digest, encoded, signature, state, *rest in rows:
            sequence, chain, delivered, reason, listed, disclosed, uncertain = rest
            packed, stated = sequence or b"", mix_pb2.BatchHeader.FromString(chain or b"")
            yield SavedRound(
                signed=round_pb2.SignedDescriptor(descriptor=encoded, signature=signature),
                state=State(state),
                sequence=tuple(
                    int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4)
                ),
                chain=tuple(stated.chain),
                delivered=bool(delivered),
                reason=reason or "",
                committed=listed or b"",
                disclosed=disclosed or b"",
                uncertain=bool(uncertain),
                reports=tuple(self.reports(digest)),
            )

    # Housekeeping -------------------------------------------------------------------------------

    def body(self, digest: RoundDigest) -> Path:
        return self.bodies / digest.hex()

    def sweep(self, kept: set[Path]) -> None:
        """Delete bodies that no round needs: a crash may have left some."""
        for path in self.bodies.iterdir():
            if path not in kept:
                path.unlink(missing_ok=True)

    def forget_others(self, studies: Iterable[StudyId]) -> None:
        """Purge rounds and keys of studies that are not served any more."""
        served = list(studies)
        others = f"study NOT IN ({', '.join('?' * len(served))})"
        with transaction(self._database):
            self._database.execute(
                f"DELETE FROM reports WHERE digest IN (SELECT digest FROM rounds WHERE {others})",  # noqa: S608
                served,
            )
            forgotten = "sequence = NULL, chain = NULL, disclosure = NULL"
            self._database.execute(
                f"UPDATE rounds SET {forgotten} WHERE {others}",  # noqa: S608
                served,
            )
            self._database.execute(
                f"UPDATE rounds SET state = ? WHERE state != ? AND {others}",  # noqa: S608
                [State.PURGED.value, State.VOIDED.value, *served],
            )
            self._database.execute(f"DELETE FROM keys WHERE {others}", served)  # noqa: S608

    def expire_keys(self, seconds: float) -> None:
        """Throw away keys that were made longer than `seconds` ago and that no round uses."""
        with transaction(self._database):
            self._database.execute(
                "DELETE FROM keys WHERE made_at < ? AND NOT EXISTS (SELECT 1 FROM rounds WHERE "
                "rounds.study = keys.study AND rounds.round = keys.round "
                "AND rounds.attempt = keys.attempt)",
                (time.time() - seconds,),
            )

    def tidy(self) -> None:
        """Cut the write-ahead log short: deleted keys must not live on in it."""
        cut_log(self._database)

    def close(self) -> None:
        self.tidy()
        self._database.close()

    def _set_state(self, digest: RoundDigest, state: State) -> None:
        self._database.execute(  # a round that was purged or voided stays so
            "UPDATE rounds SET state = ? WHERE digest = ? AND state NOT IN (?, ?)",
            (state.value, digest, State.PURGED.value, State.VOIDED.value),
        )

    def _forget_keys(self, descriptor: Descriptor) -> None:
        self._database.execute(
            "DELETE FROM keys WHERE study = ? AND round = ? AND attempt = ?",
            (descriptor.study, descriptor.round, descriptor.attempt),
        )

    def _forget_seal_key(self, descriptor: Descriptor) -> None:
        self._database.execute(
            "UPDATE keys SET seal = NULL WHERE study = ? AND round = ? AND attempt = ?",
            (descriptor.study, descriptor.round, descriptor.attempt),
        )


def was_aborted(state: State, reason: str | None) -> bool:
    return state is State.ABORTED or (state is State.PURGED and bool(reason))


def _rows(entries: Iterable[tuple[RoundDigest, KeptReport]]) -> Iterator[tuple[object, ...]]:
    for digest, kept in entries:
        yield digest, kept.slot, kept.silo, kept.onion, kept.output, kept.signature
