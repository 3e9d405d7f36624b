"""How the reports of a round become one: the mean, or a rule that a few bad silos cannot pull away.

Whoever opens a batch sees every report of it, so any function of them is post-processing and costs
no privacy; it cannot tell which report is whose.  A rule's outcome is again an integer sum over a
number of reports, so that whoever stored it needs nothing else to go on.  It depends on the
reports alone, in whatever order they come.

- *mean*: their sum.  One report moves it by its length over the number of reports.
- *bounded-mean* (Huber 1964, with √(·² + r²) in place of his function): the point with the least
  sum of √(distance² + r²) to all reports.  A report much nearer than r counts as in the mean;
  those farther away all pull alike.  r² = σ² + (n·s)² with n reports, σ the noise of a coordinate
  and s the *sway*: about what one report moves the outcome by, at most.  It is the longest answer
  over the number of rounds: in a whole study as much as one answer, enough for a hospital unlike
  the others to be heard, little enough for a bad one to be borne (docs/algorithms.md has both).
- *trimmed-mean* (Yin, Chen, Kannan, Bartlett 2018, Def. 2): in each coordinate the mean without the
  f largest and the f smallest values, f being the bad silos it is told to hold off.  Exact.
- *geometric-median* (after Pillutla, Kakade, Harchaoui 2022, Alg. 2): the same with r = σ, which
  bends the median by less than noise does, and makes it unique and quickly found.  All reports pull
  alike, so it holds off most: bad silos, and hospitals unlike the others.

A held-out evaluation is always the mean: it counts records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import hypot

import numpy as np
from numpy.typing import NDArray

from silomix_core.mechanism.mechanism import Minibatch, Phase

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Reports times coordinates, or reports times reports if these are more, that are looked at together
LARGEST_ROUND = 2**26
_FEWEST_REPORTS = 3  # among which one can stand apart
_ALIKE = 2.0  # times the lightest silo's weight
_MOST_ITERATIONS, _SETTLED = 200, 1e-3  # the latter in standard deviations of the noise


class UnusableRule(ValueError):
    """The rule makes no sense in such a study."""


class Rule(Enum):
    MEAN = "mean"
    BOUNDED_MEAN = "bounded-mean"
    TRIMMED_MEAN = "trimmed-mean"
    GEOMETRIC_MEDIAN = "geometric-median"


@dataclass(frozen=True, slots=True)
class ReportSum:
    """An integer vector that stands for the sum of so many reports."""

    total: Integers
    reports: int


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A rule, and how many `bad_silos` it holds off if it is a trimmed mean (other rules: 0)."""

    rule: Rule = Rule.MEAN
    bad_silos: int = 0

    def __post_init__(self) -> None:
        if self.rule is Rule.TRIMMED_MEAN and self.bad_silos < 1:
            raise ValueError("a trimmed mean needs bad_silos, how many it holds off: at least 1")
        if self.rule is not Rule.TRIMMED_MEAN and self.bad_silos:
            raise ValueError(f"bad_silos belongs to a trimmed mean; a {self.rule.value} has none")

    @property
    def is_mean(self) -> bool:
        """Return whether the outcome is the sum of all reports."""
        return self.rule is Rule.MEAN

    @property
    def fewest_reports(self) -> int:
        """The fewest reports of a round that the rule can be applied to."""
        if self.rule is Rule.TRIMMED_MEAN:
            return 2 * self.bad_silos + 1
        return 1 if self.is_mean else _FEWEST_REPORTS

    def sum_of(self, reports: Sequence[Integers], noise: float, sway: float) -> ReportSum:
        """The vector that, by this rule, stands for the sum of the reports.

        `noise`: standard deviation of the noise in a coordinate of a report; `sway`: about how far
        one report may move a bounded mean.
        """
        if len(reports) < self.fewest_reports:
            raise ValueError(f"{self.rule.value}: {len(reports)} reports are too few")
        if self.rule is Rule.MEAN:
            return ReportSum(np.sum(reports, axis=0, dtype=np.int64), len(reports))
        if self.rule is Rule.TRIMMED_MEAN:
            return _trimmed(np.array(reports), self.bad_silos)
        bounded = self.rule is Rule.BOUNDED_MEAN
        radius = hypot(noise, len(reports) * sway) if bounded else noise
        return _middle(reports, radius, _SETTLED * noise)


