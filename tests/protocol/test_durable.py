"""What every party keeps: whole transactions, whole files, and a file that is not ours is named."""

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from silomix_protocol.durable import (
    UnusableDatabase,
    note,
    open_database,
    transaction,
    write_durably,
    write_whole,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS parents (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS children (
    parent TEXT REFERENCES parents DEFERRABLE INITIALLY DEFERRED
);
"""


def counted(database: sqlite3.Connection) -> int:
    (count,) = database.execute("SELECT COUNT(*) FROM children").fetchone()
    return int(count)


def _one_and_then_trouble() -> Iterator[tuple[None]]:
    yield (None,)
    raise sqlite3.OperationalError


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    open_database(path, SCHEMA, 1).close()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", [transaction, note])
def test_a_transaction_is_kept_whole_or_not_at_all(tmp_path: Path, kind: type) -> None:
    with closing(open_database(tmp_path / "kept.sqlite", SCHEMA, 1)) as database:
        with pytest.raises(sqlite3.OperationalError), kind(database):
            database.executemany("INSERT INTO children VALUES (?)", _one_and_then_trouble())
        assert counted(database) == 0
        with kind(database):
            database.execute("INSERT INTO children VALUES (NULL)")
        assert counted(database) == 1
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_commit_that_fails_leaves_nothing_behind_and_the_next_one_works(tmp_path: Path) -> None:
    """A constraint that is only looked at when the transaction ends makes the commit fail."""
    with closing(open_database(tmp_path / "kept.sqlite", SCHEMA, 1)) as database:
        database.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError), transaction(database):
            database.execute("INSERT INTO children VALUES ('nobody')")
        assert not database.in_transaction
        with transaction(database):
            database.execute("INSERT INTO children VALUES (NULL)")
        assert counted(database) == 1


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    content = b"letters\n" * 200
    path.write_bytes(content)
    with pytest.raises(UnusableDatabase, match=r"kept\.sqlite: file is not a database"):
        open_database(path, SCHEMA, 1)
    assert path.read_bytes() == content


def test_a_database_of_another_release_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    with closing(open_database(path, SCHEMA, 1)) as database, transaction(database):
        database.execute("INSERT INTO children VALUES (NULL)")
    with pytest.raises(UnusableDatabase, match=r"another release \(format 1\)"):
        open_database(path, SCHEMA, 2)
    with closing(open_database(path, SCHEMA, 1)) as database:
        assert counted(database) == 1


@pytest.mark.parametrize("trap", ["file", "link"])
def test_a_secret_is_not_written_into_what_somebody_else_laid_out(
    tmp_path: Path, trap: str
) -> None:
    """In a folder like /tmp: a file that its maker can read, a link to one."""
    path, laid = tmp_path / "silo-1.invitation", tmp_path / "silo-1.invitation.part"
    readable = laid if trap == "file" else tmp_path / "elsewhere"
    readable.write_bytes(b"")
    readable.chmod(0o666)
    if trap == "link":
        laid.symlink_to(readable)
    with readable.open("rb") as held:
        write_durably(path, b"secret")
        assert held.read() == b""
    assert path.read_bytes() == b"secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not path.is_symlink()


def test_writers_of_one_file_at_once_leave_the_whole_of_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "revoked.crl"
    contents = [bytes([each]) * 100_000 * (each + 1) for each in range(4)]
    with ThreadPoolExecutor(len(contents)) as writers:
        for _ in range(20):
            list(writers.map(lambda content: write_whole(path, content), contents))
            assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["revoked.crl"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.mkdir()
    with pytest.raises(OSError, match="kept"):
        write_whole(path, b"secret")
    assert os.listdir(tmp_path) == ["kept"]
