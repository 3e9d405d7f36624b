"""Data that would take all memory ends in a sentence, and the process goes on."""

import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from silomix_client.data import memory
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.parquet_file import ParquetFile
from silomix_client.data.records import read
from silomix_client.data.source import SourceRow
from silomix_client.errors import BadRecords
from silomix_core.task.task import Task
from silomix_lab.consortium.create import Consortium
from support.consortia import SMALL_TASK

MB = 2**20
COLUMNS = ("age", "dose", "outcome")


def parquet_of(path: Path, millions: int) -> Path:
    """So many million rows, all alike: a few kilobytes each million."""
    ones = np.ones(10**6)
    table = pa.table({name: pa.array(ones) for name in COLUMNS})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(millions):
            writer.write_table(table)
    return path


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 40 * MB)


@pytest.mark.usefixtures("little_room")
def test_a_parquet_file_of_too_many_rows_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    source = ParquetFile(parquet_of(tmp_path / "bomb.parquet", 1))
    assert source.path.stat().st_size < MB
    with pytest.raises(BadRecords, match=r"bomb.parquet: 1000000 rows: more than there is memory"):
        next(source.rows(SMALL_TASK))


@pytest.mark.usefixtures("little_room")
def test_rows_without_end_are_refused_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(",".join(COLUMNS) + "\n" + "50,0.5,1\n" * 150_000)
    with pytest.raises(BadRecords, match=r"row \d+ and before it: more than there is memory for"):
        read(CsvFile(path), SMALL_TASK)
    path.write_text(",".join(COLUMNS) + "\n" + "50,0.5,1\n" * 50_000)
    assert len(read(CsvFile(path), SMALL_TASK).records) == 50_000


class Greedy:
    """A source whose one cell is all that there is, and more."""

    description = identity = "greedy"

    def local_names(self, task: Task) -> Mapping[str, str]:
        return {}

    def rows(self, task: Task) -> Iterator[SourceRow]:
        held = [bytearray(64 * MB) for _ in range(10**6)]
        yield SourceRow("row 1", None, None, {"age": len(held)})


def test_whatever_takes_too_much_ends_in_a_sentence_and_the_process_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 512 * MB)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(BadRecords, match=r"greedy: more than there is memory for \(0\.4 GB\)"):
        read(Greedy(), SMALL_TASK)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(64 * MB)) == 64 * MB


def test_what_is_free_is_the_least_of_what_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < memory.free_bytes() <= memory._available_bytes()
    for name, text in {
        "memory.max": f"{100 * MB}\n",
        "memory.current": f"{90 * MB}\n",
        "memory.stat": f"anon {60 * MB}\ninactive_file {30 * MB}\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert memory.free_bytes() == 40 * MB
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes() > 40 * MB


@pytest.mark.slow
def test_sixty_million_rows_in_less_than_a_megabyte_are_a_sentence(consortium: Consortium) -> None:
    """The command as an operator types it, with a limit of 4 GB."""
    silo = consortium.silos[0]
    bomb = parquet_of(silo.parent / "bomb.parquet", 60)
    assert bomb.stat().st_size < MB
    data = {"kind": "parquet", "path": bomb.name}
    silo.write_text(tomli_w.dumps({"name": "silo-1", "policy": "policy.toml", "data": data}))
    command = [sys.executable, "-m", "silomix", "silo", "check"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", *command, silo, "study.toml"],
        capture_output=True,
        text=True,
        check=False,
        cwd=consortium.folder,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"silomix: {bomb}: 60000000 rows: more than there is memory for")
    assert done.stderr.count("\n") == 1
