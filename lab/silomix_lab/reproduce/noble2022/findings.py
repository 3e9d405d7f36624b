"""Noble et al. repeated: their rounds, the trials, and what they come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from importlib.metadata import version
from itertools import count, pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from silomix_core.accounting.bounds.scaffold import (
    largest_rounds,
    server_epsilon,
    third_party_epsilon,
)
from silomix_core.accounting.composition import epsilon_of, largest_mu
from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.discrete_gaussian import SIGMA_UNITS
from silomix_core.evaluation.pooled_baseline import multinomial_regression
from silomix_core.mechanism.mechanism import Minibatch, Participant
from silomix_core.reports.aggregation import MEAN
from silomix_core.simulation.one_process import Rehearsal, rehearsal
from silomix_core.task.task import UNIT

from silomix_lab.parallel import Spread, run_all
from silomix_lab.reproduce import synthetic
from silomix_lab.reproduce.experiment import (
    ClaimVerdict,
    Experiment,
    ExperimentRequest,
    Findings,
    PaperClaim,
    ResultTable,
    below,
)
from silomix_lab.reproduce.synthetic import Population
from silomix_lab.reproduce.trial_cache import TrialCache

EPSILON, DATA_RATIO, USER_RATIO, USERS = 3.0, 0.2, 0.05, 100
PRINTED_DELTA = 1 / (USERS * 4000)
SIGMAS_G = (10, 20, 40, 80, 160)
PRINTED_ROUNDS = {  # by K, for each of SIGMAS_G; the same in Tables 1 and 4
    1: (542, 545, 546, 546, 546),
    5: (488, 502, 505, 506, 506),
    10: (428, 451, 457, 458, 458),
    20: (324, 352, 360, 362, 362),
    40: (72, 83, 86, 87, 87),
}
PRINTED_SIGMA_G = 10
PRINTED_ACCURACIES = {  # DP-SCAFFOLD at σ_g = 10, by (α = β, K)
    (0.0, 1): 31.29,
    (0.0, 5): 44.37,
    (0.0, 10): 44.17,
    (5.0, 1): 27.41,
    (5.0, 5): 45.53,
    (5.0, 10): 43.52,
}
LEVELS = (0.0, 5.0)  # α = β
CLIP, RIDGE = 1.0, 5e-3  # the ridge is the paper's
_POINTS = 12  # of a curve
FED_AVG, SCAFFOLD, WARM, ONE_STEP = "dp-fedavg", "dp-scaffold", "dp-scaffold-warm", "noisy-mb-sgd"
RADII = (5.0, 10.0, 20.0, 40.0)
ONE_STEP_RADII = (20.0, 40.0, 80.0)


class NobleNoise(Enum):
    OURS = "ε = 3 towards the server"
    PRINTED = "printed noise"


@dataclass(frozen=True, slots=True)
class Size:
    """The users, records of each (a fifth for the test), users that a round asks, rounds by K."""

    name: str
    users: int
    records: int
    asked: int
    rounds: tuple[tuple[int, int], ...]
    printed: bool  # whether the printed noise belongs to it

    def rounds_of(self, local_steps: int) -> int:
        return dict(self.rounds)[local_steps]

    @property
    def local_steps(self) -> tuple[int, ...]:
        return tuple(steps for steps, _ in self.rounds)

    def population(self, level: float) -> Population:
        return Population(level, level, self.users, self.records)

    @property
    def methods(self) -> tuple["NobleMethod", ...]:
        found = [NobleMethod(ONE_STEP, 1)]
        for name in (FED_AVG, SCAFFOLD, WARM):
            found += [NobleMethod(name, steps) for steps in self.local_steps]
        if self.printed:
            for name in (FED_AVG, SCAFFOLD):
                found += [
                    NobleMethod(name, steps, NobleNoise.PRINTED) for steps in self.local_steps
                ]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class NobleMethod:
    algorithm: str
    local_steps: int
    noise: NobleNoise = NobleNoise.OURS

    @property
    def radii(self) -> tuple[float, ...]:
        return ONE_STEP_RADII if self.algorithm == ONE_STEP else RADII

    @property
    def name(self) -> str:
        return self.algorithm + (
            f", {self.noise.value}" if self.noise is NobleNoise.PRINTED else ""
        )


REDUCED = Size("reduced", 20, 1000, 4, ((1, 60), (5, 60), (10, 60)), printed=False)
FULL = Size("full", USERS, 5000, 5, ((1, 542), (5, 488), (10, 428)), printed=True)
ROUNDS = "rounds"
UNLESS_TOLD = (ROUNDS, REDUCED.name)


@dataclass(frozen=True, slots=True)
class NobleTrial:
    """One study, or with no method the floor: everybody's records together, no privacy."""

    size: Size
    level: float
    seed: int
    method: NobleMethod | None = None
    radius: float = 0.0

    @property
    def key(self) -> str:
        where = f"{self.size.name} level={self.level:g} seed={self.seed}"
        if self.method is None:
            return f"floor {where}"
        how = self.method
        return f"{where} {how.name} K={how.local_steps} radius={self.radius:g}"

    def key_at(self, number: int) -> str:
        """The key of the model after this many rounds."""
        return f"{self.key} round={number}"


