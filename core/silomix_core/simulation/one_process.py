"""A study in one process: the silos' own reporters and the coordinator's own algorithm, no network.

For research and notebooks.  Nobody is there to measure how long a silo takes, so it leaves out the
records that are not in its minibatch; its reports are the same.  Where the random bytes come from a
seeded generator a run can be repeated: noise that anybody can repeat protects nobody.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from silomix_core.algorithms.base import Aggregate, Algorithm, AlgorithmPlan, Point, Setting
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.discrete_gaussian import RandomBytes, Streams, discrete_gaussian, one_stream
from silomix_core.evaluation.private import Measure, Result, measure_of, study_steps
from silomix_core.mechanism.attendance import attend
from silomix_core.mechanism.mechanism import Mechanism, Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.model.models import model_of
from silomix_core.reports.aggregation import (
    Aggregation,
    Circumstances,
    ReportSum,
    UnusableRule,
    unusable,
    usual,
)
from silomix_core.reports.reception import Reception, ReportTooLong
from silomix_core.reports.reporter import Integers, Reporter, RoundQuery
from silomix_core.study.derive import minibatch_of, phases_of, plan_of, setting_of
from silomix_core.study.schedule import Draw, asked_places
from silomix_core.study.specification import Specification
from silomix_core.task.task import Task


class Answers(Protocol):
    """A silo as a study sees it: a `Reporter`, or whoever repeats stored reports."""

    def values(self, query: RoundQuery, streams: Streams, kept: Integers | None) -> Integers: ...

    def takes_part(self, round_number: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A study that is ready to run in one process: what a study file would say, and its noise."""

    task: Task
    algorithm: Algorithm
    participants: tuple[Participant, ...]
    setting: Setting
    mechanism: Mechanism
    aggregation: Aggregation

    def run(
        self,
        silos: Sequence[Records],
        rng: np.random.Generator,
        *,
        random_bytes: RandomBytes | None = None,
        advance: Callable[[Point], None] = lambda _: None,
    ) -> Point:
        """Run the study for its model alone, without an evaluation."""
        return self.evaluated(silos, rng, random_bytes=random_bytes, advance=advance).model

    def evaluated(
        self,
        silos: Sequence[Records],
        rng: np.random.Generator,
        *,
        random_bytes: RandomBytes | None = None,
        advance: Callable[[Point], None] = lambda _: None,
    ) -> Result:
        """Run the study; `rng` draws who is asked, and noise and batches without `random_bytes`."""
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
        reception = Reception(self.mechanism, self.participants, self.aggregation)
        return evaluated_study(
            self.algorithm, plan, self.mechanism, reporters, rng, drawn, advance, measure, reception
        )


def rehearsal(
    task: Task, specification: Specification, participants: Sequence[Participant]
) -> Rehearsal:
    """A rehearsal of the task, calibrated for these silos."""
    entry = algorithm(specification.algorithm)
    setting = setting_of(task, specification, participants)
    batch = minibatch_of(specification)
    mechanism = Mechanism.calibrate(
        participants,
        clip=specification.clip,
        dimension=task.dimension,
        phases=phases_of(setting, specification),
        minibatch=batch,
    )
    asks = setting.participants
    given = Circumstances(mechanism.phases, batch, asks, asks, task.dimension)
    weights = [each.weight for each in participants]
    aggregation = specification.named_aggregation or usual(given, weights)
    if (reason := unusable(aggregation, given)) is not None:
        raise UnusableRule(reason)
    return Rehearsal(task, entry, tuple(participants), setting, mechanism, aggregation)


def run_study(
    algorithm: Algorithm,
    plan: AlgorithmPlan,
    mechanism: Mechanism,
    silos: Sequence[Answers],
    rng: np.random.Generator,
    random_bytes: RandomBytes,
    advance: Callable[[Point], None] = lambda _: None,
) -> Point:
    """Run all rounds as `evaluated_study` does, for the model alone."""
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
    reception: Reception | None = None,
) -> Result:
    """Run all rounds to the final model; `advance` is given the model so far after each round.

    With a `measure`, the result has what held-out records say of the model, if there are any.
    Reports become one by the `reception` of the study; without one they are summed as they are.

    Each round asks as many silos as the setting says, by the schedule of a study whose hash `rng`
    draws; with check-ins, only the silos that chose this round answer.  All reports arrive and are
    used, so every silo that answered keeps its control variate.
    """
    steps = study_steps(algorithm, plan, mechanism, measure)
    query = next(steps)
    seed, asked = rng.bytes(32), plan.setting.participants
    kept = np.zeros((len(silos), mechanism.dimension), dtype=np.int64)
    streams = one_stream(random_bytes)
    for number in range(1, mechanism.rounds + 1):
        round_query = RoundQuery(number, query.point, query.control)
        phase = mechanism.phase_of(number)
        reports: list[Integers] = []
        draw = Draw.TURNS if mechanism.phases[phase].turns else Draw.INDEPENDENT
        first = mechanism.first_round(phase)
        for index in sorted(asked_places(seed, number, len(silos), asked, draw, first)):
            if silos[index].takes_part(number):
                report = silos[index].values(round_query, streams, kept[index])
                kept[index] += report
                reports.append(report)
        check_in = mechanism.phases[phase].check_in
        if check_in is not None and check_in.lone:
            dummy = discrete_gaussian(mechanism.dimension, random_bytes, mechanism.fineness)
            reports = [reports[rng.integers(len(reports))] if reports else dummy]
        one = _summed(reports, number, mechanism, reception)
        try:
            query = steps.send(Aggregate.of(one.total, one.reports, mechanism.grids[phase]))
        except StopIteration as end:
            result: Result = end.value
            advance(result.model)
            return result
        advance(query.model)
    raise ValueError(f"{algorithm.name} asks more than its {mechanism.rounds} rounds")


def _summed(
    reports: Sequence[Integers], number: int, mechanism: Mechanism, reception: Reception | None
) -> ReportSum:
    if reception is None:
        zero = np.zeros(mechanism.dimension, dtype=np.int64)
        return ReportSum(sum(reports, zero), len(reports))
    gathering = reception.gathering(number, len(reports))
    for report in reports:
        with suppress(ReportTooLong):
            gathering.add(report)
    return gathering.close().sum
