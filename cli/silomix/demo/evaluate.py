"""How good a model is on the demo's hold-out, and what to compare it with."""

import numpy as np
from silomix_core.losses import loss
from silomix_core.pooled import logistic_regression
from silomix_core.task import UNIT, Task

from silomix.demo.tables import DemoData, Floats, Table


def scores(model: Floats, values: Floats, task: Task) -> Floats:
    """What the model (d,) makes of raw values (n, columns): (n,), above 0 for the label 1."""
    found: Floats = task.encode(values) @ model / UNIT
    return found


def error(model: Floats, table: Table, task: Task) -> float:
    """The share of records whose label the model (d,) gets wrong."""
    return float(np.mean((scores(model, table.values, task) > 0) != (table.labels == 1)))


def mean_loss(model: Floats, table: Table, task: Task) -> float:
    """The task's loss of the model (d,), averaged over the records."""
    signs = 2 * table.labels - 1
    return float(np.mean(loss(task.loss).value(scores(model, table.values, task), signs)))


def pooled_error(data: DemoData) -> float:
    """Hold-out error of logistic regression without privacy on all silos' records together."""
    encoded = np.concatenate([data.task.encode(silo.values) for silo in data.silos]) / UNIT
    signs = 2 * np.concatenate([silo.labels for silo in data.silos]) - 1
    return error(logistic_regression(encoded, signs), data.holdout, data.task)


def majority_error(data: DemoData) -> float:
    """Hold-out error of always answering the hold-out's more frequent label."""
    positive = float(np.mean(data.holdout.labels))
    return min(positive, 1 - positive)
