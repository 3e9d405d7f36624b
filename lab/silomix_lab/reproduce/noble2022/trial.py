"""One trial: a study on synthetic records, or everybody's records together without privacy."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from itertools import count

import numpy as np
from rich.console import Console
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.evaluation.pooled_baseline import multinomial_regression
from silomix_core.mechanism.mechanism import Minibatch, Participant
from silomix_core.reports.aggregation import MEAN
from silomix_core.simulation.one_process import Rehearsal, rehearsal
from silomix_core.study.schedule import Draw
from silomix_core.study.specification import Specification
from silomix_core.task.task import UNIT

from silomix_lab.reproduce import synthetic
from silomix_lab.reproduce.experiment import ExperimentRequest
from silomix_lab.reproduce.noble2022.sizes_and_methods import (
    CLIP,
    DATA_RATIO,
    EPSILON,
    LEVELS,
    PRINTED_SIGMA_G,
    RIDGE,
    NobleMethod,
    NobleNoise,
    NobleTrial,
    Size,
)
from silomix_lab.reproduce.trial_cache import TrialCache

_POINTS = 12  # of a curve


def run_trials(
    sizes: Sequence[Size], request: ExperimentRequest, console: Console
) -> dict[str, float]:
    """Run the trials that are not kept yet; return accuracies in percent, by the keys of trials."""
    kept = TrialCache(request.out / "scaf-trials.jsonl", f"silomix {version('silomix')}")
    trials = [
        trial
        for size in sizes
        for seed in range(1, request.trials + 1)
        for level in LEVELS
        for trial in _trials(size, level, seed)
    ]
    kept.complete(trials, run_trial, request.processes, console)
    return kept.figures


def _trials(size: Size, level: float, seed: int) -> list[NobleTrial]:
    found = [NobleTrial(size, level, seed)]
    return found + [
        NobleTrial(size, level, seed, method, radius)
        for method in size.methods
        for radius in method.radii
    ]


def run_trial(trial: NobleTrial) -> list[tuple[str, float]]:
    """Run a trial; return keys and accuracies on the way and, last, of the final model."""
    data = _split(trial.size.population(trial.level), trial.seed)
    if trial.method is None:
        return [(trial.key, data.accuracy(_pooled(data)))]
    made = study(trial.size, trial.level, trial.method, trial.radius)
    shown, numbers = set(points(made.setting.rounds)), count(1)
    found = []

    def advance(model: synthetic.Floats) -> None:
        number = next(numbers)
        if number in shown:
            found.append((trial.key_at(number), data.accuracy(model)))

    model = made.run(data.silos, np.random.default_rng([trial.seed, 7]), advance=advance)
    return [*found, (trial.key, data.accuracy(model))]


_split = lru_cache(maxsize=1)(synthetic.split)


def points(rounds: int) -> list[int]:
    """The rounds after which a curve has a point."""
    return sorted({round(rounds * number / _POINTS) for number in range(1, _POINTS + 1)} - {0})


def study(size: Size, level: float, method: NobleMethod, radius: float) -> Rehearsal:
    population = size.population(level)
    target = PrivacyTarget(EPSILON, 1 / (size.users * population.training))
    specification = Specification(
        algorithm=method.algorithm,
        most_rounds=size.rounds_of(method.local_steps),
        radius=radius,
        clip=CLIP,
        target=target,
        ridge=RIDGE,
        participants=size.asked,
        draw=Draw.INDEPENDENT,  # as in the paper
        local_steps=method.local_steps,
        minibatch=Minibatch(Scheme.POISSON, DATA_RATIO),
        named_aggregation=MEAN,  # as in the paper
    )
    silos = [Participant(population.training, target)] * size.users
    made = rehearsal(synthetic.task(level), specification, silos)
    if method.noise is NobleNoise.OURS:
        return made
    sigma = PRINTED_SIGMA_G * 2 * CLIP / (DATA_RATIO * population.training)
    grid = sigma / made.mechanism.sigma_units
    return replace(made, mechanism=replace(made.mechanism, grids=(grid,)))


def _pooled(data: synthetic.SyntheticSplit) -> synthetic.Floats:
    features = np.concatenate([silo.features for silo in data.silos]) / UNIT
    labels = np.concatenate([silo.labels for silo in data.silos])
    return multinomial_regression(features, labels, synthetic.CLASSES)
