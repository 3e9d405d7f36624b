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
    Descent,
    Setting,
)
from silomix_core.mechanism.mechanism import Mechanism, Participant, Phase, PhaseKind
from silomix_core.task.task import Task


def setting_of(
    task: Task,
    participants: Sequence[Participant],
    *,
    rounds: int,
    radius: float,
    clip: float,
    ridge: float = 0.0,
    asked: int | None = None,
    local_steps: int = LOCAL_STEPS,
    ratio: float = 1.0,
    held_out: float = 0.0,
    descent: Descent = USUAL_DESCENT,
) -> Setting:
    """The setting of a study of these silos; a round asks `asked` of them, by default all.

    `held_out` is the share of their records that is kept from training.
    """
    targets = [each.target for each in participants]
    training = Phase(1, 1 - held_out)
    records = min(training.records(each.records) for each in participants)
    if records < 1:
        raise CalibrationImpossible(
            f"a silo of {min(each.records for each in participants)} records has none left to learn"
            f" from when {held_out:.3g} of them are held out"
        )
    return Setting(
        rounds=rounds,
        dimension=task.dimension,
        silos=len(participants),
        participants=asked or len(participants),
        records=records,
        radius=radius,
        lipschitz=min(clip, task.lipschitz),
        smoothness=task.smoothness,
        target=PrivacyTarget(
            min(each.epsilon for each in targets), min(each.delta for each in targets)
        ),
        ridge=ridge,
        local_steps=local_steps,
        ratio=ratio,
        descent=descent,
        numbers=task.loss.is_regression,
    )


def unfit(algorithm: Algorithm, task: Task) -> str | None:
    """The reason why this algorithm cannot learn this task, or None."""
    if task.hidden is not None and (algorithm.needs_smooth or algorithm.smooths):
        return f"{algorithm.name} needs a convex loss, that of a network is not"
    if algorithm.needs_smooth and not isfinite(task.smoothness):
        return f"{algorithm.name} needs a loss without kinks, {task.loss.value} has one"
    return None


def phases_of(algorithm: Algorithm, setting: Setting, held_out: float = 0.0) -> tuple[Phase, ...]:
    """The phases of a study: the algorithm's, then one that evaluates on held-out records."""
    training = algorithm.phases(setting)
    if not held_out:
        return training
    shrunk = (replace(phase, share=phase.share * (1 - held_out)) for phase in training)
    return (*shrunk, Phase(1, held_out, kind=PhaseKind.EVALUATION))


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
