"""The records of a CSV file, read as a silo reads it."""

from pathlib import Path

from silomix_client.data.csv_file import CsvFile
from silomix_client.data.records import read
from silomix_core.model.clipped_sum import Records
from silomix_core.task.task import Task


def read_records(path: Path, task: Task) -> Records:
    return read(CsvFile(path), task).records
