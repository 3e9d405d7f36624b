"""From a central (ε, δ), behind an honest mix, to the local one that a study file carries.

Only public numbers enter.  The study's reports hold one record (`algorithms.shuffled`): the more
silos hide one another, the less noise a central ε needs; each silo then loses more against
everybody than the central ε says, and its file says how much.  The local target found here is the
largest at which `central_figures` still claims the central one.
"""

from collections.abc import Callable, Sequence

from silomix_core.accounting.bounds.shuffling import one_record_reports
from silomix_core.accounting.bounds.validity import OutsideValidity
from silomix_core.accounting.composition import CalibrationImpossible, epsilon_of, largest_mu
from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.algorithms.shuffled import ONE_RECORD
from silomix_core.claims.central import central_figures
from silomix_core.discrete_gaussian import FINENESS, SIGMA_UNITS
from silomix_core.mechanism.mechanism import Mechanism, Participant, Phase

_MOST_SILOS = 10**6
_SIGMA = FINENESS[-1] * SIGMA_UNITS  # its integers cost next to nothing; `_TRIES` finds the rest
_STEPS = 12  # of a bisection in μ: to a part in a thousand
_TRIES = 40  # of half a percent each, should the integers cost more than was set aside


class ShufflingGainsNothing(ValueError):
    """So few silos hide nobody: the central figure would be the local one."""


def local_target(
    central: PrivacyTarget,
    records: Sequence[int],
    *,
    minimum_batch: int,
    rounds: int,
    clip: float,
    dimension: int,
) -> PrivacyTarget:
    """The local (ε, δ) for silos of so many records that keeps the mixes' output at `central`."""
    fewest = min(records)
    bound = _bound(central, fewest, rounds)
    alone = _mu_alone(central, fewest, rounds, dimension)
    if not bound(alone, minimum_batch) < central.epsilon:
        raise ShufflingGainsNothing(_too_few(central, minimum_batch, alone, bound))
    mu = _largest(lambda each: bound(each, minimum_batch) <= central.epsilon, alone)
    event = PrivacyEvent(
        ONE_RECORD.scheme, ONE_RECORD.share(fewest), mu * _SIGMA, _SIGMA, dimension
    )
    epsilon = min(epsilon_of([(event, rounds)], central.delta), 100.0)
    for _ in range(_TRIES):
        target = PrivacyTarget(epsilon, central.delta)
        silos = [Participant(count, target) for count in records]
        made = Mechanism.calibrate(
            silos, clip=clip, dimension=dimension, phases=[Phase(rounds)], minibatch=ONE_RECORD
        )
        _, shuffled, _ = central_figures(made, silos, minimum_batch=minimum_batch)
        if shuffled.epsilon is not None and shuffled.epsilon <= central.epsilon:
            return target
        epsilon *= 0.995
    raise ShufflingGainsNothing(_too_few(central, minimum_batch, alone, bound))


_Bound = Callable[[float, int], float]


def _mu_alone(target: PrivacyTarget, records: int, rounds: int, dimension: int) -> float:
    """The μ that the target allows without mixes; where ε is too small, without the draw, too."""
    try:
        share = ONE_RECORD.share(records)
        return largest_mu(target, ONE_RECORD.scheme, share, rounds, dimension, sigma=_SIGMA)
    except CalibrationImpossible:
        return largest_mu(target, Scheme.FULL, 1.0, rounds, dimension, sigma=_SIGMA)


def _bound(central: PrivacyTarget, records: int, rounds: int) -> _Bound:
    """A function from a report's μ and the number of reports to the study's ε behind the mixes."""

    def bound(mu: float, reports: int) -> float:
        try:
            found = one_record_reports(
                silos=reports,
                records=records,
                rounds=rounds,
                noise_multiplier=1 / mu,
                delta=central.delta * (1 - 1e-3),
            )
        except OutsideValidity:
            return float("inf")
        return float("inf") if found.vacuous else found.epsilon

    return bound


def _largest(holds: Callable[[float], bool], start: float) -> float:
    """The largest μ found at which `holds`, searched upwards from `start`, at which it does."""
    low, high = start, 2 * start
    while holds(high):
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _too_few(central: PrivacyTarget, minimum_batch: int, alone: float, bound: _Bound) -> str:
    """The message that says how many reports in a batch would do, found by doubling."""
    reports = 2 * minimum_batch
    while reports <= _MOST_SILOS and not bound(alone, reports) < central.epsilon:
        reports *= 2
    needed = (
        f"from about {reports} reports in a batch on it does"
        if reports <= _MOST_SILOS
        else "nor would a million; a smaller epsilon or fewer rounds may help"
    )
    return (
        f"shuffling {minimum_batch} reports gains nothing at a central epsilon of "
        f"{central.epsilon:g}: {needed}; or give a local epsilon instead"
    )
