"""Lowy, Razaviyayn (2021, short version), §5: medical charges, predicted by silos that differ.

The three silos have the lowest, the middle and the highest charges.  The paper compares MB-SGD with
local SGD, by a figure without printed numbers and with steps that were searched for on the data.
Here every step follows from public numbers, the noise is the exact one or the paper's formula, and
other algorithms stand beside them.  Trials of one seed share silos and test set, so differences are
taken pair by pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from math import inf
from pathlib import Path

import numpy as np
from rich.console import Console
from silomix_core.accounting.bounds.validity import OutsideValidity
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.catalogue import AUTO as AUTOMATIC
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.evaluation.pooled_baseline import least_squares
from silomix_core.mechanism.mechanism import Participant
from silomix_core.reports.aggregation import MEAN
from silomix_core.simulation.one_process import Rehearsal, rehearsal
from silomix_core.study.defaults import automatic, chosen, loudness
from silomix_core.study.specification import Specification
from silomix_core.task.task import UNIT

from silomix_lab.colours import colours
from silomix_lab.parallel import Spread
from silomix_lab.reproduce import insurance
from silomix_lab.reproduce.drawing import Curve, draw_line, finish
from silomix_lab.reproduce.experiment import (
    ClaimedBound,
    Experiment,
    ExperimentRequest,
    Findings,
    PaperClaim,
    ResultTable,
    below,
    difference,
)
from silomix_lab.reproduce.insurance import Coding
from silomix_lab.reproduce.paper_noise import NoiseFormula, with_printed_noise
from silomix_lab.reproduce.trial_cache import TrialCache

EPSILONS = (0.2, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0)
AIMS = {0.2: 26.0, 0.5: 15.0, 1.0: 12.0, 2.5: 12.0}  # for auto's error, in percent
REPEATED_FLOOR = 11.1
LOCAL_STEPS = 5
_TICKS = (7, 8, 10, 12, 15, 20, 30, 50, 100, 200, 400)
_QUIET = chosen(automatic(PrivacyTarget(1.0, 1e-6)), Coding.WIDE.task, inf)


@dataclass(frozen=True, slots=True)
class LowyMethod:
    """An algorithm with the numbers that a study would name.

    clip, radius: those that auto has where noise is low, unless given.
    repeated: error at EPSILONS in an independent repetition of the paper (plain numpy, steps
    searched for, bounds and coding unknown).
    """

    algorithm: str
    noise: NoiseFormula = NoiseFormula.EXACT
    rounds: int = 15
    clip: float = _QUIET.clip
    radius: float = _QUIET.radius
    repeated: tuple[float, ...] = ()
    coding: Coding = Coding.WIDE

    @property
    def name(self) -> str:
        if self.algorithm == AUTOMATIC:
            return AUTOMATIC + (f", {self.coding.value}" if self.coding is not Coding.WIDE else "")
        steps = f" × {LOCAL_STEPS}" if algorithm(self.algorithm).takes_local_steps else ""
        printed = f", {self.noise.value}" if self.noise is NoiseFormula.PRINTED else ""
        return f"{self.algorithm}, R = {self.rounds}{steps}{printed}"


# The paper searched a step for both.  Here each has two forms to choose from: with the theorem's or
# safe steps, and with longer ones.
MB_SGD = (
    LowyMethod("plain-mb-sgd"),
    LowyMethod("noisy-mb-sgd", repeated=(40, 33, 30, 32, 32, 32, 32)),
)
LOCAL_SGD = (LowyMethod("local-sgd"), LowyMethod("dp-fedavg"))
PRINTED_MB_SGD = (
    replace(MB_SGD[0], noise=NoiseFormula.PRINTED),
    replace(MB_SGD[1], noise=NoiseFormula.PRINTED, repeated=(85, 76, 65, 55, 48, 45, 34)),
)
PRINTED_LOCAL_SGD = (
    replace(LOCAL_SGD[0], noise=NoiseFormula.PRINTED, repeated=(87, 75, 70, 56, 47, 41, 29)),
    replace(LOCAL_SGD[1], noise=NoiseFormula.PRINTED),
)
AUTO = LowyMethod(AUTOMATIC, repeated=(26, 15, 12, 12, 11, 11, 11))
AUTOS = tuple(replace(AUTO, coding=coding) for coding in Coding)
METHODS = (
    *PRINTED_MB_SGD,
    *PRINTED_LOCAL_SGD,
    *MB_SGD,
    *LOCAL_SGD,
    LowyMethod("plain-mb-sgd", rounds=60),
    LowyMethod("accelerated-mb-sgd", rounds=60),
    *AUTOS,
)


@dataclass(frozen=True, slots=True)
class LowyTrial:
    """One study, or with no method the floor: everybody's records together, no privacy.

    coding: that of the floor; a study has its method's.
    """

    folder: Path
    seed: int
    method: LowyMethod | None = None
    epsilon: float = 0.0
    coding: Coding = Coding.WIDE

    @property
    def key(self) -> str:
        how = self.method
        if how is None:
            model = "" if self.coding is Coding.WIDE else f", {self.coding.value},"
            return f"floor{model} seed={self.seed}"
        made = choice(self.folder, how, self.epsilon)
        return (
            f"{made.algorithm}, {how.coding.value}, {how.noise.value} rounds={made.most_rounds} "
            f"clip={made.clip:g} radius={made.radius:g} {made.descent} epsilon={self.epsilon:g} "
            f"seed={self.seed}"
        )


@lru_cache(maxsize=128)
def choice(folder: Path, method: LowyMethod, epsilon: float) -> Specification:
    """The specification that the study file would have."""
    participants = _participants(folder, epsilon)
    named = Specification(
        algorithm=method.algorithm,
        most_rounds=method.rounds,
        clip=method.clip,
        radius=method.radius,
        target=participants[0].target,
        local_steps=LOCAL_STEPS,
        named_aggregation=MEAN,  # as in the paper
    )
    return chosen(named, method.coding.task, loudness(participants, named))


def _participants(folder: Path, epsilon: float) -> list[Participant]:
    records = insurance.load(folder).records
    return [Participant(records, PrivacyTarget(epsilon, 1 / records**2))] * insurance.SILOS


# Running ------------------------------------------------------------------------------------------


def run(request: ExperimentRequest, console: Console) -> Findings:
    folder = (request.data or Path()).resolve()
    made_with = f"silomix {version('silomix')}, data {insurance.fingerprint(folder)}"
    kept = TrialCache(request.out / "lr-trials.jsonl", made_with)
    kept.complete(_trials(folder, request.trials), run_trial, request.processes, console)
    return findings(LowyResults(kept.figures, folder, request.trials))


def _trials(folder: Path, count: int) -> list[LowyTrial]:
    """The trials, every study once; methods that stand for the same numbers share their trials."""
    found = {}
    for seed in range(1, count + 1):
        trials = [LowyTrial(folder, seed, coding=method.coding) for method in METHODS]
        trials += [
            LowyTrial(folder, seed, method, epsilon)
            for method in METHODS
            for epsilon in EPSILONS
            if refusal(folder, method, epsilon) is None
        ]
        found.update({trial.key: trial for trial in trials})
    return list(found.values())


def run_trial(trial: LowyTrial) -> list[tuple[str, float]]:
    """Run a trial; return its key and the squared error on the test set, in % of the mean of y²."""
    task = (trial.coding if trial.method is None else trial.method.coding).task
    data = insurance.split(trial.folder, task, trial.seed)
    if trial.method is None:
        features = np.concatenate([silo.features for silo in data.silos]) / UNIT
        model = least_squares(features, np.concatenate([silo.labels for silo in data.silos]))
    else:
        made = _study(trial.folder, trial.method, trial.epsilon)
        model = made.run(data.silos, np.random.default_rng([trial.seed, 7]))
    wrong = task.predict(data.test_features @ model / UNIT) - data.test_charges
    return [(trial.key, 100 * float(np.mean(wrong**2) / np.mean(data.test_charges**2)))]


@lru_cache(maxsize=128)
def _study(folder: Path, method: LowyMethod, epsilon: float) -> Rehearsal:
    specification = choice(folder, method, epsilon)
    made = rehearsal(method.coding.task, specification, _participants(folder, epsilon))
    return made if method.noise is NoiseFormula.EXACT else with_printed_noise(made)


def refusal(folder: Path, method: LowyMethod, epsilon: float) -> str | None:
    """Why the printed formula cannot be used; None if it can."""
    if method.noise is NoiseFormula.EXACT:
        return None
    try:
        _study(folder, method, epsilon)
    except OutsideValidity as refused:
        return str(refused)
    return None


# What it comes to ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LowyResults:
    """The errors in percent, by the key of their trial."""

    errors: dict[str, float]
    folder: Path
    trials: int

    def all(self, method: LowyMethod, epsilon: float) -> list[float]:
        """The errors in the order of seeds; empty where the noise formula was refused."""
        return self._of([LowyTrial(self.folder, seed, method, epsilon) for seed in self._seeds])

    def floors(self, coding: Coding = Coding.WIDE) -> list[float]:
        """The errors of least squares without privacy, for the model that this coding has."""
        return self._of([LowyTrial(self.folder, seed, coding=coding) for seed in self._seeds])

    @property
    def _seeds(self) -> range:
        return range(1, self.trials + 1)

    def _of(self, trials: list[LowyTrial]) -> list[float]:
        return [self.errors[trial.key] for trial in trials if trial.key in self.errors]


def findings(results: LowyResults) -> Findings:
    floor = Spread.of(results.floors())
    records = insurance.load(results.folder).records
    return Findings(
        tables=(_table(results),),
        notes=(
            f"Without privacy, least squares on all records: {_cell(floor, ())} (an independent "
            f"repetition: {REPEATED_FLOOR:g}); in the last column that of each coding, which is a "
            f"model of its own.  N = {insurance.SILOS}, n = {records}, δ = 1/n²; {results.trials} "
            "trials, each with a test set of its own.",
            "Error: mean ± half of its 95 % interval.  ε: one record replaced, a silo's whole "
            "transcript, against everybody else.  A dash: there the printed formula is no theorem. "
            " In brackets: an independent repetition of the paper (steps searched for); the paper "
            "prints no numbers.  Bounds: ages 0 to 100, up to 10 children, BMI 10 to 60; narrow: "
            "ages 18 to 65, up to 5 children; narrower: BMI 18.5 to 40 too.  Region: four columns, "
            "of which one is 1, one column, or a category.  ×: interactions that the study "
            "declares.  auto's clip and radius follow from ε; the others have those that it has "
            "where noise is low.",
        ),
        claims=(
            _beats(results, PRINTED_MB_SGD, PRINTED_LOCAL_SGD),
            _beats(results, MB_SGD, LOCAL_SGD),
            _best(results),
            *(claim for method in AUTOS for claim in _aims(results, method)),
        ),
        figures=_figures(results, floor),
        draw=lambda path: _draw(results, path),
    )


def _table(results: LowyResults) -> ResultTable:
    rows = []
    for method in METHODS:
        cells = []
        for index, epsilon in enumerate(EPSILONS):
            errors = results.all(method, epsilon)
            cells.append(_cell(Spread.of(errors) if errors else None, method.repeated[index:]))
        floor = _cell(Spread.of(results.floors(method.coding)), ())
        rows.append((method.name, *cells, floor))
    title = "squared error on the test set, in % of the mean of y²"
    columns = ("algorithm", *(f"ε = {each:g}" for each in EPSILONS), "no privacy")
    return ResultTable(title, columns, tuple(rows))


def _cell(error: Spread | None, repeated: Sequence[float]) -> str:
    if error is None:
        return "–"
    margin = "" if error.margin is None else f" ± {error.margin:.1f}"
    return f"{error.mean:.1f}{margin}" + (f" [{repeated[0]:g}]" if repeated else "")


def _beats(
    results: LowyResults, ones: Sequence[LowyMethod], others: Sequence[LowyMethod]
) -> PaperClaim:
    """The paper's claim, at those ε where both may be used, each in the form that did better."""
    bounds = []
    for epsilon in EPSILONS:
        first, second = (_least(results, each, epsilon) for each in (ones, others))
        if first and second and (found := difference(first[1], second[1])) is not None:
            bounds.append(ClaimedBound(f"ε = {epsilon:g}", found))
    noise = ones[0].noise.value + (" noise" if ones[0].noise is NoiseFormula.EXACT else "")
    return below(f"MB-SGD has less error than local SGD at every ε ({noise})", bounds)


