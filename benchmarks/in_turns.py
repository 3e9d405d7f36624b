"""How much slower a round is than it was at an earlier commit: both at once, in turns.

    python benchmarks/in_turns.py 2b2fe49                  # N = 10, d = 50
    python benchmarks/in_turns.py 2b2fe49 --studies 5 --json out.json
    python benchmarks/in_turns.py HEAD~1 --rounds 200      # differences of a few per cent

A machine's speed changes from one minute to the next by more than many changes are worth.  So a
study of each commit runs at the same time, each with `benchmarks/rounds.py` of its own, and while
one plays its rounds all processes of the other are stopped (SIGSTOP): turns of half a second.  The
other commit is checked out beside this one and runs with this environment's packages; what it needs
beside them is installed by hand (for 7a32e20: `.venv/bin/pip install voprf==0.2.0`).

Columns: median milliseconds of a round, before and now, and how many times as much that is; the
same for CPU milliseconds, all roles together, then each; a line for each pair of studies.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent.parent
PARTS = ("core", "proto", "protocol", "client", "shuffler", "server", "authority", "lab", "cli")
TURN_S = 0.5
STARTED = 3  # rounds: then a study waits for the other one
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Line:
    before_ms: float
    now_ms: float
    times: float
    before_cpu_ms: dict[str, float]
    now_cpu_ms: dict[str, float]
    times_cpu: float


@dataclass(slots=True)
class Running:
    """One tree's benchmark, with all the processes that it started."""

    tree: Path
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def rounds(self) -> int:
        """How many its study has closed."""
        files = list(self.folder.glob("silomix-bench-*/consortium/server/state/progress.jsonl"))
        with suppress(OSError):  # deleted when it is done
            return sum(path.read_bytes().count(b"\n") for path in files)
        return 0

    def send(self, number: signal.Signals) -> None:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            for each in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def result(self) -> tuple[float, dict[str, float]]:
        """Median milliseconds of a round, and CPU milliseconds in each role."""
        if self.process.returncode:
            log = (self.folder / "log").read_text(encoding="utf-8")
            raise SystemExit(f"{self.tree}: benchmarks/rounds.py failed\n{log}")
        (line,) = json.loads((self.folder / "out.json").read_text(encoding="utf-8"))
        return line["median_ms"], line["cpu_ms_per_round"]


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without the processes
    lines = []
    with checked_out(options.commit) as before:
        print("  before ms   now ms  times |   CPU  by role, before / now")
        for _ in range(options.studies):
            lines.append(_compared(before, options))
            _print(lines[-1])
    middle = statistics.median(line.times for line in lines)
    cpu = statistics.median(line.times_cpu for line in lines)
    print(f"\na round takes {middle:.2f} times as long, {cpu:.2f} times the CPU (medians)")
    if options.json:
        rows = [asdict(line) for line in lines]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _compared(before: Path, options: argparse.Namespace) -> Line:
    with _started(before, options) as old, _started(HERE, options) as new:
        _take_turns(old, new)
        (old_ms, old_cpu), (new_ms, new_cpu) = old.result(), new.result()
    times_cpu = sum(new_cpu.values()) / sum(old_cpu.values())
    return Line(old_ms, new_ms, new_ms / old_ms, old_cpu, new_cpu, times_cpu)


def _take_turns(*both: Running) -> None:
    """Until both are done; the first to play its rounds waits for the other to get there."""
    end = time.monotonic() + LIMIT_S
    waiting: list[Running] = []
    while len(waiting) < len(both):
        for each in both:
            if each not in waiting and (each.ended or each.rounds >= STARTED):
                each.send(signal.SIGSTOP)
                waiting.append(each)
        _pause(0.02, end)
    while left := [each for each in both if not each.ended]:
        for each in left:
            each.send(signal.SIGCONT)
            _pause(TURN_S, end)
            if len(left) > 1:
                each.send(signal.SIGSTOP)


def _pause(seconds: float, end: float) -> None:
    if time.monotonic() > end:
        raise TimeoutError(f"not done after {LIMIT_S:g} s")
    time.sleep(seconds)


@contextmanager
def _started(tree: Path, options: argparse.Namespace) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="in-turns-") as name:
        folder = Path(name)
        paths = os.pathsep.join(str(tree / part) for part in PARTS)
        arguments = ["--silos", str(options.silos), "--dimension", str(options.dimension)]
        if options.rounds is not None:
            arguments += ["--rounds", str(options.rounds)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "benchmarks/rounds.py", *arguments, "--json", folder / "out.json"],
                cwd=tree,
                env=os.environ | {"PYTHONPATH": paths, "TMPDIR": name},
                stdout=log,
                stderr=log,
            )
        running = Running(tree, folder, process)
        try:
            yield running
        finally:
            if not running.ended:
                running.send(signal.SIGCONT)
                process.terminate()
            process.wait(60.0)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A tree of that commit, gone afterwards."""
    git = shutil.which("git") or "git"
    with tempfile.TemporaryDirectory(prefix="in-turns-") as name:
        tree = Path(name) / "before"
        added = subprocess.run(
            [git, "worktree", "add", "--detach", tree, commit],
            cwd=HERE,
            capture_output=True,
            text=True,
            check=False,
        )
        if added.returncode:
            raise SystemExit(added.stderr.strip())
        try:
            yield tree
        finally:
            remove = [git, "worktree", "remove", "--force", tree]
            subprocess.run(remove, cwd=HERE, check=True)


def _print(line: Line) -> None:
    roles = ", ".join(
        f"{role} {line.before_cpu_ms.get(role, 0.0):.1f} / {spent:.1f}"
        for role, spent in sorted(line.now_cpu_ms.items())
    )
    print(
        f"{line.before_ms:>11.1f} {line.now_ms:>8.1f} {line.times:>6.2f} | "
        f"{line.times_cpu:>5.2f}  {roles}",
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="what to compare with, as git names it")
    parser.add_argument("--silos", type=int, default=10, metavar="N")
    parser.add_argument("--dimension", type=int, default=50, metavar="D")
    parser.add_argument("--studies", type=int, default=3, metavar="N", help="of each commit")
    parser.add_argument("--rounds", type=int, metavar="N", help="of a study; both must know this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table here, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
