"""No algorithm asks a silo the same about the same records twice: silos would not answer."""

import numpy as np
import pytest
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.discrete_gaussian import Streams, discrete_gaussian
from silomix_core.evaluation.private import measure_of
from silomix_core.mechanism.mechanism import Participant
from silomix_core.reports.reporter import Integers, RoundQuery
from silomix_core.simulation.one_process import Rehearsal, evaluated_study, rehearsal
from silomix_core.study.derive import plan_of
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from support.specifications import specification

SILOS = 5
FEATURES = tuple(Feature(f"x{index}", -1.0, 1.0, 0.0) for index in range(3))
ASKING = sorted(
    name
    for name in ALGORITHMS
    if not name.startswith("check-ins")  # a silo answers once there
)


class Noting:
    """A silo that answers noise, and notes what it is asked about which of its records."""

    def __init__(self, made: Rehearsal) -> None:
        self._mechanism = made.mechanism
        self.asked: list[tuple[int, bytes, bytes]] = []

    def takes_part(self, round_number: int) -> bool:
        return True

    def values(self, question: RoundQuery, streams: Streams, kept: Integers) -> Integers:
        control = b"" if question.control is None else question.control.tobytes()
        phase = self._mechanism.phase_of(question.round)
        self.asked.append((phase, question.point.tobytes(), control))
        return discrete_gaussian(len(question.point), streams(b""), self._mechanism.fineness)


def rehearsed(name: str, asked: int, rounds: int) -> Rehearsal:
    task = Task(LossName.LOGISTIC, "y", FEATURES, Scaling.UNIT_BALL, 0.5)
    participants = [Participant(400, PrivacyTarget(4.0, 1e-5))] * SILOS
    return rehearsal(
        task,
        specification(name, most_rounds=rounds, radius=2.0, clip=0.5, participants=asked),
        participants,
    )


@pytest.mark.parametrize("asked", [SILOS, 3, 2])
@pytest.mark.parametrize("name", ASKING)
def test_every_question_to_a_silo_is_a_new_one(name: str, asked: int) -> None:
    made = rehearsed(name, asked, 40)
    rng = np.random.default_rng(asked)
    silos = [Noting(made) for _ in range(SILOS)]
    plan = plan_of(made.setting, made.mechanism)
    evaluated_study(
        made.algorithm, plan, made.mechanism, silos, rng, rng.bytes, measure=measure_of(made.task)
    )
    assert sum(len(silo.asked) for silo in silos) == asked * made.mechanism.rounds
    for silo in silos:
        assert len(set(silo.asked)) == len(silo.asked)
