"""The noise is a discrete Gaussian: table by table, in the sum, at the ties and at the ends.

Statistical checks fail on correct code with probability 10⁻⁶ each; seeds are fixed.  OpenDP has
none: comparisons with it fail with probability 10⁻⁹.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle, islice, pairwise
from random import Random

import numpy as np
import opendp.prelude as dp
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from scipy import stats
from silomix_core.accounting import TABLE_ERROR
from silomix_core.discrete_gaussian import (
    FINENESS,
    LARGEST_NOISE,
    SIGMA_UNITS,
    RandomBytes,
    discrete_gaussian,
    largest_noise,
)
from support.exact import (
    canonne_kamath_steinke,
    discrete_gaussian_cdf,
    discrete_gaussian_weights,
)
from support.privacy_checks import FALSE_ALARM, SIGMA, check_gaussian, check_noise, seeded_bytes

# x = fine + 256·coarse; the variances add up to 2⁴⁰.  On a grid f times finer f·x + gaps.
FINE, FINE_REACH = 768**2, 14 * 769
COARSE, COARSE_REACH = 2**24 - 9, 14 * 4096
FINER, GAPS, GAPS_REACH = 16, 48**2, 14 * 49
TABLES = {  # 2¹⁵, 2¹⁷, 2¹¹ cells
    "fine": (FINE, FINE_REACH, 15),
    "coarse": (COARSE, COARSE_REACH, 17),
    "gaps": (GAPS, GAPS_REACH, 11),
}
MEDIAN = (2**63).to_bytes(8, "little")  # the upper half of a uniform that gives 0 in either table
CALL = 4095  # samples of one call whose requests are scripted: fewer than the sampler's block
Words = NDArray[np.uint64]


def fineness_of(component: str) -> int:
    return FINER if component == "gaps" else 1


def drawn_with(component: str) -> list[str]:
    """The tables that a sample with this component is drawn from, in order."""
    return list(TABLES)[: 3 if component == "gaps" else 2]


def only(component: str, source: RandomBytes) -> RandomBytes:
    """Requests alternate between the tables; this one is random, others held at the median."""
    requests = cycle(drawn_with(component))
    return lambda count: source(count) if next(requests) == component else MEDIAN * (count // 8)


def draw_at(component: str, uppers: Words, lowers: Words) -> NDArray[np.int64]:
    """One table's samples at these upper halves of uniforms; `lowers` go to the ties, in order.

    A median, which is no tie, is drawn with each call: so a request for fewer bytes is one for
    lower halves.
    """
    drawn = []
    for part in np.split(uppers, range(CALL, len(uppers), CALL)):
        full = 8 * (len(part) + 1)
        words, medians = part.tobytes() + MEDIAN, MEDIAN * (len(part) + 1)
        requests = iter([words if name == component else medians for name in drawn_with(component)])

        def give(size: int, full: int = full, requests: Iterator[bytes] = requests) -> bytes:
            nonlocal lowers
            if size == full:
                return next(requests)
            asked, lowers = np.split(lowers, [size // 8])
            return asked.tobytes()

        drawn.append(discrete_gaussian(len(part) + 1, give, fineness_of(component))[:-1])
    return np.concatenate(drawn) // (256 if component == "coarse" else 1)


@dataclass(frozen=True, slots=True)
class Cells:
    """What the sampler makes of a 128-bit uniform, found by asking it: one cut in each cell."""

    size: int  # places in a cell
    start: Words  # (cells,) the upper half of a cell's first uniform
    first: NDArray[np.int64]  # value below the cut
    last: NDArray[np.int64]  # value from the cut on
    cut: list[int]  # places below the cut; all of them where both values are the same


@cache
def cells_of(component: str, cell_bits: int) -> Cells:
    """Bisection for the cut of all cells at once: upper 64 bits, then the lower ones at the tie."""
    place_bits, cells = 64 - cell_bits, 2**cell_bits
    start = np.arange(cells, dtype=np.uint64) << np.uint64(place_bits)
    zeros, ones = np.zeros(cells, np.uint64), np.full(cells, 2**64 - 1, np.uint64)
    first = draw_at(component, start, zeros)
    last = draw_at(component, start + np.uint64(2**place_bits - 1), ones)
    split = np.flatnonzero(first != last)

    def bisect(bits: int, is_first: Callable[[Words], NDArray[np.bool_]]) -> Words:
        """The least place of `bits` bits that gives the second value."""
        place = np.zeros(len(split), np.uint64)
        for bit in reversed(range(bits)):
            trial = place + np.uint64(2**bit) - np.uint64(1)
            place = np.where(is_first(trial), place + np.uint64(2**bit), place)
        return place

    def below(place: Words) -> NDArray[np.bool_]:
        # the largest lower half: at a tie, the second value
        return draw_at(component, start[split] + place, ones) == first[split]

    upper = bisect(place_bits, below)
    lower = bisect(64, lambda tail: draw_at(component, start[split] + upper, tail) == first[split])
    size = 2 ** (128 - cell_bits)
    cut = [size] * cells
    for cell, high, low in zip(split.tolist(), upper.tolist(), lower.tolist(), strict=True):
        cut[cell] = (high << 64) + low
    return Cells(size, start, first, last, cut)


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
    [
        ("fine", FINE, FINE_REACH, 1),
        ("coarse", COARSE, COARSE_REACH, 256),
        ("gaps", GAPS, GAPS_REACH, 1),
    ],
)
def test_each_table_has_its_own_exact_distribution(
    component: str, variance: int, reach: int, stride: int
) -> None:
    source = only(component, seeded_bytes(11))
    samples = discrete_gaussian(500_000, source, fineness_of(component))
    assert not np.any(samples % stride)
    samples //= stride
    if variance >= 500**2:
        check_gaussian(samples, variance**0.5)
    # and value by value, from exact probabilities: the middle integers, the rest in two cells
    weights = np.array([float(w) for w in discrete_gaussian_weights(variance, reach)])
    probability = np.concatenate([weights[:0:-1], weights])
    probability /= probability.sum()
    middle = min(500, round(2 * variance**0.5))
    edges = np.arange(-middle, middle + 1)
    expected = np.array([probability[reach + x] for x in edges])
    tails = (1 - expected.sum()) / 2
    below, above = int(np.sum(samples < -middle)), int(np.sum(samples > middle))
    counts = [below, *_counts(samples, edges), above]
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


@pytest.mark.parametrize("component", TABLES)
def test_every_probability_is_exact_to_the_last_of_128_bits(component: str) -> None:
    """All uniforms there are, counted by the value that they give."""
    variance, reach, cell_bits = TABLES[component]
    cells = cells_of(component, cell_bits)
    units = dict.fromkeys(range(-reach, reach + 1), 0)
    for first, last, cut in zip(cells.first.tolist(), cells.last.tolist(), cells.cut, strict=True):
        units[first] += cut
        units[last] += cells.size - cut
    cdf = discrete_gaussian_cdf(variance, reach)
    assert list(units.values()) == [after - before for before, after in pairwise((0, *cdf))]


@pytest.mark.parametrize("component", TABLES)
def test_a_tie_is_decided_by_the_lower_half_and_disturbs_no_other_sample(component: str) -> None:
    cells = cells_of(component, TABLES[component][2])
    middle = np.uint64(2**63)
    for cell in np.flatnonzero(cells.first != cells.last)[::500]:
        first, last = int(cells.first[cell]), int(cells.last[cell])
        upper, lower = divmod(cells.cut[cell], 2**64)
        row = np.array([middle, cells.start[cell] + np.uint64(upper), middle])
        for tail, expected in ((lower - 1, first), (lower, last), (2**64 - 1, last)):
            if tail >= 0:
                drawn = draw_at(component, row, np.array([tail], np.uint64))
                assert drawn.tolist() == [0, expected, 0]


def test_a_median_is_no_noise() -> None:
    """What tests that hold the noise at zero rely on."""
    assert not discrete_gaussian(50_000, lambda count: MEDIAN * (count // 8)).any()


def test_table_error_covers_the_distance_from_exact_probabilities() -> None:
    """Half the summed differences of the tables, in exact integers (units of 2⁻¹²⁸·2⁻¹²⁸).

    The finest grid has the largest table for its gaps: that of standard deviation 768 once more.
    """
    assert (3 * FINENESS[-1]) ** 2 == FINE
    distance = 0
    for variance, reach in ((FINE, FINE_REACH), (COARSE, COARSE_REACH), (FINE, FINE_REACH)):
        weights = discrete_gaussian_weights(variance, reach)
        total = 2 * sum(weights) - weights[0]
        cdf = (0, *discrete_gaussian_cdf(variance, reach))
        for x, (before, after) in zip(range(-reach, reach + 1), pairwise(cdf), strict=True):
            exact = (weights[abs(x)] << 256) // total
            distance += abs(((after - before) << 128) - exact)
    assert distance / 2**257 <= TABLE_ERROR


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 2**14, 50_000])
@pytest.mark.parametrize(("fineness", "size"), [(1, 16), (16, 24), (256, 24)])
def test_noise_uses_exactly_eight_bytes_a_table_and_sample(
    count: int, fineness: int, size: int
) -> None:
    asked: list[int] = []
    source = seeded_bytes(1)

    def counting(size: int) -> bytes:
        asked.append(size)
        return source(size)

    assert len(discrete_gaussian(count, counting, fineness)) == count
    assert sum(asked) == size * count


def test_the_same_bytes_give_the_same_noise_and_other_bytes_other_noise() -> None:
    first, again, other = (discrete_gaussian(1000, seeded_bytes(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_no_bytes_lead_beyond_the_largest_noise() -> None:
    fine, coarse, gaps = (cells_of(name, bits) for name, (_, _, bits) in TABLES.items())
    for most in (np.max, lambda values: -np.min(values)):
        largest = [max(most(cells.first), most(cells.last)) for cells in (fine, coarse, gaps)]
        sample = largest[0] + 256 * largest[1]
        assert 13 * SIGMA <= sample <= LARGEST_NOISE
        assert 13 * FINER * SIGMA <= FINER * sample + largest[2] <= largest_noise(FINER)


# On finer grids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fineness", FINENESS)
def test_noise_of_any_fineness_is_gaussian_of_the_assumed_width(fineness: int) -> None:
    check_noise(partial(discrete_gaussian, fineness=fineness), fineness * SIGMA)


@pytest.mark.parametrize("fineness", FINENESS)
def test_no_noise_lies_beyond_what_the_ratio_of_probabilities_covers(fineness: int) -> None:
    assert 14 * fineness * SIGMA < largest_noise(fineness) < 14.02 * fineness * SIGMA


@pytest.mark.parametrize("fineness", FINENESS[1:])
def test_the_tables_of_a_finer_grid_add_up_to_a_discrete_gaussian(fineness: int) -> None:
    """f·x + c₀ with discrete Gaussians x, c₀ of variances v and (3f)²: at any z the probability is
    e^{−z²/2w} times a sum over the multiples of f, the same for all z but for 2·e^{−2π²·9}; with a
    small v, where that can be computed, and w = f²·(v + 9)."""
    v, reach = 900, 400  # beyond it lies less than e^-80
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * v))
    for z in (0, 1, fineness // 2, fineness - 1, fineness, 3 * fineness + 1, 20 * fineness + 5):
        mixed = float(weights @ np.exp(-((z - fineness * x) ** 2) / (18 * fineness**2)))
        ideal = np.exp(-(z**2) / (2 * fineness**2 * (v + 9)))
        level = np.sqrt(
            2 * np.pi * v * 9 / (v + 9)
        )  # of the sum over multiples of f, in steps of f
        assert mixed == pytest.approx(level * ideal, rel=1e-12)


# OpenDP, which shares neither code nor method with us ---------------------------------------------

OPENDP_SAMPLES, OUR_SAMPLES = 200_000, 2_000_000


@pytest.fixture(scope="module")
def opendp_samples() -> NDArray[np.int64]:
    """OpenDP's discrete Gaussian; it has no seed, hence the small false alarms below."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    return np.array(dp.m.make_gaussian(*space, scale=SIGMA)([0] * OPENDP_SAMPLES))