# Running ------------------------------------------------------------------------------------------


def run(request: ExperimentRequest, console: Console) -> Findings:
    parts = request.parts or UNLESS_TOLD
    sizes = [size for size in (REDUCED, FULL) if size.name in parts]
    cells = all_cells() if ROUNDS in parts else []
    results = NobleResults(run_trials(sizes, request, console), request.trials) if sizes else None
    return findings(cells, sizes, results)


def run_trials(
    sizes: Sequence[Size], request: ExperimentRequest, console: Console
) -> dict[str, float]:
    """Run the trials that are not kept yet; return accuracies in percent, by the keys of trials."""
    kept = TrialCache(request.out / "scaf-trials.jsonl", f"silomix {version('silomix')}")
    trials = [
        trial
        for size in sizes
        for seed in range(1, request.trials + 1)
        for level in LEVELS
        for trial in _trials(size, level, seed)
    ]
    missing = kept.missing(trial.key for trial in trials)
    todo = [trial for trial in trials if trial.key in missing]
    console.print(f"{len(trials)} trials, {len(trials) - len(todo)} of them kept from before")
    for figures in run_all(run_trial, todo, request.processes, console):
        for key, figure in figures:
            kept.add(key, figure)
    return kept.figures


def _trials(size: Size, level: float, seed: int) -> list[NobleTrial]:
    found = [NobleTrial(size, level, seed)]
    return found + [
        NobleTrial(size, level, seed, method, radius)
        for method in size.methods
        for radius in method.radii
    ]


def run_trial(trial: NobleTrial) -> list[tuple[str, float]]:
    """Run a trial; return keys and accuracies on the way and, last, of the final model."""
    data = _split(trial.size.population(trial.level), trial.seed)
    if trial.method is None:
        return [(trial.key, data.accuracy(_pooled(data)))]
    made = study(trial.size, trial.level, trial.method, trial.radius)
    shown, numbers = set(points(made.setting.rounds)), count(1)
    found = []

    def advance(model: synthetic.Floats) -> None:
        number = next(numbers)
        if number in shown:
            found.append((trial.key_at(number), data.accuracy(model)))

    model = made.run(data.silos, np.random.default_rng([trial.seed, 7]), advance=advance)
    return [*found, (trial.key, data.accuracy(model))]


_split = lru_cache(maxsize=1)(synthetic.split)


def points(rounds: int) -> list[int]:
    """The rounds after which a curve has a point."""
    return sorted({round(rounds * number / _POINTS) for number in range(1, _POINTS + 1)} - {0})


def study(size: Size, level: float, method: NobleMethod, radius: float) -> Rehearsal:
    population = size.population(level)
    target = PrivacyTarget(EPSILON, 1 / (size.users * population.training))
    made = rehearsal(
        synthetic.task(level),
        algorithm(method.algorithm),
        [Participant(population.training, target)] * size.users,
        rounds=size.rounds_of(method.local_steps),
        radius=radius,
        clip=CLIP,
        ridge=RIDGE,
        asked=size.asked,
        local_steps=method.local_steps,
        minibatch=Minibatch(Scheme.POISSON, DATA_RATIO),
        aggregation=MEAN,  # as in the paper
    )
    if method.noise is NobleNoise.OURS:
        return made
    sigma = PRINTED_SIGMA_G * 2 * CLIP / (DATA_RATIO * population.training)
    grid = sigma / made.mechanism.sigma_units
    return replace(made, mechanism=replace(made.mechanism, grids=(grid,)))


