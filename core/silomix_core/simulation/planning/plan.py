"""A plan: every cell of a request, and the one to take.

No private data enters: everything follows from numbers that the study file will publish.
"""

from dataclasses import dataclass, replace

from silomix_core.simulation.planning.grid import (
    Advance,
    GridCell,
    Impossible,
    Simulated,
    all_cells,
    cells_at,
    simulate,
)
from silomix_core.simulation.planning.recommendation import Recommendation, recommend
from silomix_core.simulation.planning.request import InvalidPlan, PlanRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of a request and the recommended one; `simulated` is None if nothing was."""

    request: PlanRequest
    cells: tuple[GridCell, ...]
    impossible: tuple[Impossible, ...]
    simulated: Simulated | None
    recommendation: Recommendation


def plan(request: PlanRequest, advance: Advance = lambda: None) -> Plan:
    """Make the plan of a request; `advance` is called once per simulated round."""
    cells, impossible = all_cells(request)
    if not cells:
        raise InvalidPlan(impossible[0].reason)
    simulated = None
    if request.simulates:
        errors, simulated = simulate(
            request, {cell.mechanism: cell.epsilon for cell in cells}, advance
        )
        cells = tuple(replace(cell, excess_error=errors[cell.mechanism]) for cell in cells)
    return Plan(request, cells, impossible, simulated, recommend(request, cells, advance))


def curves(made: Plan, advance: Advance = lambda: None) -> tuple[GridCell, ...]:
    """The cells of a plan, and their neighbours if it has only one ε or one number of rounds.

    For pictures: a trade-off needs more than a point.
    """
    best, known = made.recommendation.cell, {(cell.epsilon, cell.rounds) for cell in made.cells}
    epsilons, rounds = _around(made.request)
    pairs = {(each, best.rounds) for each in epsilons} | {(best.epsilon, each) for each in rounds}
    more, _ = cells_at(made.request, sorted(pairs - known))
    if more and made.simulated:
        errors, _ = simulate(made.request, {cell.mechanism: cell.epsilon for cell in more}, advance)
        more = tuple(replace(cell, excess_error=errors[cell.mechanism]) for cell in more)
    return tuple(sorted((*made.cells, *more), key=lambda cell: (cell.epsilon, cell.rounds)))


def _around(request: PlanRequest) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The ε and the rounds that a picture shows beyond what was asked for."""
    epsilons, rounds = set(request.epsilons), set(request.rounds)
    (epsilon, *_), (number, *_) = epsilons, rounds
    return (
        () if len(epsilons) > 1 else tuple(factor * epsilon for factor in (0.25, 0.5, 2.0)),
        () if len(rounds) > 1 else tuple({max(1, number // 4), max(1, number // 2), 2 * number}),
    )


def simulated_rounds(request: PlanRequest) -> int:
    """The number of calls of `advance` by `with_best_clip`, `plan` and `curves`, at most."""
    if not request.simulates:
        return 0
    epsilons, rounds = _around(request)
    more = sum(rounds) + (max(request.rounds) if epsilons else 0)
    clips = 2 * max(request.rounds)  # before the grid, if the clip is to be found; and after it
    return request.seeds * (sum(set(request.rounds)) + clips + more)
