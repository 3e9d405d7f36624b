"""How long an honest report can be, and how far apart two of them: what noise makes likely.

A report is a bounded vector plus noise of a known size in every coordinate, so its Euclidean norm
is known but for chance.  A longer one was not made by the mechanism, whatever its coordinates
look like one by one.  Over a whole study, all silos and rounds together, an honest report is taken
for too long with probability `FALSE_REJECTIONS` at most.

A discrete Gaussian X is sub-Gaussian with its own σ² (E e^{tX} ≤ e^{t²σ²/2}), and so
e^{λ(u + X)²} = E_G e^{√(2λ)(u + X)G}, G ~ N(0, 1), has at most the expectation that it has for a
Gaussian.  Whatever follows from the moment generating function of χ² therefore holds for our noise.
With x = ln(1/probability):

- a vector u that does not depend on the noise: ‖u + Z‖² ≤ s²(d + ν + 2√((d + 2ν)x) + 2x) with
  ν = ‖u‖²/s² (Birgé 2001, Lemma 8.1; for u = 0 Laurent, Massart 2000, Lemma 1);
- a vector u that does: ‖u + Z‖ ≤ ‖u‖ + ‖Z‖, the second by the same with ν = 0.

s is the standard deviation of all noise in a coordinate.  Where silos take several local steps, or
send how an answer differs from the one before, a later gradient depends on earlier noise.
docs/privacy.md derives all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

from silomix_core.accounting.bounds.binomial import upper_quantile
from silomix_core.accounting.events import Scheme
from silomix_core.mechanism.mechanism import Mechanism, Participant

FALSE_REJECTIONS = 1e-9  # of any honest report of a study


@dataclass(frozen=True, slots=True)
class VectorNoise:
    """The noise in a vector: the number of coordinates, the standard deviation in each, and whether
    the vector that the noise is added to is independent of it."""

    dimension: int
    deviation: float
    independent: bool = True

    @property
    def mean_square(self) -> float:
        """The mean square of the noise's norm."""
        return self.dimension * self.deviation**2

    def longest(self, signal: float, doubt: float) -> float:
        """A bound on the norm of a vector of norm `signal` and noise; fails with e^−doubt."""
        if not self.independent:
            return signal + self._norm(0.0, doubt)
        return self._norm((signal / self.deviation) ** 2, doubt)

    def _norm(self, excess: float, doubt: float) -> float:
        """A bound on the norm of noise plus a vector whose squared norm is `excess` variances."""
        chance = 2 * sqrt((self.dimension + 2 * excess) * doubt) + 2 * doubt
        return self.deviation * sqrt(self.dimension + excess + chance)


def noise_of(mechanism: Mechanism, phase: int, reports: int = 1) -> VectorNoise:
    """The noise, in grid units, in a report of this phase, or with `reports` = 2 in a difference.

    With control variates, a report holds the noise of this answer and of an earlier one.
    """
    kind = mechanism.phases[phase]
    drawn = reports * kind.steps * (2 if kind.control else 1)
    alone = kind.steps == 1 and not kind.control
    return VectorNoise(mechanism.dimension, mechanism.sigma_units * sqrt(drawn), alone)


def longest_answers(mechanism: Mechanism, participants: Sequence[Participant]) -> tuple[float, ...]:
    """For each phase, the largest norm of any silo's answer before noise, in grid units.

    This is for batches of their expected size, without control variates.
    """
    kinds = set(participants)
    return tuple(
        kind.steps * max(mechanism.longest_mean_units(each, phase) for each in kinds)
        for phase, kind in enumerate(mechanism.phases)
    )


def longest_reports(mechanism: Mechanism, participants: Sequence[Participant]) -> tuple[float, ...]:
    """For each phase, the norm, in grid units, beyond which no silo of the study sent a report.

    `participants` are all silos: a report may be anybody's, so the heaviest silo's bound counts.
    """
    kinds = list(set(participants))
    return tuple(
        _longest(mechanism, kinds, phase, len(participants))
        for phase in range(len(mechanism.phases))
    )


def _longest(mechanism: Mechanism, kinds: list[Participant], phase: int, silos: int) -> float:
    kind = mechanism.phases[phase]
    sent = silos * mechanism.rounds
    # anybody may have chosen which earlier answer the control variate is from: all are counted
    noises = sent * (kind.rounds if kind.control else 1)
    means = max(
        mechanism.longest_mean_units(each, phase, _fullest(mechanism, each, phase, sent))
        for each in kinds
    )
    signal = kind.steps * (2 if kind.control else 1) * means
    return noise_of(mechanism, phase).longest(signal, log(2 * noises / FALSE_REJECTIONS))


def _fullest(mechanism: Mechanism, silo: Participant, phase: int, sent: int) -> float:
    """How many times its expected size a batch can be; half of `FALSE_REJECTIONS` is for this."""
    batch, kind = mechanism.batch(phase), mechanism.phases[phase]
    if batch.scheme is not Scheme.POISSON:
        return 1.0
    records = kind.records(silo.records)
    chance = FALSE_REJECTIONS / (2 * sent * kind.steps)
    return upper_quantile(records, batch.ratio, chance) / batch.size(records)
