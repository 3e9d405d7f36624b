"""A small consortium for every test of the silo, made once and copied; and a database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.people import Clinic
from support.postgres import Postgres, postgres
from support.silos import copied


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("template") / "consortium")


@pytest.fixture
def consortium(template: Consortium, tmp_path: Path) -> Consortium:
    """Three silos (40, 50 and 60 records), two mixes, five rounds; nothing approved yet."""
    return copied(template, tmp_path / "consortium")


@pytest.fixture(scope="session")
def database_server() -> Iterator[Postgres]:
    """A real PostgreSQL."""
    with postgres() as server:
        yield server


@pytest.fixture
def clinic(database_server: Postgres, tmp_path: Path) -> Clinic:
    """The same people in every kind of source."""
    return Clinic(tmp_path, database_server.url)
