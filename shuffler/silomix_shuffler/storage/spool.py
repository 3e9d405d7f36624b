"""The bodies of one batch: a file of equal slots, so that a batch never has to be in memory."""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock

from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_protocol.host.durable import sync_folder

_CLOSED = -1  # instead of a descriptor: closed for good


class Spool:
    """The opened reports of a batch, of one length; safe once `sync` has returned."""

    def __init__(self, path: Path, length: int) -> None:
        """Go on with the file that is at `path` already, if there is one."""
        self.path = path
        self._length = length
        self._descriptor: int | None = None  # opened when it is needed
        self._using = Lock()  # held while the file is used, so that nobody closes it
        self._named = False  # whether the folder is sure to remember the file

    def write(self, slot: int, report: bytes) -> None:
        if len(report) != self._length:
            raise ValueError("a report of another length")
        with self._using:
            written = os.pwrite(self._file(), report, slot * self._length)
        if written != self._length:  # as much as the disk had room for
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        self._sync_content()
        if not self._named:
            sync_folder(self.path.parent)
            self._named = True

    def rename(self, path: Path) -> None:
        """Give the file its last name durably: there it is complete, or not at all."""
        self._sync_content()
        os.rename(self.path, path)
        self.path = path
        sync_folder(path.parent)
        self._named = True

    def read(self, slots: Iterable[int]) -> Iterator[bytes]:
        """The reports of these slots, one after the other, large ones in pieces."""
        for slot in slots:
            for start in range(0, self._length, CHUNK_BYTES):
                wanted = min(CHUNK_BYTES, self._length - start)
                with self._using:
                    piece = os.pread(self._file(), wanted, slot * self._length + start)
                if len(piece) != wanted:
                    raise OSError(errno.EIO, f"{self.path}: a report is missing")
                yield piece

    def close(self) -> None:
        with self._using:
            file, self._descriptor = self._descriptor, _CLOSED
            if file is not None and file != _CLOSED:
                os.close(file)

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def _sync_content(self) -> None:
        with self._using:
            file = self._file()
        os.fdatasync(file)  # reports may be written meanwhile

    def _file(self) -> int:
        """The open file, for who holds the lock."""
        if self._descriptor == _CLOSED:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        return self._descriptor
