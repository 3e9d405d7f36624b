"""The bounds of Balle, Kairouz, McMahan, Thakkar, Thakurta 2020 (random check-ins), repeated.

Figure 2: what shuffling n reports is worth, by Theorem 5.1 and by the older bound (Erlingsson et
al. 2019, Theorem 7, as quoted in Section 5), with the numerical bound that silomix uses beside
them.  Table 1: how each bound grows with ε₀ and n, measured on the formulas.  Nothing is sampled
and no data is needed: every figure follows from `silomix_core.accounting.bounds`.

All of it is about reports that are ε₀-DP in the *whole* input of whoever sends them; see
`silomix_core.accounting.bounds.check_in_theorems` for what that means for silos with many records.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import exp, expm1, log, log10, sqrt, tanh
from pathlib import Path

from rich.console import Console
from silomix_core.accounting.bounds.check_in_theorems import LocalRandomizer, fixed_window, shuffled
from silomix_core.accounting.bounds.clones import clones_epsilon
from silomix_core.accounting.bounds.subsampled_composition import sampled

from silomix_lab.reproduce.experiment import (
    ClaimVerdict,
    Experiment,
    ExperimentRequest,
    Findings,
    PaperClaim,
    ResultTable,
)

DELTA = 1e-6
REPORTS = (10**3, 10**4, 10**5, 10**6)
EPSILONS_0 = tuple(step / 10 for step in range(1, 31))
SHOWN = (0.1, 0.5, 1.0, 2.0, 3.0)  # the ε₀ in the table; all are in the picture


@dataclass(frozen=True, slots=True)
class ShufflingRow:
    """The ε after shuffling `reports` reports that are ε₀-DP; above ε₀ a bound says nothing."""

    reports: int
    epsilon_0: float
    older: float  # Erlingsson et al. 2019, Theorem 7
    theorem: float  # Balle et al. 2020, Theorem 5.1
    numerical: float  # Feldman, McMillan, Talwar 2021; never above ε₀


@dataclass(frozen=True, slots=True)
class Growth:
    """A line of Table 1: printed and measured exponents a, b of ε ~ e^(a·ε₀)·n^b."""

    source: str
    printed_in_epsilon_0: float | None  # none: not in the paper
    measured_in_epsilon_0: float
    printed_in_reports: float | None
    measured_in_reports: float
    example: float  # ε at ε₀ = 1, n = 10⁴


def run(_: ExperimentRequest, console: Console) -> Findings:
    console.print(f"{len(REPORTS) * len(EPSILONS_0)} bounds of Figure 2, then Table 1")
    rows, table = figure_2(), table_1()
    return Findings(
        tables=(_shown_rows(rows), _shown_growths(table)),
        notes=(
            "ε₀: what one report guarantees on its own, for the whole input of its sender; it is "
            f"no silo's ε for a record.  δ = {DELTA:g}.  In brackets: above ε₀, where a bound says "
            "nothing.  Numerical: Feldman, McMillan, Talwar 2021, which silomix uses.",
            "Exponents are measured from ε₀ = 5 to 6 and n = 10¹⁷ to 10¹⁸ (numerical: 3 to 4, 10⁶ "
            "to 10⁷), where the term in 1/√n decides.",
        ),
        claims=tuple(claims(rows, table)),
        figures={
            "delta": DELTA,
            "figure_2": [asdict(row) for row in rows],
            "table_1": [asdict(line) for line in table],
        },
        draw=lambda path: draw(rows, path),
    )


def _shown_rows(rows: Sequence[ShufflingRow]) -> ResultTable:
    cells = tuple(
        (
            f"{row.reports}, {row.epsilon_0:g}",
            *(
                f"{each:.3g}" if each <= row.epsilon_0 else f"({each:.3g})"
                for each in (row.older, row.theorem, row.numerical)
            ),
        )
        for row in rows
        if row.epsilon_0 in SHOWN
    )
    columns = ("n, ε₀", "Erlingsson et al. 2019", "Theorem 5.1", "numerical (silomix)")
    return ResultTable("Figure 2: ε after shuffling", columns, cells)


def _shown_growths(table: Sequence[Growth]) -> ResultTable:
    def exponents(in_epsilon_0: float | None, in_reports: float | None) -> str:
        if in_epsilon_0 is None or in_reports is None:
            return "–"
        return f"{in_epsilon_0:.2f}, {in_reports:.2f}" if in_reports else "ε₀"

    cells = tuple(
        (
            line.source,
            exponents(line.printed_in_epsilon_0, line.printed_in_reports),
            exponents(line.measured_in_epsilon_0, line.measured_in_reports),
            f"{line.example:.3g}",
        )
        for line in table
    )
    columns = ("amplification", "a, b printed", "measured", "ε at ε₀ = 1, n = 10⁴")
    return ResultTable("Table 1: ε grows as e^(a·ε₀)·n^b", columns, cells)


def older_bound(epsilon_0: float, reports: int, delta: float = DELTA) -> float:
    """The ε of Erlingsson et al. 2019, Theorem 7, as Balle et al., Section 5, print it (δ₀ = 0)."""
    grow = 2 * exp(2 * epsilon_0) * expm1(epsilon_0)
    return grow * expm1(min(grow / reports, 700)) + grow * sqrt(2 * log(1 / delta) / reports)


def theorem_bound(epsilon_0: float, reports: int, delta: float = DELTA) -> float:
    """The ε of Balle et al. 2020, Theorem 5.1."""
    return shuffled(LocalRandomizer(epsilon_0), delta, reports=reports).bound


def check_in_bound(epsilon_0: float, reports: int, delta: float = DELTA) -> float:
    """The ε of Balle et al. 2020, Theorem 3.2: as many slots as reports, everybody checking in."""
    return fixed_window(LocalRandomizer(epsilon_0), delta, window=reports).bound


def sampling_bound(epsilon_0: float, reports: int, delta: float = DELTA) -> float:
    """The ε of n rounds, each on one record drawn from n: sampling, then composition.

    Kairouz, Oh, Viswanath 2015, Theorem 3.4, as in the proofs of the other bounds.
    """
    each, _ = sampled(epsilon_0, 0.0, ratio=1 / reports)
    return reports * each * tanh(each / 2) + each * sqrt(2 * reports * log(1 / delta))


def numerical_bound(epsilon_0: float, reports: int, delta: float = DELTA) -> float:
    return clones_epsilon(delta, epsilon_0=epsilon_0, reports=reports)


def figure_2(
    reports: Sequence[int] = REPORTS, epsilons_0: Sequence[float] = EPSILONS_0
) -> list[ShufflingRow]:
    return [
        ShufflingRow(
            count,
            epsilon_0,
            older_bound(epsilon_0, count),
            theorem_bound(epsilon_0, count),
            numerical_bound(epsilon_0, count),
        )
        for count in reports
        for epsilon_0 in epsilons_0
    ]


def table_1() -> list[Growth]:
    """The exponents where the term in 1/√n decides: ε₀ from 5 to 6, and enough reports for that."""
    many, computed = 10**18, 10**7  # the numerical bound is computed up to 10⁷
    return [
        Growth("none", None, 0.0, 0.0, 0.0, 1.0),
        _growth("uniform subsampling", 1.0, sampling_bound, many, 5.0),
        _growth("shuffling, Erlingsson et al. 2019", 3.0, older_bound, many, 5.0),
        _growth("shuffling, Theorem 5.1", 2.5, theorem_bound, many, 5.0),
        _growth("random check-ins, Theorem 3.2", 1.5, check_in_bound, many, 5.0),
        _growth("shuffling, numerical (ours)", None, numerical_bound, computed, 3.0),
    ]


def claims(rows: Sequence[ShufflingRow], table: Sequence[Growth]) -> list[PaperClaim]:
    return [
        _improves(rows),
        _improves_by_root(),
        _saves_an_order_of_magnitude(rows),
        *(_grows_as_printed(line) for line in table if line.printed_in_epsilon_0 is not None),
        _is_improved_upon(rows),
    ]


def draw(rows: Sequence[ShufflingRow], path: Path) -> None:
    """Draw Figure 2 with the numerical bound beside it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.5), layout="constrained")
    axes = figure.subplots()
    for index, count in enumerate(dict.fromkeys(row.reports for row in rows)):
        mine = [row for row in rows if row.reports == count]
        points, color = [row.epsilon_0 for row in mine], f"C{index}"
        name = f"n = $10^{round(log10(count))}$"
        axes.plot(points, [row.theorem for row in mine], color=color, label=name)
        axes.plot(points, [row.older for row in mine], color=color, ls=":")
        axes.plot(points, [row.numerical for row in mine], color=color, ls="--", lw=1)
    local = sorted({row.epsilon_0 for row in rows})
    axes.plot(local, local, color="gray", lw=3, alpha=0.5, label="no amplification: ε = ε₀")
    for style, name in (
        ("-", "Theorem 5.1"),
        (":", "Erlingsson et al. 2019"),
        ("--", "numerical (silomix)"),
    ):
        axes.plot([], [], color="black", ls=style, label=name)
    axes.set(xlabel="ε₀ of one report", ylabel=f"ε after shuffling, δ = {DELTA:g}", yscale="log")
    axes.set_ylim(1e-4, 10)
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, frameon=False, loc="lower right")
    figure.savefig(path, dpi=130)


