"""Curves of errors against ε, for the experiments' pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from silomix_lab.reproduce.paper_noise import NoiseFormula

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of errors against ε, dashed where the noise is that of a paper's printed formula.

    points: ε, an error and the length of its error bar.
    """

    label: str
    points: Sequence[tuple[float, float, float]]
    noise: NoiseFormula
    bold: bool


def draw_line(axes: "Axes", line: Curve, colour: "ColorType") -> None:
    axes.errorbar(
        [epsilon for epsilon, _, _ in line.points],
        [error for _, error, _ in line.points],
        [bar for _, _, bar in line.points],
        color=colour,
        marker="o",
        capsize=3,
        linestyle="--" if line.noise is NoiseFormula.PRINTED else "-",
        linewidth=2.5 if line.bold else 1.2,
        label=line.label,
    )


def finish(axes: "Axes", epsilons: Sequence[float], floor: float) -> None:
    """Add the floor, ticks at every ε, and the legend below."""
    axes.axhline(floor, color="black", linestyle=":", label="no privacy")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.legend(
        frameon=False, fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15)
    )
