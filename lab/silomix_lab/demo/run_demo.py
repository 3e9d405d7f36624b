"""`silomix demo`: one person plays all parties of a consortium, with real processes throughout."""

import fcntl
import os
import shutil
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil
from pathlib import Path

import numpy as np
from rich.console import Console
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import MAIN
from silomix_client.config.silo_config import load as load_silo
from silomix_client.ledger.ledger import Ledger
from silomix_core.accounting.events import ADJACENCY, PrivacyTarget
from silomix_core.algorithms import shuffled
from silomix_core.algorithms.base import Descent
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.claims.central_target import local_target
from silomix_core.evaluation.private import not_measurable
from silomix_core.mechanism.mechanism import Minibatch, Participant
from silomix_core.reports.aggregation import Aggregation
from silomix_core.study import defaults
from silomix_core.study.derive import setting_of
from silomix_core.study.study import Study
from silomix_core.study.writer import StudyChoices
from silomix_core.task.task import Task
from silomix_protocol.host.terminal import shown
from silomix_server.study.results import progress, saved_evaluation

from silomix_lab.choices.aggregation_rule import check_aggregation
from silomix_lab.choices.descent import check_descent
from silomix_lab.choices.goal import Goal
from silomix_lab.choices.minibatch import check_batches
from silomix_lab.consortium.create import Addresses, Consortium, check_choices, create
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
from silomix_lab.scoring import error, majority_error, pooled_error

# Chosen once on synthetic data (docs/decisions/0006-demo-defaults.md), never on a user's records.
CLIP = 0.25
DEADLINE_S = 10.0
_REFRESH_S = 0.25


class DemoFailed(Exception):
    """The demo cannot start or did not end well."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    out: Path
    silos: int = 5
    mixes: int = 2
    rounds: int = 40
    epsilon: float = 2.0
    central_epsilon: float | None = None  # instead of the local one
    delta: float = 1e-6
    algorithm: str = "noisy-mb-sgd"
    data: str = "cohorts"
    label: str | None = None
    goal: Goal = field(default_factory=Goal)
    seed: int = 1
    participants: int | None = None
    local_steps: int | None = None
    descent: Descent | None = None
    aggregation: Aggregation | None = None
    evaluation: float | None = None
    minibatch: Minibatch = field(default_factory=Minibatch)
    minimum_batch: int | None = None
    gate: bool = True
    tokens: bool = True
    lease_rounds: int = 50
    json: Path | None = None
    plain: bool = False

    @property
    def minimum(self) -> int:
        return self.minimum_batch or usual_minimum(self.asked)

    @property
    def asked(self) -> int:
        """The number of silos that a round asks."""
        return self.participants or self.silos


def usual_minimum(asked: int) -> int:
    """The fewest reports that a batch may have, unless somebody says otherwise."""
    return min(asked, max(2, ceil(0.8 * asked)))


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
    choices, data = _inputs(options)
    return _create(options, choices, data, addresses), data


def _inputs(options: DemoOptions) -> tuple[StudyChoices, DemoData]:
    """The study's choices and the data, or what is wrong with them before anything is written."""
    try:
        check_descent(options.descent, options.algorithm)
        if options.algorithm != defaults.NAME:
            entry = algorithm(options.algorithm)
            if options.local_steps is not None and not entry.takes_local_steps:
                raise DemoFailed(f"--local-steps: {entry.name} has none to choose")
        check_batches(options.algorithm, options.minibatch)
        target = PrivacyTarget(options.epsilon, options.delta)
    except ValueError as bad:
        raise DemoFailed(str(bad)) from bad
    if options.evaluation is not None and not 0.01 <= options.evaluation <= 0.99:
        raise DemoFailed(f"--evaluation {options.evaluation}: use a share from 0.01 to 0.99")
    if options.asked > options.silos:
        raise DemoFailed(f"--participants {options.asked}: there are only {options.silos} silos")
    if options.minimum > options.asked:
        raise DemoFailed(f"--minimum-batch {options.minimum}: there are only {options.asked} silos")
    data = load(options.data, options.label, options.silos, options.seed, options.goal)
    if options.evaluation is not None and (reason := not_measurable(data.task)) is not None:
        raise DemoFailed(f"--{reason}")
    _check_aggregation(options, target, data)
    choices = _choices(options, _behind_the_mixes(options, data) or target, data)
    check_choices(data.task, [len(silo) for silo in data.silos], choices, mixes=options.mixes)
    return choices, data


