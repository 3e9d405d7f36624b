"""Long tests first: two workers take files in turn, and the last ones should be short."""

from pathlib import Path

import pytest

_FIRST = ("machines", "system", "cli", "mixnet", "shuffler", "deploy")
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(_HERE).parts[0]
        return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)

    items.sort(key=turn)
