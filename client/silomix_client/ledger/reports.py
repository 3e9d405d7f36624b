"""Stored reports, in the ledger's database: what a silo sent for its last round, to the byte.

One row for each study, replaced when the next round is charged or the same one is sealed again
for another attempt, dropped when the study is closed.  Payload and onion together are the *body*:
large ones are files beside the database, written durably before the row that names them.  `put`
and `drop` are called inside a transaction of the ledger.  What became of a report stands in a
file of its own (`outcome_file`).
"""

import sqlite3
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from silomix_core.study.study import Study, StudyId
from silomix_proto import round_pb2
from silomix_protocol.host.durable import make_folder, write_durably
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest, check

from silomix_client.ledger.outcome_file import OutcomeFile
from silomix_client.ledger.outcome_rules import NOTHING, ReportOutcome

SCHEMA = """
CREATE TABLE IF NOT EXISTS reports (
    study BLOB PRIMARY KEY REFERENCES studies, round INTEGER NOT NULL, digest BLOB NOT NULL,
    descriptor BLOB NOT NULL, trail BLOB NOT NULL, payload_bytes INTEGER NOT NULL, body BLOB,
    file TEXT
) WITHOUT ROWID;
"""
_LARGEST_ROW = 64 * 1024
_AFTERWARDS = ".afterwards"
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A sealed report as it was (or will be) sent, and all that sealing it again would need.

    `trail` has the SHA-256 of what is left of the onion: at each mix, then at the server.
    """

    descriptor: Descriptor
    payload: bytes = field(repr=False)
    onion: bytes = field(repr=False)
    trail: tuple[bytes, ...] = field(repr=False)


class ReportStore:
    """The reports table, and the folder of bodies that are too large for a row."""

    def __init__(self, database: sqlite3.Connection, folder: Path) -> None:
        make_folder(folder)
        self._database, self._folder = database, folder
        self._afterwards: dict[StudyId, OutcomeFile] = {}

    def find(self, study: Study) -> StoredReport | None:
        """The report of the last answered round; None if there is none, or its file is gone."""
        row = self._database.execute(
            "SELECT descriptor, trail, payload_bytes, body, file FROM reports WHERE study = ?",
            (study.identity,),
        ).fetchone()
        if row is None:
            return None
        signed, trail, payload_bytes, body, file = row
        if body is None:
            try:
                body = (self._folder / file).read_bytes()
            except FileNotFoundError:
                return None
        return StoredReport(
            descriptor=check(round_pb2.SignedDescriptor.FromString(signed), study),
            payload=body[:payload_bytes],
            onion=body[payload_bytes:],
            trail=tuple(
                trail[at : at + _DIGEST_BYTES] for at in range(0, len(trail), _DIGEST_BYTES)
            ),
        )

    def digest(self, study: StudyId) -> RoundDigest | None:
        """The digest D of the stored report; None if there is none."""
        row = self._database.execute(
            "SELECT digest FROM reports WHERE study = ?", (study,)
        ).fetchone()
        return None if row is None else RoundDigest(row[0])

    # The body, before and after the transaction --------------------------------------------------

    def write_body(self, report: StoredReport) -> str | None:
        """Write a large body durably and return its file's name; None for one that fits a row."""
        if len(report.payload) + len(report.onion) <= _LARGEST_ROW:
            return None
        name = sha256(report.onion).hexdigest()
        write_durably(self._folder / name, report.payload + report.onion)
        return name

    def delete_bodies(self, names: list[str]) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete bodies that no row names: a crash may have left one, never sent."""
        kept = set()
        for study, file in self._database.execute("SELECT study, file FROM reports"):
            kept |= {file, study.hex() + _AFTERWARDS}
        self.delete_bodies([path.name for path in self._folder.iterdir() if path.name not in kept])

    # Inside a transaction ------------------------------------------------------------------------

    def put(self, report: StoredReport, file: str | None) -> list[str]:
        """Store a report in place of the study's last one; returns bodies to delete afterwards."""
        descriptor = report.descriptor
        outdated = self.drop(descriptor.study)
        body = None if file else report.payload + report.onion
        self._database.execute(
            "INSERT INTO reports VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                descriptor.study,
                descriptor.round,
                descriptor.digest,
                descriptor.to_wire().SerializeToString(deterministic=True),
                b"".join(report.trail),
                len(report.payload),
                body,
                file,
            ),
        )
        return outdated

    def drop(self, study: StudyId) -> list[str]:
        """Forget the study's report; returns the names of bodies to delete afterwards."""
        rows = self._database.execute("SELECT file FROM reports WHERE study = ?", (study,))
        files = [row[0] for row in rows if row[0]]
        self._database.execute("DELETE FROM reports WHERE study = ?", (study,))
        return files

    def forget(self, study: StudyId) -> list[str]:
        """Drop the report of a study that is over; returns the files to delete afterwards."""
        return [*self.drop(study), study.hex() + _AFTERWARDS]

    # What became of a report ---------------------------------------------------------------------

    def outcome(self, study: StudyId, digest: RoundDigest) -> ReportOutcome:
        """What became known of the report of D; NOTHING if it is not the study's last report."""
        return self._file(study).of(digest) if self._is_begun(study) else NOTHING

    def keep_outcome(self, study: StudyId, digest: RoundDigest, known: ReportOutcome) -> None:
        """Keep what is known of the report of D, which is the one that is stored."""
        if self.outcome(study, digest) != known:
            self._file(study).write(digest, known)

    def close(self) -> None:
        for file in self._afterwards.values():
            file.close()
        self._afterwards.clear()

    def _is_begun(self, study: StudyId) -> bool:
        """Whether there is a file of what became known: looking must not make one."""
        return study in self._afterwards or self._path(study).exists()

    def _file(self, study: StudyId) -> OutcomeFile:
        file = self._afterwards.get(study)
        if file is None:
            file = self._afterwards[study] = OutcomeFile(self._path(study))
        return file

    def _path(self, study: StudyId) -> Path:
        return self._folder / (study.hex() + _AFTERWARDS)
