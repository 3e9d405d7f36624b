"""A silo of a consortium with two mixes, which waits for nobody."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.silos import approved_silo, copied


@pytest.fixture(scope="session")
def two_mixes(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("two-mixes") / "consortium"
    return make_consortium(folder, minimum_batch=2, rounds=24)


@pytest.fixture
def made(two_mixes: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Consortium:
    no_pause = SimpleNamespace(uniform=lambda low, high: 0.0)
    monkeypatch.setattr("silomix_protocol.host.backoff.random", no_pause)
    monkeypatch.setattr("silomix_client.rounds.lease._STATEMENTS_S", 1.0)
    return copied(two_mixes, tmp_path / "consortium")


@pytest.fixture
def config(made: Consortium) -> SiloConfig:
    return approved_silo(made)
