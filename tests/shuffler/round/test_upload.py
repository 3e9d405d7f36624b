"""An onion on its way in: exactly the announced bytes, hashed, without a name on disk."""

import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_shuffler.errors import NoRoom, WrongLength
from silomix_shuffler.round.upload import Upload

LARGE = CHUNK_BYTES + 1


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pieces=st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=8))
def test_pieces_become_the_report_and_its_digest(tmp_path: Path, pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    upload = Upload(len(whole), tmp_path)
    for piece in pieces:
        assert not upload.complete
        upload.add(piece)
    assert upload.complete
    assert not upload.large
    assert (upload.read(), upload.digest) == (whole, sha256(whole).digest())
    upload.close()


def test_a_large_one_is_in_a_file_that_has_no_name(tmp_path: Path) -> None:
    whole = bytes(range(256)) * (LARGE // 256 + 1)
    upload = Upload(len(whole), tmp_path)
    for at in range(0, len(whole), CHUNK_BYTES):
        upload.add(whole[at : at + CHUNK_BYTES])
    assert upload.large
    assert list(tmp_path.iterdir()) == [], "a kill leaves nothing behind"
    assert (upload.read(), upload.digest) == (whole, sha256(whole).digest())
    assert upload.read() == whole
    upload.close()


@pytest.mark.parametrize("wanted", [10, LARGE])
def test_more_than_announced_is_refused_at_once(tmp_path: Path, wanted: int) -> None:
    upload = Upload(wanted, tmp_path)
    upload.add(bytes(8))
    with pytest.raises(WrongLength, match="longer than announced"):
        upload.add(bytes(wanted - 7))
    assert not upload.complete
    upload.close()


def test_an_empty_piece_is_the_end_of_a_report_that_is_not_complete(tmp_path: Path) -> None:
    upload = Upload(10, tmp_path)
    with pytest.raises(WrongLength, match="ended early"):
        upload.add(b"")


class FullFile:
    """Stands for a file on a disk without room."""

    def __init__(self, **_: Any) -> None:
        pass

    def write(self, _: bytes) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")  # for what was buffered


def test_a_full_disk_is_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoRoom):
        Upload(LARGE, tmp_path / "not there")
    monkeypatch.setattr(tempfile, "TemporaryFile", FullFile)
    upload = Upload(LARGE, tmp_path)
    with pytest.raises(NoRoom):
        upload.add(b"piece")
    upload.close()
