"""A study in one process: the silos' own reporters and the coordinator's own algorithm, no network.

For research and notebooks.  Where the random bytes come from a seeded generator a run can be
repeated: noise that anybody can repeat protects nobody.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from silomix_core.algorithms.seam import Aggregate, Algorithm, AlgorithmPlan, Point, Setting
from silomix_core.mechanism import Mechanism, Participant
from silomix_core.noise import RandomBytes
from silomix_core.reporting import Reporter
from silomix_core.setting import plan_of, setting_of
from silomix_core.task import Task
from silomix_core.update import Records


class Answers(Protocol):
    """A silo as a study sees it; a `Reporter` is one, and so is whoever repeats stored reports."""

    def values(self, point: Point, phase: int, random_bytes: RandomBytes) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A study that is ready to run in one process: what a study file would say, and its noise."""

    task: Task
    algorithm: Algorithm
    participants: tuple[Participant, ...]
    setting: Setting
    mechanism: Mechanism

    def run(
        self,
        silos: Sequence[Records],
        rng: np.random.Generator,
        *,
        random_bytes: RandomBytes | None = None,
        advance: Callable[[Point], None] = lambda _: None,
    ) -> Point:
        """The model; `rng` draws who is asked, and all else too unless `random_bytes` are given."""
        drawn = random_bytes or rng.bytes
        reporters = [
            Reporter(self.mechanism, participant, records, self.task.loss, drawn)
            for participant, records in zip(self.participants, silos, strict=True)
        ]
        plan = plan_of(self.setting, self.mechanism)
        return run_study(self.algorithm, plan, self.mechanism, reporters, rng, drawn, advance)


def rehearsal(
    task: Task,
    algorithm: Algorithm,
    participants: Sequence[Participant],
    *,
    rounds: int,
    radius: float,
    clip: float,
    ridge: float = 0.0,
    asked: int | None = None,
) -> Rehearsal:
    """Calibrated for these silos; a round asks `asked` of them, all unless given."""
    setting = setting_of(
        task, participants, rounds=rounds, radius=radius, clip=clip, ridge=ridge, asked=asked
    )
    mechanism = Mechanism.calibrate(
        participants, clip=clip, dimension=task.dimension, phases=algorithm.phases(setting)
    )
    return Rehearsal(task, algorithm, tuple(participants), setting, mechanism)


def run_study(
    algorithm: Algorithm,
    plan: AlgorithmPlan,
    mechanism: Mechanism,
    silos: Sequence[Answers],
    rng: np.random.Generator,
    random_bytes: RandomBytes,
    advance: Callable[[Point], None] = lambda _: None,
) -> Point:
    """The model after all rounds; `advance` is given the model so far after each.

    Each round asks as many silos as the setting says, drawn anew with `rng`.
    """
    steps = algorithm.start(plan)
    query = next(steps)
    asked = plan.setting.participants
    for number in range(1, mechanism.rounds + 1):
        phase = mechanism.phase_of(number)
        total: NDArray[np.int64] = np.zeros(mechanism.dimension, dtype=np.int64)
        for index in rng.choice(len(silos), asked, replace=False):
            total += silos[index].values(query.point, phase, random_bytes)
        try:
            query = steps.send(Aggregate.of(total, asked, mechanism.grids[phase]))
        except StopIteration as end:
            model: Point = end.value
            advance(model)
            return model
        advance(query.model)
    raise ValueError(f"{algorithm.name} asks more than its {mechanism.rounds} rounds")
