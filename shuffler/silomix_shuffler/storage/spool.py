"""The bodies of one batch: a file of equal slots, so that a batch never has to be in memory."""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock

from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_protocol.host.durable import sync_folder

_HELD_BYTES = 4 * 2**20  # of one batch, in memory too: a small one is never read back
_CLOSED = -1  # instead of a descriptor: closed for good
_MOST_AT_ONCE = 1024  # reports in one call of the system (IOV_MAX)


class Spool:
    """The opened reports of a batch, of one length; safe once `sync` has returned.

    The first reports stay in memory until the file is closed, and go to it together.
    """

    def __init__(self, path: Path, length: int) -> None:
        """Go on with the file that is at `path` already, if there is one."""
        self.path = path
        self._length = length
        self._held: dict[int, bytes] = {}
        self._unwritten: dict[int, bytes] = {}  # in memory only
        self._descriptor: int | None = None  # opened when it is needed
        self._lock = Lock()  # two threads may have the first reports
        self._using = Lock()  # held while the file is used, so that nobody closes it
        self._named = False  # whether the folder is sure to remember the file

    @property
    def _file(self) -> int:
        if self._descriptor is None:
            with self._lock:
                if self._descriptor is None:
                    self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        self._check_open()
        return self._descriptor

    def _check_open(self) -> None:
        if self._descriptor == _CLOSED:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def write(self, slot: int, report: bytes) -> None:
        if len(report) != self._length:
            raise ValueError("a report of another length")
        with self._lock:
            self._check_open()
            if (len(self._held) + 1) * self._length <= _HELD_BYTES:
                self._held[slot] = self._unwritten[slot] = report
                return
        self._put(slot, [report])

    def flush(self) -> None:
        """Write the reports in memory only; those that find no room are tried again next time."""
        with self._lock:
            reports, self._unwritten = self._unwritten, {}
        try:
            for run in _runs(reports):
                self._put(run[0], [reports[slot] for slot in run])
        except BaseException:
            with self._lock:
                if self._descriptor != _CLOSED:
                    self._unwritten |= reports
            raise

    def forget(self, slot: int) -> None:
        """Drop the report of this slot from memory, as it is not wanted any more."""
        with self._lock:
            self._held.pop(slot, None)
            self._unwritten.pop(slot, None)

    def _put(self, slot: int, reports: list[bytes]) -> None:
        with self._using:  # the system lets one write at a time, too, but others spin
            written = os.pwritev(self._file, reports, slot * self._length)
        if written != len(reports) * self._length:  # as much as the disk had room for
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        self.flush()
        os.fdatasync(self._file)
        if not self._named:
            sync_folder(self.path.parent)
            self._named = True

    def rename(self, path: Path) -> None:
        """Give the file its last name durably: there it is complete, or not at all."""
        self.flush()
        os.fdatasync(self._file)
        os.rename(self.path, path)
        self.path = path
        sync_folder(path.parent)
        self._named = True

    def read(self, slots: Iterable[int]) -> Iterator[bytes]:
        """The reports of these slots, one after the other, large ones in pieces."""
        for slot in slots:
            held = self._held.get(slot)
            if held is not None:
                yield held
                continue
            for start in range(0, self._length, CHUNK_BYTES):
                wanted = min(CHUNK_BYTES, self._length - start)
                with self._using:
                    piece = os.pread(self._file, wanted, slot * self._length + start)
                if len(piece) != wanted:
                    raise OSError(errno.EIO, f"{self.path}: a report is missing")
                yield piece

    def close(self) -> None:
        with self._using, self._lock:
            file, self._descriptor = self._descriptor, _CLOSED
            self._held, self._unwritten = {}, {}
            if file is not None and file != _CLOSED:
                os.close(file)

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def _runs(slots: Iterable[int]) -> Iterator[list[int]]:
    """The slots in order, consecutive ones together."""
    run: list[int] = []
    for slot in sorted(slots):
        if run and (slot != run[-1] + 1 or len(run) == _MOST_AT_ONCE):
            yield run
            run = []
        run.append(slot)
    if run:
        yield run
