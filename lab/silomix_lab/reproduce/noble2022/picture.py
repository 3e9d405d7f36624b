"""The experiment's picture: accuracy by round, or rounds by noise."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silomix_lab.colours import colours
from silomix_lab.reproduce.noble2022.accuracies import NobleResults
from silomix_lab.reproduce.noble2022.paper_rounds import PaperCell
from silomix_lab.reproduce.noble2022.sizes_and_methods import (
    LEVELS,
    ONE_STEP,
    NobleMethod,
    NobleNoise,
    Size,
)

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType


def draw(
    cells: Sequence[PaperCell], sizes: Sequence[Size], results: NobleResults | None, path: Path
) -> None:
    """Draw accuracy by round as in the paper's Figure 3; with `rounds` alone, T against σ_g."""
    figure = _rounds_by_noise(cells) if results is None else _accuracy_by_round(sizes, results)
    figure.savefig(path, dpi=130)


def _rounds_by_noise(cells: Sequence[PaperCell]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    axes = figure.subplots()
    kinds = list(dict.fromkeys(each.local_steps for each in cells))
    for colour, steps in zip(colours(len(kinds)), kinds, strict=True):
        mine = [each for each in cells if each.local_steps == steps]
        sigmas = [each.sigma_g for each in mine]
        axes.plot(sigmas, [each.rounds for each in mine], color=colour, label=f"K={steps}")
        axes.plot(sigmas, [each.printed for each in mine], "x", color=colour)
    axes.set(xscale="log", xlabel="σ_g", ylabel="rounds T at ε = 3 (crosses: printed)")
    axes.legend(frameon=False)
    return figure


def _accuracy_by_round(sizes: Sequence[Size], results: NobleResults) -> "Figure":
    from matplotlib.figure import Figure

    places = [(size, steps) for size in sizes for steps in size.local_steps]
    size_of_all = (6.0 * len(LEVELS), 4.2 * len(places))
    figure = Figure(figsize=size_of_all, layout="constrained")
    grid = figure.subplots(len(places), len(LEVELS), squeeze=False)
    for (size, steps), line in zip(places, grid, strict=True):
        for level, axes in zip(LEVELS, line, strict=True):
            _draw_place(axes, results, size, level, steps)
    return figure


def _draw_place(axes: "Axes", results: NobleResults, size: Size, level: float, steps: int) -> None:
    shown = [
        each for each in size.methods if each.local_steps == steps or each.algorithm == ONE_STEP
    ]
    for colour, method in zip(colours(len(shown)), shown, strict=True):
        _draw_curve(axes, results, size, level, method, colour)
    floor = float(np.mean(results.floor(size, level)))
    axes.axhline(floor, color="black", linestyle=":", label="no privacy")
    axes.set(xlabel="round", ylabel="accuracy, %")
    axes.set_title(f"{size.name}, K = {steps}, (α, β) = ({level:g}, {level:g})")
    axes.legend(frameon=False, fontsize="small", loc="lower right")


def _draw_curve(
    axes: "Axes",
    results: NobleResults,
    size: Size,
    level: float,
    method: NobleMethod,
    colour: "ColorType",
) -> None:
    curve = results.curve(size, level, method)
    axes.errorbar(
        [number for number, _ in curve],
        [each.mean for _, each in curve],
        [each.deviation or 0.0 for _, each in curve],
        color=colour,
        linestyle="--" if method.noise is NobleNoise.PRINTED else "-",
        capsize=2,
        linewidth=1.4,
        label=method.name,
    )
