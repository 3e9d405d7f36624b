"""Real processes in tests: started in their own folder, waited for, ended whatever happens."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import load as load_silo
from silomix_client.ledger.entries import Spending
from silomix_client.ledger.ledger import Ledger
from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import Process, Processes, Role
from silomix_server.study import results

LIMIT_S = 120.0


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Poll a condition; a clear failure when it does not come true in time."""
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.05)


def approve_all(made: Consortium) -> None:
    for config in made.silos:
        settings = load_silo(config)
        content = (made.folder / "study.toml").read_bytes()
        approve(settings, review(settings, content), datetime.now(UTC))


@contextmanager
def running(
    made: Consortium, *, server: bool = True, silos: int | None = None
) -> Iterator["Running"]:
    """All processes of an approved consortium (or its first silos), ended whatever happens."""
    logs = made.folder / "logs"
    logs.mkdir(exist_ok=True)
    with Processes(logs) as processes:
        mixes = [processes.start(Role.MIX, config) for config in made.mixes]
        started = [processes.start(Role.SILO, config) for config in made.silos[:silos]]
        head = processes.start(Role.SERVER, made.server) if server else None
        yield Running(made, processes, mixes, started, head)


def kill(process: Process) -> None:
    """Without a last word; returns when it is gone."""
    process.child.kill()
    process.child.wait(10)


class Running:
    """Handles on the processes of a consortium."""

    def __init__(
        self,
        made: Consortium,
        processes: Processes,
        mixes: list[Process],
        silos: list[Process],
        server: Process | None,
    ) -> None:
        self.made, self.processes = made, processes
        self.mixes, self.silos = mixes, silos
        self._server = server

    @property
    def server(self) -> Process:
        assert self._server is not None
        return self._server

    def restart_server(self) -> None:
        self._server = self.processes.start(Role.SERVER, self.made.server)

    def restart(self, process: Process) -> Process:
        """The same mix or silo again, after kill -9 if it still runs."""
        kill(process)
        config = {each.parent.name: each for each in (*self.made.silos, *self.made.mixes)}
        again = self.processes.start(process.role, config[process.name])
        handles = self.mixes if process.role is Role.MIX else self.silos
        handles[handles.index(process)] = again
        return again

    def coordinator(self) -> int:
        """Its process id."""
        return [pid for kind, pid in self.processes.members() if kind == "coordinator"][-1]

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """No round goes on while the test does something that takes as long as it takes."""
        coordinator = self.coordinator()
        os.kill(coordinator, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(coordinator, signal.SIGCONT)

    def server_status(self, limit_s: float = LIMIT_S) -> int:
        """Wait for the server's end; its exit status."""
        try:
            return self.server.child.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not end: {self.all_logs()}") from None

    def wait_for_round(self, number: int) -> None:
        wait_until(lambda: len(progress(self.made)) >= number, f"round {number}: {self.all_logs()}")

    def wait_for_more_rounds(self, count: int) -> None:
        self.wait_for_round(len(progress(self.made)) + count)

    def all_logs(self) -> str:
        files = [*self.processes.folder.glob("*.log"), *server_logs(self.made)]
        return "\n".join(f"--- {path}\n{path.read_text()[-1500:]}" for path in files)


def server_logs(made: Consortium) -> list[Path]:
    return sorted((made.server.parent / "state").glob("*.log"))


def progress(made: Consortium) -> list[dict[str, float]]:
    return results.progress(made.server.parent / "state")


def spending(made: Consortium) -> list[Spending]:
    """What each silo's own ledger says."""
    result = []
    for config in made.silos:
        settings = load_silo(config)
        ledger = Ledger(settings.state, settings.policy)
        result.append(ledger.spending(made.study.identity))
        ledger.close()
    return result


def silomix(
    *arguments: str, cwd: Path, limit_s: float = 120.0, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """The command line as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "silomix", *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def start(command: list[str], cwd: Path) -> "subprocess.Popen[str]":
    """A process that SIGINT reaches, whatever ours does with it."""
    with _interrupts_reach_children():
        return subprocess.Popen(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


@contextmanager
def _interrupts_reach_children() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, and a child goes on ignoring what its parent did.

    What its parent caught, a child has at its default.  Popen's preexec_fn would do it too, but
    is not safe beside gRPC's threads.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
