"""Reports that lie far from most others of their round: more than noise explains.

A warning, never a reason to leave a report out: a hospital whose patients differ is far from the
others, too.  A report is *outlying* if its distance from most others exceeds what noise makes
likely for silos that are `_APART` times as different as silos typically are in this round.
`noise` (the difference of two reports') is known, so the typical difference is what their typical
distance has beyond it.

False alarms: where all silos would give the same answer but for their weights and noise, a study
has one with probability `FALSE_ALARMS` at most.  That needs full batches and one gradient a report,
and `reception` looks nowhere else.  For a single report: if at least half of its distances are too
long, twice the expected share of such distances is at least 1, so Markov's inequality leaves twice
the chance that one of them is.  Weights from a to b put answers w·m apart by (b − a)·‖m‖ at most,
and a·‖m‖ is no longer than half of the reports but for the noise in them: that is allowed for, too.
That silos differ by less than three times as much as is typical is how we read "alike"; what it
means on real heterogeneous silos is measured (docs/algorithms.md): a hospital unlike all others is
found, too.
"""

from collections.abc import Sequence
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.reports.length_bound import VectorNoise

Integers = NDArray[np.int64]

FALSE_ALARMS = 1e-3  # probability of one, in a study whose silos are alike
_APART = 3.0
_FEWEST = 3  # reports among which one can stand apart


def outlying(
    reports: Sequence[Integers], noise: VectorNoise, chances: int, spread: float = 0.0
) -> int:
    """The number of reports that are far from most others of their round.

    `chances`: how many reports the whole study can have, any of which may raise a false alarm;
    `spread`: of the silos' weights, (heaviest − lightest) / lightest.
    """
    if len(reports) < _FEWEST:
        return 0
    doubt = log(2 * chances / FALSE_ALARMS)
    points = np.array(reports)
    squares = _from_most(points)
    typical = sqrt(max(0.0, _middle(squares) - noise.mean_square))
    weighted = spread * (_length(points) + noise.longest(0.0, doubt)) if spread else 0.0
    longest = noise.longest(_APART * typical + weighted, doubt)
    return int(np.count_nonzero(squares > longest**2))


def _length(points: Integers) -> float:
    """The length that half of the reports have at most."""
    return sqrt(_middle(np.square(points, dtype=np.float64).sum(axis=1)))


def _from_most(reports: Integers) -> NDArray[np.float64]:
    """For each report, the squared distance within which half of the others lie."""
    points = (reports - reports[0]).astype(np.float64)
    inner = points @ points.T
    lengths = np.diag(inner)
    squares = lengths[:, None] + lengths[None, :] - 2 * inner
    np.fill_diagonal(squares, np.inf)  # last in its row
    half = (len(reports) - 2) // 2
    ordered: NDArray[np.float64] = np.partition(squares, half, axis=1)
    return ordered[:, half]


def _middle(values: NDArray[np.float64]) -> float:
    """The median; of an even number of values, the lower of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])
