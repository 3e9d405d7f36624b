"""Studies that are audited, and what the audit claims of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.model.clipped_sum import ClippedSum, Records, to_grid
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName, loss
from silomix_lab.audit.canary import CLIP, RADIUS, RECORDS, TASK, neighbours, point
from silomix_lab.audit.claim import AuditClaim, CanaryPhase
from silomix_lab.audit.run_audit import AuditOptions
from silomix_lab.audit.scratch import make

from support.specifications import specification

TARGET = PrivacyTarget(6.0, 1e-5)
SILO = Participant(RECORDS, TARGET)
ROUNDS = 4
AUDITED = specification(most_rounds=ROUNDS, clip=CLIP, radius=1.0, target=TARGET)
AUDIT = AuditOptions(AUDITED)
HALF = {scheme: Minibatch(scheme, 0.5) for scheme in (Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT)}


def mechanism() -> Mechanism:
    return Mechanism.calibrate([SILO], clip=CLIP, dimension=TASK.dimension, phases=[Phase(ROUNDS)])


def claimed() -> AuditClaim:
    part = CanaryPhase.of(Phase(ROUNDS), mechanism().event(SILO))
    return AuditClaim(TARGET, TARGET.epsilon, (part,), RECORDS)


def means(moved: float = 0.0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The exact means of D and D′ on the grid, at a point that the audit asks about, or so far in
    the canary's direction from it."""
    data = neighbours()
    first, second = (
        to_grid(
            ClippedSum(
                Records(TASK.encode(people.values), TASK.encode_labels(people.labels)),
                loss(LossName.LOGISTIC),
                CLIP,
            ).at(point(3, 10, RADIUS) + moved * data.direction),
            mechanism().units_per_sum(SILO),
        )
        for people in (data.first, data.second)
    )
    return first, second


def made(
    folder: Path,
    name: str,
    minibatch: Minibatch | None = None,
    steps: int | None = None,
    loss: LossName = LossName.LOGISTIC,
) -> Study:
    named = replace(AUDITED, algorithm=name, local_steps=steps, minibatch=minibatch or Minibatch())
    return make(folder, named, loss).study
