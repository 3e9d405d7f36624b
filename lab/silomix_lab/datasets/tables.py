"""The shape of the demo's data: a table per silo, and a public hold-out to measure models on.

Promises: the same seed gives the same split, and no record is both in a silo and in the hold-out
(a file that repeats a record should be cleaned first).  Seeds never reach the noise.
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silomix_core.task.task import Task

Floats = NDArray[np.float64]

BIAS = 0.3
FEWEST_ROWS = 20  # per silo


class BadData(ValueError):
    """The data asked for cannot be had; the message says where it is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class SiloTable:
    """Raw values (n, features) in the units of the features, NaN = missing; raw labels (n,)."""

    values: Floats
    labels: Floats

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.labels.shape != (len(self.values),):
            raise ValueError("values must be (n, features) and labels (n,)")

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class DemoData:
    """What a demo study learns from; `describes` is one sentence for the person watching."""

    name: str
    task: Task
    silos: tuple[SiloTable, ...]
    holdout: SiloTable
    describes: str


def split(
    table: SiloTable,
    silos: int,
    held_out: float,
    seed: int,
    source: str,
    records: Sequence[int] | None = None,
) -> tuple[tuple[SiloTable, ...], SiloTable]:
    """Split a table at random into parts, one per silo, and a hold-out.

    The parts are of nearly equal size, unless `records` says how large each is.
    """
    held = round(held_out * len(table))
    if silos < 1:
        raise BadData(f"{source}: {silos} silos; use at least 1")
    if len(table) - held < FEWEST_ROWS * silos:
        raise BadData(
            f"{source}: {len(table)} rows leave {len(table) - held} beside the hold-out, too few "
            f"for {silos} silos of at least {FEWEST_ROWS}; use fewer silos or more rows"
        )
    if records is not None and sum(records) > len(table) - held:
        raise BadData(
            f"{source}: {len(table)} rows leave {len(table) - held} beside the hold-out, too few "
            f"for silos of {sum(records)} records together"
        )
    order = np.random.default_rng(seed).permutation(len(table))
    cuts = silos if records is None else np.cumsum(records)  # what is beyond the last is left out
    parts = [
        SiloTable(table.values[rows], table.labels[rows])
        for rows in (order[:held], *np.array_split(order[held:], cuts)[:silos])
    ]
    return tuple(parts[1:]), parts[0]


def write_csv(table: SiloTable, task: Task, path: Path) -> None:
    """Write a table as CSV, readable by the file's owner only: header, then one row per record."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", newline="", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)  # also where the file was there before
        writer = csv.writer(file)
        writer.writerow([*task.columns, task.label])
        for row, outcome in zip(table.values.tolist(), table.labels.tolist(), strict=True):
            cells = ["" if value != value else repr(value) for value in row]
            writer.writerow([*cells, str(int(outcome)) if outcome.is_integer() else repr(outcome)])
