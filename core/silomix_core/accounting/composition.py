"""The (ε, δ) of a transcript, from its events; and the least noise that a target allows.

A *transcript* is what one record could have influenced: (event, how often) pairs, all fixed before
the first round (that rounds are asked adaptively, or skipped, changes nothing).  Which accountant
applies follows from the events: exact Gaussian if all are full batches, privacy loss
distributions if some are Poisson, Rényi divergences as soon as one is without replacement.

The noise is discrete: `integers` is applied to all three.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, log, sqrt

from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.accounting.gaussian import gaussian_epsilon, gaussian_mu
from silomix_core.accounting.integers import continuous_targets, with_integers
from silomix_core.accounting.poisson import poisson_epsilon
from silomix_core.accounting.renyi import renyi_epsilon
from silomix_core.noise import SIGMA_UNITS

Transcript = Sequence[tuple[PrivacyEvent, int]]
_LATTICE = 1.0005  # subsampled noise multipliers are powers of it: the same on every machine


class CalibrationImpossible(ValueError):
    """No noise scale gives the wanted guarantee within the range that the integers can carry."""


def epsilon_of(transcript: Transcript, delta: float) -> float:
    """ε at `delta`, rounded up; ∞ if δ is too small for any."""
    if any(count < 0 for _, count in transcript):
        raise ValueError("an event cannot have happened less than never")
    events = [(event, count) for event, count in transcript if count]
    samples = sum(count * event.samples for event, count in events)
    schemes = {event.scheme for event, _ in events}
    curve: Callable[[float], float]
    if schemes <= {Scheme.FULL}:
        mu = sqrt(sum(count * event.mu * event.mu for event, count in events))
        curve = lambda left: gaussian_epsilon(left, mu)  # noqa: E731
    elif Scheme.WITHOUT_REPLACEMENT in schemes:
        curve = lambda left: renyi_epsilon(events, left)  # noqa: E731
    else:
        curve = lambda left: poisson_epsilon(events, left)  # noqa: E731
    return with_integers(curve, samples, delta)


def largest_mu(
    target: PrivacyTarget,
    scheme: Scheme,
    ratio: float,
    rounds: int,
    dimension: int,
    most_rounds: int = 0,
) -> float:
    """The largest Δ/σ of one round at which `rounds` of them meet `target`; rounded down.

    With more `most_rounds`, as if so many had integers to pay for: a filter counts the most that
    any phase of a study has.
    """
    samples = dimension * max(rounds, most_rounds)
    pairs = continuous_targets(target.epsilon, target.delta, samples)
    if not pairs:
        raise CalibrationImpossible(
            f"delta={target.delta} at epsilon={target.epsilon} is below the cost of integer noise "
            f"on {samples} values; use a larger delta or fewer rounds"
        )
    full = max(gaussian_mu(*pair) for pair in pairs) / sqrt(rounds)
    if scheme is Scheme.FULL:
        return full * (1 - 1e-9)  # rounding errors, of `gaussian_delta` too, on the safe side
    return _largest_subsampled_mu(target, scheme, ratio, rounds, dimension, full)


@lru_cache(maxsize=64)
def _largest_subsampled_mu(
    target: PrivacyTarget, scheme: Scheme, ratio: float, rounds: int, dimension: int, full: float
) -> float:
    """By bisection on a lattice, upwards from the full batch's μ, which always suffices."""

    def suffices(power: int) -> bool:
        event = PrivacyEvent(scheme, ratio, SIGMA_UNITS / _LATTICE**power, SIGMA_UNITS, dimension)
        return epsilon_of([(event, rounds)], target.delta) <= target.epsilon

    # μ = LATTICE^−power: a smaller power is less noise
    enough = ceil(-log(full) / log(_LATTICE))
    if not suffices(enough):  # a Rényi bound can be looser than the exact Gaussian
        step = 1
        while not suffices(enough + step):
            step *= 2
            if step > 2**14:
                raise CalibrationImpossible(
                    f"no noise meets epsilon={target.epsilon}, delta={target.delta} over {rounds} "
                    f"rounds of {scheme.value} batches"
                )
        low, enough = enough + step // 2, enough + step
    else:
        step = 64
        while suffices(enough - step):
            enough, step = enough - step, 2 * step
        low = enough - step
    while enough - low > 1:
        middle = (low + enough) // 2
        low, enough = (low, middle) if suffices(middle) else (middle, enough)
    return float(_LATTICE**-enough) * (1 - 1e-9)  # so that nobody's rounding leads across