def _pooled(data: synthetic.SyntheticSplit) -> synthetic.Floats:
    features = np.concatenate([silo.features for silo in data.silos]) / UNIT
    labels = np.concatenate([silo.labels for silo in data.silos])
    return multinomial_regression(features, labels, synthetic.CLASSES)


# Rounds -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PaperCell:
    """A cell of Tables 1 and 4: printed and computed T, and ε of the printed T at σ_g.

    third_party, server: ε by the paper's accounting; ours: ε towards the server, numerically, with
    Poisson batches.
    """

    local_steps: int
    sigma_g: int
    printed: int
    rounds: int
    third_party: float
    server: float
    ours: float


def all_cells() -> list[PaperCell]:
    return [
        cell(steps, sigma_g, printed)
        for steps, column in PRINTED_ROUNDS.items()
        for sigma_g, printed in zip(SIGMAS_G, column, strict=True)
    ]


def cell(local_steps: int, sigma_g: int, printed: int) -> PaperCell:
    rounds = largest_rounds(
        epsilon=EPSILON,
        delta=PRINTED_DELTA,
        sigma_g=sigma_g,
        local_steps=local_steps,
        user_ratio=USER_RATIO,
        data_ratio=DATA_RATIO,
        users=USERS,
    )
    third_party = third_party_epsilon(
        delta=PRINTED_DELTA,
        sigma_g=sigma_g,
        local_steps=local_steps,
        user_ratio=USER_RATIO,
        data_ratio=DATA_RATIO,
        users=USERS,
        rounds=printed,
    )
    server = server_epsilon(
        delta=PRINTED_DELTA,
        sigma_g=sigma_g,
        local_steps=local_steps,
        data_ratio=DATA_RATIO,
        rounds=printed,
    )
    event = PrivacyEvent(
        Scheme.POISSON, DATA_RATIO, SIGMA_UNITS / sigma_g, SIGMA_UNITS, _dimension()
    )
    ours = epsilon_of([(event, printed * local_steps)], PRINTED_DELTA)
    return PaperCell(local_steps, sigma_g, printed, rounds, third_party, server, ours)


def needed_sigma_g(local_steps: int, rounds: int) -> float:
    """The σ_g at which so many rounds are (3, δ)-DP towards the server."""
    target = PrivacyTarget(EPSILON, PRINTED_DELTA)
    return 1 / largest_mu(target, Scheme.POISSON, DATA_RATIO, rounds * local_steps, _dimension())


def _dimension() -> int:
    return synthetic.task(0.0).dimension


def _round_tables(cells: Sequence[PaperCell]) -> tuple[ResultTable, ResultTable]:
    by_place = {(each.local_steps, each.sigma_g): each for each in cells}
    all_steps = tuple(dict.fromkeys(each.local_steps for each in cells))
    rows = tuple(
        (
            f"{sigma_g}",
            *(
                f"{each.rounds} [{each.printed}]"
                for steps in all_steps
                if (each := by_place[steps, sigma_g])
            ),
        )
        for sigma_g in dict.fromkeys(each.sigma_g for each in cells)
    )
    costs = tuple(
        (
            f"{each.local_steps}",
            f"{each.printed}",
            f"{each.third_party:.2f}",
            f"{each.server:.2f}",
            f"{each.ours:.2f}",
            f"{needed_sigma_g(each.local_steps, each.printed):.1f}",
        )
        for each in cells
        if each.sigma_g == PRINTED_SIGMA_G
    )
    return (
        ResultTable(
            "rounds T at ε = 3 towards a third party (in brackets: printed)",
            ("σ_g", *(f"K = {steps}" for steps in all_steps)),
            rows,
        ),
        ResultTable(
            f"what T rounds at σ_g = {PRINTED_SIGMA_G} cost: ε, and the σ_g of ε = 3",
            (
                "K",
                "T",
                "third party (paper)",
                "server (paper)",
                "server (ours)",
                "σ_g for server (ours)",
            ),
            costs,
        ),
    )


