"""The demo's data sets: records split over silos, and a public hold-out to measure models on.

Nothing here is private: the cohorts are generated, the breast cancer records are public, and a CSV
file is whatever the person trying the demo brings along.  Promises: the same seed gives the same
data, and no record is both in a silo and in the hold-out (a file that repeats a record should be
cleaned first).  Seeds serve generation and splitting only, never noise.
"""

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, nan, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from silomix_core.losses import LossName, loss
from silomix_core.task import UNIT, Feature, Scaling, Task

Floats = NDArray[np.float64]

CHOICES = "'cohorts', 'breast-cancer' or the path of a .csv file"
BIAS = 0.3
FEWEST_ROWS = 20  # per silo
_HOLDOUT_ROWS = 4000
_LARGEST_CELL = 1e100  # so that differences of bounds stay finite
_RIDGE = 1e-6  # keeps Newton's steps finite on separable data


class BadData(ValueError):
    """The data asked for cannot be had; the message says where it is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Table:
    """Raw values (n, features) in the units of the features, NaN = missing; labels 0/1 (n,)."""

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
    silos: tuple[Table, ...]
    holdout: Table
    describes: str


def load(name: str, label: str | None, silos: int, seed: int) -> DemoData:
    """The data set of that name; a path that ends in .csv needs the name of its label column."""
    if name == "cohorts":
        return cohorts(silos, seed)
    if name == "breast-cancer":
        return breast_cancer(silos, seed)
    if not name.lower().endswith(".csv"):
        raise BadData(f"no data set {name!r}: choose {CHOICES}")
    if label is None:
        raise BadData(f"{name}: say which column is the label (--label COLUMN)")
    return from_csv(Path(name), label, silos, seed)


def cohorts(silos: int, seed: int, rows_per_silo: int = 2000) -> DemoData:
    """Generated hospital cohorts: who is readmitted within 30 days of discharge?

    A patient's standardized readings z are a shared severity, own variation and the case mix of
    the hospital; P[readmitted] = 1/(1 + e^{−1.2(w·z + offset − t)}), with w and offset shifted a
    little per hospital, and t such that about 40 % of all are readmitted.  Skewed readings are
    log-normal, so no linear model is exact; 2 % of the cells are missing.  Sizes are spread evenly
    over 0.7 to 1.3 times `rows_per_silo`, in random order, all different.
    """
    if silos < 1 or round(0.7 * rows_per_silo) < max(FEWEST_ROWS, 2 * silos):
        raise BadData(
            f"cohorts: {silos} silos of about {rows_per_silo} rows cannot be made; "
            f"use at least 1 silo, and {FEWEST_ROWS} rows (and 2 per silo) in the smallest"
        )
    rng = np.random.default_rng(seed)
    spread = np.linspace(0.7, 1.3, silos) if silos > 1 else np.ones(1)
    sizes = rng.permutation(np.rint(spread * rows_per_silo).astype(np.int64))
    held_out = rng.multinomial(_HOLDOUT_ROWS, sizes / sizes.sum())
    hospital = np.repeat(np.arange(silos), sizes + held_out)
    weights = np.array([reading.weight for reading in _READINGS])
    z = _standardized(hospital, np.sign(weights), rng)
    values = _measured(z, rng)
    labels = _readmitted(z, hospital, weights, rng)
    tables, ends = [], np.cumsum(sizes + held_out)
    held = np.zeros(len(hospital), dtype=np.bool_)
    for size, end, extra in zip(sizes, ends, held_out, strict=True):
        rows = slice(end - extra - size, end - extra)
        tables.append(Table(values[rows], labels[rows]))
        held[end - extra : end] = True
    features = tuple(Feature(r.name, r.low, r.high, r.typical) for r in _READINGS)
    return DemoData(
        name="cohorts",
        task=Task(LossName.LOGISTIC, "readmitted", features, Scaling.UNIT_BALL, BIAS),
        silos=tuple(tables),
        holdout=Table(values[held], labels[held]),
        describes="Generated hospital cohorts that differ in size, case mix and readmission rate: "
        "who is readmitted within 30 days?",
    )


def breast_cancer(silos: int, seed: int) -> DemoData:
    """The Wisconsin diagnostic records (569, public): is the tumour malignant?  25 % held out."""
    from sklearn.datasets import load_breast_cancer  # an optional dependency, slow to import

    bunch = load_breast_cancer()
    features = tuple(
        Feature(f"{statistic} {name}".replace(" ", "_"), low, high, (low + high) / 2)
        for column, statistic in enumerate(("mean", "se", "worst"))
        for name, *bounds in _NUCLEI
        for low, high in [bounds[column]]
    )
    malignant = 1.0 - np.asarray(bunch.target, dtype=np.float64)  # sklearn's 1 is benign
    table = Table(np.asarray(bunch.data, dtype=np.float64), malignant)
    parts, holdout = _split(table, silos, 0.25, seed, "breast-cancer")
    return DemoData(
        name="breast-cancer",
        task=Task(LossName.LOGISTIC, "malignant", features, Scaling.UNIT_BALL, BIAS),
        silos=parts,
        holdout=holdout,
        describes="Wisconsin breast cancer records (public, 30 measurements of cell nuclei): "
        "is the tumour malignant?",
    )


def from_csv(path: Path, label: str, silos: int, seed: int) -> DemoData:
    """A CSV file with a header: numeric columns, empty = missing, and a label with two values.

    For the demo only: a CSV file carries no public bounds, so they are taken from the file itself
    (1st to 99th percentile of each column).  In a real study that is a leak, which no noise covers;
    there the bounds are agreed before anybody looks at the records.
    """
    columns, table = _read(path, label)
    parts, holdout = _split(table, silos, 0.2, seed, str(path))
    features = tuple(
        _measured_bounds(path, name, table.values[:, column]) for column, name in enumerate(columns)
    )
    return DemoData(
        name=path.stem,
        task=Task(LossName.LOGISTIC, label, features, Scaling.UNIT_BALL, BIAS),
        silos=parts,
        holdout=holdout,
        describes=f"{path.name}, its bounds taken from the file itself: fine for a demo, "
        "a leak in a real study.",
    )


def write_csv(table: Table, task: Task, path: Path) -> None:
    """A silo's own file, readable by its owner only: header, then one row per record."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", newline="", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)  # also where the file was there before
        writer = csv.writer(file)
        writer.writerow([*task.columns, task.label])
        for row, outcome in zip(table.values.tolist(), table.labels.tolist(), strict=True):
            cells = ["" if value != value else repr(value) for value in row]
            writer.writerow([*cells, str(int(outcome))])


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


