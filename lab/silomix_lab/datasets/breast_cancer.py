"""The Wisconsin breast cancer records that come with scikit-learn."""

from collections.abc import Sequence

import numpy as np
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task

from silomix_lab.datasets.tables import BIAS, DemoData, SiloTable, split

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


def breast_cancer(silos: int, seed: int, records: Sequence[int] | None = None) -> DemoData:
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
    table = SiloTable(np.asarray(bunch.data, dtype=np.float64), malignant)
    parts, holdout = split(table, silos, 0.25, seed, "breast-cancer", records)
    return DemoData(
        name="breast-cancer",
        task=Task(LossName.LOGISTIC, "malignant", features, Scaling.UNIT_BALL, BIAS),
        silos=parts,
        holdout=holdout,
        describes="Wisconsin breast cancer records (public, 30 measurements of cell nuclei): "
        "is the tumour malignant?",
    )
