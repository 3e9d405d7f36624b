"""Discrete Gaussian noise on the integers, from uniformly random bytes.

The last thing that happens to an update before it becomes a report.  Floating-point Gaussian noise
leaks (most float64 outputs could not have come from the neighbouring data set), so noise is drawn
on the integers, with the standard deviation `SIGMA_UNITS` or, where a study needs finer integers,
`fineness` times that; the size of one unit (the *grid*) follows from the study.

A sample is the convolution x = c₁ + 256·c₂ (Micciancio, Walter 2017, Cor. 4.2) of two draws from
tables: with c₁ of standard deviation 768 = 3·256, the distance of x from a discrete Gaussian of
variance 768² + 256²·σ₂² = 2⁴⁰ is below 2⁻²⁰⁰.  A finer one is f·x + c₀, by the same theorem with c₀
of standard deviation 3f: its variance is f²·(2⁴⁰ + 9), a little more than the accountant counts.
The probabilities in the tables are multiples of 2⁻¹²⁸, exact to that, and cut at 14 standard
deviations (mass below 2⁻¹³⁹); `accounting.TABLE_ERROR` covers all of it.

**Time.**  Every sample takes the same steps, whatever its value: for each table two look-ups in a
cell that is as likely as any other, one comparison, one selection; no search that is longer in the
tails.  Not constant are two things.  A tie in the upper 64 of 128 bits (once in 2⁴⁷ draws or less)
asks for 8 bytes more; a report of a million values meets one with probability 2⁻²⁶.  And the
*address* of a cell follows from the noise: whoever watches the caches of the silo's own machine
could learn it, but that machine is trusted.  Nothing here depends on records.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

SIGMA_UNITS = 2.0**20
LARGEST_NOISE = 14 * 768 + 256 * (14 * 4096 + 1) + 14
FINENESS = (1, 16, 256)  # how many times `SIGMA_UNITS` a standard deviation may be

RandomBytes = Callable[[int], bytes]
Streams = Callable[[bytes], RandomBytes]  # a stream of its own for every label, from its beginning

_STRIDE = 256
_FINE_VARIANCE = 768**2
_COARSE_VARIANCE = (2**40 - _FINE_VARIANCE) // _STRIDE**2  # exact: both are multiples of 2¹⁶
_BITS = 256  # working precision of the tables
_BLOCK = 2**14  # samples at a time: what is between bytes and noise stays in the cache


def one_stream(random_bytes: RandomBytes) -> Streams:
    """The same stream for every label, read on from where it is: for simulations and tests."""
    return lambda _label: random_bytes


def discrete_gaussian(
    count: int, random_bytes: RandomBytes, fineness: int = 1
) -> NDArray[np.int64]:
    """`count` independent samples with standard deviation `fineness`·`SIGMA_UNITS`."""
    fine, coarse = _table(_FINE_VARIANCE), _table(_COARSE_VARIANCE)
    samples = np.empty(count, dtype=np.int64)
    for start in range(0, count, _BLOCK):
        block = samples[start : start + _BLOCK]
        block[:] = _draw(fine, len(block), random_bytes)
        block += _STRIDE * _draw(coarse, len(block), random_bytes)
        if fineness > 1:
            block *= fineness
            block += _draw(_table(_finest_variance(fineness)), len(block), random_bytes)
    return samples


def largest_noise(fineness: int) -> int:
    """Bound on a sample of this fineness; below 14.02 standard deviations."""
    beside = _reach(_finest_variance(fineness)) if fineness > 1 else 0
    return fineness * LARGEST_NOISE + beside


def prepare_tables() -> None:
    """Compute the tables now (about 0.1 s) rather than with the first sample."""
    _table(_FINE_VARIANCE)
    _table(_COARSE_VARIANCE)


def _finest_variance(fineness: int) -> int:
    """The variance of c₀, which fills the gaps between multiples of `fineness`."""
    return (3 * fineness) ** 2


@dataclass(frozen=True, slots=True)
class _Table:
    """A distribution on the integers as 2ᵇ cells of equal probability (Walker 1977).

    The upper b bits of a 128-bit uniform choose a cell, the other 128 − b a place in it.  Cell i
    stands for the value i − 2ᵇ⁻¹ at the places below `cut`, and for `other[i]` from there on.
    """

    cell_bits: int
    cut_upper: NDArray[np.uint64]  # (2ᵇ,) the cut without its lower 64 bits
    cut_lower: NDArray[np.uint64]  # (2ᵇ,) these lower 64 bits
    other: NDArray[np.int32]  # (2ᵇ,)


def _draw(table: _Table, count: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
    uniform = np.frombuffer(random_bytes(8 * count), dtype="<u8")
    place_bits = 64 - table.cell_bits
    cell = (uniform >> np.uint64(place_bits)).view(np.int64)
    place = uniform & np.uint64(2**place_bits - 1)
    cut = table.cut_upper.take(cell)
    own = place < cut
    # The upper 64 bits decide, but for a tie (probability at most 2⁻⁴⁷): then the lower 64 do.
    ties = np.flatnonzero(place == cut)
    if len(ties):
        lower = np.frombuffer(random_bytes(8 * len(ties)), dtype="<u8")
        own[ties] = lower < table.cut_lower[cell[ties]]
    return np.where(own, cell - 2 ** (table.cell_bits - 1), table.other.take(cell))


@lru_cache(maxsize=4)
def _table(variance: int) -> _Table:
    """The discrete Gaussian of this variance, cell by cell (Vose 1991, in integers).

    A cell holds 2¹²⁸⁻ᵇ units of 2⁻¹²⁸.  Values that have less leave room in their own cell; it is
    filled from one that has more, until that one has less itself and takes its turn.  Units are
    only moved, so every value keeps exactly as many as `_masses` gave it.
    """
    reach, masses = _masses(variance)
    cell_bits = (2 * reach).bit_length()
    cells, size = 2**cell_bits, 2 ** (128 - cell_bits)
    padding = [0] * (cells // 2 - reach)  # value 0 has cell 2ᵇ⁻¹
    cuts = (padding + masses + padding)[:cells]
    other = array("i", range(cells))
    short = array("i", (cell for cell, mass in enumerate(cuts) if mass < size))
    ample = (cell for cell, mass in enumerate(cuts) if mass >= size)
    giver = next(ample)
    left = cuts[giver]
    for cell in short:  # grows on the way
        other[cell] = giver
        left -= size - cuts[cell]
        if left < size:
            cuts[giver] = left
            short.append(giver)
            giver = next(ample)  # there is one: what is short and what is ample add up
            left = cuts[giver]
    cuts[giver] = left
    octets = bytearray()
    for cut in cuts:
        octets += cut.to_bytes(16, "little")
    words = np.frombuffer(octets, dtype="<u8")
    return _Table(
        cell_bits=cell_bits,
        cut_upper=words[1::2].copy(),
        cut_lower=words[::2].copy(),
        other=np.array(other, dtype=np.int32) - np.int32(cells // 2),
    )


def _masses(variance: int) -> tuple[int, list[int]]:
    """The reach r of a discrete Gaussian and the probabilities of −r … r in units of 2⁻¹²⁸.

    They are the differences of ⌊2¹²⁸·P[X ≤ x]⌋, so they sum to one.  The recurrence
    e^{−(x+1)²/2v} = e^{−x²/2v}·q^{2x+1}, q = e^{−1/2v}, runs in 256-bit fixed point: its error
    after 57 000 steps is below 2⁻²¹⁶.
    """
    one = 1 << _BITS
    q = _exp_minus_half_over(variance)
    q_squared = (q * q) >> _BITS
    reach = _reach(variance)
    weights, weight, factor = [], one, q
    for _ in range(reach):
        weight = (weight * factor) >> _BITS
        weights.append(weight)
        factor = (factor * q_squared) >> _BITS
    total = 2 * sum(weights) + one
    below, cumulative, before = [], 0, 0
    for weight in reversed(weights):
        cumulative += weight
        threshold = (cumulative << 128) // total
        below.append(threshold - before)
        before = threshold
    # P[X ≤ x] = 1 − P[X ≤ −x−1]: above 0 the same differences, but for rounding down at the end
    masses = [*below, 2**128 - 1 - 2 * before, *reversed(below)]
    masses[-1] += 1
    return reach, masses


def _reach(variance: int) -> int:
    return 14 * (isqrt(variance) + 1)


def _exp_minus_half_over(variance: int) -> int:
    """e^{−1/(2·variance)} in fixed point, by its Taylor series."""
    term, result, k = 1 << _BITS, 0, 0
    while term:
        result += -term if k % 2 else term
        k += 1
        term //= 2 * variance * k
    return result
