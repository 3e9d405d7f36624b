"""A power cut: everything that a party wrote and did not sync is gone, as the file system likes.

Writes, renames and syncs under one folder are heard (audit events of the interpreter; `fsync` is
wrapped) and the content that was synced is kept aside.  Then `cut` makes of the folder what a disk
might have after the power came back: with all names but only the synced content (files are there,
and empty), or without the names that no sync of their folder made sure.  SQLite's own files stay
as they are: it syncs by itself, out of our sight.

Processes are traced by `PYTHONPATH=tests/support/traced` and the two variables that `environment`
gives; a test's own process by `traced`.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT, MEMORY = "SILOMIX_TEST_POWER_ROOT", "SILOMIX_TEST_POWER_MEMORY"
_TRACER = Path(__file__).parent / "traced"
_WRITING = os.O_WRONLY | os.O_RDWR


class Loss(Enum):
    """What a power cut takes beside the content that was not synced."""

    CONTENT = "content"
    NAMES = "names"


class Disk:
    """What is sure to be on disk of the files under `root`, as kept in the folder `memory`."""

    def __init__(self, root: Path, memory: Path) -> None:
        self._root, self._memory = os.path.abspath(root), str(memory)
        os.makedirs(memory, exist_ok=True)

    # While processes run -------------------------------------------------------------------------

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit event; it may come before the act, and from any thread."""
        if event == "open" and args[2] & _WRITING:
            self._opened(args[0], args[2])
        elif event == "os.rename":
            self._moved(*args[:2], keep=False)
        elif event == "os.link":
            self._moved(*args[:2], keep=True)
        elif event == "os.mkdir" and (path := self._inside(args[0])):
            self._write(path, "made", b"")

    def synced(self, descriptor: int) -> None:
        """A sync has returned: the content of a file, or the names in a folder, are safe."""
        path = self._inside(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path is None:
            return
        if os.path.isdir(path):
            self._named(path)
        elif os.path.exists(path):
            with open(path, "rb") as file:
                self._write(path, "kept", file.read())

    def _opened(self, name: object, flags: int) -> None:
        path = self._inside(name)
        if path is None or ".sqlite" in path or not flags & (os.O_CREAT | os.O_TRUNC):
            return
        self._write(path, "touched", b"")
        if flags & os.O_TRUNC:
            self._forget(path, "kept")

    def _moved(self, old: object, new: object, *, keep: bool) -> None:
        source, target = self._inside(old), self._inside(new)
        if target is None:
            return
        self._write(target, "touched", b"")
        self._forget(target, "kept")
        if source is not None:
            with suppress(FileNotFoundError):
                act: Callable[..., object] = shutil.copy if keep else os.replace
                act(self._place(source, "kept"), self._place(target, "kept"))

    def _named(self, folder: str) -> None:
        for entry in os.scandir(folder):
            if entry.is_dir():
                self._forget(entry.path, "made")
                continue
            with suppress(FileNotFoundError):
                shutil.copy(self._place(entry.path, "kept"), self._place(entry.path, "named"))

    def _inside(self, name: object) -> str | None:
        if not isinstance(name, str | bytes | os.PathLike):
            return None
        path = os.path.abspath(os.fsdecode(name))
        return path if f"{path}{os.sep}".startswith(f"{self._root}{os.sep}") else None

    def _place(self, path: str, what: str) -> str:
        return os.path.join(self._memory, f"{sha256(path.encode()).hexdigest()}.{what}")

    def _write(self, path: str, what: str, content: bytes) -> None:
        place = self._place(path, what)
        with open(f"{place}.{os.getpid()}", "wb") as file:
            file.write(content)
        os.replace(file.name, place)

    def _forget(self, path: str, what: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._place(path, what))

    # After they were killed ----------------------------------------------------------------------

    def cut(self, loss: Loss) -> list[str]:
        """Take what was not synced; the files that are not what they were."""
        changed = []
        for folder, folders, files in os.walk(self._root):
            for name in list(folders):
                path = os.path.join(folder, name)
                if loss is Loss.NAMES and os.path.exists(self._place(path, "made")):
                    shutil.rmtree(path)
                    folders.remove(name)
                    changed.append(path)
            for name in files:
                path = os.path.join(folder, name)
                if os.path.exists(self._place(path, "touched")) and self._lose(path, loss):
                    changed.append(path)
        return changed

    def _lose(self, path: str, loss: Loss) -> bool:
        safe = Path(self._place(path, "kept" if loss is Loss.CONTENT else "named"))
        before = Path(path).read_bytes()
        if safe.exists():
            Path(path).write_bytes(safe.read_bytes())
            return safe.read_bytes() != before
        if loss is Loss.NAMES:
            os.unlink(path)
            return True
        Path(path).write_bytes(b"")
        return before != b""


_listening: list[Disk] = []
_hooked: list[bool] = []


def listen(disk: Disk) -> None:
    """From now on in this process; the audit hook itself cannot be taken back."""
    _listening.append(disk)
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_heard)
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _telling(getattr(os, name), disk))


def _heard(event: str, args: tuple[Any, ...]) -> None:
    for disk in _listening:
        disk.hear(event, args)


def _telling(sync: Callable[[int], None], disk: Disk) -> Callable[[int], None]:
    def told(file: Any) -> None:
        sync(file)
        disk.synced(file if isinstance(file, int) else file.fileno())

    return told


def environment(root: Path, memory: Path) -> dict[str, str]:
    """What makes every Python process that is started with it listen."""
    return {ROOT: str(root), MEMORY: str(memory), "PYTHONPATH": str(_TRACER)}


@contextmanager
def traced(root: Path, memory: Path) -> Iterator[Disk]:
    """This process, as long as this lasts."""
    disk, before = Disk(root, memory), (os.fsync, os.fdatasync)
    listen(disk)
    try:
        yield disk
    finally:
        _listening.clear()
        os.fsync, os.fdatasync = before
