"""Processes of their own that call one function of this package."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def child(module: str, function: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that calls support.<module>.<function>."""
    code = f"from support.{module} import {function}; {function}(*{arguments!r})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )
