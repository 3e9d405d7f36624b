"""`silomix demo`: one person plays all parties of a consortium, with real processes throughout."""

import fcntl
import os
import shutil
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, islice, pairwise
from pathlib import Path
from secrets import randbelow

import numpy as np
from rich.console import Console
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import MAIN
from silomix_client.config.silo_config import load as load_silo
from silomix_client.ledger.ledger import Ledger
from silomix_core.accounting.events import ADJACENCY
from silomix_core.study.defaults import chosen, loudness
from silomix_core.study.derive import participants_of, setting_of
from silomix_core.study.specification import Specification
from silomix_core.study.study import Study
from silomix_core.task.goal import Goal
from silomix_core.task.task import Task
from silomix_protocol.host.terminal import shown
from silomix_server.study.results import progress, saved_evaluation

from silomix_lab.choices.aggregation_rule import check_aggregation
from silomix_lab.choices.goal import LOGISTIC
from silomix_lab.choices.specification import behind_the_mixes, check, check_local_steps
from silomix_lab.consortium.create import Addresses, Consortium, check_specification, create
from silomix_lab.consortium.processes import ChildFailed, Processes, Role
from silomix_lab.datasets.by_name import load
from silomix_lab.datasets.tables import DemoData, SiloTable, write_csv
from silomix_lab.demo.display import LiveDisplay, Moment, PlainDisplay
from silomix_lab.demo.summary import (
    PROTECTS_AGAINST,
    LedgerLine,
    Summary,
    draw,
    table,
    write_metrics,
)
from silomix_lab.scoring import calibration, error, majority_error, pooled_error

# Chosen once on synthetic data (docs/decisions/0006-demo-defaults.md), never on a user's records.
CLIP = 0.25
_REFRESH_S = 0.25
_PORTS = range(15_000, 32_000)  # below those that a system gives to outgoing connections
_TURN = islice(cycle(_PORTS), randbelow(len(_PORTS)), None)


class DemoFailed(Exception):
    """The demo cannot start or did not end well."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    out: Path
    specification: Specification
    silos: int = 5
    mixes: int = 2
    is_central: bool = False  # the target is towards a server behind an honest mix
    data: str = "cohorts"
    label: str | None = None
    goal: Goal = LOGISTIC
    seed: int = 1
    lease_rounds: int = 50
    json: Path | None = None
    plain: bool = False


def run_demo(options: DemoOptions) -> int:
    """Run the whole demo; return its exit status."""
    console = Console(highlight=False, soft_wrap=options.plain)
    started = time.monotonic()
    with _interruptible():
        try:
            summary = _run(options, console, started)
        except ChildFailed as failure:
            raise DemoFailed(str(failure)) from failure
        except KeyboardInterrupt:
            raise DemoFailed(f"interrupted; logs are in {options.out / 'logs'}") from None
    console.print(table(summary))
    console.print(
        f"everything is in {options.out}/ (model.npz, summary.json, rounds.csv, study.png)"
    )
    return 0


def prepare(
    options: DemoOptions, addresses: Addresses | None = None
) -> tuple[Consortium, DemoData]:
    """Make folders, keys, certificates, data and study file, for `addresses` or this machine."""
    specification, data = _inputs(options)
    return _create(options, specification, data, addresses), data


def _inputs(options: DemoOptions) -> tuple[Specification, DemoData]:
    """The study's specification and the data, or what is wrong with them before anything is
    written."""
    _check_silos(options.specification, options.silos)
    data = load(options.data, options.label, options.silos, options.seed, options.goal)
    try:
        specification = _specification(options, data)
    except ValueError as bad:
        raise DemoFailed(str(bad)) from bad
    records = [len(silo) for silo in data.silos]
    check_specification(data.task, records, specification, mixes=options.mixes)
    return specification, data


def _check_silos(specification: Specification, silos: int) -> None:
    """Refuse a round that asks more silos than there are, or waits for more than it asks."""
    asked = specification.participants or silos
    if asked > silos:
        raise DemoFailed(f"--participants {asked}: there are only {silos} silos")
    if (minimum := specification.batching.minimum) > asked:
        raise DemoFailed(f"--minimum-batch {minimum}: there are only {asked} silos")


def _specification(options: DemoOptions, data: DemoData) -> Specification:
    """The specification that the study file has: with this data's name, and auto's numbers."""
    named = replace(options.specification, name=f"{data.name} demo")
    records = [len(silo) for silo in data.silos]
    check(named, data.task, is_central=options.is_central)
    check_local_steps(named)
    if options.is_central:
        named = behind_the_mixes(named, records, data.task.dimension)
    participants = participants_of(named, records)
    specification = chosen(named, data.task, loudness(participants, named))
    check_aggregation(specification, setting_of(data.task, specification, participants))
    return specification


def _create(
    options: DemoOptions,
    specification: Specification,
    data: DemoData,
    addresses: Addresses | None = None,
) -> Consortium:
    return lay_out(
        options.out,
        data.task,
        data.silos,
        specification,
        mixes=options.mixes,
        holdout=data.holdout,
        lease_rounds=options.lease_rounds,
        addresses=addresses,
    )


def lay_out(
    folder: Path,
    task: Task,
    silos: Sequence[SiloTable],
    specification: Specification,
    *,
    mixes: int,
    holdout: SiloTable | None = None,
    lease_rounds: int = 50,
    addresses: Addresses | None = None,
) -> Consortium:
    """Make a consortium in a new or empty folder, with everybody's data.

    It gets free ports of this machine, unless `addresses` are given.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as problem:
        reason = problem.strerror
        raise DemoFailed(f"cannot make {folder}: {reason}; choose another folder") from problem
    if any(folder.iterdir()):
        raise DemoFailed(f"{folder} is not empty (keys and ledgers?); choose another folder")
    made = create(
        folder,
        task,
        tuple(len(silo) for silo in silos),
        specification,
        addresses or _of_this_machine(mixes),
        lease_rounds=lease_rounds,
        holdout=holdout is not None,
    )
    if holdout is not None:
        write_csv(holdout, task, made.server.parent / "holdout.csv")
    for config, records in zip(made.silos, silos, strict=True):
        write_csv(records, task, config.parent / "data.csv")
    return made


