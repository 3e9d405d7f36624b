"""What an audited study promises, and whether the attack is as strong as that promise.

Everything is derived from the study, whose mechanism the silo itself calibrates its noise with.
"""

from dataclasses import dataclass
from math import sqrt

from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.accounting.poisson import total_variation
from silomix_core.audit_bounds import mu_lower_pooled
from silomix_core.mechanism import Phase
from silomix_core.study import Study

from silomix.audit.canary import SMALL_RADIUS, strength

_STRONG = 0.999


@dataclass(frozen=True, slots=True)
class Part:
    """A phase, as the canary meets it if it is one of its records.

    rounds; answers: those of them in which the silo sends something about its records; chance:
    that the canary is in a batch; move: how far it then moves a noised gradient, to one side for
    D and to the other for D′, in standard deviations of its noise; mu: that of the Gaussian
    mechanism which is as hard to attack as all rounds together.
    """

    rounds: int
    answers: int
    chance: float
    move: float
    mu: float

    @classmethod
    def of(cls, phase: Phase, event: PrivacyEvent) -> "Part":
        return cls(phase.rounds, phase.answers, event.ratio, event.mu / 2, _mu(event, phase.events))


@dataclass(frozen=True, slots=True)
class Claim:
    """What the audited study promises each record of the silo.

    epsilon: of its planned events, the target up to numerical steps; steps: noised gradients that
    an answer sums up.
    """

    target: PrivacyTarget
    epsilon: float
    parts: tuple[Part, ...]
    records: int
    steps: int = 1

    @classmethod
    def of(cls, study: Study) -> "Claim":
        """The claim of a study with one silo, if it is a covered one."""
        silo, mechanism = study.participant(study.silos[0]), study.mechanism()
        parts = [
            Part.of(phase, mechanism.event(silo, index)) for index, phase in enumerate(study.phases)
        ]
        return cls(
            target=silo.target,
            epsilon=mechanism.epsilon(silo),
            parts=tuple(parts),
            records=silo.records,
            steps=study.phases[0].steps,
        )

    @property
    def mu(self) -> float:
        """Of the phase in which a record is found most easily."""
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
        """What the promise is for."""
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
    if (reached := strength(study)) < _STRONG:
        return (
            f"at this epsilon its silos smooth the loss so much, even in a ball of radius "
            f"{SMALL_RADIUS:g}, that the canary moves a report by {100 * reached:.0f} % of what is "
            "allowed; use a larger epsilon"
        )
    return None


def _mu(event: PrivacyEvent, count: int) -> float:
    """For drawn batches the μ at which a threshold errs as often as the best attacker does.

    The canary's reports are N(0, 1), or with the event's probability N(±move, 1), whichever way the
    batch is drawn: the others in it are blank.
    """
    if event.ratio == 1:
        return sqrt(count) * event.mu
    return mu_lower_pooled((1 - total_variation([(event, count)])) / 2)
