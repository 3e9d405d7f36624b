"""Discrete Gaussian noise on the integers, from uniformly random bytes.

The last thing that happens to an update before it becomes a report.  Floating-point Gaussian noise
leaks (most float64 outputs could not have come from the neighbouring data set), so noise is drawn
on the integers, always with the same standard deviation `SIGMA_UNITS`; the size of one unit (the
*grid*) follows from the study.

Sampling is by inverse-CDF look-up in two tables of 128-bit thresholds and one convolution,
x = c₁ + 256·c₂ (Micciancio, Walter 2017, Cor. 4.2): with c₁ of standard deviation 768 = 3·256,
the distance of x from a discrete Gaussian of variance 768² + 256²·σ₂² is below 2⁻²⁰⁰.
The tables themselves are exact to 2⁻¹²⁸ and cut at 14 standard deviations (mass below 2⁻¹³⁹);
`accounting.TABLE_ERROR` covers all of it.
"""

from collections.abc import Callable
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

SIGMA_UNITS = 2.0**20
LARGEST_NOISE = 14 * 768 + 256 * (14 * 4096 + 1) + 14

RandomBytes = Callable[[int], bytes]

_STRIDE = 256
_FINE_VARIANCE = 768**2
_COARSE_VARIANCE = (2**40 - _FINE_VARIANCE) // _STRIDE**2  # exact: both are multiples of 2¹⁶
_BITS = 320  # working precision of the tables


def discrete_gaussian(count: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
    """`count` independent samples with standard deviation `SIGMA_UNITS`."""
    fine = _look_up(_table(_FINE_VARIANCE), count, random_bytes)
    coarse = _look_up(_table(_COARSE_VARIANCE), count, random_bytes)
    coarse *= _STRIDE
    coarse += fine
    return coarse


def prepare_tables() -> None:
    """Compute the tables now (about 0.1 s) rather than with the first sample."""
    _table(_FINE_VARIANCE)
    _table(_COARSE_VARIANCE)


def _look_up(
    table: tuple[NDArray[np.uint64], NDArray[np.uint64], int], count: int, random_bytes: RandomBytes
) -> NDArray[np.int64]:
    high, low, smallest = table
    uniform = np.frombuffer(random_bytes(8 * count), dtype="<u8")
    index = np.searchsorted(high, uniform, side="right")
    # The upper 64 bits decide, but for a tie (probability about 2⁻⁴⁷ each): then the lower 64 do.
    ties = np.flatnonzero(high[np.maximum(index, 1) - 1] == uniform)
    for tie in ties:
        tail = int.from_bytes(random_bytes(8), "little")
        first = int(np.searchsorted(high, uniform[tie], side="left"))
        last = int(index[tie])
        index[tie] = first + int(np.searchsorted(low[first:last], np.uint64(tail), side="right"))
    return index.astype(np.int64) + smallest


@lru_cache(maxsize=4)
def _table(variance: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], int]:
    """Cumulative thresholds (upper and lower 64 bits) of a discrete Gaussian, and its least value.

    Entry k is 2¹²⁸·P[x ≤ smallest + k]; a uniform u below entry k and not below entry k−1 gives
    smallest + k.  The recurrence e^{−(x+1)²/2v} = e^{−x²/2v}·q^{2x+1}, q = e^{−1/2v}, runs in
    320-bit fixed point: its error after 57 000 steps is below 2⁻²⁸⁰.
    """
    one = 1 << _BITS
    q = _exp_minus_half_over(variance)
    q_squared = (q * q) >> _BITS
    reach = 14 * (isqrt(variance) + 1)
    weights = [one]
    factor = q
    for _ in range(reach):
        weights.append((weights[-1] * factor) >> _BITS)
        factor = (factor * q_squared) >> _BITS
    total = 2 * sum(weights) - one
    high, low = [], []
    cumulative = 0
    for x in range(-reach, reach):
        cumulative += weights[abs(x)]
        threshold = (cumulative << 128) // total
        high.append(threshold >> 64)
        low.append(threshold & (2**64 - 1))
    return np.array(high, dtype=np.uint64), np.array(low, dtype=np.uint64), -reach


def _exp_minus_half_over(variance: int) -> int:
    """e^{−1/(2·variance)} in fixed point, by its Taylor series."""
    term, result, k = 1 << _BITS, 0, 0
    while term:
        result += -term if k % 2 else term
        k += 1
        term //= 2 * variance * k
    return result
