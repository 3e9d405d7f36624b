"""What became of a report outlives the process, belongs to one D, and is never half believed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_client.ledger.outcome_file import OutcomeFile
from silomix_client.ledger.outcome_rules import NOTHING, Closing, ReportOutcome
from silomix_proto import mix_pb2
from silomix_protocol.rounds.descriptor import RoundDigest

FIRST, SECOND = RoundDigest(b"\1" * 32), RoundDigest(b"\2" * 32)
RECEIPT = mix_pb2.Receipt(
    digest=FIRST, report=b"r" * 32, status=mix_pb2.Receipt.ACCEPTED, signature=b"s" * 64
)
LIST = b"l" * 32


@pytest.mark.parametrize(
    "known",
    [
        ReportOutcome(receipt, listed, included, closing, ended)
        for receipt in (None, RECEIPT)
        for listed, included in ((None, False), (LIST, False), (LIST, True))
        for closing in Closing
        for ended in (False, True)
    ],
)
def test_another_process_finds_what_was_written(tmp_path: Path, known: ReportOutcome) -> None:
    OutcomeFile(tmp_path / "file").write(FIRST, known)
    found = OutcomeFile(tmp_path / "file")
    assert found.of(FIRST) == known
    assert found.of(SECOND) == NOTHING


def test_what_is_written_later_replaces_it_whatever_its_length(tmp_path: Path) -> None:
    file = OutcomeFile(tmp_path / "file")
    file.write(FIRST, ReportOutcome(RECEIPT, LIST))
    file.write(SECOND, ReportOutcome(None, LIST))
    for each in (file, OutcomeFile(tmp_path / "file")):
        assert each.of(FIRST) == NOTHING
        assert each.of(SECOND) == ReportOutcome(None, LIST)


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    OutcomeFile(tmp_path / "file").close()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@given(cut=st.integers(0, 300))
def test_a_cut_file_says_less_never_something_else(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "file"
    OutcomeFile(path).write(FIRST, ReportOutcome(RECEIPT, LIST))
    path.write_bytes(path.read_bytes()[:cut])
    found = OutcomeFile(path).of(FIRST)
    assert found.committed in (None, LIST)
    assert not found.used
    assert found.closing is Closing.OPEN
    if found.receipt is not None and found.receipt != RECEIPT:  # shorter: no signature, no use
        assert found.receipt.signature != RECEIPT.signature
