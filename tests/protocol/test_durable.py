"""What every party keeps in SQLite: whole transactions, and a file that is not ours is named."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from silomix_protocol.durable import UnusableDatabase, note, open_database, transaction

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