def _check_aggregation(options: DemoOptions, target: PrivacyTarget, data: DemoData) -> None:
    choice, participants = _choice(options, target, data)
    setting = setting_of(
        data.task,
        participants,
        rounds=choice.rounds,
        radius=choice.radius,
        clip=choice.clip,
        asked=options.participants,
    )
    check_aggregation(
        options.aggregation,
        choice.algorithm,
        setting,
        minibatch=options.minibatch,
        fewest=options.minimum,
    )


def _behind_the_mixes(options: DemoOptions, data: DemoData) -> PrivacyTarget | None:
    """The local target that a central one amounts to, if one was asked for."""
    if options.central_epsilon is None:
        return None
    if options.algorithm != shuffled.ALGORITHM.name or options.evaluation is not None:
        raise DemoFailed(
            "--central-epsilon needs reports of one record: shuffled-mb-sgd without --evaluation"
        )
    try:
        return local_target(
            PrivacyTarget(options.central_epsilon, options.delta),
            [len(silo.labels) for silo in data.silos],
            minimum_batch=options.minimum,
            rounds=options.rounds,
            clip=CLIP,
            dimension=data.task.dimension,
        )
    except ValueError as bad:
        raise DemoFailed(f"--central-epsilon {options.central_epsilon:g}: {bad}") from bad


def _choices(options: DemoOptions, target: PrivacyTarget, data: DemoData) -> StudyChoices:
    choice, _ = _choice(options, target, data)
    return StudyChoices(
        name=f"{data.name} demo",
        algorithm=choice.algorithm,
        rounds=choice.rounds,
        radius=choice.radius,
        clip=choice.clip,
        target=target,
        minimum_batch=options.minimum,
        deadline_s=DEADLINE_S,
        gate=options.gate,
        tokens=options.tokens,
        participants=options.participants,
        local_steps=options.local_steps,
        descent=choice.descent,
        aggregation=options.aggregation,
        held_out=options.evaluation,
        minibatch=options.minibatch,
    )


def _create(
    options: DemoOptions,
    choices: StudyChoices,
    data: DemoData,
    addresses: Addresses | None = None,
) -> Consortium:
    return lay_out(
        options.out,
        data.task,
        data.silos,
        choices,
        mixes=options.mixes,
        holdout=data.holdout,
        lease_rounds=options.lease_rounds,
        addresses=addresses,
    )


def _choice(
    options: DemoOptions, target: PrivacyTarget, data: DemoData
) -> tuple[defaults.Choice, list[Participant]]:
    """The algorithm and its numbers that the study names, and the silos that take part."""
    asked = defaults.Choice(
        options.algorithm, options.rounds, CLIP, options.goal.radius, options.descent
    )
    participants = [Participant(len(silo), target) for silo in data.silos]
    loud = defaults.loudness(participants, options.participants)
    return defaults.chosen(asked, data.task, loud), participants


def lay_out(
    folder: Path,
    task: Task,
    silos: Sequence[SiloTable],
    choices: StudyChoices,
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
        choices,
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
    choices, data = _inputs(options)
    _make_room(options.out)
    made = _create(options, choices, data)
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
    sockets = [socket.socket() for _ in range(count)]
    try:
        for entry in sockets:
            entry.bind(("127.0.0.1", 0))
        return [int(entry.getsockname()[1]) for entry in sockets]
    finally:
        for entry in sockets:
            entry.close()


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
