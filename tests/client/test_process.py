"""A silo's process around its leases: what a server that lets it in and then fails can cost."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from silomix_client import process as run
from silomix_client.audit_log.log import AuditLog
from silomix_client.network.fleet_calls import FleetUnreachable
from silomix_client.network.fleet_objects import FleetMessage
from silomix_lab.consortium.create import Consortium
from support.silos import approved_silo


class Failing:
    """A server that lets every node in and then answers nothing of use."""

    def __init__(self) -> None:
        self.joins = 0

    @contextmanager
    def join(self, *_: object) -> Iterator["Failing"]:
        self.joins += 1
        yield self

    def receive(self) -> FleetMessage | None:
        raise FleetUnreachable("a compressed answer, which nobody asked for")


def test_a_server_that_lets_a_silo_in_and_fails_is_joined_ever_less_often(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses between tries are taken out: what remains is the pace of joining."""
    server, config = Failing(), approved_silo(consortium)
    monkeypatch.setattr(run, "join_fleet", server.join)
    monkeypatch.setattr(run, "pause_s", lambda tries, longest: 0.0)
    log = AuditLog(config.state, config.name)

    async def scene() -> None:
        process = run._Process(config, log)
        running = asyncio.create_task(process.run())
        end = time.monotonic() + 30.0
        while server.joins < run._JOINS and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        process._stop.set()
        await asyncio.wait_for(running, 30.0)

    try:
        asyncio.run(scene())
    finally:
        log.close()
    assert run._JOINS <= server.joins <= run._JOINS + 2
