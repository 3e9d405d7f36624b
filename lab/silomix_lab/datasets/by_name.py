"""The demo's data sets by name.

Nothing here is private: the cohorts are generated, the breast cancer records are public, and a CSV
file is whatever the person trying the demo brings along.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from silomix_core.task.goal import Goal

from silomix_lab.choices.goal import LOGISTIC, aimed
from silomix_lab.datasets.breast_cancer import breast_cancer
from silomix_lab.datasets.cohorts import cohorts
from silomix_lab.datasets.csv_table import from_csv
from silomix_lab.datasets.tables import BadData, DemoData

CHOICES = "'cohorts', 'breast-cancer' or the path of a .csv file"


def load(
    name: str,
    label: str | None,
    silos: int,
    seed: int,
    goal: Goal = LOGISTIC,
    records: Sequence[int] | None = None,
) -> DemoData:
    """The data set of that name; a path that ends in .csv needs the name of its label column.

    The goal is logistic regression unless one is given; `records` says how many each silo has.
    """
    if name == "cohorts":
        data = cohorts(silos, seed, records=records)
        return replace(data, task=aimed(data.task, goal))
    if name == "breast-cancer":
        data = breast_cancer(silos, seed, records)
        return replace(data, task=aimed(data.task, goal))
    if not name.lower().endswith(".csv"):
        raise BadData(f"no data set {name!r}: choose {CHOICES}")
    if not Path(name).is_file():
        raise BadData(f"{name}: no such file; check the path")
    if label is None:
        raise BadData(f"{name}: say which column is the label (--label COLUMN)")
    return from_csv(Path(name), label, silos, seed, goal, records)
