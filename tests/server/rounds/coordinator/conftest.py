"""A consortium of few rounds, and a coordinator that does not wait long."""

from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity
from silomix_lab.consortium.create import Consortium
from silomix_server.mixes import mix_chain as chain_module
from silomix_server.rounds import availability as membership_module
from support.consortia import make_consortium
from support.coordinated_studies import ROUNDS


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "_CALL_S", 2.0)
    monkeypatch.setattr(membership_module, "_REPLY_S", 0.0)
    for name in ("_run_id", "_node_id", "_task_id"):  # what Flower sets in a ServerApp's process
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "consortium", rounds=ROUNDS, deadline_s=1.0)
