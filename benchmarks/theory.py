"""Rates of the theorems against what the algorithms do: log-log slopes in N, n, d and ε.

    python benchmarks/theory.py [--quick] [--json FILE] [--png FILE] [--processes K]

**Excess risk.**  The theorems speak of the worst problem, so problems of a family are run, and the
worst mean excess risk over the family is what counts.  A record is a vector of ±1/√p, p = d − 1,
each coordinate +1/√p with probability (1 + s)/2; the label is always 1, the loss logistic, the
model kept in a ball of radius ½.  So L = 1, β = ¼, D = 1, and both the minimizer, along (1, …, 1),
and the excess risk follow from the moments of a sum of p independent signs, without sampling.  A
large s is easy to see; a small one hardly matters; in between lies the problem that is hardest at
this N, n, d and ε.  (For one fixed problem the risk falls faster: a theorem is an upper bound.)

Two regimes: ε = 0.5, where noise decides and the theorems say √(d ln(1/δ))/(εn√N), and ε = 30,
where records do and they say 1/√(Nn).  Gao et al. 2024, Thm 2.1 and 3.4; one-pass: Lowy &
Razaviyayn 2021, long version, Thm 2.3 (docs/privacy.md, Literature), (√(d ln(1/δ))/(εn√N))^⅘.

Every run is the study that `silomix simulate --aggregation mean` would run, its noise calibrated
as on the network.  Standard errors: jackknife over trials.

**Rounds and gradient evaluations** that the theorems ask for, by the algorithms' own `phases`, with
no cap, at d = n and ε = 1 as in Gao et al., Tables 1 and 2.  Gradients are counted for full
batches, as the phases declare them; the papers also give smaller counts with small batches.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from math import ceil, log, log2, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.base import Setting
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.mechanism.mechanism import Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.reports.aggregation import MEAN
from silomix_core.simulation.one_process import rehearsal
from silomix_core.study.specification import Specification
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task

Floats = NDArray[np.float64]

DELTA = 1e-6
RADIUS, CLIP, SMOOTHNESS = 0.5, 1.0, 0.25
NO_BIAS = 1e-6  # rounds to 0: the last coordinate of every record
STRENGTHS = {  # s of the problems: from easy at the smallest size to invisible at the largest
    "noise decides": tuple(2.0**-k for k in range(1, 7)),
    "records decide": tuple(2.0**-k for k in range(1, 9)),
}
MOST_ROUNDS = 120  # of a run; the localized subgradient method asks for thousands
NO_CAP = 10**15


@dataclass(frozen=True, slots=True)
class Size:
    silos: int
    records: int
    dimension: int
    epsilon: float

    @property
    def target(self) -> PrivacyTarget:
        return PrivacyTarget(self.epsilon, DELTA)

    @property
    def price(self) -> float:
        """√(d ln(1/δ))/(εn√N), what the theorems say that privacy costs (times LD)."""
        privacy = sqrt(self.dimension * log(1 / DELTA)) / self.epsilon
        return privacy / (self.records * sqrt(self.silos))


NOISY = Size(8, 512, 16, 0.5)
# A larger d, that is less curvature: at d = 16 it makes the risk fall faster (slopes −0.6 to −1.0).
PLENTY = Size(8, 512, 64, 30.0)


@dataclass(frozen=True, slots=True)
class Line:
    """One fitted slope."""

    figure: str  # what is measured
    regime: str
    algorithm: str
    grows: str
    measured: float
    standard_error: float
    theorem: float
    sizes: tuple[float, ...]
    values: tuple[float, ...]


# Excess risk -------------------------------------------------------------------------------------


def rounds_of(name: str, size: Size) -> int:
    """How many a run may take: one-pass as few as its theorem, which pays for each."""
    if name == "one-pass-accelerated":
        return max(1, one_pass_rounds(size))
    return 40 if name in ("noisy-mb-sgd", "accelerated-mb-sgd") else MOST_ROUNDS


def one_pass_rounds(size: Size) -> int:
    """Where βD²/R², what too few rounds lose, meets √R·price or 1/√(Nn); in units of LD."""
    steep = SMOOTHNESS * 2 * RADIUS / CLIP
    few = (steep / size.price) ** 0.4
    return min(size.records // 2, ceil(min(few, sqrt(steep * sqrt(size.silos * size.records)))))


def task_of(dimension: int) -> Task:
    features = (Feature("x", -1.0, 1.0, 0.0, dimension - 1),)
    return Task(LossName.LOGISTIC, "label", features, Scaling.UNIT_BALL, NO_BIAS)


def risk(model: Floats, strength: float) -> float:
    """E ln(1 + e^−v) for v = Σ aⱼbⱼ, bⱼ = ±1 with mean s, by v's moments: |v| ≤ ½.

    ln(1 + e^−v) = ln 2 − v/2 + v²/8 − v⁴/192 + …; the rest is below 6·10⁻⁶ for every v.
    """
    a = model[:-1] / sqrt(len(model) - 1)
    spread = 1 - strength**2
    first, second = strength * a.sum(), spread * (a**2).sum()
    third = -2 * strength * spread * (a**3).sum()
    fourth = -2 * spread * (1 - 3 * strength**2) * (a**4).sum()
    square = second + first**2
    quartic = fourth + 4 * third * first + 3 * second**2 + 6 * second * first**2 + first**4
    return float(log(2) - first / 2 + square / 8 - quartic / 192)


def least_risk(dimension: int, strength: float) -> float:
    """At the minimizer, which by symmetry is t·(1, …, 1)/√p with t at most the radius."""
    direction = np.append(np.full(dimension - 1, 1 / sqrt(dimension - 1)), 0.0)
    return min(risk(t * direction, strength) for t in np.linspace(0, RADIUS, 2001))


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    size: Size
    strength: float
    trial: int

    def excess(self) -> float:
        """Excess risk of the model of one simulated study."""
        size = self.size
        task, target = task_of(size.dimension), size.target
        specification = Specification(
            algorithm=self.name,
            most_rounds=rounds_of(self.name, size),
            radius=RADIUS,
            clip=CLIP,
            target=target,
            named_aggregation=MEAN,  # what the theorems are about
        )
        silos = [Participant(size.records, target)] * size.silos
        made = rehearsal(task, specification, silos)
        rng = np.random.default_rng(
            [self.trial, int(1e6 * self.strength), *map(int, size_key(size))]
        )
        shape = (size.records, size.dimension - 1)
        silos = [
            Records(
                task.encode(np.where(rng.random(shape) < (1 + self.strength) / 2, 1.0, -1.0)),
                np.ones(size.records),
            )
            for _ in range(size.silos)
        ]
        return risk(made.run(silos, rng), self.strength) - least_risk(size.dimension, self.strength)


def size_key(size: Size) -> tuple[float, ...]:
    return size.silos, size.records, size.dimension, 1000 * size.epsilon


def all_excesses(runs: Sequence[Run], processes: int) -> dict[Run, float]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if processes == 1:
        return {run: run.excess() for run in runs}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        return dict(zip(runs, pool.map(Run.excess, runs, chunksize=8), strict=True))


OPTIMAL = {"silos": -0.5, "records": -1.0, "dimension": 0.5, "epsilon": -1.0}
RECORDS_DECIDE = {"silos": -0.5, "records": -0.5}
ALGORITHMS = (
    "noisy-mb-sgd",
    "accelerated-mb-sgd",
    "localized-accelerated",
    "localized-subgradient",
    "one-pass-accelerated",
)

QUICK = ("localized-accelerated", "one-pass-accelerated")


def exponent(name: str, regime: str, grows: str) -> float:
    if regime == "records decide":
        return RECORDS_DECIDE[grows]
    return OPTIMAL[grows] * (0.8 if name == "one-pass-accelerated" else 1.0)


def grown(base: Size, grows: str, factors: Iterable[float]) -> list[Size]:
    start = getattr(base, grows)
    return [replace(base, **{grows: type(start)(start * factor)}) for factor in factors]


def risk_lines(names: Sequence[str], *, quick: bool, processes: int) -> list[Line]:
    factors, trials = ((1, 4), 2) if quick else ((1, 2, 4, 8), 4)
    axes = [("noise decides", NOISY, grows) for grows in OPTIMAL]
    axes += [("records decide", PLENTY, grows) for grows in RECORDS_DECIDE]
    plan = {
        (regime, name, grows): grown(base, grows, factors)
        for regime, base, grows in axes
        for name in names
    }
    runs = {
        Run(name, size, strength, trial)
        for (regime, name, _), sizes in plan.items()
        for size in sizes
        for strength in STRENGTHS[regime]
        for trial in range(trials)
    }
    found = all_excesses(
        sorted(runs, key=lambda run: -run.size.silos * run.size.records), processes
    )

    def worst(regime: str, name: str, size: Size, left_out: int | None = None) -> float:
        kept = [trial for trial in range(trials) if trial != left_out]
        return max(
            float(np.mean([found[Run(name, size, strength, trial)] for trial in kept]))
            for strength in STRENGTHS[regime]
        )

    lines = []
    for (regime, name, grows), sizes in plan.items():
        xs = [getattr(size, grows) for size in sizes]
        slopes = [
            slope(xs, [worst(regime, name, s, out) for s in sizes])[0] for out in range(trials)
        ]
        ys = [worst(regime, name, size) for size in sizes]
        lines.append(
            Line(
                figure="excess risk",
                regime=regime,
                algorithm=name,
                grows=grows,
                measured=slope(xs, ys)[0],
                standard_error=sqrt((trials - 1) * float(np.var(slopes))),
                theorem=exponent(name, regime, grows),
                sizes=tuple(map(float, xs)),
                values=tuple(ys),
            )
        )
    return lines


# Rounds and gradient evaluations -----------------------------------------------------------------

Counts = tuple[float, float]  # rounds, gradients


def counted(name: str, size: Size) -> Counts:
    """By the phases that the algorithm declares, all records of a phase in each of its rounds."""
    setting = Setting(
        rounds=one_pass_rounds(size) if name == "one-pass-accelerated" else NO_CAP,
        dimension=size.dimension,
        silos=size.silos,
        participants=size.silos,
        records=size.records,
        radius=RADIUS,
        lipschitz=CLIP,
        smoothness=SMOOTHNESS,
        target=size.target,
    )
    phases = algorithm(name).phases(setting)
    gradients = sum(phase.rounds * phase.records(size.records) for phase in phases)
    return sum(phase.rounds for phase in phases), float(gradients) * size.silos


def as_before(size: Size) -> Counts:
    """Noisy MB-SGD, R = min(Nn, Nn²ε²/d): what was best before (Gao et al., eq. 3 and Table 1)."""
    n = size.records
    rounds = size.silos * min(n, (n * size.epsilon) ** 2 / size.dimension)
    return rounds, rounds * n * size.silos


COUNTED: dict[str, tuple[Callable[[Size], Counts], float, float]] = {
    # name: (rounds and gradients of a size, exponents of N and n in either, full batches)
    "localized-accelerated": (lambda size: counted("localized-accelerated", size), 0.25, 1.25),
    "localized-subgradient": (lambda size: counted("localized-subgradient", size), 1.0, 2.0),
    "one-pass-accelerated": (lambda size: counted("one-pass-accelerated", size), 0.2, 1.0),
    "noisy MB-SGD, as in the papers": (as_before, 1.0, 2.0),
}


def count_lines() -> list[Line]:
    """d = n, ε = 1; N at n = 2¹², n at N = 16."""
    axes = {
        "silos": [Size(2**k, 2**12, 2**12, 1.0) for k in range(0, 21, 2)],
        "records": [Size(16, 2**k, 2**k, 1.0) for k in range(8, 29, 2)],
    }
    lines = []
    for name, (counts, *exponents) in COUNTED.items():
        for grows, sizes in axes.items():
            xs = [getattr(size, grows) for size in sizes]
            for index, figure in enumerate(("rounds", "gradient evaluations")):
                ys = [counts(size)[index] for size in sizes]
                measured, error = slope(xs, ys)
                lines.append(
                    Line(
                        figure=figure,
                        regime="d = n, ε = 1",
                        algorithm=name,
                        grows=grows,
                        measured=measured,
                        standard_error=error,
                        theorem=exponents[index],
                        sizes=tuple(map(float, xs)),
                        values=tuple(ys),
                    )
                )
    return lines


def slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Least squares on logarithms: slope and, from the residuals, its standard error."""
    x, y = np.log(np.asarray(xs, dtype=float)), np.log(np.asarray(ys, dtype=float))
    x = x - x.mean()
    found = float(x @ y / (x @ x))
    if len(xs) < 3:
        return found, 0.0
    residuals = y - y.mean() - found * x
    return found, float(sqrt(residuals @ residuals / (len(xs) - 2) / (x @ x)))


