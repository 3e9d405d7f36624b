"""`silomix simulate`: studies in one process, many at a time, over algorithms, ε and seeds.

Every trial is the study that the network would run: the silos' own reporters, the coordinator's own
algorithm, the same calibration.  Trials of one seed share the split into silos and hold-out, so
their differences say more than each alone.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Shown
from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms import shuffled
from silomix_core.algorithms.base import LOCAL_STEPS, USUAL_DESCENT, Descent
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.claims.central_target import local_target
from silomix_core.evaluation.private import Evaluation, not_measurable
from silomix_core.mechanism.mechanism import Minibatch, Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.reports.aggregation import Aggregation, UnusableRule
from silomix_core.simulation.one_process import rehearsal
from silomix_core.study import defaults
from silomix_core.study.derive import unfit
from silomix_core.task.task import Task
from silomix_protocol.host.failure import Failure
from silomix_protocol.host.terminal import shown

from silomix_lab.choices.descent import check_descent
from silomix_lab.choices.goal import Goal
from silomix_lab.choices.minibatch import check_batches, described
from silomix_lab.datasets.by_name import load
from silomix_lab.datasets.tables import DemoData
from silomix_lab.parallel import Spread, run_all
from silomix_lab.scoring import error, majority_error, pooled_error

_MOST_TRIALS = 100_000


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    data: str
    label: str | None
    silos: int
    participants: int | None  # silos asked in each round; all unless given
    algorithms: tuple[str, ...]
    epsilons: tuple[float, ...]
    delta: float
    rounds: int
    clip: float
    radius: float
    ridge: float
    goal: Goal
    seeds: int
    processes: int | None
    json: Path | None
    png: Path | None
    local_steps: int = LOCAL_STEPS  # a silo's in a round, where the algorithm has them
    central: bool = False  # epsilons are towards a server behind an honest mix; local ones follow
    evaluation: float | None = None  # share of the silos' records that is held out
    descent: Descent | None = None  # where the algorithm leaves it to the study
    aggregation: Aggregation | None = None  # else that of a study that names none
    minibatch: Minibatch = field(default_factory=Minibatch)  # records that a round draws

    def check(self, task: Task) -> None:
        """Raise Failure for whatever can be known to be wrong before anything runs."""
        for name in self.algorithms:
            one_record = name == shuffled.ALGORITHM.name and self.evaluation is None
            if self.central and not one_record:
                raise Failure(
                    "--central-epsilon needs reports of one record: shuffled-mb-sgd without "
                    "--evaluation"
                )
            check_descent(self.descent, name)
            check_batches(name, self.minibatch)
            if name == defaults.NAME:
                continue
            if (reason := unfit(algorithm(name), task)) is not None:
                raise Failure(reason)
        for epsilon in self.epsilons:
            PrivacyTarget(epsilon, self.delta)
        if self.evaluation is not None and not 0.01 <= self.evaluation <= 0.99:
            raise Failure(f"--evaluation {self.evaluation}: use a share from 0.01 to 0.99")
        if self.evaluation is not None and (reason := not_measurable(task)) is not None:
            raise Failure(f"--{reason}")
        if self.participants is not None and not 1 <= self.participants <= self.silos:
            raise Failure(f"--participants {self.participants}: use 1 to {self.silos}, the silos")
        trials = len(self.algorithms) * len(self.epsilons) * self.seeds
        if not 1 <= trials <= _MOST_TRIALS:
            raise Failure(f"{trials} trials: use at least 1 and at most {_MOST_TRIALS}")
        for path in (self.json, self.png):
            if path is not None and not path.resolve().parent.is_dir():
                raise Failure(f"{path}: there is no such folder")


@dataclass(frozen=True, slots=True)
class SimulatedTrial:
    algorithm: str
    epsilon: float
    seed: int


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of a trial: the hold-out error of its model and of the pooled model.

    `evaluation` is what the silos' own held-out records say of the model, with noise.  Divided by
    `unit`, its error is comparable with the other errors: the public hold-out's mean(y²) for
    regression, else 1.
    """

    trial: SimulatedTrial
    rounds: int
    error: float
    pooled_error: float
    evaluation: Evaluation | None = None
    epsilon_local: float = 0.0  # for every silo's whole transcript
    unit: float = 1.0