def _least(
    results: LowyResults, methods: Sequence[LowyMethod], epsilon: float
) -> tuple[str, list[float]] | None:
    """The name and errors of the method with the least mean error."""
    known = [
        (method.name, errors) for method in methods if (errors := results.all(method, epsilon))
    ]
    return min(known, key=lambda each: float(np.mean(each[1])), default=None)


def _best(results: LowyResults) -> PaperClaim:
    """The claim that auto beats whichever other algorithm has the least mean error at that ε."""
    bounds = []
    others = [method for method in METHODS if method not in AUTOS]
    for epsilon in EPSILONS:
        best = _least(results, others, epsilon)
        if best is not None:
            found = difference(results.all(AUTO, epsilon), best[1])
            if found is not None:
                bounds.append(ClaimedBound(f"ε = {epsilon:g} ({best[0]})", found))
    return below("ours: auto has less error than the best of the others at every ε", bounds)


def _aims(results: LowyResults, method: LowyMethod) -> list[PaperClaim]:
    """The claims that errors are below auto's aims, as such and over the floor of the same model
    and trials: test sets differ more than methods do."""
    errors, excesses = [], []
    for epsilon, aim in AIMS.items():
        found = results.all(method, epsilon)
        excess = difference(found, results.floors(method.coding))
        if excess is not None:
            error, over = Spread.of(found), aim - REPEATED_FLOOR
            errors.append(ClaimedBound(f"ε = {epsilon:g} (aim {aim:g})", error, aim))
            excesses.append(ClaimedBound(f"ε = {epsilon:g} (aim {over:.1f})", excess, over))
    return [
        below(f"ours: {method.name}: error is below its aims", errors),
        below(f"ours: {method.name}: error over the floor is below that of its aims", excesses),
    ]


