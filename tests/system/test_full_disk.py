"""A mix without room on its disk, and a supervisor that starts the server again and again.

Real processes; the mix's state lies on a small file system that somebody else fills.
"""

import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomli_w
from support.consortia import make_consortium
from support.processes import Running, approve_all, progress, running, spending

ROUNDS, FULL_AFTER = 30, 4
_MB = 2**20


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 64 MB at `folder`; skips the test where we may not mount one."""
    folder.mkdir(mode=0o700)
    arguments = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "silomix-test", str(folder)]
    if subprocess.run(arguments, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(file: Path, left_bytes: int) -> None:
    """Take the disk's room but for so many bytes."""
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            filler.truncate(max(filler.tell() - left_bytes, 0))


def reserve(config: Path, free_disk_mb: int) -> None:
    settings = tomllib.loads(config.read_text())
    settings["limits"] = settings.get("limits", {}) | {"free_disk_mb": free_disk_mb}
    config.write_text(tomli_w.dumps(settings))


def test_mixes_without_room_cost_no_rounds_however_often_the_server_is_started(
    tmp_path: Path,
) -> None:
    """The first mix has less than its floor, later the last one not a byte."""
    made = make_consortium(
        tmp_path / "c", records=(40, 50), rounds=ROUNDS, deadline_s=1.0, lease_rounds=30
    )
    approve_all(made)
    states = [config.parent / "state" for config in made.mixes]
    for config in made.mixes:
        reserve(config, free_disk_mb=16)
    with small_disk(states[0]), small_disk(states[1]), running(made) as system:
        played = []
        for state, left_bytes in zip(states, (4 * _MB, 0), strict=True):
            system.wait_for_more_rounds(FULL_AFTER)
            played.append(len(progress(made)))
            play_without_room(system, state, left_bytes)
        while system.server_status():
            assert len(progress(made)) < ROUNDS, system.all_logs()
            system.restart_server()
    lines = progress(made)
    for filled in (lines[: played[1]], lines[played[1] :]):
        void = [line["round"] for line in filled if line["void"]]
        assert len(void) <= 1, (void, system.all_logs())  # the one that it was filled in
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
    assert all(line["asked"] for line in lines), "no round was used up without anybody"
    for entry in spending(made):
        assert ROUNDS - 2 <= entry.rounds <= ROUNDS


def play_without_room(system: Running, state: Path, left_bytes: int) -> None:
    """Start the server again while there is no room, and once when there is."""
    fill(state / "filler", left_bytes)
    for _ in range(2):
        assert system.server_status() == 1, system.all_logs()
        system.restart_server()
    (state / "filler").unlink()
