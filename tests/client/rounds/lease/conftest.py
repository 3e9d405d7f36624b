"""A silo of a consortium with one mix, which waits for nobody."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.leases import TRIES
from support.silos import approved_silo, copied


@pytest.fixture(scope="session")
def one_mix(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("one-mix") / "consortium"
    return make_consortium(folder, mixes=1, minimum_batch=1)


@pytest.fixture
def made(one_mix: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Consortium:
    """Three silos behind one mix; pauses between tries are taken out, connecting takes 0.3 s."""
    no_pause = SimpleNamespace(uniform=lambda low, high: 0.0)
    monkeypatch.setattr("silomix_protocol.host.backoff.random", no_pause)
    monkeypatch.setattr("silomix_client.rounds.submit._CONNECT_S", 0.3)
    monkeypatch.setattr("silomix_client.rounds.lease._CHANNEL_TRIES", TRIES)
    return copied(one_mix, tmp_path / "consortium")


@pytest.fixture
def config(made: Consortium) -> SiloConfig:
    return approved_silo(made)
