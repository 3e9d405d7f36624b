"""What every party keeps: whole transactions, whole files, and a file that is not ours is named."""

import ast
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from silomix_protocol.host.durable import (
    UnusableDatabase,
    cut_log,
    make_folder,
    note,
    open_database,
    transaction,
    write_durably,
    write_new,
)
from support.power import Loss, traced

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


def test_what_is_deleted_is_in_no_file_once_the_log_is_cut_though_others_have_it_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, secret = tmp_path / "kept.sqlite", "a secret of somebody"
    with closing(open_database(path, SCHEMA, 1)) as one, closing(sqlite3.connect(path)) as other:
        one.execute("INSERT INTO parents VALUES (?)", (secret,))
        one.execute("INSERT INTO parents VALUES ('stays')")
        assert other.execute("SELECT COUNT(*) FROM parents").fetchone() == (2,)
        one.execute("DELETE FROM parents WHERE name = ?", (secret,))
        assert holding(path, secret)
        cut_log(one)
        assert holding(path, secret) == []
        assert holding(path, "stays") == ["kept.sqlite"]
        one.execute("PRAGMA busy_timeout=1")
        other.execute("BEGIN")
        other.execute("SELECT * FROM parents").fetchall()
        one.execute("INSERT INTO parents VALUES (?)", (secret,))
        one.execute("DELETE FROM parents WHERE name = ?", (secret,))
        cut_log(one)
        assert "log_not_cut" in caplog.text
        assert holding(path, secret) == ["kept.sqlite-wal"]


def holding(path: Path, text: str) -> list[str]:
    """Files of the database that have this text in them."""
    files = sorted(path.parent.glob(f"{path.name}*"))
    return [each.name for each in files if text.encode() in each.read_bytes()]


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
            list(writers.map(lambda content: write_durably(path, content), contents))
            assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["revoked.crl"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.mkdir()
    with pytest.raises(OSError, match="kept"):
        write_durably(path, b"secret")
    with pytest.raises(FileExistsError):
        write_new(path, b"secret")
    assert os.listdir(tmp_path) == ["kept"]


def test_of_writers_of_one_new_file_one_wins_and_its_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "tokens.seed"

    def wins(content: bytes) -> bool:
        with suppress(FileExistsError):
            write_new(path, content)
            return True
        return False

    contents = [bytes([each]) * 10_000 for each in range(4)]
    with ThreadPoolExecutor(len(contents)) as writers:
        assert sum(writers.map(wins, contents)) == 1
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["tokens.seed"]


WRITERS = (write_durably, write_new)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("write", WRITERS)
def test_what_was_written_outlives_a_power_cut_with_its_folders(
    write: Callable[[Path, bytes], None], loss: Loss, tmp_path: Path
) -> None:
    path = tmp_path / "party" / "state" / "deep" / "file"
    (tmp_path / "party").mkdir()
    with traced(tmp_path / "party", tmp_path / "memory") as disk:
        make_folder(path.parent)
        write(path, b"content")
        (path.parent / "careless").write_bytes(b"content")
    assert disk.cut(loss) == [str(path.parent / "careless")]
    assert path.read_bytes() == b"content"


# Who writes how -----------------------------------------------------------------------------------

PARTIES = ("protocol", "client", "shuffler", "server", "authority")
UNSYNCED = {  # what is not written by `durable`, and why that is enough
    "protocol/silomix_protocol/host/durable.py": "is how",
    "client/silomix_client/network/connection_status.py": "what cannot be read is not known",
    "client/silomix_client/ledger/outcome_file.py": "what cannot be read is not known",
    "client/silomix_client/audit_log/log.py": "appends; synced by commands and after every lease",
    "client/silomix_client/ledger/database.py": "locks, which are empty",
    "shuffler/silomix_shuffler/storage/spool.py": "syncs before a report of it is acknowledged",
    "server/silomix_server/study/results.py": "a line a round, to look at; the rest is durable",
    "server/silomix_server/flower/child_processes.py": "what the server's processes print",
    "server/silomix_server/flower/flower_run.py": "the app, made anew at every start",
}


def test_what_a_party_keeps_is_written_by_one_module() -> None:
    root = Path(__file__).parents[3]
    writing = {
        str(path.relative_to(root))
        for package in PARTIES
        for path in (root / package).rglob("*.py")
        if "_pb2" not in path.name and any(map(_writes, ast.walk(ast.parse(path.read_text()))))
    }
    assert writing == set(UNSYNCED)


def _writes(node: ast.AST) -> bool:
    """Whether this calls something that makes or changes a file."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("write_text", "write_bytes", "mkstemp", "touch", "savez", "copyfile", "copytree"):
        return not _into_memory(node)
    if name != "open":
        return False
    words = [each.value for each in node.args if isinstance(each, ast.Constant)]
    flags = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    modes = any(
        isinstance(word, str) and set(word) & set("wax+") and len(word) < 4 for word in words
    )
    return modes or bool(flags & {"O_WRONLY", "O_RDWR", "O_CREAT"})


def _into_memory(node: ast.Call) -> bool:
    return bool(node.args) and isinstance(node.args[0], ast.Name) and node.args[0].id == "content"
