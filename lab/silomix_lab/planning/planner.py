"""`silomix plan`: what a study of a given shape costs and gives, before anybody joins it.

The numbers come from `silomix_core.simulation.planning`; here are words, a table, JSON
and a picture.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from silomix_core.accounting.events import ADJACENCY
from silomix_core.algorithms import noisy_mb_sgd
from silomix_core.algorithms.catalogue import AUTO
from silomix_core.claims.central import Against, Figure
from silomix_core.simulation.planning import (
    InvalidPlan,
    Plan,
    PlanRequest,
    curves,
    plan,
    simulated_rounds,
    with_best_clip,
)
from silomix_core.simulation.planning.grid import Estimate, GridCell
from silomix_core.simulation.planning.request import DEFAULT_ROUNDS, GOOD_CLIPS
from silomix_core.simulation.planning.simulated_studies import LARGEST_DIMENSION, simulated_task
from silomix_core.study.costliest import costliest
from silomix_core.study.defaults import ROUNDS, automatic, chosen, loudness
from silomix_core.study.weighting import Weighting

from silomix_lab.choices.minibatch import described
from silomix_lab.choices.silos import records_of, weighting_of

Number = TypeVar("Number", int, float)
DEFAULT_PICTURE = Path("silomix-plan.png")
_MOST_SIZES = 30
BASELINE = "logistic regression without privacy on the same synthetic records"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What is planned, and the files that it goes to."""

    request: PlanRequest
    finds_clip: bool  # the better of the usual ones, instead of the request's
    json: Path | None
    png: Path | None  # None: DEFAULT_PICTURE, if it can be drawn
    picture: bool


def run_plan(options: PlanOptions, console: Console) -> None:
    """Make the plan, show it, and write the files asked for."""
    request = options.request
    _check_files(options, request)
    picture = _picture(options, request)
    made, cells = _with_progress(request, options.finds_clip, draws=picture is not None)
    show(made, console)
    if options.json is not None:
        options.json.write_text(json.dumps(to_json(made), indent=2) + "\n", encoding="utf-8")
        console.print(f"figures         {options.json}", highlight=False, soft_wrap=True)
    if picture is not None:
        from silomix_lab.planning.plan_picture import draw

        draw(made, cells, picture)
        console.print(f"picture         {picture}", highlight=False, soft_wrap=True)


# What was typed -----------------------------------------------------------------------------------


def plan_request(
    *,
    algorithm: str,
    records: str,
    silos: int | None,
    weights: str | None,
    epsilon: str,
    delta: float | None,
    rounds: str | None,
    clip: float | None,
    radius: float,
    seeds: int,
    simulation: bool,
    **others: Any,
) -> PlanRequest:
    """The request that was typed: grids are numbers separated by commas, "auto" has its own."""
    if seeds < 1:
        raise InvalidPlan(f"--seeds {seeds}: use at least 1, or --no-simulation")
    sizes = _sizes(records, silos)
    is_automatic = algorithm == AUTO
    numbers: tuple[int, ...] = (ROUNDS,) if is_automatic else DEFAULT_ROUNDS
    if rounds is not None and not is_automatic:
        numbers = _grid("--rounds", rounds, int, "20,60,100")
    typed = PlanRequest(
        algorithm=noisy_mb_sgd.ALGORITHM.name if is_automatic else algorithm,
        silos=len(sizes),
        records=sum(sizes) // len(sizes),
        sizes=sizes if min(sizes) < max(sizes) else (),
        weighting=weighting_of(weights) or Weighting.RECORDS,
        delta=1 / min(sizes) ** 2 if delta is None else delta,
        epsilons=_grid("--epsilon", epsilon, float, "0.5,1,2"),
        rounds=numbers,
        clip=GOOD_CLIPS[0] if clip is None else clip,
        radius=radius,
        seeds=seeds if simulation else 0,
        **others,
    )
    return _automatic(typed) if is_automatic else typed


