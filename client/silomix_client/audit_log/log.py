"""The audit log: everything that a silo does, as JSON lines in a hash chain, state/audit.jsonl.

    {"number":7,"at":"…","silo":"silo-1","level":"notice","event":"round_charged",
     "fields":{"round":3,"entry":5,"head":"…"},"previous":"…","hash":"…"}

(one line each).  `hash` is SHA-256(label ‖ the line without its hash), `previous` the hash of the
line before.  Lines tell acts and refusals, never records: what they say is what the silo's log
says (`logs`), and what the operator commanded.

The file outlives the process at once and a power cut from the next `sync` on: a round writes
without waiting for the disk, the end of a lease and every command of the operator wait.  The
ledger stays the durable record of what was spent; lines name its entries, so that neither of the
two can lose its end without the other telling (`verify_log`).
"""

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from silomix_protocol.host import logs
from silomix_protocol.host.durable import sync_folder
from silomix_protocol.host.pacing import Pace

from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import AuditLogBroken
from silomix_client.network.syslog import Syslog, packed

FILE = "audit.jsonl"
START = "0" * 64
LABEL = b"silomix audit line v1\0"
_HASH_AT = -len(f',"hash":"{START}"}}')
_LONGEST_TEXT = 4000
_LOST_S = 60.0  # between two lines about lines that the syslog did not get
LONGEST_LINE = 2**17
_SYSLOG_S = 3.0  # how long a command waits for its lines to leave


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log: one thing that was done, as it was written down."""

    number: int
    at: str
    silo: str
    level: str
    event: str
    fields: dict[str, Any]
    previous: str
    hash: str


@dataclass(frozen=True, slots=True)
class _End:
    """Where the log ends: bytes, and its last line's number and hash."""

    size: int = 0
    number: int = 0
    hash: str = START


