"""Reading a hospital's CSV: the first place a record is seen, long before a study runs.

All validation happens here, when the operator approves a study, and is seen by the operator only.
An empty cell is a missing value; text where a number belongs is an error with file, row and column.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from math import isinf
from pathlib import Path

import numpy as np
from silomix_core.task import Task
from silomix_core.update import Records

from silomix_client.errors import BadRecords


def read_records(path: Path, task: Task) -> Records:
    """The encoded records of a CSV file with a header row."""
    columns = (*task.columns, task.label)
    rows = list(_rows(path, columns))
    if not rows:
        raise BadRecords(f"{path}: no records")
    table = np.array(rows)
    labels = table[:, -1]
    wrong = np.flatnonzero(~task.are_labels(labels))
    if len(wrong):
        raise BadRecords(
            f"{path}: row {wrong[0] + 2}, column {task.label!r}: a label must be {task.label_rule}"
        )
    return Records(task.encode(table[:, :-1]), task.encode_labels(labels))


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[list[float]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            if header is None:
                raise BadRecords(f"{path}: empty file; expected a header row")
            positions = _positions(path, header, columns)
            for number, row in enumerate(reader, start=2):
                if len(row) != len(header):
                    raise BadRecords(
                        f"{path}: row {number} has {len(row)} cells, the header has {len(header)}"
                    )
                yield [
                    _number(path, number, name, row[position])
                    for name, position in zip(columns, positions, strict=True)
                ]
    except OSError as error:
        raise BadRecords(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRecords(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    except csv.Error as error:
        raise BadRecords(f"{path}: not a CSV file: {error}") from error


def _positions(path: Path, header: list[str], columns: tuple[str, ...]) -> list[int]:
    places = {name: position for position, name in enumerate(header)}
    missing = [name for name in columns if name not in places]
    if missing:
        raise BadRecords(
            f"{path}: no column {missing[0]!r}; the file has: {', '.join(header[:20])}"
        )
    seen = Counter(header)
    doubled = [name for name in columns if seen[name] > 1]
    if doubled:
        raise BadRecords(f"{path}: column {doubled[0]!r} occurs {seen[doubled[0]]} times")
    return [places[name] for name in columns]


def _number(path: Path, row: int, column: str, cell: str) -> float:
    text = cell.strip()
    if not text:
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        value = float("inf")
    if isinf(value) or "_" in text or not text.isascii():  # float() takes more than a CSV should
        raise BadRecords(f"{path}: row {row}, column {column!r}: not a number: {cell[:40]!r}")
    return value
