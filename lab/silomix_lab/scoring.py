"""How good a model is on the demo's hold-out, and what to compare it with."""

from dataclasses import replace

import numpy as np
from silomix_core.evaluation import public
from silomix_core.evaluation.calibration import Calibration
from silomix_core.evaluation.pooled_baseline import (
    least_squares,
    logistic_regression,
    multinomial_regression,
)
from silomix_core.evaluation.public import PublicRecords
from silomix_core.model.models import model_of
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Task

from silomix_lab.datasets.tables import DemoData, Floats, SiloTable


def scores(model: Floats, values: Floats, task: Task) -> Floats:
    """The model's (d,) scores (n,) of raw values (n, columns): above 0 for the label 1."""
    found: Floats = task.encode(values) @ model / UNIT
    return found


def error(model: Floats, table: SiloTable, task: Task) -> float:
    """The share of labels that the model (d,) gets wrong; for regression MSE over mean(y²)."""
    return PublicRecords(task, table.values, table.labels).error(model)


def calibration(model: Floats, table: SiloTable, task: Task) -> Calibration | None:
    """How well the model's probabilities fit the table; None where it gives none, or one for each
    of several classes."""
    if task.loss is not LossName.LOGISTIC:
        return None
    return Calibration.of(model_of(task).scores(model, task.encode(table.values)), table.labels)


def mean_loss(model: Floats, table: SiloTable, task: Task) -> float:
    """The task's loss of the model (d,), averaged over the records."""
    return PublicRecords(task, table.values, table.labels).mean_loss(model)


def pooled_error(data: DemoData) -> float:
    """The hold-out error without privacy, of a model fitted to all silos' records together.

    The model is a logistic regression (multinomial for several classes), or least squares where
    labels are numbers; never a neural net.
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
    """The hold-out error of always answering the commonest label, or the mean of numeric labels."""
    return public.constant_error(data.task, data.holdout.labels)
