"""What a study says in public, as algorithms want to know it: derived, never typed apart."""

from collections.abc import Sequence
from math import isfinite

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.seam import LOCAL_STEPS, Algorithm, AlgorithmPlan, Setting
from silomix_core.mechanism import Mechanism, Participant
from silomix_core.task import Task


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
) -> Setting:
    """The setting of these silos; a round asks `asked` of them, all unless given."""
    targets = [each.target for each in participants]
    return Setting(
        rounds=rounds,
        dimension=task.dimension,
        silos=len(participants),
        participants=asked or len(participants),
        records=min(each.records for each in participants),
        radius=radius,
        lipschitz=min(clip, task.lipschitz),
        smoothness=task.smoothness,
        target=PrivacyTarget(
            min(each.epsilon for each in targets), min(each.delta for each in targets)
        ),
        ridge=ridge,
        local_steps=local_steps,
        ratio=ratio,
    )


def unfit(algorithm: Algorithm, task: Task) -> str | None:
    """Why this algorithm cannot learn this task, if it cannot."""
    if task.hidden is not None and (algorithm.needs_smooth or algorithm.smooths):
        return f"{algorithm.name} needs a convex loss, that of a network is not"
    if algorithm.needs_smooth and not isfinite(task.smoothness):
        return f"{algorithm.name} needs a loss without kinks, {task.loss.value} has one"
    return None


def plan_of(setting: Setting, mechanism: Mechanism) -> AlgorithmPlan:
    """The plan of an algorithm whose phases this mechanism was calibrated for."""
    return AlgorithmPlan(
        setting=setting,
        phases=mechanism.phases,
        noises=tuple(mechanism.sigma(phase) for phase in range(len(mechanism.phases))),
        share=mechanism.minibatch.ratio,
        largest_gradient=max(map(mechanism.largest_gradient, range(len(mechanism.phases)))),
    )