def _figures(results: LowyResults, floor: Spread) -> dict[str, object]:
    rows: list[dict[str, object]] = []
    for method in METHODS:
        for index, epsilon in enumerate(EPSILONS):
            errors = results.all(method, epsilon)
            error = Spread.of(errors) if errors else None
            made = choice(results.folder, method, epsilon)
            row: dict[str, object] = {
                "algorithm": method.name if method in AUTOS else method.algorithm,
                "rounds": made.most_rounds,
                "clip": made.clip,
                "radius": made.radius,
                "noise": method.noise.value,
                "epsilon": epsilon,
                "errors": errors,
                "error": error and error.mean,
                "error_margin": error and error.margin,
                "floor": Spread.of(results.floors(method.coding)).mean,
                "refused": refusal(results.folder, method, epsilon),
            }
            if method.repeated:
                row["repeated_error"] = method.repeated[index]
            rows.append(row)
    floors = results.floors()
    return {"trials": results.trials, "floor": floor.mean, "floors": floors, "rows": rows}


def _draw(results: LowyResults, path: Path) -> None:
    """Draw test error against ε as in the paper's Figure 2, with the other algorithms beside."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 7.0), layout="constrained")
    axes = figure.subplots()
    for colour, method in zip(colours(len(METHODS)), METHODS, strict=True):
        found = [
            (epsilon, spread.mean, spread.margin or 0.0)
            for epsilon in EPSILONS
            if (errors := results.all(method, epsilon)) and (spread := Spread.of(errors))
        ]
        line = Curve(method.name, found, method.noise, bold=method in AUTOS)
        draw_line(axes, line, colour)
    axes.set(xscale="log", yscale="log", xlabel="ε", ylabel="squared error, % of the mean of y²")
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    finish(axes, EPSILONS, float(np.mean(results.floors())))
    figure.savefig(path, dpi=130)


EXPERIMENT = Experiment(
    name="lr",
    paper="Lowy, Razaviyayn (2021, short version), §5",
    shows="MB-SGD against local SGD on medical charges, and auto beside them",
    needs=insurance.NEEDS,
    parts=(),
    run=run,
)
