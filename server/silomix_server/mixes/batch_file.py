"""The gated reports of one batch between their arrival and their opening, one at a time in memory.

A small batch stays in memory, a large one goes to a file of the state folder that has no name: it
is gone with the process, however that ends.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile

_IN_MEMORY = 4 * 2**20


class BatchFile:
    def __init__(self, folder: Path, report_bytes: int) -> None:
        self._file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(  # noqa: SIM115
            _IN_MEMORY, dir=str(folder)
        )
        self.report_bytes = report_bytes
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, report: bytes | bytearray) -> None:
        if len(report) != self.report_bytes:
            raise ValueError(f"a report of this batch has {self.report_bytes} bytes")
        self._file.seek(0, 2)
        self._file.write(report)
        self._count += 1

    def __getitem__(self, place: int) -> bytes:
        if not 0 <= place < self._count:
            raise IndexError(place)
        self._file.seek(place * self.report_bytes)
        return self._file.read(self.report_bytes)

    def __iter__(self) -> Iterator[bytes]:
        return (self[place] for place in range(self._count))

    def close(self) -> None:
        self._file.close()