def _growth(
    source: str,
    printed: float | None,
    bound: Callable[[float, int], float],
    reports: int,
    low: float,
) -> Growth:
    tenth = reports // 10
    return Growth(
        source,
        printed,
        log(bound(low + 1, reports) / bound(low, reports)),
        None if printed is None else -0.5,
        log(bound(low, reports) / bound(low, tenth)) / log(10),
        bound(1.0, 10**4),
    )


def _verdict(holds: bool) -> ClaimVerdict:
    return ClaimVerdict.HOLDS if holds else ClaimVerdict.FAILS


def _improves(rows: Sequence[ShufflingRow]) -> PaperClaim:
    ratios = [row.older / row.theorem for row in rows if row.older < row.epsilon_0]
    return PaperClaim(
        "Theorem 5.1 is below the older bound everywhere in Figure 2",
        _verdict(all(row.theorem < row.older for row in rows)),
        f"older / Theorem 5.1 = {min(ratios):.2f} to {max(ratios):.2f} where the older amplifies",
    )


def _improves_by_root() -> PaperClaim:
    """Check that the bounds' ratio is 2e^(ε₀/2) at many reports, where both are their 1/√n term."""
    found = [older_bound(e, 10**18) / theorem_bound(e, 10**18) / exp(e / 2) for e in (0.5, 2, 4)]
    return PaperClaim(
        "the improvement is a factor of order e^(0.5·ε₀)",
        _verdict(max(found) / min(found) < 1.01),
        f"ratio / e^(ε₀/2) = {min(found):.3f} to {max(found):.3f} at ε₀ = 0.5 to 4",
    )


