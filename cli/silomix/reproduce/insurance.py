"""Medical charges from insurance.csv, and the silos that Lowy and Razaviyayn (2023), §5 make of it.

Nothing is fitted: bounds are what anybody would say of ages, body mass indices and charges
(`TASK`), or who knows what kind of insurance it is (`NARROW`).
"""

import csv
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_core.losses import LossName
from silomix_core.task import Feature, Scaling, Task
from silomix_core.update import Records

from silomix.failures import Failure

Floats = NDArray[np.float64]

FILE = "insurance.csv"
SILOS = 3
_SHARE = 0.8  # of the records; the others are the test set
_COLUMNS = ("age", "sex", "bmi", "children", "smoker", "region", "charges")
_REGIONS = ("northeast", "northwest", "southeast", "southwest")
NEEDS = f"{FILE} (Choi 2018, Medical insurance charges; columns {', '.join(_COLUMNS)})"


def _task(age: tuple[float, float], children: tuple[float, float]) -> Task:
    return Task(
        LossName.SQUARED,
        "charges",
        (
            Feature("age", *age, missing=50.0),
            Feature("male", 0.0, 1.0, missing=0.0),
            Feature("bmi", 10.0, 60.0, missing=30.0),
            Feature("children", *children, missing=0.0),
            Feature("smoker", 0.0, 1.0, missing=0.0),
            *(Feature(region, 0.0, 1.0, missing=0.0) for region in _REGIONS),
        ),
        Scaling.UNIT_BALL,
        bias=0.3,
        label_bounds=(0.0, 65000.0),
    )


TASK = _task(age=(0.0, 100.0), children=(0.0, 10.0))
# for those who know that everybody insured here is of working age; others would be clamped
NARROW = _task(age=(18.0, 65.0), children=(0.0, 5.0))


@dataclass(frozen=True, slots=True)
class People:
    """Features as the task lists them (m, 9), and charges (m,)."""

    features: Floats
    charges: Floats

    @property
    def trained_on(self) -> int:
        return SILOS * self.records

    @property
    def records(self) -> int:
        """n of a silo."""
        return int(_SHARE * len(self.charges)) // SILOS


@dataclass(frozen=True, slots=True)
class Split:
    """What one trial learns from and is tested on; records are encoded, charges are not."""

    silos: tuple[Records, ...]
    test_features: Floats
    test_charges: Floats


def fingerprint(folder: Path) -> str:
    return sha256(_file(folder).read_bytes()).hexdigest()[:16]


@lru_cache(maxsize=1)
def load(folder: Path) -> People:
    """A line that repeats another one is left out: it could be in a silo and in the test set."""
    path = _file(folder)
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    if not lines or tuple(lines[0]) != _COLUMNS:
        raise Failure(f"{path}: the first line must be {','.join(_COLUMNS)}")
    rows = dict.fromkeys(
        _numbers(path, number, tuple(line)) for number, line in enumerate(lines[1:], start=2)
    )
    if len(rows) < 10 * SILOS:
        raise Failure(f"{path}: {len(rows)} different records are too few")
    table = np.array(list(rows))
    return People(table[:, :-1], table[:, -1])


def _file(folder: Path) -> Path:
    path = folder / FILE
    if not path.is_file():
        raise Failure(f"{folder}: {FILE} missing; this needs {NEEDS}")
    return path


def _numbers(path: Path, number: int, line: tuple[str, ...]) -> tuple[float, ...]:
    try:
        age, sex, bmi, children, smoker, region, charges = line
        return (
            float(age),
            float(("female", "male").index(sex)),
            float(bmi),
            float(children),
            float(("no", "yes").index(smoker)),
            *(float(index == _REGIONS.index(region)) for index in range(len(_REGIONS))),
            float(charges),
        )
    except ValueError as bad:
        raise Failure(f"{path}, line {number}: not a record of {', '.join(_COLUMNS)}") from bad


@lru_cache(maxsize=2)
def split(folder: Path, task: Task, seed: int) -> Split:
    """A fresh test set, and silos of the lowest, the middle and the highest charges of the rest."""
    people = load(folder)
    order = np.random.default_rng([seed, 1]).permutation(len(people.charges))
    train, test = order[: people.trained_on], order[people.trained_on :]
    train = train[np.argsort(people.charges[train], kind="stable")]
    features, labels = task.encode(people.features), task.encode_labels(people.charges)
    return Split(
        tuple(Records(features[rows], labels[rows]) for rows in np.split(train, SILOS)),
        features[test],
        people.charges[test],
    )
