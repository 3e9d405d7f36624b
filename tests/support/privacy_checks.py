"""What the privacy of a report stands on, as checks that raise AssertionError.

The tests of core call them on the code as it is; test_mutants.py calls them on code that was
broken on purpose and expects the error.  All random numbers have fixed seeds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import exp, floor, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.model.clipped_sum import ClippedSum, Records, to_grid
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import Feature, Scaling, Task

from support.exact import exact_delta, log_rounded_over_discrete, rounded_gaussian

Floats = NDArray[np.float64]
MakeSum = Callable[[Records, float], ClippedSum]

FALSE_ALARM = 1e-6  # probability that one statistical check fails on correct code
SUM_UNIT = 2**36  # 1/UNIT·2²⁰: the unit of ClippedSum.at
SIGMA = 2.0**20  # what the accounting assumes of the noise, in grid units


def seeded_bytes(seed: int) -> RandomBytes:
    return np.random.default_rng(seed).bytes


def check_gaussian(samples: NDArray[np.int64], sigma: float) -> None:
    """χ² over 200 cells of equal probability and Kolmogorov–Smirnov, against N(0, σ²).

    For σ ≥ 500 and at most 10⁶ samples the integers are too fine to be told from the continuum:
    cells are moved to half-integers and their exact normal probabilities used.
    """
    quantiles = stats.norm.ppf(np.linspace(0, 1, 201)[1:-1]) * sigma
    edges = np.unique(np.round(quantiles) + 0.5)
    cdf = stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]) / sigma)
    counts = np.bincount(np.searchsorted(edges, samples), minlength=len(edges) + 1)
    chi_square = stats.chisquare(counts, np.diff(cdf) * len(samples)).pvalue
    assert chi_square > FALSE_ALARM, f"χ² against σ={sigma}: p={chi_square:.1e}"
    smooth = samples + np.random.default_rng(0).uniform(-0.5, 0.5, len(samples))
    kolmogorov = stats.kstest(smooth / sigma, "norm").pvalue
    assert kolmogorov > FALSE_ALARM, f"KS against σ={sigma}: p={kolmogorov:.1e}"


def check_noise(
    draw: Callable[[int, RandomBytes], NDArray[np.int64]], sigma: float = SIGMA
) -> None:
    """The noise is what the accounting assumes: N(0, σ²) on the integers, fresh each time."""
    source = seeded_bytes(20_240_701)
    first, second = draw(300_000, source), draw(300_000, source)
    check_gaussian(np.concatenate([first, second]), sigma)
    residues = stats.chisquare(np.bincount(first % 256, minlength=256)).pvalue
    assert residues > FALSE_ALARM, f"low bits are not uniform: p={residues:.1e}"
    correlation = float(np.corrcoef(first, second)[0, 1]) * sqrt(len(first))
    assert 2 * stats.norm.sf(abs(correlation)) > FALSE_ALARM, "successive noise is correlated"


def participant(records: int) -> Participant:
    """A silo of this size, for what does not depend on what it was promised."""
    return Participant(records, PrivacyTarget(1, 1e-6))


def full_batch(
    target: PrivacyTarget, *, clip: float, rounds: int, dimension: int, records: int
) -> Mechanism:
    """The mechanism of one silo that answers with all its records in every round."""
    return Mechanism.calibrate(
        [Participant(records, target)], clip=clip, dimension=dimension, phases=[Phase(rounds)]
    )


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two data sets that differ in one record, and the question put to them."""

    task: Task
    values: Floats  # raw values (n, columns), whatever a CSV or an attacker may hold
    labels: Floats
    replaced: int
    other_values: Floats
    other_label: float
    point: Floats
    clip: float


def clipped_sum(records: Records, clip: float) -> ClippedSum:
    return ClippedSum(records, loss(LossName.LOGISTIC), clip)


