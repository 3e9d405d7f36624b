"""The cells of a plan: noise, the papers' noise, figures and error at each ε and round count."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, sqrt

import numpy as np

from silomix_core.accounting.bounds.noise_formulas import multi_pass_sigma, one_pass_sigma
from silomix_core.accounting.bounds.validity import OutsideValidity
from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import Scheme
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.claims.central import Figure, central_figures
from silomix_core.mechanism.mechanism import Mechanism, Participant, Phase
from silomix_core.reports.reception import Reception
from silomix_core.simulation.planning.request import PlanRequest
from silomix_core.simulation.planning.simulated_studies import (
    LARGEST_ROUND,
    Case,
    excess_errors,
    synthetic,
)

Advance = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over the simulated runs; a single run has no standard error."""

    mean: float
    standard_error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        many = len(values) > 1
        error = float(np.std(values, ddof=1)) / sqrt(len(values)) if many else None
        return cls(float(np.mean(values)), error)


@dataclass(frozen=True, slots=True)
class GridCell:
    """A plan for one ε and one number of rounds, and what it leads to.

    signal_to_noise: clip/(σ√(d/N)), the largest norm of a mean of clipped gradients against
    the norm of the noise on the mean of N reports.

    sigma_paper: None where the papers' theorem does not apply; paper_reason then says why.
    """

    epsilon: float
    rounds: int
    mechanism: Mechanism
    sigma: float
    sigma_paper: float | None
    paper_reason: str | None
    signal_to_noise: float
    figures: tuple[Figure, Figure, Figure]
    excess_error: Estimate | None = None

    @property
    def mean_error(self) -> float:
        return self.excess_error.mean if self.excess_error else inf


@dataclass(frozen=True, slots=True)
class Impossible:
    """A pair of ε and rounds that no noise can give."""

    epsilon: float
    rounds: int
    reason: str


@dataclass(frozen=True, slots=True)
class Simulated:
    """The size of the simulation, and the error of its baseline."""

    records: int
    of_records: int
    seeds: int
    baseline_error: float


def all_cells(request: PlanRequest) -> tuple[tuple[GridCell, ...], tuple[Impossible, ...]]:
    """The cells of every pair of ε and rounds of the request, in increasing order."""
    pairs = product(sorted(set(request.epsilons)), sorted(set(request.rounds)))
    return cells_at(request, pairs)


def cells_at(
    request: PlanRequest, pairs: Iterable[tuple[float, int]]
) -> tuple[tuple[GridCell, ...], tuple[Impossible, ...]]:
    """The cells of these pairs of ε and rounds, not simulated yet, and the impossible pairs."""
    cells, impossible = [], []
    for epsilon, rounds in pairs:
        try:
            cells.append(_cell(request, epsilon, rounds))
        except CalibrationImpossible as error:
            impossible.append(Impossible(epsilon, rounds, str(error)))
    return tuple(cells), tuple(impossible)


def simulate(
    request: PlanRequest, epsilons: Mapping[Mechanism, float], advance: Advance
) -> tuple[dict[Mechanism, Estimate], Simulated]:
    """The excess error of each mechanism, given with its ε, over the request's seeds."""
    errors: dict[Mechanism, list[float]] = {mechanism: [] for mechanism in epsilons}
    baselines = []
    for seed in range(request.seeds):
        data = synthetic(request.shape, request.radius, np.random.default_rng([seed, 0]))
        baselines.append(data.baseline_error)
        for same in _side_by_side(errors):
            found = excess_errors(
                data,
                request.shape,
                algorithm(request.algorithm),
                [_case(request, each, epsilons[each]) for each in same],
                np.random.default_rng([seed, same[0].rounds]),
                advance,
            )
            for mechanism, error in zip(same, found, strict=True):
                errors[mechanism].append(error)
    simulated = Simulated(
        records=request.shape.simulated_records,
        of_records=sum(request.sizes) or request.silos * request.records,
        seeds=request.seeds,
        baseline_error=float(np.mean(baselines)),
    )
    return {mechanism: Estimate.of(values) for mechanism, values in errors.items()}, simulated


def largest_sigma(mechanism: Mechanism) -> float:
    """The σ on a coordinate of a noised gradient, in the phase that has the most noise."""
    return max(mechanism.sigma(phase) for phase in range(len(mechanism.phases)))


def paper_sigma(mechanism: Mechanism, participant: Participant) -> float:
    """The σ that the papers' formulas give for the same study; OutsideValidity if none applies."""
    if mechanism.minibatch.scheme is Scheme.POISSON:
        raise OutsideValidity("the papers' formulas are for batches of fixed size, not Poisson")
    return max(_paper_sigma(mechanism, participant, phase) for phase in set(mechanism.phases))


def _cell(request: PlanRequest, epsilon: float, rounds: int) -> GridCell:
    mechanism, silos = request.mechanism(epsilon, rounds), request.participants(epsilon)
    sigma = largest_sigma(mechanism)
    paper, reason = None, None
    try:
        paper = paper_sigma(mechanism, request.smallest(epsilon))
    except OutsideValidity as error:
        reason = str(error)
    return GridCell(
        epsilon=epsilon,
        rounds=rounds,
        mechanism=mechanism,
        sigma=sigma,
        sigma_paper=paper,
        paper_reason=reason,
        signal_to_noise=mechanism.clip / (sigma * sqrt(request.dimension / request.silos)),
        figures=central_figures(
            mechanism,
            silos,
            minimum_batch=request.fewest_reports,
            is_mean=request.aggregation(mechanism).is_mean,
        ),
    )


def _paper_sigma(mechanism: Mechanism, participant: Participant, phase: Phase) -> float:
    """The papers' σ for one phase: with a single gradient, which uses every record at most once, by
    the one-pass formula."""
    records, target = phase.records(participant.records), participant.target
    batch = int(mechanism.minibatch.size(records))
    if phase.events == 1:
        return one_pass_sigma(
            lipschitz=mechanism.clip, batch=batch, epsilon=target.epsilon, delta=target.delta
        )
    return multi_pass_sigma(
        lipschitz=mechanism.clip,
        records=records,
        batch=batch,
        rounds=phase.events,
        epsilon=target.epsilon,
        delta=target.delta,
    )


def _side_by_side(mechanisms: Iterable[Mechanism]) -> list[list[Mechanism]]:
    """The mechanisms in groups with the same phases, which can be simulated side by side."""
    groups: dict[tuple[Phase, ...], list[Mechanism]] = {}
    for mechanism in mechanisms:
        groups.setdefault(mechanism.phases, []).append(mechanism)
    return list(groups.values())


def _case(request: PlanRequest, mechanism: Mechanism, epsilon: float) -> Case:
    setting = replace(request, clip=mechanism.clip).setting(epsilon, mechanism.rounds)
    rule = request.aggregation(mechanism)
    if rule.is_mean or request.silos > LARGEST_ROUND:
        return Case(mechanism, setting)
    return Case(mechanism, setting, Reception(mechanism, request.participants(epsilon), rule))
