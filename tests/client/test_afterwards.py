"""What became of a report outlives the process, belongs to one D, and is never half believed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_client.afterwards import NOTHING, Afterwards, AfterwardsFile
from silomix_proto import mix_pb2
from silomix_protocol.descriptor import RoundDigest

FIRST, SECOND = RoundDigest(b"\1" * 32), RoundDigest(b"\2" * 32)
RECEIPT = mix_pb2.Receipt(
    digest=FIRST, report=b"r" * 32, status=mix_pb2.Receipt.ACCEPTED, signature=b"s" * 64
)
LIST = b"l" * 32


@pytest.mark.parametrize(
    "known", [Afterwards(RECEIPT), Afterwards(None, LIST), Afterwards(RECEIPT, LIST), NOTHING]
)
def test_another_process_finds_what_was_written(tmp_path: Path, known: Afterwards) -> None:
    AfterwardsFile(tmp_path / "file").write(FIRST, known)
    found = AfterwardsFile(tmp_path / "file")
    assert found.of(FIRST) == known
    assert found.of(SECOND) == NOTHING


def test_what_is_written_later_replaces_it_whatever_its_length(tmp_path: Path) -> None:
    file = AfterwardsFile(tmp_path / "file")
    file.write(FIRST, Afterwards(RECEIPT, LIST))
    file.write(SECOND, Afterwards(None, LIST))
    for each in (file, AfterwardsFile(tmp_path / "file")):
        assert each.of(FIRST) == NOTHING
        assert each.of(SECOND) == Afterwards(None, LIST)


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    AfterwardsFile(tmp_path / "file").close()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@given(cut=st.integers(0, 300))
def test_a_cut_file_says_less_never_something_else(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "file"
    AfterwardsFile(path).write(FIRST, Afterwards(RECEIPT, LIST))
    path.write_bytes(path.read_bytes()[:cut])
    found = AfterwardsFile(path).of(FIRST)
    assert found.committed in (None, LIST)
    if found.receipt is not None and found.receipt != RECEIPT:  # shorter: no signature, no use
        assert found.receipt.signature != RECEIPT.signature