def check_record_is_bounded(case: Neighbours, make: MakeSum = clipped_sum) -> None:
    """The integer sum moves by at most 2·clip, each record adds at most clip; in exact integers."""
    first, second = neighbours_encoded(case)
    moved = difference(
        make(first, case.clip).at(case.point), make(second, case.clip).at(case.point)
    )
    limit = Fraction(case.clip) * SUM_UNIT
    assert _square(moved) <= (2 * limit) ** 2, "one record moved the sum by more than 2·clip"
    for records in (first, second):
        row = slice(case.replaced, case.replaced + 1)
        alone = Records(records.features[row], records.labels[row])
        added = make(alone, case.clip).at(case.point)
        assert _square(added) <= limit**2, "one record adds more than clip"


def check_grid_is_bounded(case: Neighbours, mechanism: Mechanism) -> None:
    """The rounded mean moves by at most `sensitivity_units`."""
    silo = participant(len(case.values))
    first, second = (
        to_grid(clipped_sum(records, case.clip).at(case.point), mechanism.units_per_sum(silo))
        for records in neighbours_encoded(case)
    )
    moved = sqrt(_square(difference(first, second)))
    assert moved <= mechanism.sensitivity_units(silo), "the rounded mean moved too far"
    reach = max(int(np.abs(values).max()) for values in (first, second))
    assert reach <= mechanism.largest_signal, "the mean lies beyond the mechanism's range"


def check_meets_target(mechanism: Mechanism, target: PrivacyTarget, records: int) -> None:
    """(ε, δ) recomputed from clip, grid, rounds and records alone, in 256 bits.

    Replacing one of n records moves a mean of vectors of norm ≤ C by 2C/n, rounding both ends to
    the grid by at most another √d; R rounds compose to μ = √R·Δ/σ.
    """
    distance = 2 * mechanism.clip / (records * mechanism.grids[0]) + sqrt(mechanism.dimension)
    sigma = SIGMA * mechanism.fineness
    mu = sqrt(mechanism.rounds) * distance / sigma
    samples = mechanism.dimension * mechanism.rounds
    delta = discrete_delta(lambda epsilon: exact_delta(epsilon, mu), target.epsilon, samples, sigma)
    assert delta <= target.delta, f"δ is {float(delta):.3e}, promised {target.delta:.3e}"


def discrete_delta(
    delta_of: Callable[[float], float], epsilon: float, samples: int, sigma: float = SIGMA
) -> float:
    """δ at ε with discrete noise, if `delta_of` is that with continuous noise: two ways.

    By Pinsker, what pays for it is (1 + e^ε)·√(m/1152)/σ².  And no probability differs by more
    than e^±η from that of rounded noise, η = m·14.02²/(24·σ²).
    """
    pinsker = sqrt(samples / 1152) / sigma**2
    eta = samples * 14.02**2 / (24 * sigma**2)
    by_distance = delta_of(epsilon) + (1 + exp(epsilon)) * pinsker
    return min(by_distance, exp(eta) * delta_of(max(epsilon - 2 * eta, 0.0)))


def check_promises(mechanism: Mechanism, participants: Sequence[Participant]) -> None:
    """Every silo's own (ε, δ), phase by phase, recomputed from public numbers by quadrature.

    A phase holds ⌊share·n⌋ records.  A sum that is divided by K moves by w·C/K when a record of
    norm ≤ C joins; replacing a record moves it by twice that.  Poisson batches: the attack of two
    opposite records against an otherwise empty sum, which is also the worst case.  Without
    replacement: the same attack, and that of opposite records among like ones; neither may go
    beyond the promise.  At most two rounds for these.
    """
    batch, sigma = mechanism.minibatch, SIGMA * mechanism.fineness
    for silo in participants:
        for phase, grid in zip(mechanism.phases, mechanism.grids, strict=True):
            records = floor(phase.share * silo.records + 1e-9)
            size = batch.ratio * records
            if batch.scheme is Scheme.WITHOUT_REPLACEMENT:
                size = floor(size + 1e-9)
            adds = mechanism.clip * silo.weight / (size * grid)
            rounding = sqrt(mechanism.dimension)
            epsilon, rounds = silo.target.epsilon, phase.rounds
            delta_of = _continuous(batch, adds / sigma, rounding / sigma, rounds)
            delta = discrete_delta(delta_of, epsilon, mechanism.dimension * rounds, sigma)
            assert delta <= silo.target.delta, (
                f"δ is {float(delta):.3e}, promised {silo.target.delta:.3e}"
            )


