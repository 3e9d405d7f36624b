"""How good a model is on the demo's hold-out, and what to compare it with."""

from dataclasses import replace

import numpy as np
from silomix_core import evaluation
from silomix_core.evaluation import PublicRecords
from silomix_core.pooled import least_squares, logistic_regression, multinomial_regression
from silomix_core.task import UNIT, Task

from silomix.demo.tables import DemoData, Floats, Table


def scores(model: Floats, values: Floats, task: Task) -> Floats:
    """What the model (d,) makes of raw values (n, columns): (n,), above 0 for the label 1."""
    found: Floats = task.encode(values) @ model / UNIT
    return found


def error(model: Floats, table: Table, task: Task) -> float:
    """The share of labels that the model (d,) gets wrong; squared error for regression."""
    return PublicRecords(task, table.values, table.labels).error(model)


def mean_loss(model: Floats, table: Table, task: Task) -> float:
    """The task's loss of the model (d,), averaged over the records."""
    return PublicRecords(task, table.values, table.labels).mean_loss(model)


def pooled_error(data: DemoData) -> float:
    """Hold-out error without privacy, on all silos' records together.

    Of logistic regression, of least squares where labels are numbers; never of a network.
    """
    encoded = np.concatenate([data.task.encode(silo.values) for silo in data.silos]) / UNIT
    labels = np.concatenate([data.task.encode_labels(silo.labels) for silo in data.silos])
    task = replace(data.task, hidden=None)
    if task.classes is not None:
        weights = multinomial_regression(encoded, labels, task.classes)
    else:
        fit = least_squares if task.loss.is_regression else logistic_regression
        weights = fit(encoded, labels)
    return error(weights, data.holdout, task)


def majority_error(data: DemoData) -> float:
    """Hold-out error of always answering the commonest label, or the mean of numeric ones."""
    return evaluation.constant_error(data.task, data.holdout.labels)
