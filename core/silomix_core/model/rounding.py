"""A point as silos use it: rounded to integers, so that every score is exact.

float64 adds and multiplies integers without error as long as nothing exceeds 2⁵³.  A record is an
integer vector x of norm at most `LONGEST_RECORD`; if the weights are integers W, too, every product
and every partial sum of x·W is at most ‖x‖·‖W‖ (Cauchy, Schwarz).  So with ‖W‖ below 2³⁶ a score is
one number, in whatever order, in blocks of whatever size and on whatever processor it is added up.

The unit of W is a power of two and follows from the point alone, never from a record: all records
of all silos are asked the same.  A weight moves by at most half a unit: at ‖point‖ = 50 that is
2⁻³¹, and a score by at most 2⁻³¹·√d·‖x‖.
"""

from dataclasses import dataclass
from math import frexp, inf, ldexp, sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.elementary import row_sums
from silomix_core.task.task import UNIT

LONGEST_RECORD = 2**17  # `Task.encode` gives at most √2·2¹⁶ + √d/2, and d is at most 2²¹ + 1
SCORE_BITS = 36  # 53 − 17
_FARTHEST = 2.0**200  # so that nothing overflows: neither a score nor the square of a gradient
_FINEST = 100  # no unit is below 2⁻¹⁰⁰: subnormal numbers take longer, and the time would tell
_SMALLEST = 1000  # a point below 2⁻¹⁰⁰⁰ is 0
_ROOM = 1 + 2.0**-10  # for what rounding adds to a norm, at most √d/2

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights (d,) or (m, d): integers, kept as float64, in a unit that is a power of two."""

    integers: Floats
    unit: float

    def scores(self, vectors: Floats, per_unit: int = UNIT) -> Floats:
        """The products with vectors (n, d) of integers in units of 1/per_unit: (n,), or (n, m) that
        lies in memory by rows of the weights."""
        if self.integers.ndim == 1:
            found = exact_product(vectors, self.integers)
        else:
            found = exact_product(self.integers, vectors.T).T
        found *= self.unit / per_unit
        return found


def exact_product(first: Floats, second: Floats) -> Floats:
    """The matrix product of integers (or of integers in one unit that is a power of two).

    Exact, whatever the order in which it is added up: callers see to it that the products of
    absolute values add up to at most 2⁵³ units.  All products on the way from records to a sum are
    formed here.
    """
    found: Floats = first @ second
    return found


def rounded(weights: Floats, bits: int = SCORE_BITS) -> Weights:
    """The weights (d,) or (m, d), rounded in the finest unit that leaves each row's norm below
    2^bits."""
    largest = max(float(weights.max()), -float(weights.min()))
    if not largest <= _FARTHEST:
        if not largest <= inf:
            raise ValueError("a point consists of numbers")
        weights, largest = np.clip(weights, -_FARTHEST, _FARTHEST), _FARTHEST
    exponent = max(frexp(largest)[1], -_SMALLEST)
    squares = weights * ldexp(1.0, -exponent)  # so that no square overflows or vanishes
    squares *= squares
    _, more = frexp(sqrt(float(row_sums(squares).max())) * _ROOM)
    places = min(bits - exponent - more, _FINEST)
    integers = weights * ldexp(1.0, places)
    return Weights(np.rint(integers, out=integers), ldexp(1.0, -places))
