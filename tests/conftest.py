"""Long tests first: workers take files in turn, and the last ones should be short.

Each test begins as nobody's process.
"""

from pathlib import Path

import pytest
from silomix_protocol.host import logs

_FIRST = ("machines", "system", "lab", "cli", "mixnet", "shuffler", "deploy")
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(_HERE).parts[0]
        return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)

    items.sort(key=turn)


@pytest.fixture(autouse=True)
def _log_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that a test runs in its own process would keep the log of all tests that follow, and
    warnings of all tests before would count."""
    monkeypatch.setattr(logs, "_party", None)
    monkeypatch.setattr(logs, "_left_out", logs._LeftOut())
