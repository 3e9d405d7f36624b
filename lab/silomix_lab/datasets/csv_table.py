"""A CSV file of the user's own as demo data; every complaint names file, row and column."""

import csv
from collections.abc import Iterator, Sequence
from math import inf, isfinite, nan
from pathlib import Path

import numpy as np
from silomix_core.task.goal import Goal
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task

from silomix_lab.choices.goal import LOGISTIC, aimed
from silomix_lab.datasets.tables import BIAS, BadData, DemoData, Floats, SiloTable, split

_LARGEST_CELL = 1e100  # so that differences of bounds stay finite


def from_csv(
    path: Path,
    label: str,
    silos: int,
    seed: int,
    goal: Goal = LOGISTIC,
    records: Sequence[int] | None = None,
) -> DemoData:
    """Read demo data from a CSV file with a header, numeric columns (empty = missing) and a label.

    The label has two values, or is a number if the goal is a regression.

    For the demo only: a CSV file carries no public bounds, so they are taken from the file itself
    (1st to 99th percentile of each column).  In a real study that is a leak, which no noise covers;
    there the bounds are agreed before anybody looks at the records.
    """
    columns, table = _read(path, label, goal)
    parts, holdout = split(table, silos, 0.2, seed, str(path), records)
    features = tuple(
        _measured_bounds(path, name, table.values[:, column]) for column, name in enumerate(columns)
    )
    task = aimed(Task(LossName.LOGISTIC, label, features, Scaling.UNIT_BALL, BIAS), goal)
    if not task.are_labels(table.labels).all():
        raise BadData(f"{path}, column {label!r}: a label must be {task.label_rule}")
    return DemoData(
        name=path.stem,
        task=task,
        silos=parts,
        holdout=holdout,
        describes=f"{path.name}, its bounds taken from the file itself: fine for a demo, "
        "a leak in a real study.",
    )


def _measured_bounds(path: Path, name: str, values: Floats) -> Feature:
    known = values[~np.isnan(values)]
    low, high = np.quantile(known, (0.01, 0.99)) if len(known) else (nan, nan)
    if low == high:  # a rare flag: its few other values are the point of it
        low, high = known.min(), known.max()
    if not low < high:
        raise BadData(f"{path}, column {name!r}: the same in all rows; remove the column")
    return Feature(name, float(low), float(high), float(low + high) / 2)


def _read(path: Path, label: str, goal: Goal) -> tuple[list[str], SiloTable]:
    rows = _rows(path)
    _, header = next(rows, (0, []))
    names = [name.strip() for name in header]
    _check_header(path, names, label)
    at = names.index(label)
    del names[at]
    values, outcomes = [], []
    for number, cells in rows:
        if len(cells) != len(header):
            raise BadData(
                f"{path}, row {number}: {len(cells)} cells where the header has {len(header)}; "
                "add or remove cells (a text that contains a comma needs quotes)"
            )
        where = f"{path}, row {number}, column"
        outcomes.append((number, cells.pop(at)))
        values.append([_number(c, f"{where} {n!r}") for c, n in zip(cells, names, strict=True)])
    if not values:
        raise BadData(f"{path}: a header but no rows; add one row per record")
    if goal.loss.is_regression or goal.classes is not None:
        labels = _numbers(outcomes, f"{path}, ", f"column {label!r}")
    else:
        labels = _zero_one(outcomes, f"{path}, ", f"column {label!r}")
    return names, SiloTable(np.array(values, dtype=np.float64), labels)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, numbered as in a spreadsheet: the header is row 1."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes the signature
            for number, cells in enumerate(csv.reader(file), start=1):
                if any(cell.strip() for cell in cells):
                    yield number, cells
    except FileNotFoundError as problem:
        raise BadData(f"{path}: no such file; check the path") from problem
    except OSError as problem:
        raise BadData(f"{path}: cannot be read ({problem.strerror}); check the file") from problem
    except (UnicodeDecodeError, csv.Error) as problem:
        raise BadData(f"{path}: not a CSV text in UTF-8 ({problem}); export it again") from problem


def _check_header(path: Path, names: list[str], label: str) -> None:
    if not names:
        raise BadData(f"{path}: empty; it needs a header row, then one row per record")
    if label not in names:
        raise BadData(f"{path}: no column {label!r} for the label; columns: {', '.join(names)}")
    if len(names) == 1:
        raise BadData(f"{path}: only the column {label!r}; add columns to predict it from")
    for number, name in enumerate(names, start=1):
        if not name or name in names[: number - 1]:
            what = f"{name!r} is there twice" if name else "no name"
            raise BadData(f"{path}, row 1, column {number}: {what}; give each column its own name")


def _number(cell: str, where: str) -> float:
    if not cell.strip():
        return nan
    try:
        value = float(cell)
    except ValueError as problem:
        raise BadData(
            f"{where}: {cell!r} is not a number; leave a missing value empty, "
            "and turn categories into 0/1 columns"
        ) from problem
    if not abs(value) <= _LARGEST_CELL:
        raise BadData(
            f"{where}: {cell!r} is not finite or too large; correct it, or leave it empty"
        )
    return value


def _numbers(outcomes: list[tuple[int, str]], path: str, column: str) -> Floats:
    labels = [_number(cell, f"{path}row {number}, {column}") for number, cell in outcomes]
    for (number, _), value in zip(outcomes, labels, strict=True):
        if value != value:
            raise BadData(f"{path}row {number}, {column}: no label; fill it in or remove the row")
    return np.array(labels)


def _outcome(cell: str) -> tuple[float, str]:
    """The sort key of a label: 1 and 1.0 are the same, numbers sort as numbers and before text."""
    text = cell.strip()
    try:
        value = float(text)
    except ValueError:
        return inf, text
    return (value, "") if isfinite(value) else (inf, text)


def _zero_one(cells: list[tuple[int, str]], path: str, column: str) -> Floats:
    seen: list[tuple[float, str]] = []
    outcomes = [(number, _outcome(cell)) for number, cell in cells]
    for number, outcome in outcomes:
        if outcome == (inf, ""):
            raise BadData(f"{path}row {number}, {column}: no label; fill it in or remove the row")
        if outcome not in seen:
            seen.append(outcome)
        if len(seen) > 2:
            raise BadData(
                f"{path}row {number}, {column}: a third label; use two values, as 0 and 1"
            )
    if len(seen) < 2:
        raise BadData(f"{path}{column}: {len(seen)} different labels; both 0 and 1 must occur")
    return np.array([float(outcome == max(seen)) for _, outcome in outcomes])
