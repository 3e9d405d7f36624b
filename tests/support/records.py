"""The records of a CSV file, read as a silo reads it."""

from pathlib import Path

from silomix_client.data.csv_file import CsvFile
from silomix_client.data.people import read
from silomix_core.task import Task
from silomix_core.update import Records


def read_records(path: Path, task: Task) -> Records:
    return read(CsvFile(path), task).records
