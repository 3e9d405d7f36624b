"""Emptied files that are used again: nothing of a batch is left in them."""

import errno
import os
import stat
from pathlib import Path

import pytest
from silomix_shuffler.storage.spares import Spares
from silomix_shuffler.storage.spool import Spool


@pytest.fixture
def spares(tmp_path: Path) -> Spares:
    return Spares(tmp_path / "spare")


def batch(path: Path, spares: Spares, *reports: bytes) -> Spool:
    spool = Spool(path, len(reports[0]), spares)
    for slot, report in enumerate(reports):
        spool.write(slot, report)
    spool.sync()
    return spool


def test_a_deleted_file_is_the_next_one_and_empty(tmp_path: Path, spares: Spares) -> None:
    first = batch(tmp_path / "one", spares, b"a secret", b"another.")
    inode = (tmp_path / "one").stat().st_ino
    first.delete()
    assert not (tmp_path / "one").exists()
    assert [each.read_bytes() for each in (tmp_path / "spare").iterdir()] == [b""]
    second = batch(tmp_path / "two", spares, b"new")
    assert (tmp_path / "two").stat().st_ino == inode
    assert (tmp_path / "two").read_bytes() == b"new"
    assert list((tmp_path / "spare").iterdir()) == []
    second.close()


def test_two_batches_never_share_a_file(tmp_path: Path, spares: Spares) -> None:
    for name in "ab":
        batch(tmp_path / name, spares, b"of before").delete()
    spools = [batch(tmp_path / name, spares, b"batch " + name.encode()) for name in "cdef"]
    assert [(tmp_path / name).read_bytes()[-1:] for name in "cdef"] == [b"c", b"d", b"e", b"f"]
    for spool in spools:
        spool.close()


def test_a_file_that_is_there_is_opened_and_not_replaced(tmp_path: Path, spares: Spares) -> None:
    """The bodies that a restarted mix finds."""
    batch(tmp_path / "kept", spares, b"report").close()
    batch(tmp_path / "other", spares, b"of another").delete()
    restarted = Spool(tmp_path / "kept", 6, spares)
    assert list(restarted.read([0])) == [b"report"]
    restarted.close()


def test_what_a_process_before_left_is_deleted_and_what_is_gone_is_not_missed(
    tmp_path: Path, spares: Spares
) -> None:
    batch(tmp_path / "one", spares, b"report").delete()
    again = Spares(tmp_path / "spare")
    assert list((tmp_path / "spare").iterdir()) == []
    again.put_by(tmp_path / "one")
    batch(tmp_path / "two", again, b"report").close()
    assert (tmp_path / "two").read_bytes() == b"report"


def test_a_spare_that_somebody_deleted_is_made_anew(tmp_path: Path, spares: Spares) -> None:
    batch(tmp_path / "one", spares, b"report").delete()
    for spare in (tmp_path / "spare").iterdir():
        spare.unlink()
    batch(tmp_path / "two", spares, b"report").close()
    assert (tmp_path / "two").read_bytes() == b"report"


def test_a_file_that_cannot_be_kept_is_deleted(
    tmp_path: Path, spares: Spares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches may be on a disk of their own, behind a link."""
    spool = batch(tmp_path / "one", spares, b"report")
    with monkeypatch.context() as elsewhere:

        def refuses(*_: object) -> None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

        elsewhere.setattr(os, "rename", refuses)
        spool.delete()
    assert [each.name for each in tmp_path.iterdir()] == ["spare"]
    batch(tmp_path / "two", spares, b"report").close()
    assert (tmp_path / "two").read_bytes() == b"report"


def test_there_are_a_few_for_their_owner_only(tmp_path: Path, spares: Spares) -> None:
    for spool in [batch(tmp_path / f"{number}", spares, b"report") for number in range(30)]:
        spool.delete()
    left = list((tmp_path / "spare").iterdir())
    assert 1 <= len(left) <= 10
    assert {stat.S_IMODE(each.stat().st_mode) for each in left} == {0o600}
    assert stat.S_IMODE((tmp_path / "spare").stat().st_mode) == 0o700
    assert [each.name for each in tmp_path.iterdir()] == ["spare"]
