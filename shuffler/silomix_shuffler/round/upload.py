"""A silo's onion as it comes in: small ones in memory, large ones too as long as there is room.

Large ones that find no room in time are written to a file that has no name.
"""

import asyncio
import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES

from silomix_shuffler.errors import NoRoom, WrongLength

_LARGE_AT_ONCE = 4  # onions in memory
_PATIENCE_S = 2.0
_NO_ROOM = "this mix cannot store your report"


class Room:
    """Memory for a few large onions at a time."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def taken(self) -> bool:
        """Wait a moment for a place; False if nobody leaves one."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._free.acquire()
        except TimeoutError:
            return False

    def give_back(self) -> None:
        self._free.release()


class Upload:
    """An onion of exactly `wanted` bytes, hashed on the way; refused as soon as it has more."""

    def __init__(self, wanted: int, folder: Path, room: Room | None = None) -> None:
        """A large onion has a place in `room`, or is written to a file in `folder`."""
        self._wanted = self._left = wanted
        self._hash = sha256()
        self._content = bytearray()
        self._room = room
        self.large = is_large(wanted)
        self._file = _nameless(folder) if self.large and room is None else None

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
        """Forget the onion and give its place back; a second call changes nothing."""
        room, self._room, self._content = self._room, None, bytearray()
        if room is not None:
            room.give_back()
        if self._file is not None:
            with suppress(OSError):  # what was buffered has no room either
                self._file.close()


def is_large(wanted: int) -> bool:
    return wanted > CHUNK_BYTES


def _nameless(folder: Path) -> BinaryIO:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise NoRoom(_NO_ROOM) from error
