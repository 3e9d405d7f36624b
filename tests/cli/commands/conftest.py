"""A small consortium, made once and copied for every test that changes it."""

from pathlib import Path

import pytest
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.silos import copied


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("template") / "consortium")


@pytest.fixture
def consortium(template: Consortium, tmp_path: Path) -> Consortium:
    return copied(template, tmp_path / "consortium")