@dataclass(frozen=True, slots=True)
class SimulatedLine:
    """The summary of one algorithm and ε: errors in percent, ± a standard deviation over seeds."""

    algorithm: str
    epsilon: float
    rounds: int
    error: float
    deviation: float | None
    excess: float  # error above that of the pooled model of the same seed
    excess_margin: float | None  # half the width of the excess's 95 % interval
    epsilon_local: float = 0.0  # for every silo's whole transcript; ε unless that is central
    evaluated_error: float | None = None  # on the silos' held-out records, mean over seeds
    evaluated_noise: float | None = None  # standard deviation of the noise in one such error


def run_simulation(options: SimulateOptions, console: Console) -> list[SimulatedLine]:
    """Run all trials on all cores, then show the table and write the JSON and the picture."""
    data = load(options.data, options.label, options.silos, seed=1, goal=options.goal)
    try:
        options.check(data.task)
    except ValueError as bad:
        raise Failure(str(bad)) from bad
    console.print(shown(f"{data.name}: {data.describes}"))
    outcomes = list(_all_trials(options, console))
    lines = _lines(options, outcomes)
    console.print(_table(lines, options, outcomes, majority_error(data)))
    if options.json is not None:
        rows = [asdict(line) for line in lines]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if options.png is not None:
        _draw(lines, outcomes, options, options.png)
        console.print(f"the picture is in {options.png}")
    return lines


def _all_trials(options: SimulateOptions, console: Console) -> Iterable[TrialOutcome]:
    trials = [
        SimulatedTrial(name, epsilon, seed)
        for seed in range(1, options.seeds + 1)
        for epsilon in options.epsilons
        for name in options.algorithms
    ]
    yield from run_all(partial(run_trial, options), trials, options.processes, console)


def run_trial(options: SimulateOptions, trial: SimulatedTrial) -> TrialOutcome:
    """Run one study on the split of the trial's seed."""
    data, pooled = _split(options.data, options.label, options.silos, trial.seed, options.goal)
    task = data.task
    asked = defaults.Choice(
        trial.algorithm, options.rounds, options.clip, options.radius, options.descent
    )
    target = _target(options, trial, [len(silo) for silo in data.silos], task.dimension)
    participants = [Participant(len(silo), target) for silo in data.silos]
    choice = defaults.chosen(asked, task, defaults.loudness(participants, options.participants))
    try:
        made = rehearsal(
            task,
            algorithm(choice.algorithm),
            participants,
            rounds=choice.rounds,
            radius=choice.radius,
            clip=choice.clip,
            ridge=options.ridge,
            asked=options.participants,
            local_steps=options.local_steps,
            held_out=options.evaluation or 0.0,
            descent=choice.descent or USUAL_DESCENT,
            minibatch=options.minibatch,
            aggregation=options.aggregation,
        )
    except CalibrationImpossible as impossible:
        where = f"{trial.algorithm}, ε = {trial.epsilon:g}"
        raise Failure(f"{where}: {impossible}") from impossible
    except UnusableRule as bad:
        raise Failure(f"--aggregation {bad}") from bad
    records = [
        Records(task.encode(silo.values), task.encode_labels(silo.labels)) for silo in data.silos
    ]
    result = made.evaluated(records, np.random.default_rng([trial.seed, 7]))
    found = error(result.model, data.holdout, task)
    rounds = made.mechanism.rounds
    unit = float(np.mean(data.holdout.labels**2)) if task.loss.is_regression else 1.0
    return TrialOutcome(trial, rounds, found, pooled, result.evaluation, target.epsilon, unit)


def _target(
    options: SimulateOptions, trial: SimulatedTrial, records: Sequence[int], dimension: int
) -> PrivacyTarget:
    """The local (ε, δ) that every silo is promised."""
    target = PrivacyTarget(trial.epsilon, options.delta)
    if not options.central:
        return target
    try:
        return local_target(
            target,
            records,
            minimum_batch=options.participants or options.silos,
            rounds=options.rounds,
            clip=options.clip,
            dimension=dimension,
        )
    except ValueError as bad:
        raise Failure(f"--central-epsilon {trial.epsilon:g}: {bad}") from bad


