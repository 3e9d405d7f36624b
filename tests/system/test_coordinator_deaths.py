"""A server that dies in the middle of rounds, and silos that are well."""

import os
import signal
from pathlib import Path

from silomix_client.config.silo_config import load
from silomix_client.rounds.stop_rule import StopRule
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.processes import (
    Running,
    approve_all,
    progress,
    running,
    server_logs,
    spending,
    wait_until,
)
from support.stops import Point, Stops, kill_server, stops

__all__ = ["stops"]

ROUNDS = 12


def test_a_coordinator_that_dies_in_two_rounds_in_a_row_stops_no_silo(
    tmp_path: Path, stops: Stops
) -> None:
    """In the first two rounds, when all silos have sent their reports: before they hear of a list,
    then after all confirmed one."""
    made = make_consortium(tmp_path / "c", rounds=ROUNDS, epsilon=5.0, minimum_batch=3)
    approve_all(made)
    with running(made) as system:
        for point in Point:
            with stops.stopped(system, point):
                kill_server(system)
            system.restart_server()
        assert system.server_status() == 0, system.all_logs()
        check_silos(system)
    lines = progress(made)
    assert [line["round"] for line in lines] == list(range(3, ROUNDS + 1))
    assert not any(line["void"] for line in lines)
    assert lines[-1]["accepted"] == 3
    assert [entry.rounds for entry in spending(made)] == [ROUNDS] * 3
    assert not any((config.parent / "state" / "neglect").exists() for config in made.silos)


def test_a_server_killed_again_and_again_goes_on_with_the_next_round(tmp_path: Path) -> None:
    """In the middle of rounds: nobody takes that for lost reports, and nobody stops."""
    made = make_consortium(tmp_path / "c", rounds=40, epsilon=5.0)
    approve_all(made)
    with running(made) as system:
        for killed_after in (5, 10):
            system.wait_for_round(killed_after)
            os.kill(system.server.child.pid, signal.SIGKILL)
            system.server_status()
            wait_until(lambda: server_children_gone(made), "the dead server's children are gone")
            before = len(progress(made))
            system.restart_server()
        assert system.server_status() == 0, system.all_logs()
        check_silos(system)
    rounds = [int(line["round"]) for line in progress(made)]
    assert len(rounds) > before
    assert rounds == sorted(set(rounds))  # no round twice
    assert rounds[-1] == 40
    for entry in spending(made):
        assert entry.rounds <= 40
        assert entry.epsilon(made.study.target.delta) <= made.study.target.epsilon
    (log,) = (path for path in server_logs(made) if path.name == "serverapp.log")
    assert "study_resumed" in log.read_text()


def check_silos(system: Running) -> None:
    """All are well: none believes that a report of its was lost, and none is about to stop."""
    for silo, config in zip(system.silos, map(load, system.made.silos), strict=True):
        assert silo.state == "running"
        assert "report_missing" not in silo.log.read_text(), system.all_logs()
        rule = StopRule(config.state, system.made.study.identity)
        assert (rule.missing, rule.stops) == (0, False)


def server_children_gone(made: Consortium) -> bool:
    wanted = str(made.server).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if wanted in command and b"silomix_server." in command:
                return False
    return True
