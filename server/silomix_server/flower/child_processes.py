"""Child processes that never outlive their parent, however it ends (Linux).

The child asks the kernel for a signal when its parent dies.  It does so itself, first thing after
its start: code between fork and exec (`preexec_fn`) can hang in a parent that has gRPC threads.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

_PARENT = "SILOMIX_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def spawn(
    arguments: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, both outputs to `log`, one BLAS thread.

    The program must call `end_with_parent`.
    """
    variables = os.environ | {"OMP_NUM_THREADS": "1", _PARENT: str(os.getpid())}
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables | (environment or {}),
            start_new_session=True,
        )


def end(child: subprocess.Popen[bytes], grace_s: float = 10.0) -> None:
    """Ask a child to stop, then make it; returns when it is gone."""
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def end_with_parent() -> None:
    """End this process when the one that started it by `spawn` does; without one, do nothing."""
    parent = os.environ.pop(_PARENT, None)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # the parent died before we asked
        sys.exit("the process that started this one is gone")
