"""What a mix keeps on disk: rounds, keys, reports, so that a crash in any state loses nothing.

Metadata in one SQLite file, bodies in one spool file per batch (written and synced before the
metadata that names them).  Every method is one step, durable where somebody relies on it; nothing
is cached here.  Private round keys live from `prepare` until the batch is sealed (seal) or purged
(release); deleted content is overwritten (secure_delete) and the write-ahead log cut short at
every `tidy`.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from silomix_core.study import StudyId
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.descriptor import Descriptor, RoundDigest
from silomix_protocol.durable import UnusableDatabase, note, open_database, transaction
from silomix_protocol.keys import SealKey

from silomix_shuffler.batch import State
from silomix_shuffler.errors import WrongRound

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
    digest BLOB PRIMARY KEY, study BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    descriptor BLOB NOT NULL, signature BLOB NOT NULL, state TEXT NOT NULL,
    sequence BLOB, chain BLOB, delivered INTEGER NOT NULL DEFAULT 0, reason TEXT, committed BLOB,
    UNIQUE (study, round, attempt)
);
CREATE TABLE IF NOT EXISTS reports (
    digest BLOB NOT NULL REFERENCES rounds, slot INTEGER NOT NULL, silo TEXT, onion BLOB,
    output BLOB, PRIMARY KEY (digest, slot)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys (
    study BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    seal BLOB, release BLOB, made_at REAL NOT NULL, PRIMARY KEY (study, round, attempt)
) WITHOUT ROWID;
"""
_VERSION = 1


class StoreBroken(Exception):
    """The state folder is not one that this release can use; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A report as it is kept: its slot, who sent it (first mix), its digest before and after."""

    slot: int
    silo: str | None
    onion: bytes | None
    output: bytes | None  # None: dropped, without a body


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
    reports: tuple[Kept, ...]


