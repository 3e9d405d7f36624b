"""What is asked about: two data sets that differ in one record, as far apart as a clip allows.

The canary is a record whose label decides the sign of its gradient.  At a point where its score is
0 the residual is ∓½ (∓1 of the hinge loss), so its gradient, cut to the clip C, is ∓C in one fixed
direction: replacing its label moves the mean by 2C/n, which is all that the mechanism allows
anybody.  The attack is therefore as strong as the claim, not weaker.

All other records are blank but for the bias, which is small: whichever of them a batch draws or a
phase holds, a report has nothing in the canary's direction but the canary and noise.  *Blank*
features are 0 in every record: there a report holds nothing but noise, whatever the silo computed.

The canary's residual is cut, and stays cut at scores up to 1.1.  So where silos walk, or smooth the
loss, all of this holds if the walk is short and the loss little smoothed, and both are as the
study's ball is wide.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from silomix_core.algorithms.seam import Algorithm
from silomix_core.losses import LossName
from silomix_core.study import Study
from silomix_core.task import Feature, Scaling, Task
from silomix_core.update import SUM_UNIT, Records

from silomix.demo.tables import Table

Floats = NDArray[np.float64]

RECORDS = 64  # so that halves of halves of them are whole numbers
TIMES_A_COUNT = 2  # records for each one of a counted batch: the canary is in every other
CLIP = 0.1  # far below the canary's gradient of 0.35: a build that clips otherwise is seen
RADIUS = 1.0
SMALL_RADIUS = 0.01  # where silos walk or smooth the loss
_SIGNAL, _BLANK = 4, 4
_DRAWS = 1000  # of a smoothing that is random

TASK = Task(
    loss=LossName.LOGISTIC,
    label="outcome",
    features=(
        Feature("signal", -1.0, 1.0, 0.0, count=_SIGNAL),
        Feature("blank", -1.0, 1.0, 0.0, count=_BLANK),
    ),
    scaling=Scaling.UNIT_BALL,
    bias=0.01,
)
BLANK = slice(_SIGNAL, _SIGNAL + _BLANK)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """D and D′, and the direction in which the mean gradient moves from D to D′."""

    first: Table
    second: Table
    direction: Floats  # (d,), of norm 1


def task_for(entry: Algorithm) -> Task:
    """Only a loss with a kink is smoothed."""
    return replace(TASK, loss=LossName.HINGE) if entry.smooths else TASK


def records_for(entry: Algorithm) -> int:
    count = entry.minibatch.count if entry.minibatch else None
    return RECORDS if count is None else TIMES_A_COUNT * count


def radius_for(entry: Algorithm) -> float:
    return RADIUS if entry.local is None and not entry.smooths else SMALL_RADIUS


def neighbours(records: int = RECORDS) -> Neighbours:
    values = np.zeros((records, _SIGNAL + _BLANK))
    values[0, :_SIGNAL] = 1.0  # the canary
    labels = np.arange(records) % 2.0
    canary = np.zeros(TASK.dimension)
    canary[:_SIGNAL] = 1.0
    return Neighbours(
        first=Table(values, np.concatenate([[1.0], labels[1:]])),
        second=Table(values, np.concatenate([[0.0], labels[1:]])),
        direction=canary / np.linalg.norm(canary),
    )


def canary_row(records: Records) -> int:
    """Where the canary is among a silo's records."""
    return int(np.abs(records.features[:, :_SIGNAL]).sum(axis=1).argmax())


def point(trial: int, trials: int, radius: float) -> Floats:
    """Where trial `trial` (from 0) asks: on a blank axis, so that every score is exactly 0.

    Different trials ask at different points: no two rounds of an audit are the same question.
    """
    where = np.zeros(TASK.dimension)
    where[BLANK.start] = radius * (trial + 1) / trials
    return where


def strength(study: Study) -> float:
    """How far the canary moves a sum, of the 2·clip that anybody could: on average, if at random.

    By the study's own model, smoothing included.
    """
    data, random = neighbours(), np.random.default_rng(1)
    sums = [
        study.model.gradients(
            Records(
                np.repeat(study.task.encode(table.values[:1]), _DRAWS, axis=0),
                np.repeat(study.task.encode_labels(table.labels[:1]), _DRAWS),
            ),
            study.clip,
        ).at(point(0, 1, study.radius), None, random.bytes)
        for table in (data.first, data.second)
    ]
    moved = float((sums[1] - sums[0]) @ data.direction) / SUM_UNIT
    return float(moved / (2 * study.clip * _DRAWS))
