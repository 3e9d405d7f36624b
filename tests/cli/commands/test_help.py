"""What the command line says of itself."""

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
import typer
from silomix.main import app
from silomix_core.algorithms.catalogue import ALGORITHMS
from support.operator_commands import silomix
from typer.testing import CliRunner


def commands() -> Iterator[tuple[str, ...]]:
    """Every command and group of the command line."""

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*path, name))

    return walk(typer.main.get_command(app), ())


def test_the_command_line_has_the_commands_of_every_party() -> None:
    assert set(commands()) >= {
        ("demo",),
        ("silo", "approve"),
        ("silo", "run"),
        ("silo", "ledger"),
        ("silo", "complaints"),
        ("mix", "run"),
        ("mix", "rotate"),
        ("mix", "health"),
        ("server", "run"),
        ("study", "show"),
        ("study", "complaint"),
        ("study", "assemble"),
        *(("authority", name) for name in ("init", "run", "invite", "list", "revoke", "roster")),
        ("join",),
        ("renew",),
        ("consortium", "init"),
    }


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert len(result.output.splitlines()) > 3


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_help_shows_every_word_as_it_is_written(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets too, which a terminal's markup would swallow."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 1000)
    command = typer.main.get_command(app)
    for name in path:
        command = getattr(command, "commands")[name]  # noqa: B009 - of groups alone
    texts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
    texts += [each.get_short_help_str(1000) for each in getattr(command, "commands", {}).values()]
    shown = CliRunner().invoke(app, [*path, "--help"]).output.split()
    assert [word for text in texts for word in text.split() if word not in shown] == []


def test_help_is_what_a_process_prints_and_needs_no_flower() -> None:
    result = silomix("--help")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "silo" in result.stdout
    code = "import sys, silomix.main; assert not {'flwr', 'grpc', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("arguments", [("silo", "forget"), ("silo", "approve"), ("noise", "off")])
def test_a_command_that_does_not_exist_is_an_error_of_usage(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2


def test_every_algorithm_is_listed_with_its_theorem_and_when_to_use_it() -> None:
    shown = CliRunner().invoke(app, ["algorithms", "--json"])
    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    assert [each["name"] for each in found] == list(ALGORITHMS)
    assert all(each["theorem"] and each["advice"] for each in found)
    table = CliRunner().invoke(app, ["algorithms"]).output
    assert all(name in table for name in ALGORITHMS)
