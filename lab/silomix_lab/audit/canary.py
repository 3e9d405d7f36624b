"""The canary: two data sets that differ in one person, as far apart as a clip allows.

The canary is a person whose label decides the sign of its gradient.  At a point where its score is
0 the residual is ∓½ (∓1 of the hinge loss), so its gradient, cut to the clip C, is ∓C in one fixed
direction: replacing its label moves the mean by 2C/n, which is all that the mechanism allows
anybody.  The attack is therefore as strong as the claim, not weaker.

D′ has another person in the canary's place, not the same one with another label: its identifier
comes last and no longer first, so that everybody else moves by one row in the silo's order; it has
three rows and not one, of which the last counts; and the rows of the file are shuffled.

All other records are blank but for the bias, which is small: whichever of them a batch draws or a
phase holds, a report has nothing in the canary's direction but the canary and noise.  *Blank*
features are 0 in every record: there a report holds nothing but noise, whatever the silo computed.

With the hinge loss, unless an algorithm smooths it, everybody else is the *crowd*: one and the same
record, with a score at the kink.  A silo whose arithmetic depends on where a record stands has some
of the crowd on one side of the kink in D and on the other in D′; each moves the mean by half of
what the canary may, in the crowd's direction.  Points are chosen at which a plain product of floats
does so.

The canary's residual is cut, and stays cut at scores up to 1.1.  So where silos take local steps,
or smooth the loss, all of this holds if the steps lead not far and the loss is little smoothed;
both grow with the radius of the study's ball, which is therefore small there.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from silomix_core.algorithms.base import Algorithm
from silomix_core.model.clipped_sum import SUM_UNIT, Records
from silomix_core.model.rounding import rounded
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task

Floats = NDArray[np.float64]

RECORDS = 64  # so that halves of halves of them are whole numbers
CROWDED = 67  # with a crowd: no multiple of the block that matrix libraries take
TIMES_A_COUNT = 2  # records for each one of a counted batch: every other has the canary
CLIP = 0.1  # far below the canary's gradient of 0.35: a build that clips otherwise is seen
RADIUS = 1.0
SMALL_RADIUS = 0.01  # where silos take local steps or smooth the loss
WIDE_RADIUS = 32.0  # where the crowd's score is 1
_SIGNAL, _BLANK, _CROWD = 4, 4, 8
_DRAWS = 1000  # of a random smoothing
_TRIES = 1000  # for a point at the crowd's kink

TASK = Task(
    loss=LossName.LOGISTIC,
    label="outcome",
    features=(
        Feature("signal", -1.0, 1.0, 0.0, count=_SIGNAL),
        Feature("blank", -1.0, 1.0, 0.0, count=_BLANK),
    ),
    scaling=Scaling.UNIT_BALL,
    bias=0.01,
    person="person",
    time="visit",
)
KINKED_TASK = replace(
    TASK,
    loss=LossName.HINGE,
    features=(*TASK.features, Feature("crowd", -1.0, 1.0, 0.0, count=_CROWD)),
)
BLANK = slice(_SIGNAL, _SIGNAL + _BLANK)
_CROWDS = slice(BLANK.stop, BLANK.stop + _CROWD)
_CROWD_VALUES = (0.91, -0.37, 0.58, 0.83, -0.62, 0.29, -0.74, 0.46)


@dataclass(frozen=True, slots=True)
class CanaryData:
    """A data set in the order of its identifiers: names, raw values (n, columns) and labels (n,),
    and how many rows of a file each person has."""

    names: tuple[str, ...]
    values: Floats
    labels: Floats
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """D and D′, and the direction in which the mean gradient moves from D to D′; with a crowd, also
    the direction in which it would move if one of the crowd counted in D or in D′ only."""

    first: CanaryData
    second: CanaryData
    direction: Floats  # (d,), of norm 1
    crowd: Floats | None  # (d,), of norm 1


def task_for(entry: Algorithm, loss: LossName) -> Task:
    """The audited task, with the hinge loss if the algorithm smooths: only a kink is smoothed."""
    if entry.smooths:
        return replace(TASK, loss=LossName.HINGE)
    return KINKED_TASK if loss is LossName.HINGE else TASK


def records_for(entry: Algorithm, task: Task) -> int:
    count = entry.minibatch.count if entry.minibatch else None
    if count is not None:
        return TIMES_A_COUNT * count
    return CROWDED if has_crowd(task) else RECORDS


def radius_for(entry: Algorithm, task: Task) -> float:
    if entry.local is not None or entry.smooths:
        return SMALL_RADIUS
    return WIDE_RADIUS if has_crowd(task) else RADIUS


def has_crowd(task: Task) -> bool:
    return len(task.columns) > BLANK.stop


def neighbours(task: Task = TASK, records: int = RECORDS) -> Neighbours:
    others = np.zeros((records - 1, len(task.columns)))
    if has_crowd(task):
        others[:, _CROWDS] = _CROWD_VALUES
    canary = np.zeros((1, len(task.columns)))
    canary[0, :_SIGNAL] = 1.0
    numbers = np.arange(1, records)
    names = tuple(f"{number:06d}" for number in numbers)
    labels, rows = (numbers + 1) % 2.0, tuple(int(1 + number % 3) for number in numbers)
    return Neighbours(
        first=CanaryData(
            ("000000", *names), np.vstack([canary, others]), np.append(1.0, labels), (1, *rows)
        ),
        second=CanaryData(
            (*names, "999999"), np.vstack([others, canary]), np.append(labels, 0.0), (*rows, 3)
        ),
        direction=_direction(canary[0], task),
        crowd=_direction(others[0], task) if has_crowd(task) else None,
    )


def _direction(values: Floats, task: Task) -> Floats:
    """The direction of the gradient of a record with these values, but for its bias."""
    return np.append(values, np.zeros(task.dimension - len(values))) / np.linalg.norm(values)


def write_people(people: CanaryData, task: Task, path: Path, seed: int) -> None:
    """Write people to a CSV file in random order, readable by its owner only.

    A person's last row is what counts; the rows before it have other values and the other label.
    """
    lines = []
    everybody = zip(people.names, people.values, people.labels, people.rows, strict=True)
    for name, values, label, rows in everybody:
        for row in range(rows):
            counts = row == rows - 1
            cells = values if counts else np.ones_like(values)
            outcome = int(label if counts else 1 - label)
            lines.append(f"{name},{row},{','.join(map(repr, cells.tolist()))},{outcome}")
    Random(seed).shuffle(lines)  # noqa: S311 - the order of made-up rows
    header = ",".join([str(task.person), str(task.time), *task.columns, task.label])
    path.touch(mode=0o600)
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


def canary_row(records: Records) -> int:
    """The row of the canary among a silo's records."""
    return _canary(records.features)


