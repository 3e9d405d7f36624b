"""What the operator is shown of the data before approving: counts, ranges, missing, clamped.

Exact figures of private records: they are printed here and go nowhere else.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from silomix_core.task.feature import Feature, FeatureKind
from silomix_core.task.task import Task

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """The profile of a feature (all its columns together) or the label, after rows became persons.

    `low` and `high` are the smallest and largest value before clamping, None if there is none;
    `counts` has the persons of each category or class.
    """

    name: str
    missing: int
    clamped: int
    low: float | None
    high: float | None
    counts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a source: `several` people have more than one row, one of them `most`."""

    source: str
    rows: int
    people: int
    several: int
    most: int
    features: tuple[ColumnProfile, ...]
    label: ColumnProfile


def profile_of(
    source: str, task: Task, table: Floats, rows_of_people: NDArray[np.int64]
) -> Profile:
    """Profile raw values (people, columns and label) as `records` combines them."""
    features, start = [], 0
    for feature in task.features:
        features.append(_feature(feature, table[:, start : start + feature.count]))
        start += feature.count
    return Profile(
        source=source,
        rows=int(rows_of_people.sum()),
        people=len(table),
        several=int((rows_of_people > 1).sum()),
        most=int(rows_of_people.max()),
        features=tuple(features),
        label=_label(task, table[:, -1]),
    )


def _feature(feature: Feature, values: Floats) -> ColumnProfile:
    if feature.kind is FeatureKind.CATEGORY:
        return _counted(feature.name, values, feature.categories)
    if feature.kind is FeatureKind.FLAG:
        return _counted(feature.name, values, ("false", "true"))
    return _measured(feature.name, values, feature.low, feature.high)


def _label(task: Task, values: Floats) -> ColumnProfile:
    if task.label_bounds is not None:
        return _measured(task.label, values, *task.label_bounds)
    return _counted(task.label, values, tuple(map(str, range(task.classes or 2))))


def _counted(name: str, values: Floats, names: tuple[str, ...]) -> ColumnProfile:
    counts = tuple((each, int((values == place).sum())) for place, each in enumerate(names))
    return ColumnProfile(name, int(np.isnan(values).sum()), 0, None, None, counts)


def _measured(name: str, values: Floats, low: float, high: float) -> ColumnProfile:
    known = values[~np.isnan(values)]
    clamped = int(((known < low) | (known > high)).sum())
    if not len(known):
        return ColumnProfile(name, values.size, 0, None, None)
    ends = float(known.min()), float(known.max())
    return ColumnProfile(name, values.size - len(known), clamped, *ends)
