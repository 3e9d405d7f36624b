"""A silo's state folder that is put back, as real processes meet it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import numpy as np
from silomix_authority.config import load as load_authority
from silomix_authority.register import Register
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.ledger.reports import StoredReport
from silomix_client.rounds.round_request import RoundRequest
from silomix_core.reports.reporter import Integers
from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import Process
from support.authorities import authority_process
from support.consortia import make_consortium
from support.hostile import Event, HostileServer, besieged, lease_of, opening
from support.processes import (
    Running,
    approve_all,
    kill,
    progress,
    running,
    silomix,
    wait_until,
)
from support.put_back import StateCopy
from support.silos import approved_silo, asked, open_desk, open_ledger, opened

ANSWERED = {"silo": "silo-1", "ending": "done", "answered": "1"}


def test_a_silo_that_was_put_back_in_a_running_study_spends_nothing_more(tmp_path: Path) -> None:
    """Killed, copied, killed again later and put back to the copy; the others go on."""
    made = make_consortium(tmp_path / "c", mixes=1, rounds=2000, epsilon=5.0, lease_rounds=10)
    approve_all(made)
    config = load(made.silos[0])
    with running(made) as system:
        system.wait_for_round(5)
        kill(system.silos[0])
        earlier, before = StateCopy.of(config), charged(config)
        start_again(system)
        wait_until(lambda: charged(config) > before + 3, "it answers again")
        kill(system.silos[0])
        earlier.put_back()
        log = start_again(system).log
        wait_until(lambda: "ledger_behind" in log.read_text(), "it was told")
        told_in = len(progress(made))
        system.wait_for_more_rounds(15)  # at least one more lease
    assert charged(config) == before
    assert {line["accepted"] for line in progress(made)[told_in + 1 : told_in + 15]} == {2}
    result = silomix("silo", "ledger", str(made.silos[0]), cwd=made.folder)
    assert result.returncode == 1
    assert "has this silo's signature on a ledger of" in result.stderr


def start_again(system: Running) -> Process:
    """Start the first silo; it is there before the next round."""
    with system.standing_still():
        silo, starts = system.silos[0], ready(system.silos[0])
        again = system.restart(silo)
        wait_until(lambda: ready(again) > starts, "it joined")
        return again


def ready(silo: Process) -> int:
    return silo.log.read_text().count(" silo_ready ")


def run_silo(made: Consortium) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "silomix", "silo", "run", str(made.silos[0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_silo_that_was_put_back_does_not_start_when_the_authority_knows_better(
    tmp_path: Path,
) -> None:
    """Nobody else is there: no mix, no server."""
    made = make_consortium(tmp_path / "c")
    config = approved_silo(made)
    earlier = StateCopy.of(config)
    with closing(open_ledger(config)) as ledger:
        open_desk(config, made.study, ledger).answer(asked(made, 1))

    def left() -> list[int]:
        with closing(Register(load_authority(made.authority).state)) as register:
            return [height.entries for height in register.heights().values()]

    with authority_process(made.authority):
        first = run_silo(made)
        try:
            wait_until(lambda: left() == [2], "the silo left its height")
        finally:
            first.terminate()
            first.communicate(timeout=60)
        earlier.put_back()
        second = run_silo(made)
        said, _ = second.communicate(timeout=120)
    assert second.returncode == 1
    last = said.strip().splitlines()[-1]
    assert "authority has this silo's signature on a ledger of 2 entries" in last
    assert "Traceback" not in said


def test_whoever_puts_a_silo_back_hears_the_same_report_again(tmp_path: Path) -> None:
    """Server and mixes are in one hand that shows nothing: six answers to one question."""
    made = make_consortium(tmp_path / "c", records=(400, 40, 40), minimum_batch=1)
    config = approved_silo(made)
    earlier, question = StateCopy.of(config), asked(made, 1)
    reports = [asyncio.run(answered(made, question))]
    for _ in range(2):
        earlier.put_back()
        reports.append(asyncio.run(answered(made, question)))
    assert all(np.array_equal(reports[0], each) for each in reports[1:])
    assert charged(config) == 1
    earlier.put_back()
    other = asyncio.run(answered(made, asked(made, 1, [1e-15, 0.0, 0.0])))
    assert np.abs(other - reports[0]).min() > 0, "another question has noise of its own"


async def answered(made: Consortium, question: RoundRequest) -> Integers:
    """What a silo process that starts for it sends, opened."""

    async def script(server: HostileServer) -> AsyncIterator[Event]:
        asks = opening(made, question.descriptor.to_wire(), question.query)
        async for event in asks(server):
            yield event
        await server.arrivals.get()

    async with besieged(made) as siege:
        outcome = await siege.lease(lease_of(made), script)
    assert outcome.reply == ANSWERED
    (onion,) = outcome.onions
    return opened(made, StoredReport(question.descriptor, b"", onion, ()))


def charged(config: SiloConfig) -> int:
    with closing(open_ledger(config)) as ledger:
        return ledger.total().rounds
