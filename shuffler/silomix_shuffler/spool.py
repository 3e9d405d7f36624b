"""The bodies of one batch: a file of equal slots, so that a batch never has to be in memory."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from silomix_protocol.durable import sync_folder


class Spool:
    """Opened reports of one length; what was written counts once `sync` has returned."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self._length = length
        self._descriptor: int | None = None  # opened when it is needed; -1: closed for good
        self._opening = Lock()  # two threads may have the first reports
        self._named = False  # whether the folder is sure to remember the file

    @property
    def _file(self) -> int:
        if self._descriptor is None:
            with self._opening:
                if self._descriptor is None:
                    self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        return self._descriptor

    def write(self, slot: int, report: bytes) -> None:
        if len(report) != self._length:
            raise ValueError("a report of another length")
        written = os.pwrite(self._file, report, slot * self._length)
        if written != self._length:
            raise OSError(28, os.strerror(28))  # as much as the disk had room for

    def sync(self) -> None:
        os.fdatasync(self._file)
        if not self._named:
            sync_folder(self.path.parent)
            self._named = True

    def rename(self, path: Path) -> None:
        """Durably under its last name: complete, or not there at all."""
        os.fdatasync(self._file)
        self.path.rename(path)
        self.path = path
        sync_folder(path.parent)
        self._named = True

    def read(self, slots: Sequence[int]) -> Iterator[bytes]:
        """The reports of these slots, one at a time."""
        for slot in slots:
            report = os.pread(self._file, self._length, slot * self._length)
            if len(report) != self._length:
                raise OSError(5, f"{self.path}: a report is missing")
            yield report

    def close(self) -> None:
        with self._opening:
            file, self._descriptor = self._descriptor, -1  # at once: another thread finds none
        if file is not None and file >= 0:
            os.close(file)

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)