def _continuous(
    batch: Minibatch, adds: float, rounding: float, rounds: int
) -> Callable[[float], float]:
    """ε ↦ δ of continuous noise; a record adds, and rounding moves, so many standard deviations."""
    if batch.scheme is Scheme.FULL:
        return lambda epsilon: exact_delta(epsilon, sqrt(rounds) * (2 * adds + rounding))
    if batch.scheme is Scheme.POISSON:
        return lambda epsilon: poisson_delta(epsilon, batch.ratio, adds + rounding, rounds)
    return lambda epsilon: max(
        poisson_delta(epsilon, batch.ratio, adds, rounds),
        removal_delta(epsilon, batch.ratio, 2 * adds, rounds),
    )


def check_fits(
    mechanism: Mechanism, participants: Sequence[Participant], everybody: bool | None = None
) -> None:
    """The largest mean that a silo can have, all records in one corner, is inside the range.

    `everybody`: whether a batch can happen to be all records, which only coins can do.
    """
    batch = mechanism.minibatch
    if everybody is None:
        everybody = batch.scheme is Scheme.POISSON
    fullest = 1 / batch.ratio if everybody else 1.0
    for silo in participants:
        for grid in mechanism.grids:
            largest = mechanism.clip * silo.weight * fullest / grid
            assert largest <= mechanism.largest_signal, "a mean lies beyond the range"


Mixture = tuple[tuple[float, float], ...]  # (weight, mean) of unit Gaussians


def poisson_delta(epsilon: float, ratio: float, half: float, rounds: int = 1) -> float:
    """δ(ε) of R rounds of (1−q)·N(0,1) + q·N(±h,1), straight from its definition."""
    upper, lower = (((1 - ratio, 0.0), (ratio, shift)) for shift in (half, -half))
    return _hockey_stick(epsilon, upper, lower, rounds)


def removal_delta(epsilon: float, ratio: float, shift: float, rounds: int = 1) -> float:
    """δ(ε) of R rounds of (1−q)·N(0,1) + q·N(s,1) against N(0,1), the larger direction."""
    upper, lower = (((1 - ratio, 0.0), (ratio, at)) for at in (shift, -shift))
    alone = ((1.0, 0.0),)
    return max(
        _hockey_stick(epsilon, upper, alone, rounds), _hockey_stick(epsilon, alone, lower, rounds)
    )


def _hockey_stick(epsilon: float, upper: Mixture, lower: Mixture, rounds: int) -> float:
    """P[A] − e^ε·Q[A] of the best event A, for densities whose ratio P/Q grows along the line.

    One round: A = {y > t}, t by bisection.  Two: the other round's loss is added to ε, and
    integrated over (smooth, so that the trapezoidal rule is exact).
    """
    if rounds == 1:
        return float(_best_event(np.array([epsilon]), upper, lower)[0])
    assert rounds == 2, "quadrature in one dimension only"
    y = np.arange(-14.0, 14.0, 1 / 64)
    density = _relative(upper, y)
    left = epsilon - np.log(density / _relative(lower, y))
    return float(stats.norm.pdf(y) * density @ _best_event(left, upper, lower)) / 64


def _best_event(epsilon: Floats, upper: Mixture, lower: Mixture) -> Floats:
    low, high = np.full(epsilon.shape, -60.0), np.full(epsilon.shape, 60.0)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = np.log(_relative(upper, middle)) - np.log(_relative(lower, middle)) > epsilon
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    first, second = (
        sum(weight * stats.norm.sf(high - mean) for weight, mean in mixture)
        for mixture in (upper, lower)
    )
    return np.maximum(first - np.exp(epsilon) * second, 0)


