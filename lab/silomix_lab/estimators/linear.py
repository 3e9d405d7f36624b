"""A study's model as a line through raw values: slopes and a constant."""

from math import sqrt

import numpy as np
from silomix_core.task.feature import FeatureKind
from silomix_core.task.task import Scaling, Task

from silomix_lab.datasets.tables import Floats


def is_linear(task: Task) -> bool:
    """Whether the model is linear in raw values.

    A category's raw value is its place in a list, of which no multiple means anything.
    """
    if task.interactions:
        return False
    return all(feature.kind is not FeatureKind.CATEGORY for feature in task.features)


def raw_line(task: Task, weights: Floats) -> tuple[Floats, float]:
    """The weights (columns,) that apply to raw values, and the constant; see `Task.encode`."""
    intercept = float(weights[-1]) * task.bias
    if task.scaling is not Scaling.UNIT_BALL:
        return weights[:-1].copy(), intercept
    counts = [feature.count for feature in task.features]
    low = np.repeat([feature.low for feature in task.features], counts)
    high = np.repeat([feature.high for feature in task.features], counts)
    slopes = weights[:-1] * 2 / (high - low) / sqrt(len(low))
    return slopes, intercept - float(slopes @ (low + high)) / 2