def _saves_an_order_of_magnitude(rows: Sequence[ShufflingRow]) -> PaperClaim:
    """Compare Theorem 5.1 at n with the older bound at 10n, where both say something."""
    known = {(row.reports, row.epsilon_0): row for row in rows}
    ratios = [
        row.theorem / more.older
        for row in rows
        if row.reports <= 10**4
        and (more := known.get((10 * row.reports, row.epsilon_0))) is not None
        and max(row.theorem, more.older) < row.epsilon_0
    ]
    return PaperClaim(
        "n = 10³ and 10⁴ now give about what 10⁴ and 10⁵ gave",
        _verdict(bool(ratios) and min(ratios) > 0.5 and max(ratios) < 2),
        f"Theorem 5.1 at n / older at 10n = {min(ratios):.2f} to {max(ratios):.2f}"
        if ratios
        else "no ε₀ at which both amplify",
    )


def _grows_as_printed(line: Growth) -> PaperClaim:
    printed = line.printed_in_epsilon_0 or 0.0
    holds = (
        abs(line.measured_in_epsilon_0 - printed) < 0.1
        and abs(line.measured_in_reports + 0.5) < 0.03
    )
    return PaperClaim(
        f"{line.source}: ε of order e^({printed:g}·ε₀)/√n",
        _verdict(holds),
        f"e^({line.measured_in_epsilon_0:.2f}·ε₀)·n^({line.measured_in_reports:.2f})",
    )


def _is_improved_upon(rows: Sequence[ShufflingRow]) -> PaperClaim:
    gains = [row.theorem / row.numerical for row in rows if row.theorem < row.epsilon_0]
    return PaperClaim(
        "ours: the numerical bound is below Theorem 5.1 wherever that amplifies",
        _verdict(min(gains) > 1),
        f"Theorem 5.1 / numerical = {min(gains):.1f} to {max(gains):.1f}",
    )


EXPERIMENT = Experiment(
    name="rc",
    paper="Balle, Kairouz, McMahan, Thakkar, Thakurta (2020), Figure 2 and Table 1",
    shows="What shuffling and random check-ins are worth: printed bounds, and a numerical one",
    needs=None,
    parts=(),
    run=run,
)
