"""What a command prints is text: no terminal takes any of it for an order."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix.main import app
from silomix_lab.consortium.create import Consortium
from silomix_protocol.host.terminal import shown
from support.consortia import make_consortium
from typer.testing import CliRunner

ESCAPE = "\x1b]0;PWNED\x07\x1b[2J\u202e\x9b1m\r"
ORDERS = {char for char in ESCAPE if not char.isprintable()}


@given(st.text())
def test_nothing_that_is_shown_is_obeyed(text: str) -> None:
    lines = shown(text).split("\n")
    assert len(lines) == text.count("\n") + 1
    assert all(line.isprintable() for line in lines)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("hostile") / "c")


DATA = {
    "header": ("dose", f"do{ESCAPE}se"),
    "cell": ("\n", f"\n{ESCAPE},0.5,1\n"),
    "label": ("\n", f"\n50,0.5,{ESCAPE}\n"),
    "line": ("\n", '\n50,0.5,"1\nsilomix: all is well"\n'),
}


@pytest.mark.parametrize("command", ["review", "check", "doctor", "approve"])
@pytest.mark.parametrize("place", DATA)
def test_what_stands_in_the_data_is_only_shown(
    made: Consortium, tmp_path: Path, place: str, command: str
) -> None:
    silo = made.silos[0]
    data = silo.parent / "data.csv"
    honest = data.read_text()
    data.write_text(honest.replace(*DATA[place], 1))
    try:
        done = CliRunner().invoke(
            app, ["silo", command, str(silo), str(made.folder / "study.toml")]
        )
    finally:
        data.write_text(honest)
    said = done.output + str(done.exception)
    assert "no column 'dose'" in said or "row 2" in said
    assert not ORDERS & set(said)
    assert "\nsilomix: all is well" not in said


def test_the_name_of_a_file_is_only_shown(tmp_path: Path) -> None:
    bad = tmp_path / f"st{ESCAPE}.toml"
    bad.write_bytes(b"x = [")
    done = subprocess.run(
        [sys.executable, "-m", "silomix", "study", "show", str(bad)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"silomix: ")
    assert not ORDERS & set(done.stderr.decode())