def _rounds_claim(cells: Sequence[PaperCell]) -> PaperClaim:
    apart = [abs(each.rounds - each.printed) for each in cells]
    return PaperClaim(
        "T of Tables 1 and 4 follows from the paper's accounting, within one round",
        ClaimVerdict.HOLDS if max(apart) <= 1 else ClaimVerdict.FAILS,
        f"{apart.count(0)} of {len(apart)} exactly, the largest difference is {max(apart)}",
    )


# What it comes to ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Best:
    """A method's radius with the highest mean accuracy, and its accuracies by seed."""

    radius: float
    accuracies: list[float]


@dataclass(frozen=True, slots=True)
class NobleResults:
    """The accuracies in percent, by the key of their trial."""

    accuracies: dict[str, float]
    trials: int

    def floor(self, size: Size, level: float) -> list[float]:
        return [self.accuracies[NobleTrial(size, level, seed).key] for seed in self._seeds]

    def all(self, size: Size, level: float, method: NobleMethod, radius: float) -> list[float]:
        """The accuracies of a method and radius, in the order of seeds."""
        return [
            self.accuracies[NobleTrial(size, level, seed, method, radius).key]
            for seed in self._seeds
        ]

    def best(self, size: Size, level: float, method: NobleMethod) -> Best:
        found = [Best(radius, self.all(size, level, method, radius)) for radius in method.radii]
        return max(found, key=lambda each: float(np.mean(each.accuracies)))

    def curve(self, size: Size, level: float, method: NobleMethod) -> list[tuple[int, Spread]]:
        radius = self.best(size, level, method).radius
        mine = [NobleTrial(size, level, seed, method, radius) for seed in self._seeds]
        return [
            (number, Spread.of([self.accuracies[trial.key_at(number)] for trial in mine]))
            for number in points(size.rounds_of(method.local_steps))
        ]

    def gap(
        self, size: Size, level: float, one: NobleMethod, other: NobleMethod
    ) -> synthetic.Floats:
        """The other's accuracy minus that of the one, seed by seed: below 0 if the one is better.

        Each method has its own best radius.
        """
        first, second = (self.best(size, level, each).accuracies for each in (one, other))
        differences: synthetic.Floats = np.array(second) - np.array(first)
        return differences

    @property
    def _seeds(self) -> range:
        return range(1, self.trials + 1)


def findings(
    cells: Sequence[PaperCell], sizes: Sequence[Size], results: NobleResults | None
) -> Findings:
    tables = list(_round_tables(cells)) if cells else []
    claims = [_rounds_claim(cells)] if cells else []
    notes: list[str] = []
    figures: dict[str, object] = {"rounds": [_as_row(each) for each in cells]}
    if cells:
        notes.append(
            f"δ = 1/({USERS}·4000).  Server (paper): Theorem 4.1 (2), numerically.  Ours: every "
            "local step counted, no gain from drawing users, Poisson batches of a fifth; one "
            "record replaced.  For K > 1 we do not rely on the third party's ε: it takes the noise "
            "of every local step to be averaged over users, and a user's second step follows from "
            "its own first."
        )
    if results is not None:
        tables += [_table(results, size, level) for size in sizes for level in LEVELS]
        claims += [claim for size in sizes for claim in _claims(results, size)]
        notes += [_size_note(size) for size in sizes]
        notes.append(
            "Accuracy on all users' test records: mean ± half of its 95 % interval over "
            f"{results.trials} trials, after @ the radius (of those tried) "
            "with the highest mean.  In brackets: printed, with a searched step and another clip. "
            " dp-fedsgd (Ks = 1) is dp-fedavg at K = 5.  α has no effect on these records, for "
            "the class of the largest score does not depend on the scale of a model; β has."
        )
        figures["rows"] = [row for size in sizes for row in _rows(results, size)]
        figures["trials"] = results.trials
    return Findings(
        tables=tuple(tables),
        notes=tuple(notes),
        claims=tuple(claims),
        figures=figures,
        draw=lambda path: _draw(cells, sizes, results, path),
    )


def _as_row(each: PaperCell) -> dict[str, object]:
    return {
        "local_steps": each.local_steps,
        "sigma_g": each.sigma_g,
        "printed_rounds": each.printed,
        "rounds": each.rounds,
        "third_party_epsilon": each.third_party,
        "server_epsilon": each.server,
        "our_server_epsilon": each.ours,
    }