@pytest.fixture(scope="module")
def our_samples() -> NDArray[np.int64]:
    return discrete_gaussian(OUR_SAMPLES, seeded_bytes(23))


def check_same_distribution(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> None:
    """Width, shape and low bits of two samples; together a false alarm of 10⁻⁹.

    The width is compared by an F test of the mean squares (of variance 2/m + 2/k): an error of 2 %
    in σ is 12 standard deviations, nearly 6 beyond the bound, so it is missed once in 10⁸.
    """
    alarm = 1e-9 / 3
    ratio = float(np.mean(np.square(ours / SIGMA)) / np.mean(np.square(theirs / SIGMA)))
    law = stats.f(len(ours), len(theirs))
    assert 2 * min(law.cdf(ratio), law.sf(ratio)) > alarm, f"width: ratio of variances {ratio:.4f}"
    edges = np.round(stats.norm.ppf(np.linspace(0, 1, 101)[1:-1]) * SIGMA) + 0.5
    for name, cells in (("shape", partial(np.searchsorted, edges)), ("low bits", low_bits)):
        counts = [np.bincount(cells(samples)) for samples in (ours, theirs)]
        assert len(counts[0]) == len(counts[1]), name
        assert stats.chi2_contingency(counts).pvalue > alarm, name


def low_bits(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.append(samples % 256, 255)  # the last residue is always there, so all are counted


@pytest.mark.slow
def test_noise_cannot_be_told_from_opendp(
    our_samples: NDArray[np.int64], opendp_samples: NDArray[np.int64]
) -> None:
    check_same_distribution(our_samples, opendp_samples)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "caught"),
    [
        (lambda noise: np.rint(noise * 0.98).astype(np.int64), "width"),
        (lambda noise: np.rint(noise * 1.02).astype(np.int64), "width"),
        (lambda noise: noise + int(0.05 * SIGMA), "shape"),
        (lambda noise: np.clip(noise, -int(2 * SIGMA), int(2 * SIGMA)), "width"),
        (lambda noise: noise // 256 * 256, "low bits"),
    ],
    ids=["2 % narrower", "2 % wider", "5 % off centre", "cut tails", "coarse table only"],
)
def test_opendp_catches_noise_that_is_slightly_wrong(
    mutant: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    caught: str,
    our_samples: NDArray[np.int64],
    opendp_samples: NDArray[np.int64],
) -> None:
    with pytest.raises(AssertionError, match=caught):
        check_same_distribution(mutant(our_samples), opendp_samples)
