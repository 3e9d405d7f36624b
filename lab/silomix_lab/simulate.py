"""`silomix simulate`: studies in one process, many at a time, over algorithms, ε and seeds.

Every trial is the study that the network would run: the silos' own reporters, the coordinator's own
algorithm, the same calibration.  Trials of one seed share the split into silos and hold-out, so
their differences say more than each alone.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Shown
from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.catalogue import AUTO, algorithm
from silomix_core.evaluation.calibration import Calibration
from silomix_core.evaluation.private import Evaluation
from silomix_core.model.clipped_sum import Records
from silomix_core.reports.aggregation import UnusableRule
from silomix_core.simulation.one_process import rehearsal
from silomix_core.study.defaults import chosen, loudness
from silomix_core.study.derive import participants_of, unfit
from silomix_core.study.specification import Batching, Specification
from silomix_core.task.goal import Goal
from silomix_core.task.task import Task
from silomix_protocol.host.failure import Failure
from silomix_protocol.host.terminal import shown

from silomix_lab.choices.goal import LOGISTIC
from silomix_lab.choices.minibatch import described
from silomix_lab.choices.specification import behind_the_mixes, check
from silomix_lab.colours import colours
from silomix_lab.datasets.by_name import load
from silomix_lab.datasets.tables import DemoData
from silomix_lab.parallel import Spread, run_all
from silomix_lab.scoring import calibration, error, majority_error, pooled_error

_MOST_TRIALS = 100_000


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What is simulated: one specification, of which each trial has its own algorithm and ε."""

    specification: Specification
    algorithms: tuple[str, ...]
    epsilons: tuple[float, ...]
    data: str
    silos: int
    seeds: int
    records: tuple[int, ...] | None = None  # of each silo; None: as the data has it
    label: str | None = None
    goal: Goal = LOGISTIC
    processes: int | None = None
    json: Path | None = None
    png: Path | None = None
    is_central: bool = False  # ε is towards a server behind an honest mix; the local ones follow

    @property
    def delta(self) -> float:
        return self.specification.target.delta

    @property
    def participants(self) -> int:
        """The number of silos that a round asks."""
        return self.specification.participants or self.silos

    def check(self, task: Task) -> None:
        """Raise Failure for whatever can be known to be wrong before anything runs."""
        for name in self.algorithms:
            named = replace(self.specification, algorithm=name)
            check(named, task, is_central=self.is_central)
            if name != AUTO and (reason := unfit(algorithm(name), task)) is not None:
                raise Failure(reason)
        for epsilon in self.epsilons:
            PrivacyTarget(epsilon, self.delta)
        if self.records is not None and len(self.records) != self.silos:
            raise Failure(f"--silos {self.silos}: --records has {len(self.records)} of them")
        asked = self.specification.participants
        if asked is not None and not 1 <= asked <= self.silos:
            raise Failure(f"--participants {asked}: use 1 to {self.silos}, the silos")
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
    calibration: Calibration | None = None  # of the model's probabilities, if it has them


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
    brier: float | None = None  # this and below: means over seeds, of models with probabilities
    slope: float | None = None
    prevalence_ratio: float | None = None  # mean probability over the share of labels 1
    log_loss: float | None = None


def run_simulation(options: SimulateOptions, console: Console) -> list[SimulatedLine]:
    """Run all trials on all cores, then show the table and write the JSON and the picture."""
    data = load(options.data, options.label, options.silos, 1, options.goal, options.records)
    try:
        options.check(data.task)
    except ValueError as bad:
        raise Failure(str(bad)) from bad
    console.print(shown(f"{data.name}: {data.describes}"))
    outcomes = list(_all_trials(options, console))
    lines = _lines(options, outcomes)
    console.print(_table(lines, options, outcomes, majority_error(data)))
    if any(line.brier is not None for line in lines):
        console.print(_probabilities(lines))
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
    data, pooled = _split(
        options.data, options.label, options.silos, trial.seed, options.goal, options.records
    )
    task = data.task
    named = _specification(options, trial, data)
    participants = participants_of(named, [len(silo) for silo in data.silos])
    specification = chosen(named, task, loudness(participants, named))
    try:
        made = rehearsal(task, specification, participants)
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
    fit = calibration(result.model, data.holdout, task)
    rounds = made.mechanism.rounds
    unit = float(np.mean(data.holdout.labels**2)) if task.loss.is_regression else 1.0
    epsilon = named.target.epsilon
    return TrialOutcome(trial, rounds, found, pooled, result.evaluation, epsilon, unit, fit)