def _run(options: DemoOptions, console: Console, started: float) -> Summary:
    if options.json is not None and not options.json.resolve().parent.is_dir():
        raise DemoFailed(f"--json {options.json}: there is no such folder")
    specification, data = _inputs(options)
    _make_room(options.out)
    made = _create(options, specification, data)
    (options.out / MARKER).touch()
    with _locked(options.out):
        return _run_consortium(options, made, data, console, started)


def _run_consortium(
    options: DemoOptions, made: Consortium, data: DemoData, console: Console, started: float
) -> Summary:
    console.print(shown(f"{data.name}: {data.describes}"))
    plain = options.plain or not console.is_terminal
    with started_processes(made, console.print) as processes:
        display = PlainDisplay(console) if plain else LiveDisplay(console)
        with display:
            for _ in while_running(processes):
                display.show(_moment(made, processes, time.monotonic() - started))
        peaks = {role: round(peak, 1) for role, peak in processes.peak_rss_mb.items()}
    return _finish(options, made, data, peaks, started)


@contextmanager
def started_processes(made: Consortium, say: Callable[[str], None]) -> Iterator[Processes]:
    """Run server, mixes and silos as processes until the block ends; `say` each silo's approval."""
    logs = made.folder / "logs"
    logs.mkdir()
    with Processes(logs) as processes:
        processes.start(Role.SERVER, made.server)
        for config in made.mixes:
            processes.start(Role.MIX, config)
        for config in made.silos:
            say(_approve(config, made))
            processes.start(Role.SILO, config)
        yield processes


def while_running(processes: Processes) -> Iterator[None]:
    """Yield until the server ends, and once after; raise ChildFailed if a process failed."""
    server = next(each for each in processes.running if each.role is Role.SERVER)
    while server.child.poll() is None:
        processes.check()
        processes.measure()
        yield
        time.sleep(_REFRESH_S)
    yield
    processes.check()


def _approve(config: Path, made: Consortium) -> str:
    """Approve the study for one silo as `silomix silo approve` does; return a sentence about it."""
    settings = load_silo(config)
    reviewed = review(settings, (made.folder / "study.toml").read_bytes())
    approve(settings, reviewed, datetime.now(UTC))
    lifetime = settings.policy.budgets[MAIN].target
    return (
        f"{settings.name} approves study {made.study.short_id}: {len(reviewed.records)} records, "
        f"ε {reviewed.epsilon:.3f} of its policy's {lifetime.epsilon:g}"
    )


def _moment(made: Consortium, processes: Processes, seconds: float) -> Moment:
    spent = {line.silo: line.epsilon_spent for line in _ledgers(made)}
    return Moment(
        seconds=seconds,
        rounds=made.study.rounds,
        progress=progress(made.server.parent / "state"),
        processes=processes.running,
        epsilon_spent=spent,
        epsilon=made.study.target.epsilon,
    )


