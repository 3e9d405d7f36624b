"""Progress on public data: loss and error of the current model on a hold-out that nobody's
privacy depends on.  Without such a file only the course of the rounds is shown."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_core.losses import loss
from silomix_core.task import UNIT, Task

from silomix_server.errors import InvalidConfig


class Holdout:
    def __init__(self, task: Task, path: Path) -> None:
        values, labels = _read(task, path)
        self._features = task.encode(values) / UNIT
        self._labels = 2 * labels - 1
        self._loss = loss(task.loss)

    def score(self, model: NDArray[np.float64]) -> dict[str, float]:
        """Mean loss, and the share of wrong predictions."""
        scores = self._features @ model
        wrong = np.where(scores > 0, 1.0, -1.0) != self._labels
        return {
            "loss": float(self._loss.value(scores, self._labels).mean()),
            "error": float(wrong.mean()),
        }


def _read(task: Task, path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [
                [float(row[name] or "nan") for name in (*task.columns, task.label)]
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise InvalidConfig(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidConfig(f"{path}: not a table of the study's columns: {error}") from error
    if not rows:
        raise InvalidConfig(f"{path}: no rows")
    table = np.array(rows)
    return table[:, :-1], table[:, -1]
