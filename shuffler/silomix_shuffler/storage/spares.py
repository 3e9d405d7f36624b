"""Emptied files, for the bodies of the next batches.

To make a file, a file system may look at every one that was deleted in the last minutes (ext4
without a journal does): a mix that makes and deletes one in each round would pay for all of them.
"""

import os
from contextlib import suppress
from itertools import count
from pathlib import Path

_MOST = 8


class Spares:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        for left in folder.iterdir():  # by an earlier process
            left.unlink()
        self._folder = folder
        self._numbers = count(1)
        self._files: list[str] = []

    def open(self, path: Path) -> int:
        """Open the file at `path`, made empty if there was none."""
        try:
            return os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return self.make(path)

    def make(self, path: Path) -> int:
        """Make an empty file at `path`, whatever was there, and open it."""
        with suppress(FileNotFoundError, IndexError):
            os.rename(self._files.pop(), path)
            return os.open(path, os.O_RDWR | os.O_TRUNC)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def put_by(self, path: Path) -> None:
        """Empty the file at `path` and keep it for later, or delete it: its content is gone."""
        try:
            self._keep(path)
        except FileNotFoundError:
            pass
        except OSError:  # a full disk, or `path` is on another one, behind a link
            path.unlink(missing_ok=True)

    def _keep(self, path: Path) -> None:
        if len(self._files) >= _MOST:
            os.unlink(path)
            return
        os.truncate(path, 0)
        spare = f"{self._folder}/{next(self._numbers)}"
        os.rename(path, spare)
        self._files.append(spare)
