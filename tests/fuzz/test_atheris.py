"""Coverage-guided fuzzing for a few seconds, from a fixed seed, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIMIT_S = 120.0  # far beyond what the runs take on a slow machine


def fuzzed(folder: Path, *options: str, planted: bool = False) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "SILOMIX_PLANTED": str(int(planted))}
    script = str(TESTS / "fuzz" / "run_atheris.py")
    fixed = "-seed=20260101", "-max_len=20000", "-rss_limit_mb=4096", f"-artifact_prefix={folder}/"
    return subprocess.run(
        [sys.executable, script, str(folder / "corpus"), *fixed, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_no_target_raises_what_it_does_not_declare(tmp_path: Path) -> None:
    done = fuzzed(tmp_path, "-runs=50000", "-max_total_time=12", "-timeout=10")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr
    assert not list(tmp_path.glob("crash-*"))


def test_a_planted_bug_is_found(tmp_path: Path) -> None:
    """The harness sees undeclared errors, and coverage leads it to where random bytes do not."""
    done = fuzzed(tmp_path, "-runs=500000", "-max_total_time=30", planted=True)
    assert done.returncode != 0
    assert "KeyError: 'planted'" in done.stdout + done.stderr
    (crash,) = tmp_path.glob("crash-*")
    assert crash.read_bytes()[1:4] == b"SMR"
