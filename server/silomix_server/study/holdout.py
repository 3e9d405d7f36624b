"""Progress on public data: loss and error of the current model on a hold-out that nobody's
privacy depends on.  Without such a file only the course of the rounds is shown."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_core.evaluation.public import PublicRecords
from silomix_core.task.cell_values import BadCell, number, parser
from silomix_core.task.task import Task

from silomix_server.errors import InvalidServerConfig


class Holdout:
    def __init__(self, task: Task, path: Path) -> None:
        self._records = PublicRecords(task, *_read(task, path))

    def score(self, model: NDArray[np.float64]) -> dict[str, float]:
        """The model's mean loss, and its error as `silomix_core.evaluation.public` has it."""
        return {"loss": self._records.mean_loss(model), "error": self._records.error(model)}


def _read(task: Task, path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Read a CSV file with one row for each person, however silos' rows are combined."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [
                _values(task, row, f"{path}: row {number}")
                for number, row in enumerate(csv.DictReader(file), start=2)
            ]
    except OSError as error:
        raise InvalidServerConfig(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidServerConfig(f"{path}: not a CSV file: {error}") from error
    if not rows:
        raise InvalidServerConfig(f"{path}: no rows")
    table = np.array(rows)
    if not task.are_labels(table[:, -1]).all():
        raise InvalidServerConfig(f"{path}: a label must be {task.label_rule}")
    return table[:, :-1], table[:, -1]


def _values(task: Task, row: dict[str, str], where: str) -> list[float]:
    missing = next((name for name in (*task.columns, task.label) if name not in row), None)
    if missing is not None:
        raise InvalidServerConfig(f"{where}: no column {missing!r}")
    try:
        values = [
            parser(feature)(row[name]) for feature in task.features for name in feature.columns
        ]
        return [*values, number(row[task.label])]
    except BadCell as error:
        raise InvalidServerConfig(f"{where}: {error}") from error