def _finish(
    options: DemoOptions,
    made: Consortium,
    data: DemoData,
    peaks: dict[str, float],
    started: float,
) -> Summary:
    """Gather the results of a study that ran to its end."""
    state = made.server.parent / "state"
    weights = np.load(state / "model.npz")["weights"]
    shutil.copy(state / "model.npz", options.out / "model.npz")
    for log in ("superlink.log", "serverapp.log"):
        shutil.copy(state / log, options.out / "logs" / log)
    rounds = progress(made.server.parent / "state")
    write_metrics(rounds, options.out / "rounds.csv")
    now = datetime.now(UTC).timestamp()
    first = now - float(rounds[0]["closed_at"])
    summary = Summary(
        test_error=error(weights, data.holdout, data.task),
        calibration=calibration(weights, data.holdout, data.task),
        pooled_error=pooled_error(data),
        majority_error=majority_error(data),
        epsilon=made.study.target.epsilon,
        delta=made.study.target.delta,
        adjacency=ADJACENCY,
        protects_against=PROTECTS_AGAINST,
        ledgers=_ledgers(made),
        rounds=len(rounds),
        rounds_void=sum(1 for line in rounds if line["void"]),
        reports_accepted=sum(int(line["accepted"]) for line in rounds),
        reports_dropped=sum(int(line["dropped"]) for line in rounds),
        reports_too_long=sum(int(line["too_long"]) for line in rounds),
        rounds_outlying=sum(1 for line in rounds if line["outlying"]),
        seconds_per_round_median=_seconds_per_round(rounds),
        seconds_to_first_round=round(time.monotonic() - started - first, 2),
        seconds_total=round(time.monotonic() - started, 2),
        peak_rss_mb=peaks,
        algorithm=made.study.algorithm,
        data=data.name,
        study=made.study.identity.hex(),
        evaluation=saved_evaluation(state),
    )
    draw(rounds, summary, made.study, options.out / "study.png")
    (options.out / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    if options.json is not None:
        options.json.write_text(summary.to_json(), encoding="utf-8")
    return summary


def _seconds_per_round(rounds: list[dict[str, float]]) -> float:
    """Median time from one closed round to the next, everything in between included."""
    closed = [line["closed_at"] for line in rounds]
    between = [later - earlier for earlier, later in pairwise(closed)]
    return round(statistics.median(between or [rounds[0]["seconds"]]), 6)


def _ledgers(made: Consortium) -> list[LedgerLine]:
    return [_ledger_line(config, made.study) for config in made.silos]


def _ledger_line(config: Path, study: Study) -> LedgerLine:
    """What a silo's own ledger says it spent on this study."""
    settings = load_silo(config)
    ledger = Ledger(settings.state, settings.policy)
    try:
        spent = ledger.spending(study.identity)
    finally:
        ledger.close()
    enrolled = study.silo(settings.name)
    return LedgerLine(
        silo=settings.name,
        records=enrolled.records if enrolled else 0,
        rounds_answered=spent.rounds,
        epsilon_spent=spent.epsilon(study.target.delta),
    )


MARKER = ".silomix-demo"


def _make_room(folder: Path) -> None:
    """Remove the folder of an earlier demo; refuse any other folder that is not empty."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise DemoFailed(f"{folder} is not empty and not an earlier demo; choose another --out")
        with _locked(folder):
            shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep others from running a demo in this folder meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as busy:
        raise DemoFailed(
            f"another demo is running in {folder}; wait for it, or choose another --out"
        ) from busy
    finally:
        os.close(descriptor)


def _of_this_machine(mixes: int) -> Addresses:
    ports = free_ports(4 + mixes)
    authority, fleet, channel, control, *chain = (f"127.0.0.1:{port}" for port in ports)
    return Addresses(fleet, channel, control, tuple(chain), authority)


def free_ports(count: int) -> list[int]:
    """Ports of this machine at which nobody listens.

    A port that the system chooses may be given to somebody's outgoing connection before a process
    listens at it; these may not.  They are tried in turn from a random one on, so that two who look
    at the same time do not find the same.
    """
    found: list[int] = []
    with ExitStack() as bound:
        for port in islice(_TURN, len(_PORTS)):
            entry = bound.enter_context(socket.socket())
            with suppress(OSError):
                entry.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise DemoFailed(f"of the ports {_PORTS[0]} to {_PORTS[-1]} fewer than {count} are free")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that no process is left behind."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