def _specification(
    options: SimulateOptions, trial: SimulatedTrial, data: DemoData
) -> Specification:
    """The specification of a trial, with the local (ε, δ) that every silo is promised."""
    named = replace(
        options.specification,
        algorithm=trial.algorithm,
        target=PrivacyTarget(trial.epsilon, options.delta),
        batching=Batching(options.participants),
    )
    if not options.is_central:
        return named
    return behind_the_mixes(named, [len(silo) for silo in data.silos], data.task.dimension)


@lru_cache(maxsize=4)
def _split(
    name: str,
    label: str | None,
    silos: int,
    seed: int,
    goal: Goal,
    records: tuple[int, ...] | None,
) -> tuple[DemoData, float]:
    data = load(name, label, silos, seed, goal, records)
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
            fits = [each.calibration for each in found if each.calibration is not None]
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
                    brier=_mean(fit.brier for fit in fits),
                    slope=_mean(fit.slope for fit in fits),
                    prevalence_ratio=_mean(fit.prevalence_ratio for fit in fits),
                    log_loss=_mean(fit.log_loss for fit in fits),
                )
            )
    return lines


def _percent(shares: Iterable[float]) -> float | None:
    mean = _mean(shares)
    return None if mean is None else 100 * mean


def _mean(figures: Iterable[float | None]) -> float | None:
    """The mean of those that there are."""
    known = [each for each in figures if each is not None]
    return float(np.mean(known)) if known else None


def _table(
    lines: Sequence[SimulatedLine],
    options: SimulateOptions,
    outcomes: Sequence[TrialOutcome],
    majority: float,
) -> Shown:
    pooled = 100 * float(np.mean([each.pooled_error for each in outcomes]))
    table = Shown(
        title=f"test error{_kind(options)} in %, {options.seeds} seeds; {options.silos} silos, "
        f"{options.participants} asked in a round, "
        f"{described(options.specification.minibatch)}, δ = {options.delta:g}",
        caption=f"without privacy, all records together: {pooled:.2f}; always the same answer: "
        f"{100 * majority:.2f}.  ε: one record replaced, whole transcript of a silo, against "
        + ("the server, if a mix is honest" if options.is_central else "everybody else"),
    )
    columns = ["algorithm", "ε", "rounds", "error ± sd", "over pooled, 95 %"]
    if options.is_central:
        columns.append("ε against everybody")
    if options.specification.held_out:
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
        if options.is_central:
            cells.append(f"{line.epsilon_local:.3g}")
        if line.evaluated_error is not None:
            cells.append(f"{line.evaluated_error:.2f} ± {line.evaluated_noise:.2f}")
        table.add_row(*cells)
    return table


def _probabilities(lines: Sequence[SimulatedLine]) -> Shown:
    """How well the models' probabilities fit, as a table."""
    table = Shown(
        title="probabilities on the same records",
        caption="predicted / true: mean probability over the share of ones; slope: of the label on "
        "the score, by logistic regression.  Both are best at 1",
    )
    table.add_column("algorithm")
    for column in ("ε", "predicted / true", "slope", "Brier", "log loss"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(
            line.algorithm,
            f"{line.epsilon:g}",
            _figure(line.prevalence_ratio, 2),
            _figure(line.slope, 2),
            _figure(line.brier, 4),
            _figure(line.log_loss, 4),
        )
    return table


def _figure(number: float | None, digits: int) -> str:
    return "–" if number is None else f"{number:.{digits}f}"


def _kind(options: SimulateOptions) -> str:
    return " (mean squared error over mean(y²))" if options.goal.loss.is_regression else ""


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
    for colour, name in zip(colours(len(options.algorithms)), options.algorithms, strict=True):
        own = [line for line in lines if line.algorithm == name]
        axes.errorbar(
            [line.epsilon for line in own],
            [line.error for line in own],
            [line.deviation or 0.0 for line in own],
            color=colour,
            marker="o",
            capsize=3,
            label=name,
        )
    pooled = 100 * float(np.mean([each.pooled_error for each in outcomes]))
    axes.axhline(pooled, color="black", linestyle=":", label="all records together, no privacy")
    axes.set_xscale("log")
    axes.set_xticks(options.epsilons, [f"{epsilon:g}" for epsilon in options.epsilons])
    axes.minorticks_off()
    towards = ", towards a server behind an honest mix" if options.is_central else ""
    axes.set_xlabel(f"ε of every silo's whole transcript{towards} (δ = {options.delta:g})")
    axes.set_ylabel("test error, %")
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(png, dpi=150)