def _size_note(size: Size) -> str:
    training = size.population(0.0).training
    rounds = ", ".join(f"{number} (K = {steps})" for steps, number in size.rounds)
    return (
        f"{size.name}: {size.users} users with {training} records to learn from, {size.asked} "
        f"asked in a round, rounds: {rounds}; batches of a fifth, clip {CLIP:g}, ridge {RIDGE:g}, "
        f"ε = {EPSILON:g}, δ = 1/({size.users}·{training})."
    )


def _table(results: NobleResults, size: Size, level: float) -> ResultTable:
    known = {(each.name, each.local_steps): each for each in size.methods}
    all_steps = size.local_steps
    floor = Spread.of(results.floor(size, level))
    rows = []
    for name in dict.fromkeys(each.name for each in size.methods):
        cells = []
        for steps in all_steps:
            method = known.get((name, steps))
            cells.append(_cell(results, size, level, method) if method else "–")
        rows.append((name, *cells))
    rows.append(("no privacy, all together", *(f"{floor.mean:.1f}" for _ in all_steps)))
    return ResultTable(
        f"{size.name}: accuracy in %, (α, β) = ({level:g}, {level:g})",
        ("algorithm", *(f"K = {steps}" for steps in all_steps)),
        tuple(rows),
    )


def _cell(results: NobleResults, size: Size, level: float, method: NobleMethod) -> str:
    best = results.best(size, level, method)
    spread = Spread.of(best.accuracies)
    margin = "" if spread.margin is None else f" ± {spread.margin:.1f}"
    cell = f"{spread.mean:.1f}{margin} @ {best.radius:g}"
    printed = PRINTED_ACCURACIES.get((level, method.local_steps))
    if method.noise is NobleNoise.PRINTED and method.algorithm == SCAFFOLD and printed is not None:
        cell += f" [{printed:.1f}]"
    return cell


def _claims(results: NobleResults, size: Size) -> list[PaperClaim]:
    noises = (NobleNoise.OURS, NobleNoise.PRINTED) if size.printed else (NobleNoise.OURS,)
    found = []
    for noise in noises:
        where = f"{size.name}, {noise.value}"
        found += [
            _beats(results, size, noise, level, f"{where}, (α, β) = ({level:g}, {level:g})")
            for level in LEVELS
        ]
        found.append(_more_by_level(results, size, noise, where))
        found += [
            _more_by_steps(results, size, noise, pair, where) for pair in pairwise(size.local_steps)
        ]
    found.append(_local_steps_pay(results, size))
    return [*found, _as_printed(results, size)] if size.printed else found


def _gap(
    results: NobleResults, size: Size, level: float, steps: int, noise: NobleNoise
) -> synthetic.Floats:
    one, other = (NobleMethod(name, steps, noise) for name in (SCAFFOLD, FED_AVG))
    return results.gap(size, level, one, other)


def _bound(label: str, differences: synthetic.Floats) -> tuple[str, float, float | None, float]:
    found = Spread.of([float(each) for each in differences])
    return label, found.mean, found.margin, 0.0


def _beats(
    results: NobleResults, size: Size, noise: NobleNoise, level: float, where: str
) -> PaperClaim:
    bounds = [
        _bound(f"K = {steps}", _gap(results, size, level, steps, noise))
        for steps in size.local_steps
    ]
    return below(f"{SCAFFOLD} has less test error than {FED_AVG} ({where})", bounds)


def _more_by_level(results: NobleResults, size: Size, noise: NobleNoise, where: str) -> PaperClaim:
    low, *_, high = LEVELS
    bounds = [
        _bound(
            f"K = {steps}",
            _gap(results, size, high, steps, noise) - _gap(results, size, low, steps, noise),
        )
        for steps in size.local_steps
    ]
    return below(f"{SCAFFOLD} is ahead by more where users differ more ({where})", bounds)


def _more_by_steps(
    results: NobleResults, size: Size, noise: NobleNoise, pair: tuple[int, int], where: str
) -> PaperClaim:
    few, many = pair
    bounds = [
        _bound(
            f"(α, β) = ({level:g}, {level:g})",
            _gap(results, size, level, many, noise) - _gap(results, size, level, few, noise),
        )
        for level in LEVELS
    ]
    return below(
        f"{SCAFFOLD} is ahead by more with K = {many} than with K = {few} ({where})", bounds
    )


