"""The systemd units: systemd takes every line of them, and what they leave open stays small."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.commands import command_of

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SYSTEM, USER = sorted((UNITS / "system").glob("*@.*")), sorted((UNITS / "user").glob("*@.*"))
SERVICES = sorted(UNITS.glob("*/*.service"))


def install(program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)


def analyze(*arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **variables},
    )


@pytest.mark.parametrize("unit", SYSTEM, ids=lambda path: path.name)
def test_systemd_has_nothing_to_say_about_a_system_unit(tmp_path: Path, unit: Path) -> None:
    """In a machine's files as far as systemd looks at them: its units, ours, our program."""
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    shutil.copytree(UNITS / "system", tmp_path / "etc/systemd/system")
    install(tmp_path / "opt/silomix/bin/silomix")
    install(tmp_path / "bin/sh")
    done = analyze("verify", f"--root={tmp_path}", unit.name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", USER, ids=lambda path: path.name)
def test_systemd_has_nothing_to_say_about_a_user_unit(tmp_path: Path, unit: Path) -> None:
    install(tmp_path / ".local/share/silomix/bin/silomix")
    home = str(tmp_path)
    done = analyze("verify", "--user", unit, HOME=home, XDG_RUNTIME_DIR=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_exposure_stays_below_its_limit(unit: Path) -> None:
    """Of 10, as systemd counts: 1.5 with root's help; a user manager can only filter calls."""
    limit = 15 if unit.parent.name == "system" else 65
    done = analyze("security", "--offline=yes", f"--threshold={limit}", unit)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_unit_runs_a_command_that_there_is(unit: Path) -> None:
    (line,) = re.findall(r"(?m)^ExecStart=.*?/bin/silomix (.*)$", unit.read_text())
    words = [word.strip("\"'") for word in line.split()]
    assert command_of(words[:2]) is not None
    party = words[0]
    assert f"{party}.toml" in words[2]


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_unit_bounds_memory_tasks_and_descriptors(unit: Path) -> None:
    """So that whatever goes wrong in a party ends that party, not the machine."""
    settings = dict(re.findall(r"(?m)^(\w+)=(.*)$", unit.read_text()))
    assert settings["MemoryMax"] == ("1G" if "authority" in unit.name else "4G")
    assert settings["MemorySwapMax"] == "0"
    assert settings["TasksMax"] == "512"
    assert settings["LimitNOFILE"] == ("1024" if "backup" in unit.name else "65536")
    assert settings["LimitCORE"] == "0"


def test_a_silo_unit_opens_no_port_and_a_party_runs_as_nobody_special() -> None:
    for unit in UNITS.glob("system/*.service"):
        text = unit.read_text()
        assert "\nUser=silomix\n" in text
        assert "\nCapabilityBoundingSet=\n" in text
    assert not list(UNITS.rglob("*silo*.socket"))
