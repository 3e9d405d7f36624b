"""Why noise is drawn on the integers: what float64 noise gives away, and integers do not.

Two data sets of 1734 records that differ in one: a coordinate of the mean is 0 in one and 2/1734 in
the other (clip 1).  The noise has the width of 0005-integer-noise.md.  An output that one of them
can give and the other cannot is an infinite privacy loss, whatever ε was promised.

Seeds are fixed, so the fractions below are what they are; bounds leave room for other libraries.
"""

from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import log

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from silomix_core.discrete_gaussian import SIGMA_UNITS, discrete_gaussian
from support.exact import discrete_gaussian_cdf
from support.privacy_checks import seeded_bytes

Floats = NDArray[np.float64]

RECORDS, SIGMA = 1734, 0.0186
MEAN, OTHER_MEAN = 0.0, 2 / RECORDS
OUTPUTS = 4000
NEARBY = np.arange(-64, 65)


# Float64 noise ------------------------------------------------------------------------------------


def possible_for_any_generator(outputs: Floats, mean: float) -> NDArray[np.bool_]:
    """Whether mean + σ·z can be this output for *some* float64 z, however z was made.

    Rounding is monotone, so outputs grow with z: where the float64 numbers around (output − mean)/σ
    lead past the output on both sides without meeting it, none does.
    """
    centre = (outputs - mean) / SIGMA
    candidates = (centre.view(np.int64)[:, None] + NEARBY).view(np.float64)
    reached = mean + SIGMA * candidates
    met = (reached == outputs[:, None]).any(axis=1)
    ends = np.sort(reached[:, [0, -1]], axis=1)  # a negative z falls as its bits grow
    assert np.all(met | ((ends[:, 0] < outputs) & (outputs < ends[:, 1])))
    return met


def by_inversion(count: int, mean: float, seed: int) -> Floats:
    """The textbook: mean + σ·Φ⁻¹(u), u a multiple of 2⁻⁵³ as every library draws it."""
    return mean + SIGMA * ndtri(np.random.default_rng(seed).random(count))


def possible_by_inversion(outputs: Floats, mean: float) -> NDArray[np.bool_]:
    """Whether some u = k·2⁻⁵³ gives this output; Φ says near which k to look."""
    centre = np.rint(ndtr((outputs - mean) / SIGMA) * 2**53)
    reached = mean + SIGMA * ndtri((centre[:, None] + NEARBY) / 2**53)
    assert np.all(reached[:, :32].max(axis=1) < outputs)  # far enough on either side
    assert np.all(outputs < reached[:, -32:].min(axis=1))
    return (reached == outputs[:, None]).any(axis=1)


def test_most_outputs_of_float_noise_by_inversion_cannot_come_from_the_neighbour() -> None:
    outputs = by_inversion(OUTPUTS, MEAN, seed=1)
    assert possible_by_inversion(outputs, MEAN).all()
    assert np.mean(~possible_by_inversion(outputs, OTHER_MEAN)) > 0.7


def test_nor_can_most_outputs_of_the_neighbour_come_from_the_first() -> None:
    outputs = by_inversion(OUTPUTS, OTHER_MEAN, seed=2)
    assert possible_by_inversion(outputs, OTHER_MEAN).all()
    assert np.mean(~possible_by_inversion(outputs, MEAN)) > 0.7


def test_no_generator_of_float_noise_makes_all_outputs_possible_for_both() -> None:
    """Even if every float64 could be drawn: of 50 coordinates, some betray the data set."""
    outputs = MEAN + SIGMA * np.random.default_rng(3).standard_normal(OUTPUTS)
    assert possible_for_any_generator(outputs, MEAN).all()
    impossible = ~possible_for_any_generator(outputs, OTHER_MEAN)
    assert np.mean(impossible) > 0.15
    assert impossible.reshape(-1, 50).any(axis=1).all()  # every one of 80 reports


# Our integers -------------------------------------------------------------------------------------

SHIFT = round(OTHER_MEAN / SIGMA * SIGMA_UNITS)  # the same two data sets, in grid units
FINE, FINE_REACH = 768**2, 14 * 769
COARSE, COARSE_REACH = 2**24 - 9, 14 * 4096


@cache
def units(variance: int, reach: int) -> list[int]:
    """2¹²⁸·P of −reach … reach; test_noise.py finds exactly these in the sampler."""
    return [
        after - before for before, after in pairwise((0, *discrete_gaussian_cdf(variance, reach)))
    ]


@cache
def probability(noise: int) -> Fraction:
    """P[c₁ + 256·c₂ = noise], exactly as the sampler draws it."""
    fine, coarse = units(FINE, FINE_REACH), units(COARSE, COARSE_REACH)
    least = max(-COARSE_REACH, -((FINE_REACH - noise) // 256))
    largest = min(COARSE_REACH, (noise + FINE_REACH) // 256)
    total = sum(
        fine[noise - 256 * c2 + FINE_REACH] * coarse[c2 + COARSE_REACH]
        for c2 in range(least, largest + 1)
    )
    return Fraction(total, 2**256)


def test_every_integer_within_twelve_standard_deviations_is_possible() -> None:
    """So each output of one data set is one of the other's, but for a mass of 2⁻¹⁰⁰."""
    for variance, reach, sigma in ((FINE, FINE_REACH, 768), (COARSE, COARSE_REACH, 4096)):
        within = slice(reach - 12 * sigma, reach + 12 * sigma + 1)
        assert all(units(variance, reach)[within])
    # with |c₂| ≤ 12·4096 and |c₁| ≤ 12·768, c₁ + 256·c₂ passes through all of ±12·2²⁰
    assert 12 * 768 >= 256
    assert 12 * SIGMA_UNITS == 256 * 12 * 4096


def test_outputs_are_as_likely_under_the_neighbour_as_the_theory_says() -> None:
    """P[x]/P[x − s] = e^{(s² − 2xs)/2σ²}, of which the accountant's loss is made."""
    outputs = discrete_gaussian(1000, seeded_bytes(4)).tolist()
    for x in outputs:
        here, there = probability(x), probability(x - SHIFT)
        assert here > 0
        assert there > 0
        theory = (SHIFT**2 - 2 * x * SHIFT) / (2 * SIGMA_UNITS**2)
        assert log(here / there) == pytest.approx(theory, abs=1e-14)


@pytest.mark.parametrize("sigmas", [-11, -6, -3, 0, 3, 6, 11])
def test_the_likelihood_ratio_holds_far_out_and_at_every_low_bit(sigmas: int) -> None:
    """256 outputs in a row: no residue, the sampler's grain, is rarer than it should be."""
    base = sigmas * int(SIGMA_UNITS)
    for x in range(base, base + 256):
        theory = (SHIFT**2 - 2 * x * SHIFT) / (2 * SIGMA_UNITS**2)
        # in the tails 2⁻¹²⁸, the grain of the tables, is no longer nothing beside a probability
        assert log(probability(x) / probability(x - SHIFT)) == pytest.approx(theory, abs=1e-6)
