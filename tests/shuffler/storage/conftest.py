"""The store of a mix, in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from silomix_shuffler.storage.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    opened = Store(folder)
    yield opened
    opened.close()
