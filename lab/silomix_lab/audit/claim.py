"""What an audited study promises, and whether the attack is as strong as that promise.

Everything is derived from the study, whose mechanism the silo itself calibrates its noise with.
"""

from dataclasses import dataclass
from math import sqrt

from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.accounting.poisson import total_variation
from silomix_core.claims.audit_bounds import mu_lower_pooled
from silomix_core.discrete_gaussian import SIGMA_UNITS
from silomix_core.mechanism.mechanism import Phase
from silomix_core.study.study import Study

from silomix_lab.audit.canary import SMALL_RADIUS, has_crowd, strength

_STRONG = 0.999


@dataclass(frozen=True, slots=True)
class CanaryPhase:
    """A phase, as the canary meets it if the canary is one of the phase's records.

    rounds: all of them; answers: the rounds in which the silo sends something about its records;
    chance: the probability that the canary is in a batch; move: how far the canary then moves a
    noised gradient, to one side for D and to the other for D′, in standard deviations of its noise;
    mu: the μ of the Gaussian mechanism which is as hard to attack as all rounds together.
    """

    rounds: int
    answers: int
    chance: float
    move: float
    mu: float

    @classmethod
    def of(cls, phase: Phase, event: PrivacyEvent) -> "CanaryPhase":
        return cls(phase.rounds, phase.answers, event.ratio, event.mu / 2, _mu(event, phase.events))


@dataclass(frozen=True, slots=True)
class AuditClaim:
    """What the audited study promises each record of the silo.

    epsilon: that of the planned events, which is the target up to numerical steps; steps: noised
    gradients that an answer sums up; sigma_units: the σ of each one's noise, in units of a report.
    """

    target: PrivacyTarget
    epsilon: float
    parts: tuple[CanaryPhase, ...]
    records: int
    steps: int = 1
    sigma_units: float = SIGMA_UNITS

    @classmethod
    def of(cls, study: Study) -> "AuditClaim":
        """The claim of a study with one silo that the audit covers."""
        silo, mechanism = study.participant(study.silos[0]), study.mechanism()
        parts = [
            CanaryPhase.of(phase, mechanism.event(silo, index))
            for index, phase in enumerate(study.phases)
        ]
        return cls(
            target=silo.target,
            epsilon=mechanism.epsilon(silo),
            parts=tuple(parts),
            records=silo.records,
            steps=study.phases[0].steps,
            sigma_units=mechanism.sigma_units,
        )

    @property
    def mu(self) -> float:
        """The μ of the phase in which a record is found most easily."""
        return max(part.mu for part in self.parts)

    @property
    def rounds(self) -> int:
        return sum(part.rounds for part in self.parts)

    @property
    def answers(self) -> int:
        return sum(part.answers for part in self.parts)

    @property
    def is_drawn(self) -> bool:
        """Whether the canary is in some batches only."""
        return any(part.chance < 1 for part in self.parts)

    def __str__(self) -> str:
        """The rounds that the promise covers, in words."""
        words = f"all {self.rounds} rounds of a study"
        if self.answers != self.rounds:
            words += f", in {self.answers} of which the silo takes part"
        if self.steps > 1:
            words += f", each answered by the sum of {self.steps} noised gradients"
        if len(self.parts) > 1:
            words += f", in {len(self.parts)} phases of which a record is in one"
        if self.is_drawn:
            words += f", in which a record is drawn with probability {self.parts[0].chance:g}"
        return words


def not_covered(study: Study) -> str | None:
    """Why the audit cannot attack this study with the full strength of its claim, if it cannot."""
    if study.minibatch.scheme is not Scheme.FULL and study.phases[0].steps > 1:
        return "its silos draw a batch for every local step, and a report shows only their sum"
    if has_crowd(study.task) and not _has_everybody(study):
        return (
            "people at the kink of the hinge loss are attacked only where every report is of all "
            "records at the point that was asked"
        )
    if (reached := strength(study)) < _STRONG:
        return (
            f"at this epsilon its silos smooth the loss so much, even in a ball of radius "
            f"{SMALL_RADIUS:g}, that the canary moves a report by {100 * reached:.0f} % of what is "
            "allowed; use a larger epsilon"
        )
    return None


def _has_everybody(study: Study) -> bool:
    """Whether a report is one gradient of all records."""
    return (
        study.minibatch.scheme is Scheme.FULL
        and len(study.phases) == 1
        and study.phases[0].share == 1
        and study.phases[0].steps == 1
    )


def _mu(event: PrivacyEvent, count: int) -> float:
    """The μ of `count` such events together.

    For drawn batches it is the μ at which a threshold errs as often as the best attacker does.  The
    canary's reports are N(0, 1), or with the event's probability N(±move, 1), whichever way the
    batch is drawn: the others in it are blank.
    """
    if event.ratio == 1:
        return sqrt(count) * event.mu
    return mu_lower_pooled((1 - total_variation([(event, count)])) / 2)
