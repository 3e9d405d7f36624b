"""The demo's data sets by name.

Nothing here is private: the cohorts are generated, the breast cancer records are public, and a CSV
file is whatever the person trying the demo brings along.
"""

from pathlib import Path

from silomix.demo.breast_cancer import breast_cancer
from silomix.demo.cohorts import cohorts
from silomix.demo.csv_file import from_csv
from silomix.demo.tables import BadData, DemoData

CHOICES = "'cohorts', 'breast-cancer' or the path of a .csv file"


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
