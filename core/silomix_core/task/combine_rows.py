"""The rules by which several rows of one person become one record.

The unit of privacy is a person: whatever is in the rows, what is learnt from a person is bounded as
what is learnt from a single row.  The rules do not depend on the order in which a source
happens to give the rows, to the last bit.
"""

from collections.abc import Sequence
from math import fsum, inf

from silomix_core.task.feature import Combine

Dated = tuple[float, float]  # when (−∞: not known), and the value


def combined(rule: Combine, values: Sequence[Dated]) -> float:
    """The one value of a person who has these values (at least one, none of them missing).

    Of several at the same time the largest is taken: any rule would do that needs no order.  A
    value without a time is used only for a person who has no other.
    """
    if rule is Combine.COUNT:
        return float(len(values))
    if rule is Combine.LAST:
        return max(values)[1]
    if rule is Combine.FIRST:
        return min(_dated(values), key=lambda each: (each[0], -each[1]))[1]
    numbers = [value for _, value in values]
    if rule is Combine.MIN:
        return min(numbers)
    if rule in (Combine.MAX, Combine.ANY):
        return max(numbers)
    total = fsum(numbers)  # rounded once, so in any order the same
    return total if rule is Combine.SUM else total / len(numbers)


def _dated(values: Sequence[Dated]) -> Sequence[Dated]:
    return [each for each in values if each[0] > -inf] or values
