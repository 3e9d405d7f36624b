"""What Flower left in the state folder never keeps a server from starting."""

import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from flwr.supercore.state.alembic.utils import run_migrations
from silomix_server.config import ServerConfig, load
from silomix_server.flower.flower_state import APP, DATABASE, HOME, make_ready
from sqlalchemy import create_engine
from support.consortia import make_consortium


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Flower's database as its SuperLink makes it."""
    path = tmp_path_factory.mktemp("flower") / DATABASE
    engine = create_engine(f"sqlite:///{path}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        run_migrations(engine)
    engine.dispose()
    return path.read_bytes()


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return load(make_consortium(tmp_path / "c").server)


def test_a_whole_database_is_kept_and_apps_are_not(config: ServerConfig, whole: bytes) -> None:
    (config.state / DATABASE).write_bytes(whole)
    for name in (HOME, APP):
        (config.state / name / "apps").mkdir(parents=True)
        (config.state / name / "apps" / "pyproject.toml").touch()
    make_ready(config)
    assert [path.name for path in config.state.iterdir()] == [DATABASE]


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def overwritten(path: Path) -> None:
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 5 * 4096])


def unfinished(path: Path) -> None:
    """Killed between two of its migrations."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '8e65d8ae60b0'")


def unversioned(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE alembic_version")


@pytest.mark.parametrize("damage", [emptied, overwritten, torn, unfinished, unversioned])
def test_a_database_that_flower_could_not_use_is_made_anew(
    config: ServerConfig, whole: bytes, damage: Callable[[Path], None]
) -> None:
    path = config.state / DATABASE
    path.write_bytes(whole)
    damage(path)
    path.with_name(f"{DATABASE}-shm").touch()
    make_ready(config)
    assert list(config.state.iterdir()) == []