# What is shown -----------------------------------------------------------------------------------

LETTERS = {"silos": "N", "records": "n", "dimension": "d", "epsilon": "ε"}


def show(lines: Sequence[Line], console: Console) -> None:
    for figure in dict.fromkeys((line.figure, line.regime) for line in lines):
        table = Table(title=f"{figure[0]}, {figure[1]}: slope ± standard error (theorem)")
        mine = [line for line in lines if (line.figure, line.regime) == figure]
        axes = list(dict.fromkeys(line.grows for line in mine))
        table.add_column("algorithm")
        for grows in axes:
            table.add_column(f"in {LETTERS[grows]}", justify="right")
        for name in dict.fromkeys(line.algorithm for line in mine):
            cells = {line.grows: line for line in mine if line.algorithm == name}
            table.add_row(
                name,
                *(
                    f"{each.measured:+.2f} ± {each.standard_error:.2f} ({each.theorem:+.2f})"
                    for each in map(cells.__getitem__, axes)
                ),
            )
        console.print(table)


def tick(size: float, _: object) -> str:
    return f"{size:g}" if size < 10_000 else f"$2^{{{round(log2(size))}}}$"


def draw(lines: Sequence[Line], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    panels = sorted(
        dict.fromkeys((line.figure, line.regime, line.grows) for line in lines),
        key=lambda panel: ("excess risk", "rounds", "gradient evaluations").index(panel[0]),
    )
    figure, grid = plt.subplots(2, 5, figsize=(21, 8.5), layout="constrained")
    names = list(dict.fromkeys(line.algorithm for line in lines))
    colors = {name: f"C{index}" for index, name in enumerate(names)}
    for panel, axes in zip(panels, grid.flat, strict=True):
        mine = [line for line in lines if (line.figure, line.regime, line.grows) == panel]
        for line in mine:
            color = colors[line.algorithm]
            axes.plot(line.sizes, line.values, "o-", ms=4, color=color, label=line.algorithm)
            middle = len(line.sizes) // 2
            guide = [
                line.values[middle] * (size / line.sizes[middle]) ** line.theorem
                for size in line.sizes
            ]
            axes.plot(line.sizes, guide, ":", lw=1, color=color)
        axes.set(
            xscale="log", yscale="log", xlabel=LETTERS[panel[2]], title=f"{panel[0]}, {panel[1]}"
        )
        axes.set_xticks(mine[0].sizes[:: max(1, len(mine[0].sizes) // 3)])
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    shown: dict[str, object] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    figure.legend(
        shown.values(),
        shown.keys(),
        loc="outside lower center",
        ncols=len(shown),
        frameon=False,
        title="dotted: the theorem's slope through the middle point",
    )
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few sizes and trials, under a minute")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--png", type=Path, default=Path("theory.png"), help="the picture")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    names = QUICK if options.quick else ALGORITHMS
    lines = risk_lines(names, quick=options.quick, processes=options.processes) + count_lines()
    console = Console(width=130)
    show(lines, console)
    draw(lines, options.png)
    console.print(f"the picture is in {options.png}")
    if options.json:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n")


if __name__ == "__main__":
    main()
