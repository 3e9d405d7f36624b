"""The same people in a CSV file, a Parquet file and three databases, for tests of data sources.

Visits of a clinic: some people have one row, some have many, cells are missing, times coincide.
"""

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow
import pyarrow.parquet
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.parquet_file import ParquetFile
from silomix_client.data.source import Source
from silomix_client.data.sql_query import SqlQuery
from silomix_core.task.feature import Combine, Feature, category, flag
from silomix_core.task.losses import LossName
from silomix_core.task.task import Scaling, Task

from support.databases import run_all

CLINIC = Task(
    loss=LossName.LOGISTIC,
    label="readmitted",
    features=(
        Feature("age", 0.0, 120.0, 60.0, unit="a", combine=Combine.MAX),
        Feature("sbp", 60.0, 260.0, 120.0, unit="mm[Hg]", combine=Combine.LAST),
        Feature("creatinine", 0.0, 10.0, 1.0, unit="mg/dL", combine=Combine.MEAN),
        Feature("dose", 0.0, 500.0, 0.0, combine=Combine.SUM),
        Feature("visits", 0.0, 20.0, 0.0, combine=Combine.COUNT),
        flag("smoker", missing=False, combine=Combine.ANY),
        category("sex", ("female", "male", "other"), combine=Combine.FIRST),
        category("ward", ("icu", "surgery", "medicine"), missing="medicine"),
    ),
    scaling=Scaling.UNIT_BALL,
    bias=0.3,
    person="patient_id",
    time="taken_at",
    label_combine=Combine.ANY,
    label_missing=0.0,
)
NAMES = (*CLINIC.columns, CLINIC.label, "patient_id", "taken_at", "note")
QUERY = "SELECT * FROM visits"
_TYPES = {  # of a database; of Parquet
    "age": ("INTEGER", pyarrow.int32()),
    "sbp": ("DOUBLE PRECISION", pyarrow.float64()),
    "creatinine": ("NUMERIC(12,6)", pyarrow.decimal128(12, 6)),
    "dose": ("DOUBLE PRECISION", pyarrow.float64()),
    "visits": ("VARCHAR(20)", pyarrow.string()),
    "smoker": ("BOOLEAN", pyarrow.bool_()),
    "sex": ("VARCHAR(20)", pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
    "ward": ("VARCHAR(20)", pyarrow.string()),
    "readmitted": ("SMALLINT", pyarrow.int8()),
    "patient_id": ("BIGINT", pyarrow.int64()),
    "taken_at": ("TIMESTAMP", pyarrow.timestamp("ns")),
    "note": ("VARCHAR(50)", pyarrow.string()),
}
Visit = dict[str, object]


def visits(people: int, seed: int) -> list[Visit]:
    """Rows in no order at all."""
    rng = random.Random(seed)
    rows = [
        _visit(person, rng) for person in range(people) for _ in range(rng.choice((1, 1, 2, 9)))
    ]
    rng.shuffle(rows)
    return rows


def _visit(person: int, rng: random.Random) -> Visit:
    start = datetime(2025, 1, 1)
    made: Visit = {
        "age": rng.randint(-5, 130),
        "sbp": rng.gauss(130, 30),
        "creatinine": round(rng.expovariate(1), 6),
        "dose": rng.uniform(0, 200) * 10 ** rng.randint(-9, 3),
        "visits": rng.choice(("emergency", "planned")),
        "smoker": rng.random() < 0.3,
        "sex": rng.choice(("female", "male", "other")),
        "ward": rng.choice(("icu", "surgery", "medicine")),
        "readmitted": rng.randint(0, 1),
    }
    known: Visit = {name: cell if rng.random() < 0.8 else None for name, cell in made.items()}
    when = start + timedelta(days=rng.randint(0, 3), microseconds=rng.choice((0, 7)))
    return known | {
        "patient_id": 1000 + person * 37 % 101,
        "taken_at": when if rng.random() < 0.9 else None,
        "note": rng.choice((None, 'said "no", twice\nand left')),
    }


@dataclass(frozen=True, slots=True)
class Clinic:
    """Makes a source of each kind in a folder; PostgreSQL is at an address of its own."""

    folder: Path
    postgres: str

    def source(self, kind: str, rows: list[Visit]) -> Source:
        return SOURCES[kind](self, rows)

    def csv(self, rows: list[Visit]) -> CsvFile:
        path = self.folder / "visits.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, NAMES)
            writer.writeheader()
            writer.writerows(rows)
        return CsvFile(path)

    def parquet(self, rows: list[Visit]) -> ParquetFile:
        path = self.folder / "visits.parquet"
        schema = pyarrow.schema([(name, kind) for name, (_, kind) in _TYPES.items()])
        exact = [row | {"creatinine": _decimal(row["creatinine"])} for row in rows]
        table = pyarrow.Table.from_pylist(exact, schema=schema)
        pyarrow.parquet.write_table(table, path, row_group_size=50)
        return ParquetFile(path)

    def sqlite(self, rows: list[Visit]) -> SqlQuery:
        return self._query("url", "sqlite:///visits.sqlite", rows)

    def duckdb(self, rows: list[Visit]) -> SqlQuery:
        return self._query("url", "duckdb:///visits.duckdb", rows)

    def postgresql(self, rows: list[Visit]) -> SqlQuery:
        secret = self.folder / "database.url"
        secret.touch(mode=0o600)
        secret.write_text(self.postgres + "\n")
        return self._query("url_file", secret.name, rows)

    def _query(self, key: str, value: str, rows: list[Visit]) -> SqlQuery:
        writable = self.postgres if key == "url_file" else value
        fill_database(writable.replace(":///", f":///{self.folder}/"), rows)
        return SqlQuery(DatabaseUrl(self.folder, key, value), QUERY)


SOURCES: dict[str, Callable[[Clinic, list[Visit]], Source]] = {
    "csv": Clinic.csv,
    "parquet": Clinic.parquet,
    "sqlite": Clinic.sqlite,
    "duckdb": Clinic.duckdb,
    "postgresql": Clinic.postgresql,
}


def fill_database(url: str, rows: list[Visit]) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in _TYPES.items())
    statements = ["DROP TABLE IF EXISTS visits", f"CREATE TABLE visits ({columns})"]
    for row in rows:
        cells = ", ".join(_literal(row[name]) for name in _TYPES)
        statements.append(f"INSERT INTO visits VALUES ({cells})")  # noqa: S608
    run_all(url, statements)


def _literal(cell: object) -> str:
    if cell is None:
        return "NULL"
    if isinstance(cell, bool | int | float):
        return repr(cell).upper() if isinstance(cell, bool) else repr(cell)
    return "'" + str(cell).replace("'", "''") + "'"


def _decimal(cell: object) -> object:
    from decimal import Decimal

    return None if cell is None else Decimal(repr(cell))
