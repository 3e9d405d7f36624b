"""The paper's claims about accuracy, held against the trials."""

from itertools import pairwise

import numpy as np

from silomix_lab.parallel import Spread
from silomix_lab.reproduce import synthetic
from silomix_lab.reproduce.experiment import ClaimedBound, PaperClaim, below
from silomix_lab.reproduce.noble2022.accuracies import NobleResults
from silomix_lab.reproduce.noble2022.sizes_and_methods import (
    FED_AVG,
    LEVELS,
    ONE_STEP,
    PRINTED_ACCURACIES,
    SCAFFOLD,
    NobleMethod,
    NobleNoise,
    Size,
)


def accuracy_claims(results: NobleResults, size: Size) -> list[PaperClaim]:
    noises = (NobleNoise.OURS, NobleNoise.PRINTED) if size.printed else (NobleNoise.OURS,)
    found = []
    for noise in noises:
        where = f"{size.name}, {noise.value}"
        found += [
            _beats(results, size, noise, level, f"{where}, (α, β) = ({level:g}, {level:g})")
            for level in LEVELS
        ]
        found.append(_more_by_level(results, size, noise, where))
        found += [
            _more_by_steps(results, size, noise, pair, where) for pair in pairwise(size.local_steps)
        ]
    found.append(_local_steps_pay(results, size))
    return [*found, _as_printed(results, size)] if size.printed else found


def _gap(
    results: NobleResults, size: Size, level: float, steps: int, noise: NobleNoise
) -> synthetic.Floats:
    one, other = (NobleMethod(name, steps, noise) for name in (SCAFFOLD, FED_AVG))
    return results.gap(size, level, one, other)


def _bound(label: str, differences: synthetic.Floats) -> ClaimedBound:
    return ClaimedBound(label, Spread.of([float(each) for each in differences]))


def _beats(
    results: NobleResults, size: Size, noise: NobleNoise, level: float, where: str
) -> PaperClaim:
    bounds = [
        _bound(f"K = {steps}", _gap(results, size, level, steps, noise))
        for steps in size.local_steps
    ]
    return below(f"{SCAFFOLD} has less test error than {FED_AVG} ({where})", bounds)


def _more_by_level(results: NobleResults, size: Size, noise: NobleNoise, where: str) -> PaperClaim:
    low, *_, high = LEVELS
    bounds = [
        _bound(
            f"K = {steps}",
            _gap(results, size, high, steps, noise) - _gap(results, size, low, steps, noise),
        )
        for steps in size.local_steps
    ]
    return below(f"{SCAFFOLD} is ahead by more where users differ more ({where})", bounds)


def _more_by_steps(
    results: NobleResults, size: Size, noise: NobleNoise, pair: tuple[int, int], where: str
) -> PaperClaim:
    few, many = pair
    bounds = [
        _bound(
            f"(α, β) = ({level:g}, {level:g})",
            _gap(results, size, level, many, noise) - _gap(results, size, level, few, noise),
        )
        for level in LEVELS
    ]
    return below(
        f"{SCAFFOLD} is ahead by more with K = {many} than with K = {few} ({where})", bounds
    )


def _local_steps_pay(results: NobleResults, size: Size) -> PaperClaim:
    bounds = [
        _bound(
            f"({level:g}, {level:g}), K = {steps}",
            results.gap(size, level, NobleMethod(SCAFFOLD, steps), NobleMethod(ONE_STEP, 1)),
        )
        for level in LEVELS
        for steps in size.local_steps
    ]
    return below(f"{SCAFFOLD} has less test error than one step a round ({size.name})", bounds)


def _as_printed(results: NobleResults, size: Size) -> PaperClaim:
    bounds = []
    for (level, steps), printed in PRINTED_ACCURACIES.items():
        if steps in size.local_steps:
            found = results.best(
                size, level, NobleMethod(SCAFFOLD, steps, NobleNoise.PRINTED)
            ).accuracies
            label = f"({level:g}, {level:g}), K = {steps} [{printed:.1f}]"
            bounds.append(_bound(label, printed - np.array(found)))
    return below(
        f"{SCAFFOLD} with the printed noise is more accurate than printed ({size.name})", bounds
    )
