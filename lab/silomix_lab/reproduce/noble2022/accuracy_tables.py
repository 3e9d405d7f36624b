"""The trials' accuracies as tables, as rows of figures, and the notes to them."""

from collections.abc import Sequence

from silomix_lab.parallel import Spread
from silomix_lab.reproduce.experiment import ResultTable
from silomix_lab.reproduce.noble2022.accuracies import NobleResults
from silomix_lab.reproduce.noble2022.sizes_and_methods import (
    CLIP,
    EPSILON,
    LEVELS,
    PRINTED_ACCURACIES,
    RIDGE,
    SCAFFOLD,
    NobleMethod,
    NobleNoise,
    Size,
)


def accuracy_table(results: NobleResults, size: Size, level: float) -> ResultTable:
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


def rows_of(results: NobleResults, size: Size) -> list[dict[str, object]]:
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


def notes_of(results: NobleResults, sizes: Sequence[Size]) -> list[str]:
    """What a reader of the tables must know."""
    return [*map(_size_note, sizes), _accuracy_note(results)]


def _accuracy_note(results: NobleResults) -> str:
    return (
        "Accuracy on all users' test records: mean ± half of its 95 % interval over "
        f"{results.trials} trials, after @ the radius (of those tried) "
        "with the highest mean.  In brackets: printed, with a searched step and another clip. "
        " dp-fedsgd (Ks = 1) is dp-fedavg at K = 5.  α has no effect on these records, for "
        "the class of the largest score does not depend on the scale of a model; β has."
    )


def _size_note(size: Size) -> str:
    training = size.population(0.0).training
    rounds = ", ".join(f"{number} (K = {steps})" for steps, number in size.rounds)
    return (
        f"{size.name}: {size.users} users with {training} records to learn from, {size.asked} "
        f"asked in a round, rounds: {rounds}; batches of a fifth, clip {CLIP:g}, ridge {RIDGE:g}, "
        f"ε = {EPSILON:g}, δ = 1/({size.users}·{training})."
    )
