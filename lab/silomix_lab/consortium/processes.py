"""The demo's processes: started, watched, measured and ended by their ids."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from silomix_server.flower.child_processes import end, spawn

if TYPE_CHECKING:
    import psutil  # an optional dependency: a consortium is laid out without it


class Role(Enum):
    AUTHORITY = "authority"
    SERVER = "server"
    MIX = "mix"
    SILO = "silo"


class ChildFailed(Exception):
    """A process of the demo ended by itself; the message names it and its log."""


@dataclass(slots=True)
class Process:
    name: str
    role: Role
    log: Path
    child: subprocess.Popen[bytes]

    @property
    def state(self) -> str:
        """The word `running`, or how the process ended."""
        status = self.child.poll()
        if status is None:
            return "running"
        if status < 0:
            return f"ended by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    def last_event(self) -> str:
        """The last thing that the process says it did."""
        lines = tail(self.log, 1)
        return " ".join(lines[0].split()[2:]) if lines else "starting"


@dataclass(slots=True)
class Processes:
    """All children of one demo; leaving the `with` block ends every one of them."""

    folder: Path
    running: list[Process] = field(default_factory=list)
    peak_rss_mb: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            if process.child.poll() is None:
                process.child.send_signal(signal.SIGTERM)
        for process in self.running:
            end(process.child)

    def start(self, role: Role, config: Path) -> Process:
        """Start `silomix ROLE run CONFIG`, with its output in the log folder."""
        name = config.parent.name
        log = self.folder / f"{name}.log"
        arguments = [sys.executable, "-m", "silomix", role.value, "run", str(config)]
        process = Process(name, role, log, spawn(arguments, log))
        self.running.append(process)
        return process

    def check(self) -> None:
        """Raise if a process failed.  A silo ended by a signal was ended by somebody's hand: the
        study goes on without it as long as its minimum batch holds."""
        for process in self.running:
            status = process.child.poll()
            if status is None or (process.role is Role.SILO and status < 0):
                continue
            if process.role is Role.SERVER and status == 0:
                continue
            reason = _reason(process.log)
            raise ChildFailed(f"{process.name} {process.state}: {reason}\nread {process.log}")

    def measure(self) -> None:
        """Note the largest resident memory of each kind of process so far."""
        for kind, pid in self.members():
            self.peak_rss_mb[kind] = max(self.peak_rss_mb.get(kind, 0.0), _peak_rss_mb(pid))

    def members(self) -> Iterator[tuple[str, int]]:
        """Yield kind and id of every process; the server's own children are kinds of their own."""
        for process in self.running:
            yield process.role.value, process.child.pid
            if process.role is Role.SERVER:
                for child in _children(process.child.pid):
                    yield _kind(child), child.pid


def tail(log: Path, lines: int) -> list[str]:
    """The last lines of a log file."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 200 * (lines + 4)))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-lines:]


def _reason(log: Path) -> str:
    """What a failed process said last: our own one-line error if there is one."""
    lines = tail(log, 30)
    own = [line for line in lines if line.startswith("silomix: ")]
    return own[-1].removeprefix("silomix: ") if own else (lines[-1] if lines else "no output")


def _children(pid: int) -> "list[psutil.Process]":
    import psutil

    try:
        return list(psutil.Process(pid).children())
    except psutil.NoSuchProcess:
        return []


def _kind(process: "psutil.Process") -> str:
    import psutil

    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return "server"
    return "coordinator" if "silomix_server.flower.serverapp" in command else "superlink"


def _peak_rss_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
