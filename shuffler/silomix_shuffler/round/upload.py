"""A silo's onion as it comes in: small ones in memory, large ones in a file that has no name."""

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES

from silomix_shuffler.errors import NoRoom, WrongLength

_NO_ROOM = "this mix cannot store your report"


class Upload:
    """An onion of exactly `wanted` bytes, hashed on the way; refused as soon as it has more."""

    def __init__(self, wanted: int, folder: Path) -> None:
        self._wanted = self._left = wanted
        self._hash = sha256()
        self._content = bytearray()
        self.large = wanted > CHUNK_BYTES
        self._file = _nameless(folder) if self.large else None

    @property
    def complete(self) -> bool:
        return self._left == 0

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def add(self, chunk: bytes) -> None:
        if not chunk:
            raise WrongLength("a report ended early")
        if len(chunk) > self._left:
            raise WrongLength("a report is longer than announced")
        self._left -= len(chunk)
        self._hash.update(chunk)
        if self._file is None:
            self._content += chunk
            return
        try:
            self._file.write(chunk)
        except OSError as error:
            raise NoRoom(_NO_ROOM) from error

    def read(self) -> bytes | bytearray:
        if self._file is None:
            return self._content
        self._file.flush()
        return os.pread(self._file.fileno(), self._wanted, 0)

    def close(self) -> None:
        """Forget the onion; a second call changes nothing."""
        self._content = bytearray()
        if self._file is not None:
            with suppress(OSError):  # what was buffered has no room either
                self._file.close()


def _nameless(folder: Path) -> BinaryIO:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise NoRoom(_NO_ROOM) from error
