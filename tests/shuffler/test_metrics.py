"""What an operator sees of a mix: counters by reason, never by silo, and whether all is well."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
from silomix_lab.consortium.create import Consortium
from silomix_lab.demo.run_demo import free_ports
from silomix_protocol.connections.tls import CannotListen
from silomix_shuffler.config import Limits
from silomix_shuffler.metrics import Health, Metrics, MetricsServer
from support.consortia import make_consortium
from support.mixes import (
    collect,
    mix_serving,
    opened_payloads,
    opened_round,
    refusal,
    refused_submission,
    run,
    sealed_reports,
    submission,
    submit,
    submit_all,
)
from support.processes import wait_until


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


@contextmanager
def watched(metrics: Metrics, health: Health = list) -> Iterator[str]:
    """The address that these metrics are served at."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    server = MetricsServer(address, metrics, health)
    server.start()
    try:
        yield address
    finally:
        server.stop()


def get(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=5.0)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"silomix_mix_{name}", labels) or 0.0


def test_what_became_of_reports_and_batches_is_counted(made: Consortium) -> None:
    metrics = Metrics()

    async def scene() -> None:
        async with mix_serving(made, 0, metrics=metrics):
            played = await opened_round(made)
            assert value(metrics, "rounds_open") == 1
            assert value(metrics, "body_bytes") == 3 * played.length
            reports = sealed_reports(played)
            frames = submission(made, "silo-1", played.descriptor, reports["silo-1"].sealed)
            await refused_submission(made, "server", frames)
            other = sealed_reports(played)["silo-1"].sealed
            await submit(made, "silo-1", frames)
            await submit(made, "silo-1", submission(made, "silo-1", played.descriptor, other))
            reports["silo-2"] = reports["silo-1"]
            await submit_all(played, reports)
            batch = await collect(played)
            assert value(metrics, "rounds_open") == 0
            await opened_payloads(played, batch)
            gone = "released, the bodies go in the background"
            await asyncio.to_thread(wait_until, lambda: not value(metrics, "body_bytes"), gone)
            assert value(metrics, "reports_total", outcome="accepted") == 2
            assert value(metrics, "reports_total", outcome="dropped") == 1
            assert value(metrics, "refused_total", reason="wrong_sender") == 1
            assert value(metrics, "refused_total", reason="replayed_report") == 1
            assert value(metrics, "batches_total", outcome="sealed") == 1

    run(scene())


def test_nothing_in_the_metrics_names_a_silo_or_a_round(made: Consortium) -> None:
    """A counter by sender and time would tell whose report is whose."""
    metrics = Metrics()

    async def scene() -> str:
        async with mix_serving(made, 0, metrics=metrics):
            played = await opened_round(made)
            reports = sealed_reports(played)
            for silo in reports:
                frames = submission(made, silo, played.descriptor, reports[silo].sealed[:-1])
                await refused_submission(made, silo, frames)
            await submit_all(played, reports)
            await collect(played)
            with watched(metrics) as address:
                status, text = get(address, "/metrics")
            assert status == 200
            assert played.descriptor.digest.hex() not in text
            return text

    text = run(scene())
    labels = set(re.findall(r'="([^"]*)"', text))
    assert {"wrong_length", "accepted"} <= labels
    parties = {silo.name for silo in made.study.silos} | {"server", "mix-1"}
    assert not labels & parties
    assert not any(party in text for party in parties)


def test_well_or_not_is_a_status_and_a_sentence() -> None:
    problems: list[str] = []
    with watched(Metrics(), lambda: problems) as address:
        status, text = get(address, "/health")
        assert (status, json.loads(text)) == (200, {"status": "ok", "problems": []})
        problems.append("only 3 MB of disk are free")
        status, text = get(address, "/health")
        assert (status, json.loads(text)) == (503, {"status": "failing", "problems": problems})
        assert get(address, "/")[0] == 404
        assert get(address, "/metrics/../health")[0] == 404


def test_a_disk_that_runs_full_is_a_problem(made: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(made, 0) as rounds:
            assert rounds.problems() == []
        async with mix_serving(made, 0, limits=Limits(free_disk_bytes=2**60)) as rounds:
            (problem,) = rounds.problems()
            assert re.fullmatch(r"only \d+ MB of disk are free", problem)
            assert await refusal(opened_round(made))

    run(scene())


@pytest.mark.slow
def test_slow_callers_take_few_threads_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silomix_shuffler.metrics._CALL_S", 1.0)
    before = threading.active_count()
    with watched(Metrics()) as address, ExitStack() as stack:
        host, _, port = address.rpartition(":")
        for _ in range(40):
            caller = stack.enter_context(socket.create_connection((host, int(port))))
            caller.sendall(b"GET /met")
        assert threading.active_count() - before <= 2 + 2 * 16  # one each, and its clock

        def answered() -> bool:
            with suppress(OSError, HTTPException):
                return get(address, "/health")[0] == 200
            return False

        wait_until(answered, "an answer in spite of them", 20.0)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotListen, match=f"metrics_listen: cannot listen on {address}"):
            MetricsServer(address, Metrics(), list)
