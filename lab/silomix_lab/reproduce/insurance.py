"""Medical charges from insurance.csv, and the silos that Lowy and Razaviyayn (2021), §5 make of it.

Nothing is fitted: bounds are what anybody would say of ages, body mass indices and charges, or
anybody who knows what kind of insurance it is.  The region is four columns, one of which is 1, one
column, or a category.  A study may declare that what smoking does depends on other features.
"""

import csv
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_core.model.clipped_sum import Records
from silomix_core.task.feature import category
from silomix_core.task.interaction import Interaction
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_protocol.host.failure import Failure

Floats = NDArray[np.float64]

FILE = "insurance.csv"
SILOS = 3
_SHARE = 0.8  # of the records; the others are the test set
_COLUMNS = ("age", "sex", "bmi", "children", "smoker", "region", "charges")
_REGION = "region"
_REGIONS = ("northeast", "northwest", "southeast", "southwest")
NEEDS = f"{FILE} (Choi 2018, Medical insurance charges; columns {', '.join(_COLUMNS)})"


_FOUR_COLUMNS = tuple(Feature(region, 0.0, 1.0, missing=0.0) for region in _REGIONS)
_ONE_COLUMN = (Feature(_REGION, 0.0, len(_REGIONS) - 1.0, missing=0.0),)
_CATEGORY = (category(_REGION, _REGIONS),)


_SMOKER_BMI = (Interaction("smoker", "bmi"),)
_SMOKER_ALL = tuple(
    Interaction("smoker", name) for name in ("age", "male", "bmi", "children", _REGION)
)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The public bounds; a value beyond counts as the bound."""

    age: tuple[float, float] = (0.0, 100.0)
    bmi: tuple[float, float] = (10.0, 60.0)
    children: tuple[float, float] = (0.0, 10.0)


_WIDE = _Bounds()
_NARROW = replace(_WIDE, age=(18.0, 65.0), children=(0.0, 5.0))
_NARROWER = replace(_NARROW, bmi=(18.5, 40.0))


class Coding(Enum):
    """What a study may say in public of the same people.

    Narrow bounds are for those who know that everybody insured here is of working age; narrower
    ones are for those who also know that beyond the WHO's outermost classes, underweight and
    obesity class III, more of it is the same.
    """

    WIDE = "wide bounds"
    NARROW = "narrow bounds"
    ONE_COLUMN = "region in one column"
    NARROW_ONE_COLUMN = "narrow bounds, region in one column"
    NARROWER_ONE_COLUMN = "narrower bounds, region in one column"
    CATEGORY = "region as a category"
    NARROW_CATEGORY = "narrow bounds, region as a category"
    NARROWER_CATEGORY = "narrower bounds, region as a category"
    SMOKER_BMI = "region as a category, smoker × bmi"
    NARROWER_SMOKER_BMI = "narrower bounds, region as a category, smoker × bmi"
    NARROWER_SMOKER_ALL = "narrower bounds, region as a category, smoker × all others"

    @property
    def task(self) -> Task:
        return _TASKS[self]


def _task(
    bounds: _Bounds, region: tuple[Feature, ...], interactions: tuple[Interaction, ...] = ()
) -> Task:
    return Task(
        LossName.SQUARED,
        "charges",
        (
            Feature("age", *bounds.age, missing=50.0),
            Feature("male", 0.0, 1.0, missing=0.0),
            Feature("bmi", *bounds.bmi, missing=30.0),
            Feature("children", *bounds.children, missing=0.0),
            Feature("smoker", 0.0, 1.0, missing=0.0),
            *region,
        ),
        Scaling.UNIT_BALL,
        bias=0.3,
        label_bounds=(0.0, 65000.0),
        interactions=interactions,
    )


_TASKS = {
    Coding.WIDE: _task(_WIDE, _FOUR_COLUMNS),
    Coding.NARROW: _task(_NARROW, _FOUR_COLUMNS),
    Coding.ONE_COLUMN: _task(_WIDE, _ONE_COLUMN),
    Coding.NARROW_ONE_COLUMN: _task(_NARROW, _ONE_COLUMN),
    Coding.NARROWER_ONE_COLUMN: _task(_NARROWER, _ONE_COLUMN),
    Coding.CATEGORY: _task(_WIDE, _CATEGORY),
    Coding.NARROW_CATEGORY: _task(_NARROW, _CATEGORY),
    Coding.NARROWER_CATEGORY: _task(_NARROWER, _CATEGORY),
    Coding.SMOKER_BMI: _task(_WIDE, _CATEGORY, _SMOKER_BMI),
    Coding.NARROWER_SMOKER_BMI: _task(_NARROWER, _CATEGORY, _SMOKER_BMI),
    Coding.NARROWER_SMOKER_ALL: _task(_NARROWER, _CATEGORY, _SMOKER_ALL),
}


@dataclass(frozen=True, slots=True)
class InsuredPeople:
    """Features (m, 9), the region in four columns, and charges (m,)."""

    features: Floats
    charges: Floats

    def listed(self, task: Task) -> Floats:
        """The features as this task lists them."""
        if _REGION not in task.columns:
            return self.features
        others, regions = np.split(self.features, [-len(_REGIONS)], axis=1)
        return np.column_stack([others, regions @ np.arange(len(_REGIONS))])

    @property
    def trained_on(self) -> int:
        return SILOS * self.records

    @property
    def records(self) -> int:
        """The n of a silo."""
        return int(_SHARE * len(self.charges)) // SILOS


@dataclass(frozen=True, slots=True)
class InsuranceSplit:
    """The data that a trial learns from and is tested on; records are encoded, charges are not."""

    silos: tuple[Records, ...]
    test_features: Floats
    test_charges: Floats


def fingerprint(folder: Path) -> str:
    return sha256(_file(folder).read_bytes()).hexdigest()[:16]


@lru_cache(maxsize=1)
def load(folder: Path) -> InsuredPeople:
    """Read the people, without repeated lines, which could be in a silo and in the test set."""
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
    return InsuredPeople(table[:, :-1], table[:, -1])


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
def split(folder: Path, task: Task, seed: int) -> InsuranceSplit:
    """Draw a test set, and silos of the lowest, the middle and the highest charges of the rest."""
    people = load(folder)
    order = np.random.default_rng([seed, 1]).permutation(len(people.charges))
    train, test = order[: people.trained_on], order[people.trained_on :]
    train = train[np.argsort(people.charges[train], kind="stable")]
    features, labels = task.encode(people.listed(task)), task.encode_labels(people.charges)
    return InsuranceSplit(
        tuple(Records(features[rows], labels[rows]) for rows in np.split(train, SILOS)),
        features[test],
        people.charges[test],
    )
