"""The coordinator's journal: every round that was opened, and what came of it, on disk.

A restarted coordinator replays the recorded sums through the algorithm (a deterministic
generator) and goes on with the next round number.  A round that was opened but not closed when
the process died counts as void: it is never asked again.  The exception is a round that is
*withdrawn*, since no silo ever heard of it: its number is used again, for a further attempt.

Beside the sums it keeps what silos are told about each attempt (`Settlement`): the list that all
mixes stand by, the coordinator's signed word whether the batch was used, what the mixes stated if
it was not.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.host.durable import note, open_database, transaction
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, reports INTEGER NOT NULL DEFAULT 0, total BLOB
);
CREATE TABLE IF NOT EXISTS attempts (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, digest BLOB NOT NULL,
    descriptor BLOB NOT NULL, signature BLOB NOT NULL, PRIMARY KEY (round, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settlements (
    digest BLOB PRIMARY KEY, committed BLOB, closed BLOB, evidence BLOB,
    traced BLOB NOT NULL DEFAULT x'', pending INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;
"""
_VERSION = 3
_PLACE_BYTES = 4


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """The result of a round: how many reports were summed, and their sum; None if void."""

    reports: int
    total: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What silos are told of an attempt; `pending` if mixes are still to be asked about it."""

    digest: RoundDigest
    committed: channel_pb2.RoundCommitted | None = None
    closed: channel_pb2.RoundClosed | None = None
    evidence: channel_pb2.Complaint | None = None  # what the mixes stated and disclosed
    traced: tuple[int, ...] = ()  # places of silos whose reports were dropped
    pending: bool = False


class Journal:
    def __init__(self, path: Path) -> None:
        self._database = open_database(path, _SCHEMA, _VERSION)

    def rounds(self) -> list[ClosedRound]:
        """The results of all rounds so far, in order."""
        rows = self._database.execute("SELECT reports, total FROM rounds ORDER BY round")
        return [
            ClosedRound(reports, None if total is None else np.frombuffer(total, dtype="<i8"))
            for reports, total in rows
        ]

    def attempts(self, round_number: int) -> list[round_pb2.SignedDescriptor]:
        """The signed descriptors of a round's attempts so far, first attempt first."""
        rows = self._database.execute(
            "SELECT descriptor, signature FROM attempts WHERE round = ? ORDER BY attempt",
            (round_number,),
        )
        return _signed(rows.fetchall())

    def opened(self, descriptor: Descriptor) -> None:
        """Record an attempt durably, with all before it, before a mix or a silo hears of it."""
        number, attempt = descriptor.round, descriptor.attempt
        signed = descriptor.digest, descriptor.encoded, descriptor.signature
        with transaction(self._database):
            self._database.execute("INSERT OR IGNORE INTO rounds (round) VALUES (?)", (number,))
            self._database.execute(
                "INSERT INTO attempts VALUES (?, ?, ?, ?, ?)", (number, attempt, *signed)
            )
            self._database.execute(
                "INSERT INTO settlements (digest) VALUES (?)", (descriptor.digest,)
            )

    def withdrawn(self, round_number: int) -> None:
        """Take back a round in which no silo was asked; its attempts stay recorded."""
        self._database.execute("DELETE FROM rounds WHERE round = ?", (round_number,))

    def skipped(self, round_number: int) -> None:
        """Record a round that asks nobody, now or later, as void; durable with the next one."""
        with note(self._database):
            self._database.execute("INSERT INTO rounds (round) VALUES (?)", (round_number,))

    def listed(self, committed: channel_pb2.RoundCommitted) -> None:
        """Record a list before silos hear of it; if a power cut loses it, the round is void."""
        with note(self._database):
            self._database.execute(
                "UPDATE settlements SET committed = ? WHERE digest = ?",
                (committed.SerializeToString(), committed.digest),
            )

    def closed(self, round_number: int, result: ClosedRound, settlement: Settlement) -> None:
        """Record a round's result; durable with the next opening, `sync`, or `close`.

        Until then a power cut makes the round void, as if the coordinator had died during it.
        """
        total = None if result.total is None else result.total.astype("<i8").tobytes()
        with note(self._database):
            self._database.execute(
                "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)",
                (round_number, result.reports, total),
            )
            self._settle(settlement)

    def settled(self, settlement: Settlement) -> None:
        """Record what became of a void attempt; if a power cut loses it, the mixes tell again."""
        with note(self._database):
            self._settle(settlement)

    def _settle(self, settlement: Settlement) -> None:
        places = (place.to_bytes(_PLACE_BYTES, "big") for place in settlement.traced)
        self._database.execute(
            "UPDATE settlements SET closed = ?, evidence = ?, traced = ?, pending = ? "
            "WHERE digest = ?",
            (
                None if settlement.closed is None else settlement.closed.SerializeToString(),
                None if settlement.evidence is None else settlement.evidence.SerializeToString(),
                b"".join(places),
                settlement.pending,
                settlement.digest,
            ),
        )

    def settlement(self, digest: RoundDigest) -> Settlement | None:
        """The settlement of an attempt; None if it was never opened."""
        row = self._database.execute(
            "SELECT committed, closed, evidence, traced, pending FROM settlements WHERE digest = ?",
            (digest,),
        ).fetchone()
        if row is None:
            return None
        committed, closed, evidence, traced, pending = row
        places = range(0, len(traced), _PLACE_BYTES)
        return Settlement(
            digest,
            None if committed is None else channel_pb2.RoundCommitted.FromString(committed),
            None if closed is None else channel_pb2.RoundClosed.FromString(closed),
            None if evidence is None else channel_pb2.Complaint.FromString(evidence),
            tuple(int.from_bytes(traced[at : at + _PLACE_BYTES], "big") for at in places),
            bool(pending),
        )

    def unsettled(self) -> list[round_pb2.SignedDescriptor]:
        """The attempts that mixes are still to be asked about, earlier ones first."""
        rows = self._database.execute(
            "SELECT descriptor, signature FROM attempts JOIN settlements USING (digest) "
            "WHERE pending ORDER BY round, attempt"
        )
        return _signed(rows.fetchall())

    def sync(self) -> None:
        """Wait until everything recorded so far is on disk."""
        with transaction(self._database):  # a commit that writes nothing waits for nothing
            self._database.execute(f"PRAGMA user_version = {_VERSION}")

    def close(self) -> None:
        self._database.close()


def _signed(rows: list[tuple[bytes, bytes]]) -> list[round_pb2.SignedDescriptor]:
    return [
        round_pb2.SignedDescriptor(descriptor=encoded, signature=signature)
        for encoded, signature in rows
    ]
