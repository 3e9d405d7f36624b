"""What it costs to start: every party until it is ready, and the demo until its first round.

    python benchmarks/start.py c57aad4              # compared with that commit, in turns
    python benchmarks/start.py c57aad4 --times 9 --json out.json

The other commit is checked out beside this one and runs with this environment's packages.  Each
time, each tree makes a sample consortium, starts its parties one after the other and waits for each
one's line in the log; then it runs a demo of three rounds.  CPU seconds say more than wall seconds
on a machine that does something else meanwhile.  The least of all times is shown, and how many
times the former one it is.  The server's figures include its children, SuperLink and coordinator;
"modules" is how many modules a party's own process loads.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from in_turns import HERE, PARTS, checked_out

LIMIT_S = 300.0
PARTIES = {  # command, configuration, the line that says it is ready
    "authority": ("authority", "authority/authority.toml", "authority_ready"),
    "mix": ("mix", "mix-1/mix.toml", "mix_ready"),
    "server": ("server", "server/server.toml", "run_started"),
    "silo": ("silo", "silo-1/silo.toml", "silo_ready"),
}
MODULES = {
    "authority": "silomix_authority.process",
    "mix": "silomix_shuffler.process",
    "server": "silomix_server.process",
    "silo": "silomix_client.process",
    "help": "silomix.main",
}


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds until something was ready."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    before: Start
    now: Start
    modules_before: int | None
    modules_now: int | None


def main() -> None:
    options = _options()
    with checked_out(options.commit) as before:
        trees = (before, HERE)
        starts = [[_starts(tree) for tree in trees] for _ in range(options.times)]
        modules = [_modules(tree) for tree in trees]
    lines = []
    for name in starts[0][0]:
        old, new = (_least([each[tree][name] for each in starts]) for tree in range(2))
        lines.append(Line(name, old, new, modules[0].get(name), modules[1].get(name)))
    _print(lines)
    if options.json:
        rows = [asdict(line) for line in lines]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _starts(tree: Path) -> dict[str, Start]:
    """How long everything takes to start in one tree."""
    with tempfile.TemporaryDirectory(prefix="start-") as name:
        folder = Path(name)
        run = _Tree(tree, folder)
        starts = {"help": run.command("--help")}
        run.command("consortium", "init", "c", "--silos", "2")
        for silo in ("silo-1", "silo-2"):
            approval = run.command(
                "silo", "approve", f"c/{silo}/silo.toml", "c/study.toml", "--yes"
            )
            starts["approve"] = approval
        with run.parties() as started:
            starts |= {name: started(*how) for name, how in PARTIES.items()}
        starts["demo"] = run.demo()
        return starts


class _Tree:
    """The commands of one tree, run in a folder."""

    def __init__(self, tree: Path, folder: Path) -> None:
        paths = os.pathsep.join(str(tree / part) for part in PARTS)
        self._folder = folder
        self._environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}

    def _popen(self, *arguments: str, log: Path) -> "subprocess.Popen[bytes]":
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "silomix", *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=output,
                stderr=output,
            )

    def command(self, *arguments: str) -> Start:
        """Run a command to its end."""
        log, began = self._folder / "log", time.monotonic()
        before = os.times()
        status = self._popen(*arguments, log=log).wait(LIMIT_S)
        after, wall_s = os.times(), time.monotonic() - began
        if status:
            raise SystemExit(f"silomix {' '.join(arguments)}: {log.read_text(encoding='utf-8')}")
        user_s = after.children_user - before.children_user
        return Start(user_s + after.children_system - before.children_system, wall_s)

    @contextmanager
    def parties(self) -> Iterator[Callable[[str, str, str], Start]]:
        """A function that starts a party and returns when it is ready; all end with this."""
        running: list[subprocess.Popen[bytes]] = []

        def started(command: str, config: str, line: str) -> Start:
            log, began = self._folder / f"{command}.log", time.monotonic()
            child = self._popen(command, "run", f"c/{config}", log=log)
            running.append(child)
            while line.encode() not in log.read_bytes():
                if child.poll() is not None or time.monotonic() - began > LIMIT_S:
                    raise SystemExit(f"{config}: {log.read_text(encoding='utf-8')}")
                time.sleep(0.005)
            return Start(_cpu_s(child.pid), time.monotonic() - began)

        try:
            yield started
        finally:
            for child in running:
                child.terminate()
            for child in running:
                child.wait(LIMIT_S)

    def demo(self) -> Start:
        """The demo: CPU of all it does, and seconds to the first round."""
        whole = self.command("demo", "--plain", "--rounds", "3", "--json", "summary.json")
        summary = json.loads((self._folder / "summary.json").read_text(encoding="utf-8"))
        return Start(whole.cpu_s, summary["seconds_to_first_round"])

    def modules(self, module: str) -> int:
        code = f"import sys, {module}; print(len(sys.modules))"
        command = [sys.executable, "-c", code]
        return int(subprocess.check_output(command, env=self._environment, text=True))


def _modules(tree: Path) -> dict[str, int]:
    run = _Tree(tree, tree)
    return {name: run.modules(module) for name, module in MODULES.items()}


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    root = psutil.Process(pid)
    times = [each.cpu_times() for each in [root, *root.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def _least(starts: list[Start]) -> Start:
    return Start(min(each.cpu_s for each in starts), min(each.wall_s for each in starts))


def _print(lines: list[Line]) -> None:
    print(
        "             CPU s before    now  times | wall s before    now  times | "
        "modules before  now"
    )
    for line in lines:
        cpu, wall = line.now.cpu_s / line.before.cpu_s, line.now.wall_s / line.before.wall_s
        modules = (
            "" if line.modules_now is None else f"{line.modules_before:>14} {line.modules_now:>4}"
        )
        print(
            f"{line.name:<12} {line.before.cpu_s:>12.2f} {line.now.cpu_s:>6.2f} {cpu:>6.2f} | "
            f"{line.before.wall_s:>13.2f} {line.now.wall_s:>6.2f} {wall:>6.2f} | {modules}"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="what to compare with, as git names it")
    parser.add_argument("--times", type=int, default=5, metavar="N", help="of each commit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table here, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
