"""Consortia whose round channel is served, and a channel that does not wait long."""

import pytest
from silomix_lab.consortium.create import Consortium
from silomix_server.silos import followers as followers_module
from silomix_server.silos import round_channel as channel_module
from support.consortia import make_consortium


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("channel") / "consortium")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """Three silos, of which a round asks two."""
    return make_consortium(tmp_path_factory.mktemp("pairs") / "consortium", participants=2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_HELLO_S", 0.5)
    monkeypatch.setattr(followers_module, "_FAREWELL_S", 0.5)
