"""`silomix server run`: starts the SuperLink and the coordinator, runs one study, ends both."""

import asyncio
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from silomix_core.toml_table import split_address
from silomix_protocol.connections.tls import Identity
from silomix_protocol.enrolment.renewal import Keeper
from silomix_protocol.host import logs
from silomix_protocol.keys import SigningKey, write_secret

from silomix_server.config import ServerConfig
from silomix_server.errors import ServerError, StartFailed, StudyFailed
from silomix_server.flower.child_processes import end, spawn
from silomix_server.flower.flower_state import APP, HOME, make_ready
from silomix_server.study.results import MODEL, finished_model, progress

if TYPE_CHECKING:
    from silomix_server.flower.flower_run import FlowerRuns

_START_S = 60.0
_POLL_S = 0.2
_STATUS_S = 1.0  # between two questions to Flower, which cost more than a look at a file
_UNFINISHED_S = 5.0


class Interrupted(ServerError):
    """The server was told to stop."""


def run(config: ServerConfig) -> None:
    """Run the configured study to its end; raises ServerError when it does not get there."""
    logs.configure(config.name)
    if (model := finished_model(config)) is not None:
        logs.event("study_already_complete", study=config.study.short_id, model=model)
        return
    _check_before_start(config)
    make_ready(config)
    make_secrets(config)
    with _stoppable(), _child(config, "superlink") as superlink, _child(config, "serverapp") as app:
        _run_study(config, {"superlink": superlink, "serverapp": app})


def _check_before_start(config: ServerConfig) -> None:
    """Check now what would otherwise end a child process later."""
    config.study.mechanism()
    asyncio.run(Keeper(config.folder).look())  # the server may have been switched off for long
    Identity.load(config.name, config.folder)
    SigningKey.load(config.folder / "sign.key")
    addresses = [config.fleet_listen, config.channel_listen, config.control_listen]
    for address in filter(None, [*addresses, config.inspected_listen]):
        host, port = split_address(address)
        try:
            with socket.create_server((host, port)):
                pass
        except OSError as error:
            raise StartFailed(f"cannot listen on {address}: {error.strerror}") from error


def make_secrets(config: ServerConfig) -> None:
    """Make fresh secrets for calls between the server's own processes."""
    for path in (config.control_secret, config.task_secret):
        path.unlink(missing_ok=True)
        write_secret(path, secrets.token_bytes(32))


def _run_study(config: ServerConfig, children: dict[str, subprocess.Popen[bytes]]) -> None:
    from silomix_server.flower.flower_run import FlowerRuns  # while the children start, too

    runs = FlowerRuns(config.control_listen, config.folder / "ca.crt", config.control_secret)
    try:
        _wait_until_ready(runs, children, config)
        runs.register(config.study)
        logs.event("keys_registered", silos=len(config.study.silos))
        run_id = runs.start(config.state / APP, config.path)
        logs.event("run_started", run=run_id, waiting_for_silos_s=config.wait_for_silos_s)
        try:
            _watch(runs, run_id, children, config)
        except Interrupted:
            runs.stop(run_id)
            raise
    finally:
        runs.close()


def _wait_until_ready(
    runs: "FlowerRuns", children: dict[str, subprocess.Popen[bytes]], config: ServerConfig
) -> None:
    end = time.monotonic() + _START_S
    while not runs.ready():
        _check_children(children, config)
        if time.monotonic() > end:
            raise StartFailed(f"the SuperLink is not up after {_START_S:g} s")
        time.sleep(_POLL_S / 2)
    logs.event("superlink_ready", fleet=config.fleet_listen)


def _watch(
    runs: "FlowerRuns",
    run_id: int,
    children: dict[str, subprocess.Popen[bytes]],
    config: ServerConfig,
) -> None:
    shown = len(progress(config.state))
    patience = _UNFINISHED_S  # for the last words of a coordinator that has ended
    status, asked = runs.status(run_id), time.monotonic()
    while not status.finished:
        if children["superlink"].poll() is not None or patience < 0:
            _check_children(children, config)
        ended = children["serverapp"].poll() is not None
        if ended:
            patience -= _POLL_S
        shown = _show_progress(config, shown)
        time.sleep(_POLL_S)
        if ended or time.monotonic() - asked > _STATUS_S:
            status, asked = runs.status(run_id), time.monotonic()
    _show_progress(config, shown)
    if not status.completed:
        raise StudyFailed(_plain(status.details))
    logs.event("run_completed", run=run_id, model=config.state / MODEL)


def _show_progress(config: ServerConfig, shown: int) -> int:
    """Log the latest round, if there is a new one; return how many rounds there are."""
    lines = progress(config.state)
    if len(lines) > shown:
        last = {key: lines[-1][key] for key in ("accepted", "asked", "error") if key in lines[-1]}
        logs.event("progress", round=lines[-1]["round"], of=config.study.rounds, **last)
        void = [line["round"] for line in lines[shown:] if line["void"]]
        if void:
            logs.warning("rounds_void", rounds=",".join(map(str, void)))
    return len(lines)


def _check_children(children: dict[str, subprocess.Popen[bytes]], config: ServerConfig) -> None:
    for name, child in children.items():
        if child.poll() is not None:
            raise StartFailed(
                f"the {name} process ended with status {child.returncode}; "
                f"read {_log(config, name)}"
            )


@contextmanager
def _child(config: ServerConfig, module: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of the server; it is ended whatever happens."""
    child = spawn(
        [sys.executable, "-m", f"silomix_server.flower.{module}", str(config.path)],
        _log(config, module),
        {"FLWR_HOME": str(config.state / HOME)},
    )
    try:
        yield child
    finally:
        end(child)


def _log(config: ServerConfig, module: str) -> Path:
    return config.state / f"{module}.log"


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the study in an orderly way."""

    def interrupt(number: int, _frame: object) -> None:
        raise Interrupted(
            f"stopped by {signal.Signals(number).name}; run it again to go on with the next round"
        )

    previous = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _plain(details: str) -> str:
    return details.removeprefix("ServerApp failed with exception: ") or "the run failed"
