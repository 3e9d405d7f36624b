"""The folder in which an audit works, and which it leaves empty; approvals without processes."""

import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import load
from silomix_lab.audit import scratch as audit_scratch
from silomix_lab.audit.run_audit import AuditOptions
from silomix_lab.consortium.create import Consortium


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the audit makes its scratch folder; it must be empty in the end."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def approved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit in this process approves here what `silo approve` would: twenty studies cost less
    than two such processes, and as many fewer silos run."""
    monkeypatch.setattr(audit_scratch, "_approve", _approve)
    monkeypatch.setattr(AuditOptions, "studies", 20)


async def _approve(_command: Sequence[str], made: Consortium, name: str, _turns: object) -> None:
    config = load(made.silos[0])
    content = (made.folder / f"{name}.toml").read_bytes()
    approve(config, review(config, content, name), datetime.now(UTC))
