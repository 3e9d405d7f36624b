"""What algorithms need of a study: derived from its public numbers, never typed separately."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.base import (
    LOCAL_STEPS,
    USUAL_DESCENT,
    Algorithm,
    AlgorithmPlan,
    Setting,
)
from silomix_core.algorithms.catalogue import AUTO, algorithm
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase, PhaseKind
from silomix_core.study.schedule import turns_of
from silomix_core.study.specification import Specification
from silomix_core.study.weighting import Weighting, usual_weighting, weights
from silomix_core.task.task import Task


def setting_of(
    task: Task, specification: Specification, participants: Sequence[Participant]
) -> Setting:
    """The setting of a study of these silos, with what its specification leaves open as usual."""
    targets = [each.target for each in participants]
    held_out = specification.held_out
    training = Phase(1, 1 - held_out)
    records = min(training.records(each.records) for each in participants)
    if records < 1:
        raise CalibrationImpossible(
            f"a silo of {min(each.records for each in participants)} records has none left to learn"
            f" from when {held_out:.3g} of them are held out"
        )
    return Setting(
        rounds=specification.most_rounds,
        dimension=task.dimension,
        silos=len(participants),
        participants=specification.participants or len(participants),
        records=records,
        radius=specification.radius,
        lipschitz=min(specification.clip, task.lipschitz),
        smoothness=task.smoothness,
        target=PrivacyTarget(
            min(each.epsilon for each in targets), min(each.delta for each in targets)
        ),
        ridge=specification.ridge,
        local_steps=specification.local_steps or LOCAL_STEPS,
        ratio=minibatch_of(specification).ratio,
        descent=specification.descent or USUAL_DESCENT,
        numbers=task.loss.is_regression,
        unevenness=sum(each.weight**2 for each in participants) / len(participants),
    )


def minibatch_of(specification: Specification) -> Minibatch:
    """The minibatch of a round: the algorithm's own, or the one that the specification chooses."""
    return algorithm(specification.algorithm).minibatch or specification.minibatch


def weighting_of(specification: Specification) -> Weighting:
    """The weighting of silos: named by the specification, or the usual one for its batches."""
    if specification.named_weighting is not None:
        return specification.named_weighting
    is_auto = specification.algorithm == AUTO
    return usual_weighting(Minibatch() if is_auto else minibatch_of(specification))


def participants_of(specification: Specification, records: Sequence[int]) -> list[Participant]:
    """Silos of so many records, which all have the specification's target, as it weights them."""
    each = zip(records, weights(weighting_of(specification), records), strict=True)
    return [Participant(count, specification.target, weight) for count, weight in each]


def unfit(entry: Algorithm, task: Task) -> str | None:
    """The reason why this algorithm cannot learn this task, or None."""
    if task.hidden is not None and (entry.needs_smooth or entry.smooths):
        return f"{entry.name} needs a convex loss, that of a network is not"
    if entry.needs_smooth and not isfinite(task.smoothness):
        return f"{entry.name} needs a loss without kinks, {task.loss.value} has one"
    return None


def phases_of(setting: Setting, specification: Specification) -> tuple[Phase, ...]:
    """The phases of a study: the algorithm's, then one that evaluates on held-out records."""
    phases, held_out = algorithm(specification.algorithm).phases(setting), specification.held_out
    if held_out:
        shrunk = (replace(phase, share=phase.share * (1 - held_out)) for phase in phases)
        phases = (*shrunk, Phase(1, held_out, kind=PhaseKind.EVALUATION))
    draw, silos, asked = specification.draw, setting.silos, setting.participants
    turned = {
        phase: replace(phase, turns=turns_of(draw, phase.rounds, silos, asked))
        for phase in set(phases)
    }
    return tuple(turned[phase] for phase in phases)


def plan_of(setting: Setting, mechanism: Mechanism) -> AlgorithmPlan:
    """The plan of an algorithm for whose phases this mechanism was calibrated.

    Its shares are of the records that were not held out: the algorithm knows no others.
    """
    held_out = sum(each.share for each in mechanism.phases if each.kind is PhaseKind.EVALUATION)
    training = [each for each in mechanism.phases if each.kind is PhaseKind.TRAINING]
    return AlgorithmPlan(
        setting=setting,
        phases=tuple(replace(each, share=each.share / (1 - held_out)) for each in training),
        noises=tuple(mechanism.sigma(phase) for phase in range(len(training))),
        share=mechanism.minibatch.share(setting.records),
        largest_gradient=max(map(mechanism.largest_gradient, range(len(training)))),
    )
