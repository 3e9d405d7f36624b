"""The noise is a discrete Gaussian: table by table, in the sum, at the ties and at the ends.

Statistical checks fail on correct code with probability 10⁻⁶ each; seeds are fixed.
"""

from bisect import bisect_right
from itertools import islice, pairwise
from random import Random

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from scipy import stats
from silomix_core.accounting import TABLE_ERROR
from silomix_core.noise import LARGEST_NOISE, SIGMA_UNITS, RandomBytes, discrete_gaussian
from support.exact import (
    canonne_kamath_steinke,
    discrete_gaussian_cdf,
    discrete_gaussian_weights,
)
from support.privacy_checks import FALSE_ALARM, SIGMA, check_gaussian, check_noise, seeded_bytes

# x = fine + 256·coarse; the variances add up to 2⁴⁰
FINE, FINE_REACH = 768**2, 14 * 769
COARSE, COARSE_REACH = 2**24 - 9, 14 * 4096
MEDIAN = (2**63).to_bytes(8, "little")  # the upper half of a uniform that gives 0 in either table


def only(component: str, source: RandomBytes) -> RandomBytes:
    """The first (fine) or second (coarse) request is random, the other held at the median."""
    requests = iter(("fine", "coarse"))
    return lambda count: source(count) if next(requests) == component else MEDIAN * (count // 8)


def scripted(*answers: bytes) -> RandomBytes:
    """Bytes given out in this order; asking for another number of them is an error."""
    left = iter(answers)

    def give(count: int) -> bytes:
        answer = next(left)
        assert len(answer) == count
        return answer

    return give


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def halves(threshold: int) -> tuple[int, int]:
    return threshold >> 64, threshold & (2**64 - 1)


def sample_of(uniform: int, cdf: tuple[int, ...], reach: int) -> int:
    """The inverse CDF at a 128-bit uniform: as many steps up as thresholds are not above it."""
    return bisect_right(cdf, uniform) - reach


def test_the_sum_has_the_variance_that_the_accountant_assumes() -> None:
    assert FINE + 256**2 * COARSE == int(SIGMA_UNITS) ** 2 == 2**40
    assert SIGMA_UNITS == SIGMA


def test_noise_is_gaussian_of_the_assumed_width() -> None:
    check_noise(discrete_gaussian)


def test_noise_from_an_aes_keystream_is_gaussian() -> None:
    stream = Cipher(AES(bytes(range(32))), CTR(bytes(16))).encryptor()
    check_gaussian(discrete_gaussian(400_000, lambda count: stream.update(bytes(count))), SIGMA)


def test_mean_and_variance_are_those_of_the_table() -> None:
    samples = discrete_gaussian(1_000_000, seeded_bytes(3)) / SIGMA
    bound = stats.norm.isf(FALSE_ALARM / 2)
    assert abs(samples.mean()) < bound / 1000
    assert abs(samples.var() - 1) < bound * np.sqrt(2) / 1000


@pytest.mark.parametrize(
    ("component", "variance", "reach", "stride"),
    [("fine", FINE, FINE_REACH, 1), ("coarse", COARSE, COARSE_REACH, 256)],
)
def test_each_table_has_its_own_exact_distribution(
    component: str, variance: int, reach: int, stride: int
) -> None:
    samples = discrete_gaussian(500_000, only(component, seeded_bytes(11)))
    assert not np.any(samples % stride)
    samples //= stride
    check_gaussian(samples, variance**0.5)
    # and value by value, from exact probabilities: the middle 1000 integers, the rest in two cells
    weights = np.array([float(w) for w in discrete_gaussian_weights(variance, reach)])
    probability = np.concatenate([weights[:0:-1], weights])
    probability /= probability.sum()
    edges = np.arange(-500, 501)
    expected = np.array([probability[reach + x] for x in edges])
    tails = (1 - expected.sum()) / 2
    counts = [int(np.sum(samples < -500)), *_counts(samples, edges), int(np.sum(samples > 500))]
    model = np.array([tails, *expected, tails]) * len(samples)
    assert stats.chisquare(counts, model).pvalue > FALSE_ALARM


def _counts(samples: NDArray[np.int64], values: NDArray[np.int64]) -> list[int]:
    inside = samples[(samples >= values[0]) & (samples <= values[-1])] - values[0]
    return list(np.bincount(inside, minlength=len(values)))


def test_noise_cannot_be_told_from_the_exact_slow_sampler() -> None:
    slow = np.array(list(islice(canonne_kamath_steinke(2**20, Random(5)), 6_000)))
    fast = discrete_gaussian(60_000, seeded_bytes(5))
    assert stats.ks_2samp(slow, fast).pvalue > FALSE_ALARM


def test_the_slow_sampler_is_itself_a_discrete_gaussian() -> None:
    slow = np.array(list(islice(canonne_kamath_steinke(3, Random(6)), 20_000)))
    weights = np.exp(-(np.arange(-10, 11) ** 2) / 18)
    counts = _counts(slow, np.arange(-10, 11))
    expected = weights / weights.sum() * sum(counts)
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("component", "variance", "reach", "step"),
    [("fine", FINE, FINE_REACH, 1), ("coarse", COARSE, COARSE_REACH, 7)],
)
def test_thresholds_are_exact_to_the_last_of_128_bits(
    component: str, variance: int, reach: int, step: int
) -> None:
    """Draw at 128-bit uniforms on a threshold and one below it: the ties see every bit."""
    cdf = discrete_gaussian_cdf(variance, reach)[:-1]
    chosen = [threshold for threshold in cdf[::step] if threshold > 0]
    for uniforms in (chosen, [threshold - 1 for threshold in chosen]):
        drawn = draw_at(uniforms, component)
        expected = [sample_of(uniform, cdf, reach) for uniform in uniforms]
        assert drawn.tolist() == expected


