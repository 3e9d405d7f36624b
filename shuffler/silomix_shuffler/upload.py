"""A silo's onion as it comes in: in memory while it is small, in a nameless file when it is not."""

import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from silomix_protocol.tls import CHUNK_BYTES

from silomix_shuffler.errors import NoRoom, WrongLength

_NO_ROOM = "this mix cannot store your report"


class Upload:
    """Exactly `wanted` bytes, hashed on the way; refused as soon as there are more."""

    def __init__(self, wanted: int, folder: Path) -> None:
        self._left = wanted
        self._hash = sha256()
        self._small = bytearray()
        self._large = _nameless(folder) if wanted > CHUNK_BYTES else None

    @property
    def complete(self) -> bool:
        return self._left == 0

    @property
    def large(self) -> bool:
        return self._large is not None

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
        if self._large is None:
            self._small += chunk
            return
        try:
            self._large.write(chunk)
        except OSError as error:
            raise NoRoom(_NO_ROOM) from error

    def read(self) -> bytes:
        if self._large is None:
            return bytes(self._small)
        self._large.seek(0)
        return self._large.read()

    def close(self) -> None:
        if self._large is not None:
            with suppress(OSError):  # what was buffered has no room either
                self._large.close()


def _nameless(folder: Path) -> BinaryIO:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise NoRoom(_NO_ROOM) from error
