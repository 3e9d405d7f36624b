"""docs/operations.md and the compose file's comments speak of the product as it is."""

import re
import shlex
from pathlib import Path

import click
import pytest
from silomix_authority import register
from silomix_client.ledger import database as ledger_database
from silomix_server.mixes import token_desk
from silomix_server.study import journal
from silomix_shuffler.storage import store
from support.commands import command_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operations.md").read_text()
SHOWN = re.findall(
    r"silomix ((?:silo|mix|server|authority|consortium|study) [a-z-]+(?: [^`\n|#]*)?)",
    TEXT.replace("\\\n", " "),
)


def test_every_command_that_is_shown_is_one_with_these_options() -> None:
    assert len(SHOWN) > 15
    for words in map(shlex.split, SHOWN):
        command = command_of(words[:2])
        assert command is not None, words
        options = {
            name
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for name in parameter.opts
        }
        given = {word for word in words if word.startswith("--") and word != "--"}
        assert given <= options, words


def test_every_file_of_the_repository_that_is_named_is_there() -> None:
    named = set(re.findall(r"(?:deploy|tests|docs)/[\w./@-]*\w", TEXT))
    assert len(named) > 4
    for name in named:
        assert (ROOT / name).exists(), name
    for name in re.findall(r"systemd/((?:system|user)/[\w.*@-]+)", TEXT):
        assert list((ROOT / "deploy" / "systemd").glob(name)), name


@pytest.mark.parametrize(
    ("file", "version", "before"),
    [
        ("ledger.sqlite", ledger_database._VERSION, sorted(ledger_database._UPGRADES)),
        ("mix.sqlite", store._VERSION, sorted(store._UPGRADES)),
        ("journal-*.sqlite", journal._VERSION, []),
        ("tokens-*.sqlite", token_desk._VERSION, []),
        ("register.sqlite", register._VERSION, sorted(register._UPGRADES)),
    ],
)
def test_the_formats_are_those_of_this_release(file: str, version: int, before: list[int]) -> None:
    (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| `state/{file}`"))
    *_, written, takes_over = (cell.strip() for cell in row.strip("|").split("|"))
    assert (written, takes_over) == (str(version), ", ".join(map(str, before)))