def draw_at(uniforms: list[int], component: str) -> NDArray[np.int64]:
    """One table's samples at these 128-bit uniforms; lower halves are given out only at ties."""
    stride, uppers = (1 if component == "fine" else 256), {u >> 64 for u in uniforms}
    table = (FINE, FINE_REACH) if component == "fine" else (COARSE, COARSE_REACH)
    ties = {threshold >> 64 for threshold in discrete_gaussian_cdf(*table)[:-1]} & uppers
    words = b"".join(word(u >> 64) for u in uniforms)
    tails = [word(u & (2**64 - 1)) for u in uniforms if u >> 64 in ties]
    medians = MEDIAN * len(uniforms)
    script = (words, *tails, medians) if component == "fine" else (medians, words, *tails)
    return discrete_gaussian(len(uniforms), scripted(*script)) // stride


def test_ties_in_the_far_tail_are_decided_among_all_equal_thresholds() -> None:
    """Beyond about 9 standard deviations many thresholds share an upper half of zero."""
    cdf = discrete_gaussian_cdf(FINE, FINE_REACH)
    shared = [threshold for threshold in cdf if threshold >> 64 == 0]
    assert len(shared) > 1000
    for tail in (0, 1, 2**20, 2**40, 2**63, 2**64 - 1, shared[-1], shared[-1] - 1):
        drawn = int(discrete_gaussian(1, scripted(word(0), word(tail), MEDIAN))[0])
        assert drawn == sample_of(tail, cdf[:-1], FINE_REACH)


def test_a_tie_disturbs_no_other_sample() -> None:
    cdf = discrete_gaussian_cdf(FINE, FINE_REACH)
    index = FINE_REACH + 100
    upper, lower = halves(cdf[index])
    row = MEDIAN + word(upper) + MEDIAN
    drawn = discrete_gaussian(3, scripted(row, word(lower), MEDIAN * 3))
    assert drawn.tolist() == [0, 101, 0]
    drawn = discrete_gaussian(3, scripted(row, word(lower - 1), MEDIAN * 3))
    assert drawn.tolist() == [0, 100, 0]


def test_table_error_covers_the_distance_from_exact_probabilities() -> None:
    """Half the summed differences of both tables, in exact integers (units of 2⁻¹²⁸·2⁻¹²⁸)."""
    distance = 0
    for variance, reach in ((FINE, FINE_REACH), (COARSE, COARSE_REACH)):
        weights = discrete_gaussian_weights(variance, reach)
        total = 2 * sum(weights) - weights[0]
        cdf = (0, *discrete_gaussian_cdf(variance, reach))
        for x, (before, after) in zip(range(-reach, reach + 1), pairwise(cdf), strict=True):
            exact = (weights[abs(x)] << 256) // total
            distance += abs(((after - before) << 128) - exact)
    assert distance / 2**257 <= TABLE_ERROR


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_noise_uses_exactly_sixteen_bytes_a_sample(count: int) -> None:
    asked: list[int] = []
    source = seeded_bytes(1)

    def counting(size: int) -> bytes:
        asked.append(size)
        return source(size)

    assert len(discrete_gaussian(count, counting)) == count
    assert sum(asked) == 16 * count


def test_the_same_bytes_give_the_same_noise_and_other_bytes_other_noise() -> None:
    first, again, other = (discrete_gaussian(1000, seeded_bytes(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_no_bytes_lead_beyond_the_largest_noise(byte: bytes) -> None:
    drawn = discrete_gaussian(5, lambda count: byte * count)
    assert np.all(np.abs(drawn) <= LARGEST_NOISE)
    assert np.all(np.abs(drawn) >= 13 * SIGMA)  # the bound is no looser than it says
