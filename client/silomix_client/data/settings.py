"""The [data] of a silo.toml, or of a population in its policy: which source, and its settings.

data = "data.csv"              # short for kind = "csv"

[data]                         [data]
kind = "parquet"               kind = "sql"
path = "visits.parquet"        url_file = "database.url"   # or url_env, or url
person = "mrn"                 query = "SELECT * FROM visits"

[data]                         [data]
kind = "omop"                  kind = "fhir"
url_file = "database.url"      path = "export"             # a folder of NDJSON files or bundles
schema = "cdm"                 at = "2025-12-31"           # the day on which ages are counted
cohort = 17                    [data.values.sex]
window = [-365, 0]             other = "unknown"           # what a code is called in the study
label_window = [1, 30]
"""

from collections.abc import Callable
from pathlib import Path

from silomix_core.toml_table import TomlTable

from silomix_client.data.clinical.fhir.fhir_source import read_fhir
from silomix_client.data.clinical.omop import read_omop
from silomix_client.data.columns import read_layout
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.database_url import read_database_url
from silomix_client.data.parquet_file import ParquetFile
from silomix_client.data.source import Source
from silomix_client.data.sql_query import SqlQuery


def read_source(table: TomlTable, folder: Path) -> Source:
    """Read the source that the key `data` of this table names; nothing is opened yet."""
    if not table.has_table("data"):
        return CsvFile(folder / table.text("data"))
    data = table.table("data")
    source = _KINDS[data.choice("kind", _KINDS)](data, folder)
    data.finish()
    return source


def _csv(table: TomlTable, folder: Path) -> Source:
    return CsvFile(folder / table.text("path"), read_layout(table))


def _parquet(table: TomlTable, folder: Path) -> Source:
    return ParquetFile(folder / table.text("path"), read_layout(table))


def _sql(table: TomlTable, folder: Path) -> Source:
    return SqlQuery(read_database_url(table, folder), table.lines("query"), read_layout(table))


_KINDS: dict[str, Callable[[TomlTable, Path], Source]] = {
    "csv": _csv,
    "parquet": _parquet,
    "sql": _sql,
    "omop": read_omop,
    "fhir": read_fhir,
}
