"""How a silo stands with others: in its log, in a file, and in `silomix silo status`."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from silomix.main import app
from silomix_client.network.connection_status import FILE, LinkCondition, Links, Purpose, standing
from silomix_protocol.host.backoff import pause_s
from support.consortia import make_consortium
from typer.testing import CliRunner

PLACE = Purpose.LEASES, "server", "server.example:9092"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def held(state: Path) -> Iterator[None]:
    """As a running silo holds its folder."""
    descriptor = os.open(state, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="silomix")
    return caplog


def test_a_file_says_what_is_waited_for_since_when_and_when_the_next_try_is(tmp_path: Path) -> None:
    clock = Clock()
    link = Links(tmp_path, clock).to(*PLACE)
    began = clock.now
    for tries in range(1, 4):
        link.waiting("connection refused", 5.0)
        with held(tmp_path):
            found = standing(tmp_path)
        assert found is not None
        (seen,) = found.links
        assert (seen.condition, seen.reason) == (LinkCondition.WAITING.value, "connection refused")
        assert (seen.since, seen.tries, seen.next_try) == (began, tries, clock.now + 5.0)
        clock.now += 5.0
    link.connected()
    with held(tmp_path):
        found = standing(tmp_path)
    assert found is not None
    (seen,) = found.links
    assert (seen.condition, seen.since, seen.tries) == ("connected", clock.now, 0)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_silo_that_does_not_run_does_not_stand_anywhere(tmp_path: Path) -> None:
    links = Links(tmp_path)
    links.to(*PLACE).connected()
    assert standing(tmp_path) is None, "the file alone says nothing: it may have been killed"
    assert standing(tmp_path / "nowhere") is None
    links.close()
    assert not (tmp_path / FILE).exists()


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    """In a round that goes as it should, a link costs no look at the disk."""
    link = Links(tmp_path).to(*PLACE)
    link.connected()
    (tmp_path / FILE).unlink()
    for _ in range(100):
        link.connected()
    assert not (tmp_path / FILE).exists()


def test_the_log_tells_changes_and_reminds_now_and_then(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    link = Links(tmp_path, clock).to(*PLACE)
    for _ in range(100):  # 16 minutes of the same trouble
        link.waiting("connection refused", 10.0)
        clock.now += 10.0
    assert [line.split()[0] for line in log.messages] == ["leases_waiting"] * 2
    assert "connection refused" in log.messages[0]
    assert "next_try_s=10" in log.messages[0]
    link.waiting("the proxy answered 407", 10.0)
    link.refused("you speak version 2")
    link.connected()
    told = [line.split()[0] for line in log.messages[2:]]
    assert told == ["leases_waiting", "leases_refused", "leases_connected"]


def test_pauses_grow_are_bounded_and_differ() -> None:
    for tries, whole in ((1, 0.2), (2, 0.4), (5, 3.2), (7, 10.0), (10**9, 10.0)):
        pauses = [pause_s(tries, 10.0) for _ in range(200)]
        assert all(whole / 2 <= pause <= whole for pause in pauses)
        assert len(set(pauses)) > 190, "silos would come back in step"


def status(config: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["silo", "status", str(config)])
    return result.exit_code, result.output


def test_status_says_whether_the_silo_runs_and_what_it_waits_for(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c")
    config, state = made.silos[0], made.silos[0].parent / "state"
    code, said = status(config)
    assert code == 1
    assert "silo-1 is not running" in said
    state.mkdir()
    links = Links(state)
    links.to(Purpose.ROUNDS, "server", "server.example:9094").idle()
    links.to(*PLACE).waiting("connection refused", 500.0)
    with held(state):
        code, said = status(config)
        assert code == 1
        assert f"runs as process {os.getpid()}" in said
        assert "leases   server server.example:9092: waiting since" in said
        assert "(connection refused); 1 try, the next in " in said
        links.to(*PLACE).connected()
        assert status(config)[0] == 0
