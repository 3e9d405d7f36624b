"""Child processes that never outlive their parent, however it ends (Linux)."""

import ctypes
import os
import signal
import subprocess
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def spawn(
    arguments: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, both outputs to `log`, one BLAS thread."""
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables,
            start_new_session=True,
            preexec_fn=_end_with_parent,
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


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
