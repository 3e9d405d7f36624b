"""Help texts that are shown as they are written.

Typer would take `[server]` in a docstring for the name of a style and drop it; all texts of these
commands are literal.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click
import typer
from typer.core import TyperCommand, TyperGroup

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Commands(typer.Typer):
    """A group of commands with literal help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """Register the decorated function as a command; its docstring is its help."""
        return super().command(name, cls=_Command, **settings)


class _Command(TyperCommand):
    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _make_literal(self)
        super().format_help(ctx, formatter)


class _Group(TyperGroup):
    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for command in (self, *self.commands.values()):
            _make_literal(command)
        super().format_help(ctx, formatter)


def _make_literal(command: click.Command) -> None:
    """Escape the help that is about to be shown, once: a process shows one help and ends."""
    from rich.markup import escape  # not at every start of every party

    command.help = escape(command.help or "")
    for parameter in command.params:
        if text := getattr(parameter, "help", None):
            setattr(parameter, "help", escape(text))  # noqa: B010 - not every parameter has one
