"""A coordinator that stops itself (SIGSTOP) at an exact point of a round, when a test says so.

Real processes pass such a point within a millisecond: no test can hit it from outside.  Here the
process is told by a file where to stop, and stops before the call that is named there.  Whoever
waits for it then kills what is to be killed at that moment, and lets it go on or kills it too.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

import pytest

from support.processes import Running, wait_until

_FILE = "SILOMIX_TEST_STOP"
_HOOK = f"""
import sys
if "silomix_server.flower.serverapp" in sys.orig_argv:
    import os, pathlib, signal
    from silomix_server.mixes.mix_chain import MixChain
    file = pathlib.Path(os.environ["{_FILE}"])
    def stopping(name, call):
        async def stops(*given, **named):
            if file.exists() and file.read_text() == name:
                file.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)
            return await call(*given, **named)
        return stops
    for name in ("commit", "release"):
        setattr(MixChain, name, stopping(name, getattr(MixChain, name)))
"""


class Point(Enum):
    """Where a coordinator stops."""

    ALL_ARRIVED = "commit"  # the batch is here, nobody has heard of its list
    ALL_CONFIRMED = "release"  # every silo confirmed the list, nothing is summed


class Stops:
    """The coordinator of a running consortium, at the next point that a test names."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @contextmanager
    def stopped(self, system: Running, point: Point) -> Iterator[int]:
        """While it stands still at that point of the next round; then it goes on, unless it was
        killed.  Its process id."""
        self._file.with_suffix(".new").write_text(point.value)
        self._file.with_suffix(".new").rename(self._file)
        wait_until(lambda: not self._file.exists(), f"{point}: {system.all_logs()}")
        pid = [pid for kind, pid in system.processes.members() if kind == "coordinator"][-1]
        wait_until(lambda: _state(pid) == "T", "the coordinator stands still")
        try:
            yield pid
        finally:
            if _state(pid) == "T":
                os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def kill_server(system: Running) -> None:
    """Coordinator, SuperLink and what started them, without a last word."""
    dying = [pid for kind, pid in system.processes.members() if kind not in ("mix", "silo")]
    for pid in reversed(dying):
        with suppress(ProcessLookupError):  # of a server that was killed before
            os.kill(pid, signal.SIGKILL)
    system.server.child.wait(10)
    wait_until(lambda: not any(_state(pid) not in ("", "Z") for pid in dying), "all are gone")


@pytest.fixture
def stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stops:
    """For every coordinator that this test starts from now on."""
    folder = tmp_path / "stops"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_HOOK)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv(_FILE, str(folder / "stop"))
    return Stops(folder / "stop")
