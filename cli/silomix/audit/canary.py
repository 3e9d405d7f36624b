"""What is asked about: two data sets that differ in one record, as far apart as a clip allows.

The canary is a record whose label decides the sign of its gradient.  At a point where its score is
0 the residual is ∓½, so its gradient, cut to the clip C, is ∓C in one fixed direction: replacing
its label moves the mean by 2C/n, which is all that the mechanism allows anybody.  The attack is
therefore as strong as the claim, not weaker.

All other records come in pairs that cancel each other at these points.  *Blank* features are 0 in
every record: there a report holds nothing but noise, whatever the silo computed.

Every record's residual is cut, and stays cut at scores up to 1.1.  So where silos walk, all of this
holds on the whole walk if it is short, and it is as long as the study's ball is wide.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from silomix_core.losses import LossName
from silomix_core.task import Feature, Scaling, Task

from silomix.demo.tables import Table

Floats = NDArray[np.float64]

RECORDS = 21
CLIP = 0.1  # far below the canary's gradient of 0.38: a build that clips otherwise is seen
RADIUS = 1.0
WALK_RADIUS = 0.01  # where silos walk
_SIGNAL, _BLANK = 4, 4

TASK = Task(
    loss=LossName.LOGISTIC,
    label="outcome",
    features=(
        Feature("signal", -1.0, 1.0, 0.0, count=_SIGNAL),
        Feature("blank", -1.0, 1.0, 0.0, count=_BLANK),
    ),
    scaling=Scaling.UNIT_BALL,
    bias=0.3,
)
BLANK = slice(_SIGNAL, _SIGNAL + _BLANK)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """D and D′, and the direction in which the mean gradient moves from D to D′."""

    first: Table
    second: Table
    direction: Floats  # (d,), of norm 1


def neighbours() -> Neighbours:
    values = np.zeros((RECORDS, _SIGNAL + _BLANK))
    labels = np.zeros(RECORDS)
    values[0, :_SIGNAL] = 1.0  # the canary
    others = np.random.default_rng(1).uniform(-1, 1, (RECORDS // 2, _SIGNAL))
    values[1::2, :_SIGNAL] = values[2::2, :_SIGNAL] = others
    labels[1::2] = 1.0
    canary = TASK.encode(values[:1])[0]
    return Neighbours(
        first=Table(values, np.concatenate([[1.0], labels[1:]])),
        second=Table(values, np.concatenate([[0.0], labels[1:]])),
        direction=canary / np.linalg.norm(canary),
    )


def point(trial: int, trials: int, radius: float) -> Floats:
    """Where trial `trial` (from 0) asks: on a blank axis, so that every score is exactly 0.

    Different trials ask at different points: no two rounds of an audit are the same question.
    """
    where = np.zeros(TASK.dimension)
    where[BLANK.start] = radius * (trial + 1) / trials
    return where
