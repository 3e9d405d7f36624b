"""What is given to an estimator, checked: names, bounds, tables of values."""

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from silomix_core.task.task import Task

from silomix_lab.datasets.tables import Floats

Choice = TypeVar("Choice", bound=Enum)


def named(known: Iterable[Choice], name: str) -> Choice:
    by_name = {each.value: each for each in known}
    if name not in by_name:
        raise ValueError(f"{name!r} is not one of {', '.join(by_name)}")
    return by_name[name]


def checked_bounds(bounds: ArrayLike | None) -> Floats:
    if bounds is None:
        raise ValueError(
            "bounds: give the public (low, high) of each feature, or one pair for all. They are "
            "never measured on the records: a minimum or maximum belongs to one person, and no "
            "noise would cover it"
        )
    found = np.asarray(bounds, dtype=np.float64)
    if found.ndim not in (1, 2) or found.shape[-1] != 2:
        raise ValueError(
            f"bounds: one pair (low, high), or one for each feature; got shape {found.shape}"
        )
    return found


def feature_values(task: Task, given: ArrayLike, what: str) -> Floats:
    values = np.asarray(given, dtype=np.float64)
    columns = len(task.columns)
    if values.ndim != 2 or values.shape[1] != columns:
        raise ValueError(f"{what}: (records, {columns}) expected, got {values.shape}")
    return values
