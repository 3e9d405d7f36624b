"""Drawn batches: what they cost, what they divide by, and how far one record moves them."""

from functools import cache
from math import sqrt

import numpy as np
import pytest
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.model.clipped_sum import to_grid
from support.privacy_checks import (
    Neighbours,
    check_fits,
    check_promises,
    clipped_sum,
    difference,
    hostile_pairs,
    neighbours_encoded,
    participant,
)

HALF = PrivacyTarget(1, 1e-5)


@cache
def drawing(scheme: Scheme, ratio: float, rounds: int, records: int = 400) -> Mechanism:
    return Mechanism.calibrate(
        [Participant(records, HALF)],
        clip=1.0,
        dimension=4,
        phases=[Phase(rounds)],
        minibatch=Minibatch(scheme, ratio),
    )


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("ratio", [0.5, 0.9])
@pytest.mark.parametrize("scheme", [Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT])
def test_a_study_of_drawn_batches_keeps_its_promise(
    scheme: Scheme, ratio: float, rounds: int
) -> None:
    silo = Participant(400, HALF)
    made = drawing(scheme, ratio, rounds)
    check_promises(made, [silo])
    check_fits(made, [silo])
    assert made.epsilon(silo) <= 1


def test_a_poisson_study_gives_nothing_away() -> None:
    silo = Participant(400, HALF)
    assert drawing(Scheme.POISSON, 0.5, 2).epsilon(silo) > 1 - 2e-3
    assert drawing(Scheme.POISSON, 0.5, 100).epsilon(silo) > 1 - 2e-3


@pytest.mark.parametrize("rounds", [2, 100])
def test_half_batches_need_the_noise_of_full_ones(rounds: int) -> None:
    """Drawing saves computing, not noise: 0.98 to 1.04 times the full batch's at K = n/2."""
    full = drawing(Scheme.FULL, 1.0, rounds).sigma()
    assert 0.97 <= drawing(Scheme.POISSON, 0.5, rounds).sigma() / full <= 1.04


def test_the_event_of_a_batch_names_its_scheme_and_counts_the_drawn() -> None:
    silo = Participant(400, HALF)
    for scheme, ratio in ((Scheme.POISSON, 0.5), (Scheme.WITHOUT_REPLACEMENT, 0.5)):
        made = drawing(scheme, ratio, 2)
        event = made.event(silo)
        assert (event.scheme, event.ratio, event.samples) == (scheme, 0.5, 4)
        rounding = 2 * sqrt(4) if scheme is Scheme.POISSON else sqrt(4)
        assert event.sensitivity == pytest.approx(2 / 200 / made.grids[0] + rounding, rel=1e-3)
        assert event.sensitivity >= 2 / 200 / made.grids[0] + rounding


def test_the_divisor_of_a_batch_is_public() -> None:
    """The expected size for coin tosses, the size itself where that is fixed; never what came."""
    assert Minibatch().size(401) == 401
    assert Minibatch(Scheme.POISSON, 0.5).size(401) == 200.5
    assert Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.5).size(401) == 200
    assert Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.1).size(30) == 3
    assert Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.01).size(99) == 0


@pytest.mark.parametrize("scheme", list(Scheme))
def test_one_record_moves_a_drawn_mean_by_at_most_the_sensitivity(scheme: Scheme) -> None:
    """Any mask: where the record is drawn, and for Poisson against the batch without it."""
    rng = np.random.default_rng(5)
    ratio = 1.0 if scheme is Scheme.FULL else 0.5
    for case in hostile_pairs(150):
        n = len(case.values)
        if int(ratio * n) < 1:
            continue
        made = coarse(case.clip, n, Minibatch(scheme, ratio))
        silo, mask = participant(n), rng.uniform(size=n) < 0.7
        mask[case.replaced] = True
        if scheme is Scheme.FULL:
            mask[:] = True
        without = mask.copy()
        without[case.replaced] = False
        first, second = means(case, made, silo, mask)
        limit = made.sensitivity_units(silo)
        assert norm(difference(first, second)) <= limit
        if scheme is Scheme.POISSON:
            empty, same = means(case, made, silo, without)
            assert np.array_equal(empty, same)
            assert norm(difference(first, empty)) <= limit / 2
            assert norm(difference(second, empty)) <= limit / 2
            for mean in (first, second, empty):
                assert np.abs(mean).max() <= made.largest_signal


def coarse(clip: float, records: int, batch: Minibatch) -> Mechanism:
    """A grid so coarse that rounding is a good part of the sensitivity."""
    return Mechanism(clip, 4, batch, (Phase(1),), (clip / records / 7,))


def means(
    case: Neighbours, made: Mechanism, silo: Participant, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    one, other = (
        to_grid(clipped_sum(records, case.clip).at(case.point, mask), made.units_per_sum(silo))
        for records in neighbours_encoded(case)
    )
    return one, other


def norm(vector: list[int]) -> float:
    return sqrt(sum(entry * entry for entry in vector))
