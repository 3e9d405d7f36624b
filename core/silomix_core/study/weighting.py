"""How much each silo counts: the population that a study's objective is an average over.

A silo multiplies the mean of its records by its weight, 1 on average over the silos.  Replacing one
of its n records moves the result by at most 2·clip·weight/n, and one noise serves all silos: with
weights in proportion to records no silo's promise asks for more noise than another's.
"""

from collections.abc import Sequence
from enum import Enum

from silomix_core.mechanism.mechanism import Minibatch


class Weighting(Enum):
    """What silos count by."""

    RECORDS = "records"  # all records of all silos alike: a silo in proportion to its records
    EQUAL = "equal"  # all silos alike, as in the papers
    NAMED = "named"  # as the study says of each silo; 1 where it does not


def usual_weighting(batch: Minibatch) -> Weighting:
    """The weighting of a study that names none.

    By records, unless every silo draws the same number of them: then a silo that counts for more
    does so with as few, and needs more noise.
    """
    return Weighting.RECORDS if batch.count is None else Weighting.EQUAL


def weights(
    weighting: Weighting, records: Sequence[int], named: Sequence[float] | None = None
) -> list[float]:
    """The silos' weights, 1 on average."""
    relative: Sequence[float] = [1.0] * len(records)
    if weighting is Weighting.RECORDS:
        relative = records
    elif weighting is Weighting.NAMED and named is not None:
        relative = named
    average = sum(relative) / len(relative)
    return [each / average for each in relative]
