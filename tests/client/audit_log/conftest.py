"""A silo's audit log."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from silomix_client.audit_log.log import AuditLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    opened = AuditLog(tmp_path, "silo-1")
    yield opened
    opened.close()
