"""What an audited study promises, and whether the attack is as strong as that promise.

Everything is derived from the study, whose mechanism the silo itself calibrates its noise with.
"""

from dataclasses import dataclass
from math import sqrt

from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.study import Study


@dataclass(frozen=True, slots=True)
class Claim:
    """What the audited study promises each record of the silo.

    answers: of the rounds, those in which the silo sends something about its records; steps:
    noised gradients that such an answer sums up.
    """

    target: PrivacyTarget
    mu: float
    rounds: int
    answers: int
    steps: int = 1

    @classmethod
    def of(cls, study: Study) -> "Claim":
        """The claim of a study with one silo, if it is a covered one."""
        silo = study.participant(study.silos[0])
        (phase,), (transcript,) = study.phases, study.mechanism().transcripts(silo)
        return cls(
            target=silo.target,
            mu=sqrt(sum(count * event.mu**2 for event, count in transcript)),
            rounds=study.rounds,
            answers=phase.answers,
            steps=phase.steps,
        )

    def __str__(self) -> str:
        """What the promise is for."""
        words = f"all {self.rounds} rounds of a study"
        if self.answers != self.rounds:
            words += f", in {self.answers} of which the silo takes part"
        if self.steps > 1:
            words += f", each answered by the sum of {self.steps} noised gradients"
        return words


def not_covered(study: Study) -> str | None:
    """Why the audit cannot attack this study with the full strength of its claim, if it cannot."""
    if study.minibatch.scheme is not Scheme.FULL:
        return "its silos draw batches, and the canary would be in some of them only"
    if len(study.phases) > 1 or study.phases[0].share < 1:
        return "it splits the records, and the canary would be in one part only"
    if ALGORITHMS[study.algorithm].smooths:
        return "its silos smooth the loss, and the canary's gradient would not be the longest"
    return None
