"""A study in one process: the silos' own reporters and the coordinator's own algorithm, no network.

For research and notebooks.  Nobody is there to measure how long a silo takes, so it leaves out the
records that are not in its batch; its reports are the same.  Where the random bytes come from a
seeded generator a run can be repeated: noise that anybody can repeat protects nobody.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from silomix_core.algorithms.seam import (
    LOCAL_STEPS,
    USUAL_DESCENT,
    Aggregate,
    Algorithm,
    AlgorithmPlan,
    Descent,
    Point,
    Setting,
)
from silomix_core.attendance import attend
from silomix_core.mechanism import Mechanism, Minibatch, Participant
from silomix_core.models import model_of
from silomix_core.noise import RandomBytes, discrete_gaussian
from silomix_core.private_evaluation import Measure, Result, measure_of, study_steps
from silomix_core.reporting import Integers, Question, Reporter
from silomix_core.setting import phases_of, plan_of, setting_of
from silomix_core.task import Task
from silomix_core.update import Records


class Answers(Protocol):
    """A silo as a study sees it; a `Reporter` is one, and so is whoever repeats stored reports."""

    def values(
        self, question: Question, random_bytes: RandomBytes, kept: Integers | None
    ) -> Integers: ...

    def takes_part(self, round_number: int) -> bool: ...


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
        """The model: `evaluated` without what the silos say of it."""
        return self.evaluated(silos, rng, random_bytes=random_bytes, advance=advance).model

    def evaluated(
        self,
        silos: Sequence[Records],
        rng: np.random.Generator,
        *,
        random_bytes: RandomBytes | None = None,
        advance: Callable[[Point], None] = lambda _: None,
    ) -> Result:
        """The result; `rng` draws who is asked, and all else unless `random_bytes` are given."""
        drawn = random_bytes or rng.bytes
        plan = plan_of(self.setting, self.mechanism)
        local = self.algorithm.local(plan) if self.algorithm.local else None
        model = model_of(self.task, self.algorithm.smoothing(self.setting))
        measure = measure_of(self.task)
        reporters = [
            Reporter(
                self.mechanism,
                participant,
                records,
                model,
                drawn,
                local,
                attend(self.mechanism, place, drawn),
                measure,
                open_batches=True,
            )
            for place, (participant, records) in enumerate(
                zip(self.participants, silos, strict=True)
            )
        ]
        return evaluated_study(
            self.algorithm, plan, self.mechanism, reporters, rng, drawn, advance, measure
        )


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
    local_steps: int = LOCAL_STEPS,
    held_out: float = 0.0,
    minibatch: Minibatch | None = None,
    descent: Descent = USUAL_DESCENT,
) -> Rehearsal:
    """Calibrated for these silos; a round asks `asked` of them, all unless given."""
    batch = algorithm.minibatch or minibatch or Minibatch()
    setting = setting_of(
        task,
        participants,
        rounds=rounds,
        radius=radius,
        clip=clip,
        ridge=ridge,
        asked=asked,
        local_steps=local_steps,
        held_out=held_out,
        ratio=batch.ratio,
        descent=descent,
    )
    mechanism = Mechanism.calibrate(
        participants,
        clip=clip,
        dimension=task.dimension,
        phases=phases_of(algorithm, setting, held_out),
        minibatch=batch,
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
    """The model after all rounds: `evaluated_study` without what it says of it."""
    return evaluated_study(algorithm, plan, mechanism, silos, rng, random_bytes, advance).model


def evaluated_study(
    algorithm: Algorithm,
    plan: AlgorithmPlan,
    mechanism: Mechanism,
    silos: Sequence[Answers],
    rng: np.random.Generator,
    random_bytes: RandomBytes,
    advance: Callable[[Point], None] = lambda _: None,
    measure: Measure | None = None,
) -> Result:
    """The model after all rounds; `advance` is given the model so far after each.

    With a `measure`, also what held-out records say of it, if some are.

    Each round asks as many silos as the setting says, drawn anew with `rng`; with check-ins, those
    of them answer that chose this round.  All reports arrive and are used, so every silo that
    answered keeps its control variate.
    """
    steps = study_steps(algorithm, plan, mechanism, measure)
    query = next(steps)
    asked = plan.setting.participants
    kept = np.zeros((len(silos), mechanism.dimension), dtype=np.int64)
    for number in range(1, mechanism.rounds + 1):
        question = Question(number, query.point, query.control)
        phase = mechanism.phase_of(number)
        reports: list[Integers] = []
        for index in rng.choice(len(silos), asked, replace=False):
            if silos[index].takes_part(number):
                report = silos[index].values(question, random_bytes, kept[index])
                kept[index] += report
                reports.append(report)
        check_in = mechanism.phases[phase].check_in
        if check_in is not None and check_in.lone:
            dummy = discrete_gaussian(mechanism.dimension, random_bytes)
            reports = [reports[rng.integers(len(reports))] if reports else dummy]
        total = sum(reports, np.zeros(mechanism.dimension, dtype=np.int64))
        try:
            query = steps.send(Aggregate.of(total, len(reports), mechanism.grids[phase]))
        except StopIteration as end:
            result: Result = end.value
            advance(result.model)
            return result
        advance(query.model)
    raise ValueError(f"{algorithm.name} asks more than its {mechanism.rounds} rounds")