class _Reading(NamedTuple):
    """A generated feature: public bounds, typical value, spread (of the logarithm if skewed)."""

    name: str
    low: float
    high: float
    typical: float
    spread: float
    skewed: bool
    decimals: int
    weight: float


_READINGS = (
    _Reading("age_years", 18, 100, 67, 14, False, 0, 0.6),
    _Reading("systolic_bp_mmhg", 80, 200, 134, 20, False, 0, -0.3),
    _Reading("heart_rate_bpm", 40, 140, 82, 16, False, 0, 0.5),
    _Reading("bmi_kg_m2", 15, 50, 28, 5.5, False, 1, 0.2),
    _Reading("creatinine_mg_dl", 0.3, 5, 1.2, 0.45, True, 2, 0.8),
    _Reading("hba1c_percent", 4, 13, 6.6, 0.22, True, 1, 0.4),
    _Reading("haemoglobin_g_dl", 6, 18, 12.4, 2.0, False, 1, -0.7),
    _Reading("sodium_mmol_l", 120, 155, 138, 4.5, False, 0, -0.4),
    _Reading("albumin_g_dl", 1.5, 5.5, 3.7, 0.6, False, 1, -0.8),
    _Reading("prior_admissions", 0, 10, 1.6, 0.8, True, 0, 1.1),
    _Reading("length_of_stay_days", 0, 30, 5.5, 0.65, True, 1, 0.8),
    _Reading("medications", 0, 25, 9, 4.5, False, 0, 0.5),
)


def _standardized(
    hospital: NDArray[np.int64], directions: Floats, rng: np.random.Generator
) -> Floats:
    """Readings (n, features) in standard units: case mix, own variation, shared severity."""
    shape = (len(hospital), len(directions))
    case_mix = rng.normal(0, 0.25, (int(hospital.max()) + 1, len(directions)))
    severity = np.outer(rng.standard_normal(len(hospital)), directions)
    own = rng.standard_normal(shape)
    z: Floats = case_mix[hospital] + sqrt(1 - 0.4**2) * own + 0.4 * severity
    return z


