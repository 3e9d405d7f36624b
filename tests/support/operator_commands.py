"""Commands as operators type them, run in this process: what they print and their exit status."""

import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

from silomix import main
from silomix_lab.consortium.create import Consortium
from typer.testing import CliRunner


def silomix(
    *arguments: object, typed: str = "", cwd: Path = Path()
) -> subprocess.CompletedProcess[str]:
    command, status = ["silomix", *map(str, arguments)], 0
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    with (
        chdir(cwd),
        patch.object(sys, "argv", command),
        runner.isolation(input=typed) as (stdout, stderr, _),
    ):
        try:
            main.run()
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = [each.getvalue().decode() for each in (stdout, stderr)]
    return subprocess.CompletedProcess(command, status, *said)


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