class Store:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.bodies = folder / "batches"
        self.bodies.mkdir(mode=0o700, exist_ok=True)
        try:
            path = folder / "mix.sqlite"
            self._database = open_database(path, _SCHEMA, _VERSION, any_thread=True)
        except UnusableDatabase as error:
            raise StoreBroken(
                f"{error}; a mix without its state does not know what it forwarded: end the "
                "studies it served, then move the folder away"
            ) from error
        self._database.execute("PRAGMA secure_delete=ON")

    # Keys ---------------------------------------------------------------------------------------

    def prepare(
        self, study: StudyId, attempt: int, rounds: range, *, gate: bool
    ) -> list[tuple[SealKey, SealKey | None]]:
        """Seal and release keys of these rounds: those made before, or fresh ones.

        Rounds go up, so unused keys of earlier rounds are thrown away.
        """
        with note(self._database):  # lost keys are made anew
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
        """Seal and release key of an attempt, as far as they are still there."""
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
        """Throw away every key that no round uses yet; how many rounds' keys those were."""
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
        over: Iterable[Descriptor] = (),
    ) -> None:
        """Bind this attempt to its descriptor for good; attempt a+1 only after a was aborted.

        `seal_key` must still be the attempt's: somebody may have rotated it away.  With a reason
        in `abandoned` the attempt is never opened at all, only remembered as aborted.  What is
        `over` is purged on the way.
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
            if any(not _was_aborted(state, reason) for _, _, state, reason in earlier):
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
        """State of a round, and the reason if it was aborted, for as long as this mix lives."""
        row = self._database.execute(
            "SELECT state, reason FROM rounds WHERE digest = ?", (digest,)
        ).fetchone()
        return None if row is None else (State(row[0]), row[1] or "")

    def add(self, entries: Iterable[tuple[RoundDigest, Kept]]) -> None:
        """Keep reports whose bodies are synced: after this they are never lost."""
        with transaction(self._database):
            self._database.executemany("INSERT INTO reports VALUES (?, ?, ?, ?, ?)", _rows(entries))

    def seal(
        self,
        descriptor: Descriptor,
        sequence: Sequence[int],
        chain: Sequence[round_pb2.HopStatement],
        state: State,
        reason: str = "",
        committed: bytes = b"",
    ) -> None:
        """Close a batch: its order and what this mix states about it.

        Everything is opened: the key that did it goes.
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
            self._database.execute(
                "UPDATE keys SET seal = NULL WHERE study = ? AND round = ? AND attempt = ?",
                (descriptor.study, descriptor.round, descriptor.attempt),
            )

    def forwarded(self, digest: RoundDigest) -> None:
        """Before the first byte of a batch leaves."""
        with transaction(self._database):
            self._set_state(digest, State.FORWARDED)

    def delivered(self, digest: RoundDigest) -> None:
        """The next one in the chain has it: forget which report came from where."""
        with note(self._database):  # it would be handed on again
            self._forget_order(digest)

    def committed(self, digest: RoundDigest, list_hash: bytes) -> None:
        """Before this mix gives its word for a list."""
        with transaction(self._database):
            self._database.execute(
                "UPDATE rounds SET committed = ? WHERE digest = ?", (list_hash, digest)
            )

    def released(self, digest: RoundDigest, *, last: bool, over: Iterable[Descriptor] = ()) -> None:
        """The release key is given away; the server then has what the last mix had.

        What is `over` is purged on the way.
        """
        with note(self._database):  # who asks again gets the same key
            self._set_state(digest, State.RELEASED)
            if last:
                self._forget_order(digest)
            self._purge(over)

    def _forget_order(self, digest: RoundDigest) -> None:
        """Keep who sent which onion, for receipts; in the order of their names, without slots."""
        self._database.execute(
            "UPDATE rounds SET delivered = 1, sequence = NULL WHERE digest = ?", (digest,)
        )
        senders = self._database.execute(
            "SELECT silo, onion FROM reports WHERE digest = ? AND silo IS NOT NULL ORDER BY silo",
            (digest,),
        ).fetchall()
        self._database.execute("DELETE FROM reports WHERE digest = ?", (digest,))
        self._database.executemany(
            "INSERT INTO reports VALUES (?, ?, ?, ?, NULL)",
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

    def purge(self, over: Iterable[Descriptor]) -> None:
        """Everything but that these rounds were, and why one was aborted if it was."""
        with note(self._database):  # they would be purged again
            self._purge(over)

    def _purge(self, over: Iterable[Descriptor]) -> None:
        for descriptor in over:
            self._database.execute(
                "UPDATE rounds SET state = ?, sequence = NULL, chain = NULL WHERE digest = ?",
                (State.PURGED.value, descriptor.digest),
            )
            self._database.execute("DELETE FROM reports WHERE digest = ?", (descriptor.digest,))
            self._forget_keys(descriptor)

    def unfinished(self) -> Iterator[SavedRound]:
        """Every round that was not purged, oldest first."""
        rows = self._database.execute(
            "SELECT digest, descriptor, signature, state, sequence, chain, delivered, reason, "
            "committed FROM rounds WHERE state != ? ORDER BY study, round, attempt",
            (State.PURGED.value,),
        ).fetchall()
        for digest, encoded, signature, state, sequence, chain, delivered, reason, listed in rows:
            reports = self._database.execute(
                "SELECT slot, silo, onion, output FROM reports WHERE digest = ? ORDER BY slot",
                (digest,),
            )
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
                reports=tuple(Kept(*row) for row in reports),
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
            self._database.execute(
                f"UPDATE rounds SET state = ?, sequence = NULL, chain = NULL WHERE {others}",  # noqa: S608
                [State.PURGED.value, *served],
            )
            self._database.execute(f"DELETE FROM keys WHERE {others}", served)  # noqa: S608

    def expire_keys(self, seconds: float) -> None:
        """Throw away keys that were made that long ago and that no round uses."""
        with transaction(self._database):
            self._database.execute(
                "DELETE FROM keys WHERE made_at < ? AND NOT EXISTS (SELECT 1 FROM rounds WHERE "
                "rounds.study = keys.study AND rounds.round = keys.round "
                "AND rounds.attempt = keys.attempt)",
                (time.time() - seconds,),
            )

    def tidy(self) -> None:
        """Cut the write-ahead log short: deleted keys must not live on in it."""
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self.tidy()
        self._database.close()

    def _set_state(self, digest: RoundDigest, state: State) -> None:
        self._database.execute(  # what was purged stays so
            "UPDATE rounds SET state = ? WHERE digest = ? AND state != ?",
            (state.value, digest, State.PURGED.value),
        )

    def _forget_keys(self, descriptor: Descriptor) -> None:
        self._database.execute(
            "DELETE FROM keys WHERE study = ? AND round = ? AND attempt = ?",
            (descriptor.study, descriptor.round, descriptor.attempt),
        )


def _was_aborted(state: str, reason: str | None) -> bool:
    return State(state) is State.ABORTED or (State(state) is State.PURGED and bool(reason))


def _rows(entries: Iterable[tuple[RoundDigest, Kept]]) -> Iterator[tuple[object, ...]]:
    for digest, kept in entries:
        yield digest, kept.slot, kept.silo, kept.onion, kept.output