def _automatic(request: PlanRequest) -> PlanRequest:
    """The request with the numbers of "auto"; its clip is that of the middle ε."""
    epsilons = sorted(set(request.epsilons))
    silos = request.participants(epsilons[len(epsilons) // 2])
    task, named = simulated_task(request.dimension), automatic(silos[0].target)
    auto = chosen(named, task, loudness(silos, named))
    return replace(request, algorithm=auto.algorithm, clip=auto.clip, radius=auto.radius)


def _sizes(records: str, silos: int | None) -> tuple[int, ...]:
    """The records of each silo: one number for all of `silos`, or a list such as 300,4000*9."""
    sizes = records_of(records)
    if len(sizes) == 1 and silos is not None and silos >= 1:
        return sizes * min(silos, 100_001)  # the request refuses more than 100,000
    if silos is None and len(sizes) > 1:
        return sizes
    if silos != len(sizes):
        wanted = "say how many there are" if silos is None else f"not {silos}"
        raise InvalidPlan(f"--silos: --records {records} is of {len(sizes)}; {wanted}")
    return sizes


def _grid(
    option: str, text: str, number: Callable[[str], Number], example: str
) -> tuple[Number, ...]:
    try:
        return tuple(number(part) for part in text.split(","))
    except ValueError:
        kind = "whole numbers" if number is int else "numbers"
        raise InvalidPlan(
            f"{option} {text!r}: write {kind} separated by commas, like {example}"
        ) from None


def _check_files(options: PlanOptions, request: PlanRequest) -> None:
    """Refuse files that cannot be written, before the long work and not after it."""
    for path in (options.json, options.png):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise InvalidPlan(f"{path}: not a file in an existing folder; make the folder first")
    if options.png is not None and not request.simulates:
        raise InvalidPlan(
            f"--png {options.png}: without a simulation there is no error to draw; leave out "
            f"--no-simulation, use at most {LARGEST_DIMENSION} coordinates and an algorithm "
            "without local steps"
        )
    if options.png is not None and find_spec("matplotlib") is None:
        raise InvalidPlan("--png needs matplotlib; install silomix[demo]")


def _picture(options: PlanOptions, request: PlanRequest) -> Path | None:
    """The path of the picture, if there is to be one; without --png only if it can be drawn."""
    if options.png is not None or not options.picture:
        return options.png if options.picture else None
    return DEFAULT_PICTURE if request.simulates and find_spec("matplotlib") else None


def _with_progress(
    request: PlanRequest, finds_clip: bool, *, draws: bool
) -> tuple[Plan, tuple[GridCell, ...]]:
    """Compute the plan and the cells of its picture, with a progress bar."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("simulating"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} rounds"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (request.simulates and console.is_terminal),
    )
    with progress:
        task = progress.add_task("simulating", total=simulated_rounds(request))
        if finds_clip:
            request = with_best_clip(request, lambda: progress.advance(task))
        made = plan(request, lambda: progress.advance(task))
        return made, curves(made, lambda: progress.advance(task)) if draws else made.cells


# For people ---------------------------------------------------------------------------------------


def show(made: Plan, console: Console) -> None:
    """Print the table, the figures of the recommended cell and the recommendation."""
    console.print(_cells_table(made))
    console.print(_rows(_notes(made)))
    console.print()
    console.print(_rows(_figure_rows(made.recommendation.cell)))
    console.print(_rows(_silo_rows(made.request, made.recommendation.cell)))
    console.print()
    console.print(_rows(_recommendation_rows(made)))


def _rows(rows: list[tuple[str, str]]) -> Table:
    """A grid of names and texts, side by side."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, min_width=14)
    grid.add_column()
    for name, text in rows:
        grid.add_row(name, Text(text))
    return grid


def _cells_table(made: Plan) -> Table:
    request = made.request
    table = Table(
        title=f"{request.silos} silos of {request.each_has} records, {request.dimension} "
        f"coordinates, clip {request.clip:g}, {described(request.minibatch)}, "
        f"{request.algorithm}",
        title_justify="left",
    )
    for heading in ("ε", "rounds", "σ", "σ of the papers", "signal/noise", "excess error"):
        table.add_column(heading, justify="right")
    for cell in made.cells:
        chosen = cell is made.recommendation.cell and len(made.cells) > 1
        table.add_row(
            f"{cell.epsilon:g}",
            str(cell.rounds),
            f"{cell.sigma:.4g}",
            "-" if cell.sigma_paper is None else f"{cell.sigma_paper:.4g}",
            f"{cell.signal_to_noise:.3g}",
            _points(cell.excess_error) + (" *" if chosen else ""),
            style="bold" if chosen else "",
        )
    return table


def _notes(made: Plan) -> list[tuple[str, str]]:
    epsilon = f"of each silo's whole transcript at δ = {made.request.delta:.4g}, {ADJACENCY},"
    rows = [
        ("ε", f"{epsilon} against {Against.EVERYBODY.value}"),
        ("σ", "noise on each coordinate of a silo's report, a mean of clipped gradients"),
        (
            "signal/noise",
            "clip/(σ√(d/N)): the largest mean gradient against the noise on the mean of N reports",
        ),
    ]
    if made.simulated is not None:
        used, all_records = made.simulated.records, made.simulated.of_records
        rows.append(
            (
                "excess error",
                f"percentage points over {BASELINE}, "
                f"{100 * made.simulated.baseline_error:.1f} %; mean of "
                f"{made.simulated.seeds} runs ± its standard error on {used} of them"
                + ("" if used == all_records else f" (the study has {all_records}; same noise)"),
            )
        )
    elif made.request.seeds:
        rows.append(
            (
                "excess error",
                f"not simulated above {LARGEST_DIMENSION} coordinates, nor for algorithms with "
                "local steps (silomix simulate does)",
            )
        )
    reasons = [cell.paper_reason for cell in made.cells if cell.paper_reason]
    rows.extend(("σ of the papers", f"none: {reason}") for reason in reasons[:1])
    rows.extend(
        ("left out", f"ε {each.epsilon:g} with {each.rounds} rounds: {each.reason}")
        for each in made.impossible
    )
    if len(made.cells) > 1:
        rows.append(("*", "recommended; what follows is about this pair"))
    return rows


def silos_of(request: PlanRequest, cell: GridCell) -> list[dict[str, float]]:
    """For each size of silo: how many there are, what each spends, and its share of the result."""
    silos = Counter(request.participants(cell.epsilon))
    return [
        {
            "silos": count,
            "records": each.records,
            "share": each.weight / request.silos,
            "epsilon": cell.mechanism.epsilon(each),
        }
        for each, count in sorted(silos.items(), key=lambda kind: kind[0].records)
    ]


def _silo_rows(request: PlanRequest, cell: GridCell) -> list[tuple[str, str]]:
    if not request.sizes:
        return []
    kinds = silos_of(request, cell)
    rows = [
        (
            "silos" if not index else "",
            f"{each['silos']} of {each['records']} records: {100 * each['share']:.3g} % of the "
            f"result, spends ε {each['epsilon']:.4g} at δ = {request.delta:.4g}",
        )
        for index, each in enumerate(kinds[:_MOST_SIZES])
    ]
    if (more := len(kinds) - _MOST_SIZES) > 0:
        rows.append(("", f"and {more} more sizes"))
    silos = request.participants(cell.epsilon)
    if (found := costliest(silos)) is not None:
        rows.append(("", found.in_words(f"silo {found.place + 1}", silos[found.place])))
    return rows


def _figure_rows(cell: GridCell) -> list[tuple[str, str]]:
    rows = []
    for figure in cell.figures:
        against = f"against {figure.against.value}"
        if figure.epsilon is None:
            rows += [(figure.name, f"none claimed {against}"), ("", figure.reason or "")]
        else:
            claim = f"ε = {figure.epsilon:.4g} at δ = {figure.delta:.4g}, {ADJACENCY}, {against}"
            rows += [(figure.name, claim), ("", f"trust: {figure.assumption}")]
    return rows


def _recommendation_rows(made: Plan) -> list[tuple[str, str]]:
    best = made.recommendation
    rows = [
        (
            "recommended" if len(made.cells) > 1 else "your choice",
            f"ε {best.cell.epsilon:g}, {best.cell.rounds} rounds, clip {best.clip:g}, "
            f"{described(best.minibatch)}: σ = {best.cell.sigma:.4g}",
        )
    ]
    if len(best.clip_errors) > 1:
        errors = ", ".join(f"{clip:g}: {_points(error)}" for clip, error in best.clip_errors)
        rows.append(("error by clip", f"{errors} points"))
    return [*rows, *(("because" if not index else "", why) for index, why in enumerate(best.why))]


def _points(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    spread = estimate.standard_error
    return f"{100 * estimate.mean:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")


# For programs -------------------------------------------------------------------------------------


def to_json(made: Plan) -> dict[str, object]:
    """The plan for JSON: the recommended cell on top, then every cell; in full precision."""
    request, best, simulated = made.request, made.recommendation, made.simulated
    return {
        **_cell_json(best.cell),
        "request": {
            "silos": request.silos,
            "records": list(request.sizes) or request.records,
            "weights": request.weighting.value,
            "dimension": request.dimension,
            "delta": request.delta,
            "clip": request.clip,
            "algorithm": request.algorithm,
            "sampling": request.minibatch.scheme.value,
            "ratio": request.minibatch.ratio,
            "minimum_batch": request.fewest_reports,
            "aggregation": None if request.named_rule is None else request.named_rule.rule.value,
            "radius": request.radius,
        },
        "recommendation": {
            "epsilon": best.cell.epsilon,
            "rounds": best.cell.rounds,
            "clip": best.clip,
            "better_clip": best.better_clip,
            "sampling": best.minibatch.scheme.value,
            "sigma": best.cell.sigma,
            "clip_errors": [
                {"clip": clip, **_error_json(error)} for clip, error in best.clip_errors
            ],
            "why": list(best.why),
        },
        "simulation": None
        if simulated is None
        else {
            "records": simulated.records,
            "of_records": simulated.of_records,
            "seeds": simulated.seeds,
            "baseline": BASELINE,
            "baseline_error": simulated.baseline_error,
        },
        "silos": silos_of(request, best.cell),
        "cells": [_cell_json(cell) for cell in made.cells],
        "impossible": [
            {"epsilon": each.epsilon, "rounds": each.rounds, "reason": each.reason}
            for each in made.impossible
        ],
    }


def _cell_json(cell: GridCell) -> dict[str, object]:
    local, shuffled, _ = cell.figures
    amplified = shuffled.epsilon is not None
    return {
        "epsilon": cell.epsilon,
        "delta": local.delta,
        "adjacency": ADJACENCY,
        "rounds": cell.rounds,
        "sigma": cell.sigma,
        "sigma_paper": cell.sigma_paper,
        "sigma_paper_reason": cell.paper_reason,
        "signal_to_noise": cell.signal_to_noise,
        **_error_json(cell.excess_error),
        "epsilon_local": local.epsilon,
        "epsilon_central": shuffled.epsilon if amplified else local.epsilon,
        "central_amplification": "shuffling" if amplified else "none",
        "central_reason": shuffled.reason,
        "figures": [_figure_json(figure) for figure in cell.figures],
    }


def _error_json(estimate: Estimate | None) -> dict[str, object]:
    return {
        "excess_error": estimate.mean if estimate else None,
        "excess_error_standard_error": estimate.standard_error if estimate else None,
    }


def _figure_json(figure: Figure) -> dict[str, object]:
    return {
        "name": figure.name,
        "against": figure.against.value,
        "epsilon": figure.epsilon,
        "delta": figure.delta,
        "adjacency": ADJACENCY,
        "theorem": figure.theorem,
        "assumption": figure.assumption,
        "conditions": [
            {"text": condition.text, "holds": condition.holds} for condition in figure.conditions
        ],
        "reason": figure.reason,
    }