def _local_steps_pay(results: NobleResults, size: Size) -> PaperClaim:
    bounds = [
        _bound(
            f"({level:g}, {level:g}), K = {steps}",
            results.gap(size, level, NobleMethod(SCAFFOLD, steps), NobleMethod(ONE_STEP, 1)),
        )
        for level in LEVELS
        for steps in size.local_steps
    ]
    return below(f"{SCAFFOLD} has less test error than one step a round ({size.name})", bounds)


def _as_printed(results: NobleResults, size: Size) -> PaperClaim:
    bounds = []
    for (level, steps), printed in PRINTED_ACCURACIES.items():
        if steps in size.local_steps:
            found = results.best(
                size, level, NobleMethod(SCAFFOLD, steps, NobleNoise.PRINTED)
            ).accuracies
            label = f"({level:g}, {level:g}), K = {steps} [{printed:.1f}]"
            bounds.append(_bound(label, printed - np.array(found)))
    return below(
        f"{SCAFFOLD} with the printed noise is more accurate than printed ({size.name})", bounds
    )


def _rows(results: NobleResults, size: Size) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for level in LEVELS:
        for method in size.methods:
            rows += [
                {
                    "size": size.name,
                    "alpha": level,
                    "beta": level,
                    "algorithm": method.algorithm,
                    "local_steps": method.local_steps,
                    "rounds": size.rounds_of(method.local_steps),
                    "noise": method.noise.value,
                    "radius": radius,
                    "accuracies": results.all(size, level, method, radius),
                    "floors": results.floor(size, level),
                }
                for radius in method.radii
            ]
    return rows


# The picture --------------------------------------------------------------------------------------


def _draw(
    cells: Sequence[PaperCell], sizes: Sequence[Size], results: NobleResults | None, path: Path
) -> None:
    """Draw accuracy by round as in the paper's Figure 3; with `rounds` alone, T against σ_g."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    if results is None:
        figure, axes = plt.subplots(figsize=(7.0, 5.0), layout="constrained")
        for index, steps in enumerate(dict.fromkeys(each.local_steps for each in cells)):
            mine = [each for each in cells if each.local_steps == steps]
            sigmas = [each.sigma_g for each in mine]
            axes.plot(sigmas, [each.rounds for each in mine], color=f"C{index}", label=f"K={steps}")
            axes.plot(sigmas, [each.printed for each in mine], "x", color=f"C{index}")
        axes.set(xscale="log", xlabel="σ_g", ylabel="rounds T at ε = 3 (crosses: printed)")
        axes.legend(frameon=False)
        figure.savefig(path, dpi=130)
        plt.close(figure)
        return
    places = [(size, steps) for size in sizes for steps in size.local_steps]
    figure, grid = plt.subplots(
        len(places),
        len(LEVELS),
        figsize=(6.0 * len(LEVELS), 4.2 * len(places)),
        layout="constrained",
        squeeze=False,
    )
    for (size, steps), line in zip(places, grid, strict=True):
        for level, axes in zip(LEVELS, line, strict=True):
            shown = [
                each
                for each in size.methods
                if each.local_steps == steps or each.algorithm == ONE_STEP
            ]
            for index, method in enumerate(shown):
                curve = results.curve(size, level, method)
                axes.errorbar(
                    [number for number, _ in curve],
                    [each.mean for _, each in curve],
                    [each.deviation or 0.0 for _, each in curve],
                    color=f"C{index}",
                    linestyle="--" if method.noise is NobleNoise.PRINTED else "-",
                    capsize=2,
                    linewidth=1.4,
                    label=method.name,
                )
            floor = float(np.mean(results.floor(size, level)))
            axes.axhline(floor, color="black", linestyle=":", label="no privacy")
            axes.set(xlabel="round", ylabel="accuracy, %")
            axes.set_title(f"{size.name}, K = {steps}, (α, β) = ({level:g}, {level:g})")
            axes.legend(frameon=False, fontsize="small", loc="lower right")
    figure.savefig(path, dpi=130)
    plt.close(figure)


EXPERIMENT = Experiment(
    name="scaf",
    paper="Noble, Bellet, Dieuleveut (2022), §5 and App. D",
    shows="DP-SCAFFOLD against DP-FedAvg on synthetic users that differ, and the rounds of Table 1",
    needs=None,
    parts=(ROUNDS, REDUCED.name, FULL.name),
    run=run,
)
