"""The picture of a plan: simulated error against ε, and against rounds."""

from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from silomix_core.accounting.events import ADJACENCY
from silomix_core.simulation.planning import Plan
from silomix_core.simulation.planning.grid import GridCell

_MARKERS = "osD^vPX"


def draw(made: Plan, cells: tuple[GridCell, ...], path: Path) -> None:
    """Draw two panels as PNG; `cells` are the plan's, and more if it has one ε or round count."""
    from matplotlib.figure import Figure

    request = made.request
    figure = Figure(figsize=(12.5, 5))
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, made, cells, _rounds, "{:g} rounds", "viridis", x=_epsilon)
    _panel(right, made, cells, _epsilon, "ε = {:g}", "plasma", x=_rounds)
    left.set_title("error against ε")
    left.set_xlabel(
        f"ε at δ = {request.delta:.3g}, {ADJACENCY},\nagainst everybody but the silo itself"
    )
    left.set_ylabel(f"excess error, points\n(mean of {request.seeds} runs ± standard error)")
    right.set_title("error against rounds")
    right.set_xlabel("rounds")
    figure.suptitle(
        f"Synthetic records: {request.silos} silos of {request.each_has}, {request.dimension} "
        f"coordinates, clip {request.clip:g}, {request.minibatch.scheme.value} batches, "
        f"{request.algorithm}",
        fontsize=11,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def _panel(
    axes: Any,
    made: Plan,
    all_cells: tuple[GridCell, ...],
    line: Callable[[GridCell], float],
    label: str,
    colours: str,
    *,
    x: Callable[[GridCell], float],
) -> None:
    """Draw a curve for each value of `line`; the two panels use different colours on purpose."""
    import matplotlib as mpl

    lines = _lines_of_several(all_cells, line, line(made.recommendation.cell))
    shades = mpl.colormaps[colours]
    for index, (value, marker) in enumerate(zip(lines, cycle(_MARKERS), strict=False)):
        cells = [cell for cell in all_cells if line(cell) == value]
        axes.errorbar(
            [x(cell) for cell in cells],
            [100 * cell.mean_error for cell in cells],
            yerr=[100 * _spread(cell) for cell in cells],
            color=shades(0.85 * index / max(len(lines) - 1, 1)),
            marker=marker,
            markersize=5,
            lw=1.3,
            capsize=3,
            label=label.format(value),
        )
    best = made.recommendation.cell
    axes.plot(
        [x(best)],
        [100 * best.mean_error],
        marker="o",
        markersize=12,
        markerfacecolor="none",
        markeredgecolor="tab:red",
        markeredgewidth=1.8,
        ls="none",
        label="recommended" if len(made.cells) > 1 else "your choice",
    )
    ticks = sorted({x(cell) for cell in all_cells if line(cell) in lines})
    if len(ticks) > 1:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axhline(0, color="black", lw=0.8)
    axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        [*handles[1:], handles[0]],  # the recommended cell's ring comes last
        [*labels[1:], labels[0]],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),  # beside the panel: inside it would cover lines
        frameon=False,
    )


def _lines_of_several(
    cells: tuple[GridCell, ...], line: Callable[[GridCell], float], best: float
) -> list[float]:
    """The values of `line` with several points to join, and in any case the recommended value."""
    points = Counter(line(cell) for cell in cells)
    return sorted(value for value, count in points.items() if count > 1 or value == best)


def _epsilon(cell: GridCell) -> float:
    return cell.epsilon


def _rounds(cell: GridCell) -> float:
    return cell.rounds


def _spread(cell: GridCell) -> float:
    estimate = cell.excess_error
    return estimate.standard_error or 0.0 if estimate else 0.0
