"""Which cell to take, with which clip and batch: rules over public numbers and simulated errors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from silomix_core.mechanism import Minibatch
from silomix_core.planning.cells import Advance, Cell, Estimate, largest_sigma, simulate
from silomix_core.planning.request import GOOD_CLIPS, Request

ROUNDS_WITHOUT_SIMULATION = 60
TIE = 0.001  # errors closer than this, or than the standard error of the best, are as good
WORTH_A_LARGER_EPSILON = 0.005  # what a larger ε must save in error to be recommended
NO_PRIVATE_DATA = "no private data was used, only public numbers and synthetic records"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`cell` is the one to take of the grid; clip and batch need not be those that it was given.

    `sigma` is the noise with that clip and batch; `clip_errors` what was simulated to choose.
    """

    cell: Cell
    clip: float
    minibatch: Minibatch
    sigma: float
    clip_errors: tuple[tuple[float, Estimate], ...]
    why: tuple[str, ...]


def recommend(request: Request, cells: Sequence[Cell], advance: Advance) -> Recommendation:
    """Least error, then least ε, then fewest rounds; full batches; a clip from 0.25 to 0.5."""
    cell, why = _of_least_error(cells) if request.simulates else _without_errors(cells)
    clip_errors = _clip_errors(request, cell, advance) if request.simulates else ()
    if clip_errors:
        clip = min(clip_errors, key=lambda pair: pair[1].mean)[0]
        tried = ", ".join(f"{each:g}" for each, _ in clip_errors)
        why.append(f"clip: least simulated error of {tried} at that cell")
    else:
        clip = min(max(request.clip, GOOD_CLIPS[0]), GOOD_CLIPS[-1])
        why.append("clip: 0.25 to 0.5, for features of norm at most 1")
    why.append("batch: full; smaller ones save computing, not noise, at the same ε and δ")
    full = replace(request, clip=clip, minibatch=Minibatch()).mechanism(cell.epsilon, cell.rounds)
    return Recommendation(
        cell=cell,
        clip=clip,
        minibatch=full.minibatch,
        sigma=largest_sigma(full),
        clip_errors=clip_errors,
        why=(*why, NO_PRIVATE_DATA),
    )


def _of_least_error(cells: Sequence[Cell]) -> tuple[Cell, list[str]]:
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
        why.append("rounds: least simulated error, ties to fewer rounds")
    return chosen, why


def _fewest_rounds(cells: Sequence[Cell]) -> Cell:
    best = min(cells, key=lambda cell: cell.mean_error)
    spread = best.excess_error.standard_error if best.excess_error else None
    tie = max(TIE, spread or 0.0)
    return next(cell for cell in cells if cell.mean_error <= best.mean_error + tie)


def _without_errors(cells: Sequence[Cell]) -> tuple[Cell, list[str]]:
    epsilon = max(cell.epsilon for cell in cells)
    chosen = min(
        (cell for cell in cells if cell.epsilon == epsilon),
        key=lambda cell: abs(cell.rounds - ROUNDS_WITHOUT_SIMULATION),
    )
    rule = f"largest ε, rounds nearest to {ROUNDS_WITHOUT_SIMULATION}"
    return chosen, [f"nothing was simulated, so by rule: {rule}"]


def _clip_errors(
    request: Request, cell: Cell, advance: Advance
) -> tuple[tuple[float, Estimate], ...]:
    """The error of the chosen cell at its own and at other clips."""
    others = [
        replace(request, clip=clip).mechanism(cell.epsilon, cell.rounds)
        for clip in GOOD_CLIPS
        if clip != request.clip
    ]
    estimates, _ = simulate(request, others, advance)
    errors = {mechanism.clip: estimate for mechanism, estimate in estimates.items()}
    if cell.excess_error is not None:
        errors[request.clip] = cell.excess_error
    return tuple(sorted(errors.items(), key=lambda pair: pair[0]))
