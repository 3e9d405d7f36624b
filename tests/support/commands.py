"""The product's commands, to check that whatever deploys it names ones that there are."""

import click
import typer
from silomix.main import app


def command_of(words: list[str]) -> click.Command | None:
    """The command that these words name, such as ["silo", "run"]; None if there is none."""
    command: click.Command | None = typer.main.get_command(app)
    for word in words:
        command = command.commands.get(word) if isinstance(command, click.Group) else None
    return None if isinstance(command, click.Group) else command