def _readmitted(
    z: Floats, hospital: NDArray[np.int64], weights: Floats, rng: np.random.Generator
) -> Floats:
    hospitals = int(hospital.max()) + 1
    shifted = weights + rng.normal(0, 0.08, (hospitals, len(weights)))
    scores = np.einsum("ij,ij->i", z, shifted[hospital]) + rng.normal(0, 0.2, hospitals)[hospital]
    chances = 1 / (1 + np.exp(-1.2 * (scores - np.quantile(scores, 0.6))))
    labels: Floats = (rng.random(len(z)) < chances).astype(np.float64)
    return labels


def _measured(z: Floats, rng: np.random.Generator) -> Floats:
    """What the hospital writes down: units, rounding, nothing negative from counts, gaps."""
    values = np.empty_like(z)
    for column, reading in enumerate(_READINGS):
        scaled = reading.spread * z[:, column]
        raw = reading.typical * np.exp(scaled) if reading.skewed else reading.typical + scaled
        values[:, column] = np.round(np.maximum(raw, 0), reading.decimals)
    values[rng.random(z.shape) < 0.02] = nan
    return values


# Bounds of (mean, standard error, worst) of ten measurements of cell nuclei: the ranges that the
# data set's documentation publishes, rounded outwards to round numbers; nothing is fitted here.
_NUCLEI: tuple[tuple[str, tuple[float, float], tuple[float, float], tuple[float, float]], ...] = (
    ("radius", (5, 30), (0, 3), (5, 40)),
    ("texture", (5, 40), (0, 5), (10, 50)),
    ("perimeter", (40, 200), (0, 25), (40, 260)),
    ("area", (100, 2600), (0, 550), (100, 4300)),
    ("smoothness", (0.05, 0.2), (0, 0.04), (0.05, 0.25)),
    ("compactness", (0, 0.4), (0, 0.15), (0, 1.1)),
    ("concavity", (0, 0.5), (0, 0.4), (0, 1.3)),
    ("concave points", (0, 0.25), (0, 0.06), (0, 0.3)),
    ("symmetry", (0.1, 0.35), (0, 0.08), (0.1, 0.7)),
    ("fractal dimension", (0.04, 0.1), (0, 0.03), (0.05, 0.25)),
)


def _split(
    table: Table, silos: int, held_out: float, seed: int, source: str
) -> tuple[tuple[Table, ...], Table]:
    """Random parts of nearly equal size, one per silo, and the hold-out."""
    held = round(held_out * len(table))
    if silos < 1:
        raise BadData(f"{source}: {silos} silos; use at least 1")
    if len(table) - held < FEWEST_ROWS * silos:
        raise BadData(
            f"{source}: {len(table)} rows leave {len(table) - held} beside the hold-out, too few "
            f"for {silos} silos of at least {FEWEST_ROWS}; use fewer silos or more rows"
        )
    order = np.random.default_rng(seed).permutation(len(table))
    parts = [
        Table(table.values[rows], table.labels[rows])
        for rows in (order[:held], *np.array_split(order[held:], silos))
    ]
    return tuple(parts[1:]), parts[0]


def _measured_bounds(path: Path, name: str, values: Floats) -> Feature:
    known = values[~np.isnan(values)]
    low, high = np.quantile(known, (0.01, 0.99)) if len(known) else (nan, nan)
    if low == high:  # a rare flag: its few other values are the point of it
        low, high = known.min(), known.max()
    if not low < high:
        raise BadData(f"{path}, column {name!r}: the same in all rows; remove the column")
    return Feature(name, float(low), float(high), float(low + high) / 2)


def _read(path: Path, label: str) -> tuple[list[str], Table]:
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
        outcomes.append((number, _outcome(cells.pop(at))))
        where = f"{path}, row {number}, column"
        values.append([_number(c, f"{where} {n!r}") for c, n in zip(cells, names, strict=True)])
    if not values:
        raise BadData(f"{path}: a header but no rows; add one row per record")
    labels = _zero_one(outcomes, f"{path}, ", f"column {label!r}")
    return names, Table(np.array(values, dtype=np.float64), labels)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, numbered as a spreadsheet numbers them: the header is row 1."""
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


def _outcome(cell: str) -> tuple[float, str]:
    """A label's value so that 1 and 1.0 are the same, and numbers sort as numbers."""
    text = cell.strip()
    try:
        value = float(text)
    except ValueError:
        return inf, text
    return (value, "") if isfinite(value) else (inf, text)


def _zero_one(outcomes: list[tuple[int, tuple[float, str]]], path: str, column: str) -> Floats:
    seen: list[tuple[float, str]] = []
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
