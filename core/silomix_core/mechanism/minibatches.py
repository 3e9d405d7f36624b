"""Which records a round uses: the split into phases, drawn once, and the round's minibatch.

Both come from random bytes and public numbers alone, never from a record's value.  Membership and,
for Poisson batches, even the size of a batch stay the silo's secret: a batch is a mask over all
records of its phase, and the work that follows is the same for every mask.
"""

from collections.abc import Sequence
from math import floor

import numpy as np
from numpy.typing import NDArray

from silomix_core.accounting.events import Scheme
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.mechanism.mechanism import Minibatch, Phase

Mask = NDArray[np.bool_]


def partition(
    records: int, phases: Sequence[Phase], random_bytes: RandomBytes
) -> tuple[NDArray[np.int64], ...]:
    """Disjoint row numbers for each phase: slices of one random permutation."""
    order = np.argsort(_distinct_keys(records, random_bytes))
    sizes = [phase.records(records) for phase in phases]
    if sum(sizes) > records:
        raise ValueError("the phases need more records than there are")
    ends = np.cumsum(sizes)
    return tuple(order[end - size : end] for size, end in zip(sizes, ends, strict=True))


def draw(batch: Minibatch, records: int, random_bytes: RandomBytes) -> Mask | None:
    """Draw the minibatch of one round from so many `records`; None means all of them."""
    if batch.scheme is Scheme.FULL:
        return None
    if batch.scheme is Scheme.POISSON:
        threshold = min(floor(batch.ratio * 2**64), 2**64 - 1)
        return np.frombuffer(random_bytes(8 * records), dtype="<u8") < np.uint64(threshold)
    size = int(batch.size(records))
    if size < 1:
        raise ValueError(f"a batch of {batch.ratio:.3g} of {records} records is empty")
    while True:
        keys = np.frombuffer(random_bytes(8 * records), dtype="<u8")
        chosen: Mask = keys <= np.partition(keys, size - 1)[size - 1]
        if np.count_nonzero(chosen) == size:  # else a tie at the border (about n/2⁶⁴): draw again
            return chosen


def _distinct_keys(count: int, random_bytes: RandomBytes) -> NDArray[np.uint64]:
    """Random 64-bit numbers, drawn again until all differ: their order is a uniform permutation."""
    while True:
        keys = np.frombuffer(random_bytes(8 * count), dtype="<u8")
        if len(np.unique(keys)) == count:
            return keys