MEAN = Aggregation()
USUAL = Aggregation(Rule.BOUNDED_MEAN)


def _trimmed(reports: Integers, held_off: int) -> ReportSum:
    """The sum in every coordinate without the `held_off` values at each end: of integers, so in any
    order the same."""
    kept = np.sort(reports, axis=0)[held_off : len(reports) - held_off]
    return ReportSum(kept.sum(axis=0), len(kept))


def _middle(reports: Sequence[Integers], radius: float, settled: float) -> ReportSum:
    """The point with the least sum of √(distance² + radius²), to within about `settled`.

    Weiszfeld's iteration: each point is a mean in which a report weighs one over such a distance.

    The mean is kept as the reports' shares in it, and all distances follow from inner products: an
    iteration takes as long for a million coordinates as for ten.  Reports are put in order first,
    and moved to around 0, where inner products lose no digits.
    """
    ordered = sorted(reports, key=lambda report: report.tobytes())
    centre = ordered[0]
    points = np.array([report - centre for report in ordered], dtype=np.float64)
    inner = points @ points.T
    shares = np.full(len(points), 1 / len(points))
    for _ in range(_MOST_ITERATIONS):
        towards = inner @ shares
        squared = np.diag(inner) - 2 * towards + shares @ towards
        pulls = 1 / np.sqrt(np.maximum(squared, 0.0) + radius**2)
        changed = pulls / pulls.sum() - shares
        shares = shares + changed
        if changed @ inner @ changed < settled**2:
            break
    whole = np.rint(len(points) * (shares @ points)).astype(np.int64)
    return ReportSum(whole + len(points) * centre, len(points))


# What a study may choose --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The facts about a study that decide which rules make sense: its phases, what its rounds draw,
    the fewest reports of a round, how many silos it asks, and a report's coordinates."""

    phases: tuple[Phase, ...]
    minibatch: Minibatch
    fewest: int
    asked: int
    dimension: int


def unusable(aggregation: Aggregation, given: Circumstances) -> str | None:
    """The reason why this rule makes no sense in such a study, or None."""
    rule = aggregation.rule.value
    if aggregation.is_mean:
        return None
    if any(phase.control for phase in given.phases):
        return (
            f"{rule}: control variates need the mean; the server's own is the running sum of all "
            "reports, and without some of them it would no longer be the silos'"
        )
    if any(phase.check_in for phase in given.phases):
        return (
            f"{rule}: with check-ins a round has as many reports as silos chose it, perhaps one; "
            "only the mean makes sense of that"
        )
    if given.minibatch.count == 1:
        return (
            f"{rule}: a report of one record is unlike most others by nature, and the middle of "
            "single records is not what they say on average; use the mean"
        )
    if given.fewest < aggregation.fewest_reports:
        return (
            f"{rule}: needs {aggregation.fewest_reports} reports in every round, and a batch may "
            f"have {given.fewest}; raise batch.minimum, or hold off fewer"
        )
    if given.asked * max(given.asked, given.dimension) > LARGEST_ROUND:
        return (
            f"{rule}: {given.asked} reports of {given.dimension} values are more than a server "
            f"looks at together ({LARGEST_ROUND} values); use the mean"
        )
    return None


def usual(given: Circumstances, weights: Sequence[float]) -> Aggregation:
    """The default rule of a study that names none: the bounded mean where it makes sense.

    Where one silo counts more than twice as much as another, the mean: a heavy silo's reports are
    longer, and what is far away counts less than it should.
    """
    alike = max(weights) <= _ALIKE * min(weights)
    return USUAL if alike and unusable(USUAL, given) is None else MEAN
