"""Machines need rights that not every computer gives; pytest then says which (-rs)."""

from pathlib import Path

import pytest
from support.machines import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests, with the reason, where network namespaces cannot be made."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    reason = why_not() if here else None
    if reason is not None:
        for item in here:
            item.add_marker(pytest.mark.skip(reason=reason))
