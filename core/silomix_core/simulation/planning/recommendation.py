"""Which cell of a plan to take: rules over public numbers and simulated errors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from silomix_core.accounting.events import Scheme
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.simulation.planning.grid import Advance, Estimate, GridCell, simulate
from silomix_core.simulation.planning.request import GOOD_CLIPS, PlanRequest

ROUNDS_WITHOUT_SIMULATION = 60
TIE = 0.001  # errors closer than this, or than the standard error of the best, are as good
WORTH_A_LARGER_EPSILON = 0.005  # what a larger ε must save in error to be recommended
NO_PRIVATE_DATA = "no private data was used, only public numbers and synthetic records"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The `cell` to take, and in `clip_errors` what its error would be with other clips.

    `better_clip` is one of these clips if it does clearly better.
    """

    cell: GridCell
    clip: float
    better_clip: float | None
    minibatch: Minibatch
    clip_errors: tuple[tuple[float, Estimate], ...]
    why: tuple[str, ...]


def recommend(request: PlanRequest, cells: Sequence[GridCell], advance: Advance) -> Recommendation:
    """Recommend the cell of least error; of cells as good, least ε, then fewest rounds."""
    cell, why = _of_least_error(cells) if request.simulates else _without_errors(cells)
    clip_errors = _clip_errors(request, cell, advance) if request.simulates else ()
    better = [
        (clip, error)
        for clip, error in clip_errors
        if error.mean < cell.mean_error - max(TIE, error.standard_error or 0.0)
    ]
    better_clip = None
    if better:
        better_clip, error = min(better, key=lambda pair: pair[1].mean)
        why.append(
            f"a clip of {better_clip:g} would do better here ({100 * error.mean:.2f} points): "
            "plan again with it"
        )
    if request.minibatch.scheme is not Scheme.FULL:
        why.append("full batches need no more noise at the same ε and δ, and are the default")
    if request.simulates:
        why.append(NO_PRIVATE_DATA)
    return Recommendation(
        cell, request.clip, better_clip, request.minibatch, clip_errors, tuple(why)
    )


def with_best_clip(request: PlanRequest, advance: Advance) -> PlanRequest:
    """The request with the better of the usual clips: by simulation at its middle cell."""
    if not request.simulates:
        return request
    epsilons, rounds = sorted(set(request.epsilons)), sorted(set(request.rounds))
    epsilon, number = epsilons[len(epsilons) // 2], rounds[len(rounds) // 2]
    tried = {
        clip: replace(request, clip=clip, rounds=(number,)).mechanism(epsilon, number)
        for clip in GOOD_CLIPS
    }
    errors, _ = simulate(request, dict.fromkeys(tried.values(), epsilon), advance)
    best = min(tried, key=lambda clip: errors[tried[clip]].mean)
    return replace(request, clip=best)


def _of_least_error(cells: Sequence[GridCell]) -> tuple[GridCell, list[str]]:
    best = [
        _fewest_rounds([cell for cell in cells if cell.epsilon == epsilon])
        for epsilon in sorted({cell.epsilon for cell in cells})
    ]
    least = min(cell.mean_error for cell in best)
    chosen = next(cell for cell in best if cell.mean_error <= least + WORTH_A_LARGER_EPSILON)
    why = []
    if len(best) > 1:
        points = 100 * WORTH_A_LARGER_EPSILON
        why.append(f"ε: the smallest whose error is within {points:g} points of the grid's least")
    if len({cell.rounds for cell in cells}) > 1:
        why.append("rounds: least simulated error; within one standard error, fewer rounds")
    return chosen, why


def _fewest_rounds(cells: Sequence[GridCell]) -> GridCell:
    best = min(cells, key=lambda cell: cell.mean_error)
    spread = best.excess_error.standard_error if best.excess_error else None
    tie = max(TIE, spread or 0.0)
    return next(cell for cell in cells if cell.mean_error <= best.mean_error + tie)


def _without_errors(cells: Sequence[GridCell]) -> tuple[GridCell, list[str]]:
    epsilon = min(cell.epsilon for cell in cells)
    chosen = min(
        (cell for cell in cells if cell.epsilon == epsilon),
        key=lambda cell: abs(cell.rounds - ROUNDS_WITHOUT_SIMULATION),
    )
    rule = f"the smallest ε, rounds nearest to {ROUNDS_WITHOUT_SIMULATION}"
    return chosen, [f"nothing was simulated, so there is no reason for an ε: shown is {rule}"]


def _clip_errors(
    request: PlanRequest, cell: GridCell, advance: Advance
) -> tuple[tuple[float, Estimate], ...]:
    """The error of the chosen cell at its own and at other clips."""
    others = [
        replace(request, clip=clip).mechanism(cell.epsilon, cell.rounds)
        for clip in GOOD_CLIPS
        if clip != request.clip
    ]
    estimates, _ = simulate(request, dict.fromkeys(others, cell.epsilon), advance)
    errors = {mechanism.clip: estimate for mechanism, estimate in estimates.items()}
    if cell.excess_error is not None:
        errors[request.clip] = cell.excess_error
    return tuple(sorted(errors.items(), key=lambda pair: pair[0]))
