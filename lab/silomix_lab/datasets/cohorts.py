"""A generator of heterogeneous hospital cohorts, the demo's default data."""

from collections.abc import Sequence
from math import nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task

from silomix_lab.datasets.tables import BIAS, FEWEST_ROWS, BadData, DemoData, Floats, SiloTable

_HOLDOUT_ROWS = 4000


def cohorts(
    silos: int, seed: int, rows_per_silo: int = 2000, records: Sequence[int] | None = None
) -> DemoData:
    """Generate hospital cohorts: who is readmitted within 30 days of discharge?

    A patient's standardized readings z are a shared severity, own variation and the case mix of
    the hospital; P[readmitted] = 1/(1 + e^{−1.2(w·z + offset − t)}), with w and offset shifted a
    little per hospital, and t such that about 40 % of all are readmitted.  Skewed readings are
    log-normal, so no linear model is exact; 2 % of the cells are missing.  Unless `records` says
    each silo's, sizes are spread evenly over 0.7 to 1.3 times `rows_per_silo`, in random order, all
    different.
    """
    if silos < 1 or round(0.7 * rows_per_silo) < max(FEWEST_ROWS, 2 * silos):
        raise BadData(
            f"cohorts: {silos} silos of about {rows_per_silo} rows cannot be made; "
            f"use at least 1 silo, and {FEWEST_ROWS} rows (and 2 per silo) in the smallest"
        )
    rng = np.random.default_rng(seed)
    spread = np.linspace(0.7, 1.3, silos) if silos > 1 else np.ones(1)
    sizes = rng.permutation(np.rint(spread * rows_per_silo).astype(np.int64))
    if records is not None:
        sizes = np.array(records, dtype=np.int64)
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
        tables.append(SiloTable(values[rows], labels[rows]))
        held[end - extra : end] = True
    features = tuple(Feature(r.name, r.low, r.high, r.typical) for r in _READINGS)
    return DemoData(
        name="cohorts",
        task=Task(LossName.LOGISTIC, "readmitted", features, Scaling.UNIT_BALL, BIAS),
        silos=tuple(tables),
        holdout=SiloTable(values[held], labels[held]),
        describes="Generated hospital cohorts that differ in size, case mix and readmission rate: "
        "who is readmitted within 30 days?",
    )


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
    """The readings (n, features) in standard units: case mix, own variation, shared severity."""
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
    """The readings as a hospital writes them down: in units, rounded, never negative, with gaps."""
    values = np.empty_like(z)
    for column, reading in enumerate(_READINGS):
        scaled = reading.spread * z[:, column]
        raw = reading.typical * np.exp(scaled) if reading.skewed else reading.typical + scaled
        values[:, column] = np.round(np.maximum(raw, 0), reading.decimals)
    values[rng.random(z.shape) < 0.02] = nan
    return values