def _relative(mixture: Mixture, y: Floats) -> Floats:
    """Its density over that of N(0, 1)."""
    total = np.zeros(y.shape)
    for weight, mean in mixture:
        total += weight * np.exp(mean * y - mean * mean / 2)
    return total


def check_discretization_bound(distance: Callable[[int, float], float]) -> None:
    """`distance(samples, σ)` bounds the total variation of rounded and discrete Gaussian noise.

    Exactly for one and two samples; for many by Pinsker, since Kullback–Leibler divergence adds
    up over samples (adaptively chosen ones too).
    """
    for sigma in (2.0, 4.0, 8.0, 16.0, 64.0):
        rounded, discrete = rounded_gaussian(sigma)
        single = 0.5 * np.abs(rounded - discrete).sum()
        assert single <= distance(1, sigma), f"one sample, σ={sigma}"
        if sigma <= 16:
            pairs = np.outer(rounded, rounded) - np.outer(discrete, discrete)
            assert 0.5 * np.abs(pairs).sum() <= distance(2, sigma), f"two samples, σ={sigma}"
        divergence = float(np.sum(rounded * np.log(rounded / discrete)))
        for samples in (1, 100, 10**6):
            assert sqrt(samples * divergence / 2) <= distance(samples, sigma), f"many, σ={sigma}"


def check_ratio_bound(ratio: Callable[[int, float], float]) -> None:
    """`ratio(samples, σ)` bounds |ln| of rounded over discrete Gaussian probability, to 14.02 σ."""
    for sigma in (8, 16, 64, 256):
        farthest = floor(14.02 * sigma)
        places = {*range(0, farthest, max(1, sigma // 8)), *range(farthest - 3, farthest + 1)}
        for place in places:
            found = abs(log_rounded_over_discrete(place, sigma))
            assert found <= ratio(1, sigma), f"x = {place}, σ = {sigma}: e^{found}"
    assert ratio(1000, 64) >= 1000 * ratio(1, 64) * (1 - 1e-12), "samples add up"


HOSTILE_VALUES = (np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0, -0.0, 5e-324, -1.0, 1.0, 2.5, 100.0)


def hostile_task(scaling: Scaling = Scaling.UNIT_BALL, bias: float = 0.3) -> Task:
    features = (Feature("age", 0.0, 100.0, 50.0), Feature("lab", -1.0, 1.0, 0.25, count=2))
    return Task(LossName.LOGISTIC, "outcome", features, scaling, bias)


def hostile_pairs(count: int, clips: Sequence[float] = (0.01, 0.25, 1.0)) -> Iterator[Neighbours]:
    """Neighbours drawn from hostile values, aimed at the largest movement: few records, far points.

    Deterministic; for mutants, where Hypothesis would only make the failure smaller.
    """
    rng = np.random.default_rng(7)
    for index in range(count):
        n, task = int(rng.integers(1, 5)), hostile_task(bias=float(rng.uniform(0.05, 1)))
        yield Neighbours(
            task=task,
            values=rng.choice(HOSTILE_VALUES, size=(n, 3)),
            labels=rng.choice([-1.0, 1.0], size=n),
            replaced=int(rng.integers(n)),
            other_values=rng.choice(HOSTILE_VALUES, size=3),
            other_label=float(rng.choice([-1.0, 1.0])),
            point=rng.normal(0, 10 ** rng.uniform(-2, 6), size=4),
            clip=clips[index % len(clips)],
        )


def difference(first: NDArray[np.int64], second: NDArray[np.int64]) -> list[int]:
    return [int(a) - int(b) for a, b in zip(first, second, strict=True)]


def neighbours_encoded(case: Neighbours) -> tuple[Records, Records]:
    """Both data sets as the silo would encode them."""
    values, labels = case.values.copy(), case.labels.copy()
    first = Records(case.task.encode(values), labels.copy())
    values[case.replaced], labels[case.replaced] = case.other_values, case.other_label
    return first, Records(case.task.encode(values), labels)


def _square(vector: Sequence[int] | NDArray[np.int64]) -> int:
    return sum(int(entry) ** 2 for entry in vector)
