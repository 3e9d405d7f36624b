"""The product's commands: which there are, and what one says in a test's own process."""

from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

import click
import typer
from silomix.main import app, run


def command_of(words: list[str]) -> click.Command | None:
    """The command that these words name, such as ["silo", "run"]; None if there is none."""
    command: click.Command | None = typer.main.get_command(app)
    for word in words:
        command = command.commands.get(word) if isinstance(command, click.Group) else None
    return None if isinstance(command, click.Group) else command


def typed(*words: str, cwd: Path) -> "CompletedProcess[str]":
    """A command line as a user types it, without a process of its own."""
    out, err = StringIO(), StringIO()
    status: int | str | None = 0
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err), patch("sys.argv", ["x", *words]):
        try:
            run()
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int), status
    return CompletedProcess(words, status, out.getvalue(), err.getvalue())
