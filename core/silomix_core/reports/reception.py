"""How a server turns a round's reports into one: the same over a network as in one process.

A report that is longer than any silo of the study sends is left out (`length_bound`); the others
become one by the study's rule (`aggregation`), and those that lie far from most are counted
(`outliers`), where silos with the same records would say the same but for noise and weight.  Rounds
that are too large to be looked at together are only summed, a report at a time, which no rule but
the mean allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from silomix_core.accounting.events import Scheme
from silomix_core.mechanism.mechanism import Mechanism, Participant, PhaseKind
from silomix_core.reports.aggregation import LARGEST_ROUND, MEAN, Aggregation, ReportSum
from silomix_core.reports.length_bound import (
    VectorNoise,
    longest_answers,
    longest_reports,
    noise_of,
)
from silomix_core.reports.outliers import outlying

Integers = NDArray[np.int64]
_FLOATS = 1 + 1e-9  # far more than rounding adds to a norm, or a finer grid to the noise


class ReportTooLong(ValueError):
    """No silo of the study can have made such a report."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The outcome of a round's reports, and how many of them lie far from most others."""

    sum: ReportSum
    outlying: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """The facts known about a phase's reports before they come.

    `noise`: standard deviation in a coordinate; `longest`: bound on the norm of a report; `sway`:
    how far one report may move a bounded mean, over all rounds by one longest answer; `between`:
    the noise between two reports, if silos with the same records would differ by nothing else but
    their weights; `spread`: of these, (heaviest − lightest) / lightest.
    """

    dimension: int
    noise: float
    longest: float
    sway: float
    between: VectorNoise | None
    spread: float


class Reception:
    """The server's side of a study: opens each round with what its reports are held to."""

    def __init__(
        self,
        mechanism: Mechanism,
        participants: Sequence[Participant],
        aggregation: Aggregation = MEAN,
    ) -> None:
        """`participants` are all silos of the study."""
        self._mechanism, self._aggregation = mechanism, aggregation
        self._expected = _expected(mechanism, participants)
        self._chances = len(participants) * mechanism.rounds

    def gathering(self, round_number: int, asked: int) -> "Gathering":
        """An empty gathering for this round, of at most `asked` reports."""
        phase = self._mechanism.phase_of(round_number)
        evaluates = self._mechanism.phases[phase].kind is PhaseKind.EVALUATION
        return Gathering(
            self._expected[phase],
            MEAN if evaluates else self._aggregation,
            self._chances,
            together=asked * max(asked, self._mechanism.dimension) <= LARGEST_ROUND,
        )


class Gathering:
    """The reports of one round, as they come."""

    def __init__(
        self, expected: Expected, aggregation: Aggregation, chances: int, *, together: bool
    ) -> None:
        self._expected, self._aggregation = expected, aggregation
        self._chances, self._together = chances, together
        self._reports: list[Integers] = []
        self._summed = ReportSum(np.zeros(expected.dimension, dtype=np.int64), 0)

    def add(self, values: Integers) -> None:
        """Add one more report, or raise ReportTooLong."""
        floats = values.astype(np.float64)
        if sqrt(float(floats @ floats)) > self._expected.longest * _FLOATS:
            raise ReportTooLong("longer than any silo's report")
        if self._together:
            self._reports.append(values)
            return
        self._summed = ReportSum(self._summed.total + values, self._summed.reports + 1)

    def close(self) -> Gathered:
        """The outcome by the rule; too few reports for it are only summed: nobody will use them."""
        if not self._together or not self._reports:
            return Gathered(self._summed)
        expected = self._expected
        few = len(self._reports) < self._aggregation.fewest_reports
        rule = MEAN if few else self._aggregation
        total = rule.sum_of(self._reports, expected.noise, expected.sway)
        if expected.between is None:
            return Gathered(total)
        far = outlying(self._reports, expected.between, self._chances, expected.spread)
        return Gathered(total, far)


def _expected(mechanism: Mechanism, participants: Sequence[Participant]) -> tuple[Expected, ...]:
    weights = [each.weight for each in participants]
    longest = longest_reports(mechanism, participants)
    answers = longest_answers(mechanism, participants)
    training = sum(each.rounds for each in mechanism.phases if each.kind is PhaseKind.TRAINING)
    return tuple(
        Expected(
            mechanism.dimension,
            noise_of(mechanism, phase).deviation,
            longest[phase],
            answers[phase] / max(1, training),
            _between(mechanism, phase),
            max(weights) / min(weights) - 1,
        )
        for phase in range(len(mechanism.phases))
    )


def _between(mechanism: Mechanism, phase: int) -> VectorNoise | None:
    """The noise between two reports; None where silos differ by more than that: each draws a batch
    of its own, or goes its own way after the first step."""
    noise = noise_of(mechanism, phase, reports=2)
    drawn = mechanism.batch(phase).scheme is not Scheme.FULL
    return noise if noise.independent and not drawn else None
