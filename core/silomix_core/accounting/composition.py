"""The (ε, δ) of a transcript, from its events; and the least noise that a target allows.

A *transcript* is what one record could have influenced: (event, how often) pairs, all fixed before
the first round (that rounds are asked adaptively, or skipped, changes nothing).  Which accountant
applies follows from the events: exact Gaussian if all are full batches, privacy loss
distributions if some are Poisson, Rényi divergences as soon as one is without replacement.

The noise is discrete: `integers` is applied to all three.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, floor, log, sqrt

from silomix_core.accounting.events import LEAST_EPSILON, PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.accounting.gaussian import gaussian_epsilon, gaussian_mu
from silomix_core.accounting.integers import (
    Released,
    continuous_targets,
    largest_epsilon,
    with_integers,
)
from silomix_core.accounting.poisson import poisson_epsilon
from silomix_core.accounting.renyi import renyi_epsilon
from silomix_core.discrete_gaussian import SIGMA_UNITS

Transcript = Sequence[tuple[PrivacyEvent, int]]
_LATTICE = 1.0005  # subsampled noise multipliers are powers of it: the same on every machine


class CalibrationImpossible(ValueError):
    """No noise scale gives the wanted guarantee within the range that the integers can carry."""


def epsilon_of(transcript: Transcript, delta: float) -> float:
    """The ε of a transcript at `delta`, rounded up; ∞ if δ is too small for any ε."""
    if any(count < 0 for _, count in transcript):
        raise ValueError("an event cannot have happened less than never")
    events = [(event, count) for event, count in transcript if count]
    sent = (Released.of(count * event.samples, event.noise) for event, count in events)
    released = sum(sent, Released(0, 0.0, 0.0))
    schemes = {event.scheme for event, _ in events}
    curve: Callable[[float], float]
    if schemes <= {Scheme.FULL}:
        mu = sqrt(sum(count * event.mu * event.mu for event, count in events))
        curve = lambda left: gaussian_epsilon(left, mu)  # noqa: E731
    elif Scheme.WITHOUT_REPLACEMENT in schemes:
        curve = lambda left: renyi_epsilon(events, left)  # noqa: E731
    else:
        curve = lambda left: poisson_epsilon(events, left)  # noqa: E731
    return with_integers(curve, released, delta)


def largest_mu(
    target: PrivacyTarget,
    scheme: Scheme,
    ratio: float,
    rounds: int,
    dimension: int,
    most_rounds: int = 0,
    sigma: float = SIGMA_UNITS,
) -> float:
    """The largest Δ/σ of one round at which `rounds` of them meet `target`; rounded down.

    If `most_rounds` is larger, the cost of integer noise is that of so many rounds: a filter counts
    the most that any phase of a study has.  `sigma` is that of the noise, in grid units.
    """
    released = Released.of(dimension * max(rounds, most_rounds), sigma)
    pairs = continuous_targets(target.epsilon, target.delta, released)
    if not pairs:
        raise CalibrationImpossible(_too_costly(target, released))
    full = max(gaussian_mu(*pair) for pair in pairs) / sqrt(rounds)
    if scheme is Scheme.FULL:
        return full * (1 - 1e-9)  # rounding errors, of `gaussian_delta` too, on the safe side
    return _largest_subsampled_mu(target, scheme, ratio, rounds, dimension, full, sigma)


def _too_costly(target: PrivacyTarget, released: Released) -> str:
    """The reason why integer noise cannot keep this target at any scale, and what would help."""
    wanted = (
        f"epsilon={target.epsilon:g} at delta={target.delta:g} cannot be kept with integer noise "
        f"on {released.samples} values (coordinates times rounds)"
    )
    highest = largest_epsilon(target.delta, released)
    if highest < LEAST_EPSILON:
        return f"{wanted}: use a larger delta"
    if highest <= target.epsilon:
        return f"{wanted}: use an epsilon of at most {_down(highest):g}, or a larger delta"
    return f"{wanted}: use a larger epsilon or delta, or fewer rounds"


def _down(number: float) -> float:
    """The number rounded down to one digit after the point, or 0.001 where that would be 0."""
    return max(floor(10 * number) / 10, LEAST_EPSILON)


@lru_cache(maxsize=64)
def _largest_subsampled_mu(
    target: PrivacyTarget,
    scheme: Scheme,
    ratio: float,
    rounds: int,
    dimension: int,
    full: float,
    sigma: float,
) -> float:
    """Bisect on a lattice from the full batch's μ, which suffices unless a bound is too loose."""

    def suffices(power: int) -> bool:
        event = PrivacyEvent(scheme, ratio, sigma / _LATTICE**power, sigma, dimension)
        return epsilon_of([(event, rounds)], target.delta) <= target.epsilon

    # μ = LATTICE^−power: a smaller power is less noise
    enough = ceil(-log(full) / log(_LATTICE))
    if not suffices(enough):  # a Rényi bound can be looser than the exact Gaussian
        step = 1
        while not suffices(enough + step):
            step *= 2
            if step > 2**14:
                raise CalibrationImpossible(
                    f"no noise meets epsilon={target.epsilon:g}, delta={target.delta:g} over "
                    f"{rounds} rounds of {scheme.value} batches; use a larger epsilon or delta, "
                    "fewer rounds, or full batches"
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
    return float(_LATTICE**-enough) * (1 - 1e-9)  # so that no rounding error exceeds it
