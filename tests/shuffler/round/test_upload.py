"""An onion on its way in: exactly the announced bytes, hashed, without a name on disk."""

import asyncio
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_shuffler.errors import NoRoom, WrongLength
from silomix_shuffler.round import upload as uploads
from silomix_shuffler.round.upload import Room, Upload

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


def test_a_large_one_that_has_a_place_is_in_memory(tmp_path: Path) -> None:
    async def scene() -> None:
        room, folder = Room(), tmp_path / "not there"
        whole = bytes(range(256)) * (LARGE // 256 + 1)
        assert await room.taken()
        upload = Upload(len(whole), folder, room)
        for at in range(0, len(whole), CHUNK_BYTES):
            upload.add(whole[at : at + CHUNK_BYTES])
        assert upload.large
        assert (upload.read(), upload.digest) == (whole, sha256(whole).digest())
        upload.close()

    asyncio.run(scene())


def test_a_place_is_given_back_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(uploads, "_LARGE_AT_ONCE", 2)
    monkeypatch.setattr(uploads, "_PATIENCE_S", 0.01)

    async def scene() -> None:
        room = Room()
        assert [await room.taken() for _ in range(3)] == [True, True, False]
        upload = Upload(LARGE, tmp_path, room)
        upload.close()
        upload.close()
        assert [await room.taken() for _ in range(2)] == [True, False]

    asyncio.run(scene())


def test_who_waits_for_a_place_gets_the_next_one_that_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploads, "_LARGE_AT_ONCE", 1)

    async def scene() -> list[bool]:
        room = Room()
        assert await room.taken()
        waiting = [asyncio.create_task(room.taken()) for _ in range(30)]
        for _ in waiting:
            await asyncio.sleep(0)
            room.give_back()
        return await asyncio.gather(*waiting)

    assert asyncio.run(scene()) == [True] * 30


def test_nobody_waits_for_a_place_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silos that come and go could otherwise keep the others out until the deadline."""
    monkeypatch.setattr(uploads, "_LARGE_AT_ONCE", 0)
    monkeypatch.setattr(uploads, "_PATIENCE_S", 0.05)

    async def scene() -> bool:
        return await asyncio.wait_for(Room().taken(), 30.0)

    assert not asyncio.run(scene())


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
