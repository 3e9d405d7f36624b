"""How good a model is on the demo's hold-out, and what to compare it with."""

import numpy as np
from silomix_core.losses import LossName, loss
from silomix_core.task import UNIT, Task

from silomix.demo.tables import DemoData, Floats, Table

_RIDGE = 1e-6  # keeps Newton's steps finite on separable data


def error(model: Floats, table: Table, task: Task) -> float:
    """The share of records whose label the model (d,) gets wrong."""
    return float(np.mean((_scores(model, table, task) > 0) != (table.labels == 1)))


def mean_loss(model: Floats, table: Table, task: Task) -> float:
    """The task's loss of the model (d,), averaged over the records."""
    signs = 2 * table.labels - 1
    return float(np.mean(loss(task.loss).value(_scores(model, table, task), signs)))


def pooled_error(data: DemoData) -> float:
    """Hold-out error of logistic regression without privacy on all silos' records together."""
    encoded = np.concatenate([data.task.encode(silo.values) for silo in data.silos]) / UNIT
    signs = 2 * np.concatenate([silo.labels for silo in data.silos]) - 1
    return error(_logistic_regression(encoded, signs), data.holdout, data.task)


def majority_error(data: DemoData) -> float:
    """Hold-out error of always answering the hold-out's more frequent label."""
    positive = float(np.mean(data.holdout.labels))
    return min(positive, 1 - positive)


def _scores(model: Floats, table: Table, task: Task) -> Floats:
    scores: Floats = task.encode(table.values) @ model / UNIT
    return scores


def _logistic_regression(features: Floats, signs: Floats) -> Floats:
    """Minimizer of mean logistic loss + ridge, by Newton's method with step halving."""
    logistic = loss(LossName.LOGISTIC)

    def objective(model: Floats) -> float:
        return float(logistic.value(features @ model, signs).mean() + _RIDGE / 2 * model @ model)

    model = np.zeros(features.shape[1])
    for _ in range(30):
        residuals = logistic.residual(features @ model, signs)
        slope = features.T @ residuals / len(features) + _RIDGE * model
        curvature = np.abs(residuals) * (1 - np.abs(residuals))
        hessian = (features.T * curvature) @ features / len(features)
        step = np.linalg.solve(hessian + _RIDGE * np.eye(len(model)), slope)
        damping = 1.0
        while objective(model - damping * step) > objective(model) and damping > 1e-6:
            damping /= 2
        model = model - damping * step
        if slope @ step < 1e-12:
            break
    return model
