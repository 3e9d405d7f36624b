"""Every command, option and configuration of docs/walkthroughs is one that the programs take."""

import re
import shlex
import tomllib
from base64 import b64encode
from itertools import pairwise
from pathlib import Path

import click
import pytest
import typer
from silomix.main import app
from silomix.text.study_and_ledger import describe_study
from silomix_client.config.silo_config import load
from silomix_core.study.reader import parse_outline, parse_study
from silomix_core.study.study import InvalidStudy
from support.studies import parse, study_tree

FOLDER = Path(__file__).parents[2] / "docs" / "walkthroughs"
PAGES = sorted(FOLDER.glob("*.md"))
ROLES = ["authority.md", "hospital.md", "mix-operator.md", "server-operator.md", "study-lead.md"]


def blocks(page: Path, kind: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```", text)


def commands(page: Path) -> list[list[str]]:
    """What the page tells people to type: whole lines of sh blocks, and what stands in a line."""
    typed = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    prose = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    lines = typed + re.findall(r"`(silomix [^`]+)`", prose.replace("\n", " "))
    return [shlex.split(line)[1:] for line in lines if line.startswith("silomix ")]


def named(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words begin with, and its arguments."""
    found, rest = typer.main.get_command(app), list(words)
    while isinstance(found, click.Group):
        if not rest or rest[0] not in found.commands:
            raise AssertionError(f"no such command: silomix {shlex.join(words)}")
        found = found.commands[rest.pop(0)]
    return found, rest


def test_every_role_has_a_page_and_every_page_is_listed() -> None:
    assert [page.name for page in PAGES] == sorted(["README.md", *ROLES])
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({role})" in listed for role in ROLES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_exists_with_these_options(page: Path) -> None:
    found = commands(page)
    assert found
    for words in found:
        command, given = named(words)
        if any(isinstance(each, click.Argument) for each in command.params) and not given:
            continue  # only its name is mentioned
        command.make_context(shlex.join(words), given)  # parses, and calls nothing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.is_file(), target
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", path.read_text(encoding="utf-8"))
            slugs = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in slugs, f"{target}#{anchor}"


def test_steps_are_numbered_without_a_gap() -> None:
    for page in (FOLDER / role for role in ROLES):
        steps = [int(step) for step in re.findall(r"(?m)^\*\*(\d+)\. ", page.read_text())]
        assert steps[0] == 1
        assert all(later == earlier + 1 for earlier, later in pairwise(steps)), page.name


def test_the_outline_of_the_page_lacks_only_what_the_roster_and_hospitals_add() -> None:
    outline = blocks(FOLDER / "study-lead.md", "toml")[0]
    assert len(parse_outline(outline.encode()).task.features) == 6
    with pytest.raises(InvalidStudy, match="study assemble"):
        parse_study(outline.encode())
    table, keys = tomllib.loads(outline), study_tree()
    second = keys["mixes"][0] | {"sign_key": b64encode(bytes(range(32))).decode()}
    complete = table | {
        "server": keys["server"] | table["server"],
        "mixes": [
            mix | told for mix, told in zip((keys["mixes"][0], second), table["mixes"], strict=True)
        ],
        "silos": [silo | told for silo, told in zip(keys["silos"], table["silos"], strict=True)],
    }
    study = parse(complete)
    assert [silo.name for silo in study.silos] == ["hospital-a", "hospital-b", "hospital-c"]
    assert "epsilon 1, delta 1e-06" in describe_study(study)


def test_the_hospital_can_be_configured_so(tmp_path: Path) -> None:
    first, second, policy = blocks(FOLDER / "hospital.md", "toml")
    (tmp_path / "policy.toml").write_text(policy)
    kinds = []
    for example in (first, second):
        (tmp_path / "silo.toml").write_text(example)
        kinds.append(type(load(tmp_path / "silo.toml").data).__name__)
    assert kinds == ["CsvFile", "SqlQuery"]
    assert load(tmp_path / "silo.toml").policy.rules.minimum_people == 11
