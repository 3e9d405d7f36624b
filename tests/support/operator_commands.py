"""Commands as operators type them, each in a process of its own."""

import os
import subprocess
import sys

from silomix_lab.consortium.create import Consortium


def silomix(*arguments: object, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "silomix", *map(str, arguments)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
    )


def approve(made: Consortium, *options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    study = made.folder / "study.toml"
    return silomix("silo", "approve", made.silos[0], study, *options, typed=typed)


def one_line_error(result: subprocess.CompletedProcess[str]) -> str:
    """The only line on standard error of a command that failed as it should."""
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("silomix: ")
    assert "Traceback" not in result.stdout
    return line.removeprefix("silomix: ")


def unfolded(shown: str) -> str:
    """A letter without its line breaks."""
    return " ".join(shown.split())