class AuditLog:
    """Appends lines; several processes of one silo may do so at the same time."""

    def __init__(
        self,
        state: Path,
        silo: str,
        syslog: Syslog | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path, self._silo, self._syslog, self._clock = state / FILE, silo, syslog, clock
        self._mutex = threading.Lock()
        self._lost_told, self._lost_pace = 0, Pace(1, _LOST_S)
        self.failure: str | None = None  # why the last line of `hear` could not be written
        self.missed = 0  # lines of `hear` that could not be written
        self._descriptor = self._open()
        try:
            with self._alone():
                self._end, self._torn = self._found()
        except BaseException:
            os.close(self._descriptor)
            raise

    def hear(self, name: str, fields: dict[str, object], *, warning: bool) -> None:
        """Take an event of the silo's log; a line that cannot be written is told by `failure`."""
        try:
            self._append(name, fields, warning=warning)
        except (OSError, AuditLogBroken) as error:
            self.failure, self.missed = str(error), self.missed + 1
        else:
            self.failure = None

    def append(self, event: str, *, warning: bool = False, **fields: object) -> LogLine:
        """Write a line; it is in the file when this returns, on disk after the next `sync`."""
        return self._append(event, fields, warning=warning)

    def sync(self) -> None:
        """Wait until everything so far would outlive a power cut."""
        os.fsync(self._descriptor)
        sync_folder(self._path.parent)

    def close(self) -> int:
        """Close the log and return how many lines the syslog did not get."""
        unsent = 0 if self._syslog is None else self._syslog.close(_SYSLOG_S)
        os.close(self._descriptor)
        return unsent

    # Helpers ------------------------------------------------------------------------------------

    def _append(self, event: str, fields: dict[str, object], *, warning: bool) -> LogLine:
        with self._mutex, self._alone():
            self._catch_up()
            line = self._write(event, fields, warning=warning)
            lost = 0 if self._syslog is None else self._syslog.lost - self._lost_told
            if self._syslog is not None and lost and self._lost_pace.take():
                self._lost_told = self._syslog.lost
                self._write("syslog_lost", {"lines": self._lost_told}, warning=True)
            return line

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from appending meanwhile."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # `_catch_up` may have replaced the file

    def _catch_up(self) -> None:
        """Go on behind what the file has now; write down if it was changed under our hands."""
        known = self._end
        if self._was_moved():
            moved, self._descriptor = self._descriptor, self._open()
            os.close(moved)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            known = _End(-1, known.number, known.hash)
        if os.fstat(self._descriptor).st_size != known.size:
            self._end, self._torn = self._found()
            if known.number and not self._still_has(known):
                self._write(
                    "audit_log_changed",
                    {"lines_before": known.number, "head_before": known.hash[:16]},
                    warning=True,
                )
        if self._torn:
            self._repair()

    def _was_moved(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        here = os.fstat(self._descriptor)
        return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev)

    def _still_has(self, known: _End) -> bool:
        """Whether the line that we knew as the last one still ends where it did."""
        if not 0 < known.size <= self._end.size:
            return False
        start = max(0, known.size - LONGEST_LINE)
        before = os.pread(self._descriptor, known.size - start, start)
        return before.endswith(f'"hash":"{known.hash}"}}\n'.encode("ascii"))

    def _found(self) -> tuple[_End, int]:
        """The end of the file's last whole line, and the number of bytes behind it."""
        size = os.fstat(self._descriptor).st_size
        start = max(0, size - 2 * LONGEST_LINE)
        whole, newline, torn = os.pread(self._descriptor, size - start, start).rpartition(b"\n")
        if not newline and start:
            raise AuditLogBroken(f"{self._path}: {_WHAT_TO_DO}")
        if not newline:
            return _End(), len(torn)
        try:
            last = read_line(whole.rpartition(b"\n")[2])
        except ValueError as error:
            raise AuditLogBroken(
                f"{self._path}: its last line was changed; {_WHAT_TO_DO}"
            ) from error
        return _End(size - len(torn), last.number, last.hash), len(torn)

    def _repair(self) -> None:
        """Cut off the part of a line that a crash or a full disk left, and say so."""
        os.ftruncate(self._descriptor, self._end.size)
        self._write("audit_line_torn", {"bytes_removed": self._torn}, warning=True)
        self._torn = 0

    def _write(self, event: str, fields: dict[str, object], *, warning: bool) -> LogLine:
        at, end = self._clock(), self._end
        content: dict[str, Any] = {
            "number": end.number + 1,
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "silo": self._silo,
            "level": "warning" if warning else "notice",
            "event": event,
            "fields": {key: _plain(value) for key, value in fields.items()},
            "previous": end.hash,
        }
        body = json.dumps(content, separators=(",", ":"), allow_nan=False)
        digest = line_hash(body)
        text = f'{body[:-1]},"hash":"{digest}"}}'
        encoded = text.encode("ascii") + b"\n"
        if os.write(self._descriptor, encoded) != len(encoded):
            self._end = _End()  # so that the next call looks what is there
            raise AuditLogBroken(f"{self._path}: no room for a line; is the disk full?")
        self._end = _End(end.size + len(encoded), end.number + 1, digest)
        if self._syslog is not None:
            self._syslog.send(packed(text, event, at, warning=warning))
        return LogLine(**content, hash=digest)


@contextmanager
def audit_log(config: SiloConfig) -> Iterator[AuditLog]:
    """Open a silo's log for one command: what was written is on disk when the block is left."""
    syslog = None if config.syslog is None else Syslog(config.syslog)
    log = AuditLog(config.state, config.name, syslog)
    try:
        yield log
    finally:
        log.sync()
        if unsent := log.close():
            logs.warning("syslog_unreachable", address=config.syslog, lines=unsent)


def read_line(line: bytes) -> LogLine:
    """Read a line whose hash is right, or raise ValueError; its predecessor is not checked."""
    text = line.decode("ascii")
    body = text[:_HASH_AT] + "}"
    if text[_HASH_AT:] != f',"hash":"{line_hash(body)}"}}':
        raise ValueError("not a line of an audit log, or a changed one")
    try:
        return LogLine(**json.loads(line))
    except (TypeError, RecursionError) as error:
        raise ValueError("a line with other keys than an audit log's") from error


def line_hash(body: str) -> str:
    """The hash of a line; `body` is its text up to the hash, and a closing brace."""
    return sha256(LABEL + body.encode("ascii")).hexdigest()


def _plain(value: object) -> object:
    """A value as JSON has it; texts, which a server may have sent, stay short."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and isfinite(value):
        return float(f"{value:.6g}")
    return str(value)[:_LONGEST_TEXT]


_WHAT_TO_DO = (
    "keep a copy and find out who changed it; then move it away, and the next command begins a "
    "new log"
)