@lru_cache(maxsize=4)
def _split(
    name: str, label: str | None, silos: int, seed: int, goal: Goal
) -> tuple[DemoData, float]:
    data = load(name, label, silos, seed, goal)
    return data, pooled_error(data)


def _lines(options: SimulateOptions, outcomes: Sequence[TrialOutcome]) -> list[SimulatedLine]:
    lines = []
    for name in options.algorithms:
        for epsilon in options.epsilons:
            found = [
                each
                for each in outcomes
                if (each.trial.algorithm, each.trial.epsilon) == (name, epsilon)
            ]
            error = Spread.of([100 * each.error for each in found])
            excess = Spread.of([100 * (each.error - each.pooled_error) for each in found])
            told = [(each.evaluation, each.unit) for each in found if each.evaluation is not None]
            lines.append(
                SimulatedLine(
                    algorithm=name,
                    epsilon=epsilon,
                    rounds=found[0].rounds,
                    error=error.mean,
                    deviation=error.deviation,
                    excess=excess.mean,
                    excess_margin=excess.margin,
                    epsilon_local=found[0].epsilon_local,
                    evaluated_error=_percent(each.error / unit for each, unit in told),
                    evaluated_noise=_percent(each.standard_error / unit for each, unit in told),
                )
            )
    return lines


def _percent(shares: Iterable[float]) -> float | None:
    known = list(shares)
    return 100 * float(np.mean(known)) if known else None


def _table(
    lines: Sequence[SimulatedLine],
    options: SimulateOptions,
    outcomes: Sequence[TrialOutcome],
    majority: float,
) -> Shown:
    pooled = 100 * float(np.mean([each.pooled_error for each in outcomes]))
    asked = options.participants or options.silos
    table = Shown(
        title=f"test error{_kind(options)} in %, {options.seeds} seeds; {options.silos} silos, "
        f"{asked} asked in a round, {described(options.minibatch)}, δ = {options.delta:g}",
        caption=f"without privacy, all records together: {pooled:.2f}; always the same answer: "
        f"{100 * majority:.2f}.  ε: one record replaced, whole transcript of a silo, against "
        + ("the server, if a mix is honest" if options.central else "everybody else"),
    )
    columns = ["algorithm", "ε", "rounds", "error ± sd", "over pooled, 95 %"]
    if options.central:
        columns.append("ε against everybody")
    if options.evaluation is not None:
        columns.append("by the silos ± noise")
    for column in columns:
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for line in lines:
        spread = "" if line.deviation is None else f" ± {line.deviation:.2f}"
        margin = "" if line.excess_margin is None else f" ± {line.excess_margin:.2f}"
        cells = [
            line.algorithm,
            f"{line.epsilon:g}",
            str(line.rounds),
            f"{line.error:.2f}{spread}",
            f"{line.excess:+.2f}{margin}",
        ]
        if options.central:
            cells.append(f"{line.epsilon_local:.3g}")
        if line.evaluated_error is not None:
            cells.append(f"{line.evaluated_error:.2f} ± {line.evaluated_noise:.2f}")
        table.add_row(*cells)
    return table


def _kind(options: SimulateOptions) -> str:
    return " (mean squared error over mean(y²))" if options.goal.loss_name.is_regression else ""


def _draw(
    lines: Sequence[SimulatedLine],
    outcomes: Sequence[TrialOutcome],
    options: SimulateOptions,
    png: Path,
) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise Failure("the picture needs matplotlib; install silomix[demo]") from missing
    figure = Figure(figsize=(9.0, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in options.algorithms:
        own = [line for line in lines if line.algorithm == name]
        axes.errorbar(
            [line.epsilon for line in own],
            [line.error for line in own],
            [line.deviation or 0.0 for line in own],
            marker="o",
            capsize=3,
            label=name,
        )
    pooled = 100 * float(np.mean([each.pooled_error for each in outcomes]))
    axes.axhline(pooled, color="black", linestyle=":", label="all records together, no privacy")
    axes.set_xscale("log")
    axes.set_xticks(options.epsilons, [f"{epsilon:g}" for epsilon in options.epsilons])
    axes.minorticks_off()
    towards = ", towards a server behind an honest mix" if options.central else ""
    axes.set_xlabel(f"ε of every silo's whole transcript{towards} (δ = {options.delta:g})")
    axes.set_ylabel("test error, %")
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(png, dpi=150)