def _canary(values: Floats) -> int:
    return int(np.abs(values[:, :_SIGNAL]).sum(axis=1).argmax())


def points(study: Study, trial: int, trials: int) -> list[Floats]:
    """The points that the rounds of a trial (from 0) ask about; no audit asks a point twice."""
    first, count = trial * study.rounds, trials * study.rounds
    return [
        point(first + number, count, study.radius, study.task) for number in range(study.rounds)
    ]


def point(question: int, questions: int, radius: float, task: Task = TASK) -> Floats:
    """The point of one of all questions (from 0): on a blank axis, so that every score is exactly 0
    but that of a crowd."""
    where = np.zeros(task.dimension)
    where[BLANK.start] = min(radius, RADIUS) * (question + 1) / questions
    return _at_the_kink(where, task, question) if has_crowd(task) else where


def _at_the_kink(where: Floats, task: Task, seed: int) -> Floats:
    """Move the point to where the crowd's score is 1 or an ulp above.

    The point is one at which a plain product of floats is below 1 in the last rows and not in the
    first, if such a point can be found: on some machines there is none.
    """
    record, rng = _crowd_record(task), np.random.default_rng(seed)
    rows = np.tile(record, (CROWDED, 1))
    kept = where
    for _ in range(_TRIES):
        tried = where.copy()
        tried[_CROWDS] = rng.normal(size=_CROWD)
        tried[_CROWDS] /= record @ tried / UNIT
        tried[_CROWDS] *= 1 + rng.integers(-3, 4) * 2.0**-53
        plain = rows @ (tried / UNIT)
        exact = rounded(tried).scores(record[None])
        if np.linalg.norm(tried) > WIDE_RADIUS or min(exact[0], plain[0]) < 1:
            continue
        kept = tried
        if plain[-1] < 1:
            break
    return kept


@lru_cache(maxsize=1)
def _crowd_record(task: Task) -> Floats:
    encoded: Floats = task.encode(neighbours(task, 2).second.values[:1])[0]
    return encoded


def strength(study: Study) -> float:
    """How far the canary moves a sum of gradients, as a share of the 2·clip that anybody could.

    It is measured with the study's own model, smoothing included, on average if that is random.
    """
    data, random = neighbours(study.task), np.random.default_rng(1)
    sums = []
    for people in (data.first, data.second):
        row = _canary(people.values)
        canary = Records(
            np.repeat(study.task.encode(people.values[[row]]), _DRAWS, axis=0),
            np.repeat(study.task.encode_labels(people.labels[[row]]), _DRAWS),
        )
        asked = point(0, 1, study.radius, study.task)
        sums.append(study.model.gradients(canary, study.clip).at(asked, None, random.bytes))
    moved = float((sums[1] - sums[0]) @ data.direction) / SUM_UNIT
    return float(moved / (2 * study.clip * _DRAWS))
