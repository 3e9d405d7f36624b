"""A server that dies in the middle of rounds, and silos that are well."""

import json
import os
import signal
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from silomix_client.config.silo_config import load
from silomix_client.rounds.stop_rule import FOLDER, StopRule
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
from support.silos import open_ledger
from support.stops import Point, Stops, kill_server, stops

__all__ = ["stops"]

ROUNDS = 25


def test_a_server_that_dies_again_and_again_stops_no_silo_and_goes_on_with_the_next_round(
    tmp_path: Path, stops: Stops
) -> None:
    """Once at any moment; then in two rounds in a row, when all silos have sent their reports:
    before they hear of a list, and after all confirmed one."""
    made = make_consortium(tmp_path / "c", rounds=ROUNDS, epsilon=5.0, minimum_batch=3)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(5)
        os.kill(system.server.child.pid, signal.SIGKILL)
        system.server_status()
        wait_until(lambda: server_children_gone(made), "the dead server's children are gone")
        before = len(progress(made))
        system.restart_server()
        system.wait_for_more_rounds(2)
        with stops.stopped(system, Point.ALL_ARRIVED):
            earlier = standing(made)
            kill_server(system)
        system.restart_server()
        with stops.stopped(system, Point.ALL_CONFIRMED):
            kill_server(system)
        system.restart_server()
        assert system.server_status() == 0, system.all_logs()
        check_silos(system)
    check_rounds_from(made, earlier)
    rounds = [int(line["round"]) for line in progress(made)]
    assert len(rounds) > before
    assert rounds == sorted(set(rounds))  # no round twice
    for entry in spending(made):
        assert entry.rounds <= ROUNDS
        assert entry.epsilon(made.study.target.delta) <= made.study.target.epsilon
    (log,) = (path for path in server_logs(made) if path.name == "serverapp.log")
    assert "study_resumed" in log.read_text()


@dataclass(frozen=True, slots=True)
class Standing:
    """How a study stands while a round of it has all reports and no line yet."""

    lines: int
    round: int
    charged: list[int]  # rounds, of each silo
    unheard: list[int]  # of its reports, as each silo counts them


def standing(made: Consortium) -> Standing:
    (number,) = {last_round(made, config) for config in made.silos}
    charged = [entry.rounds for entry in spending(made)]
    return Standing(len(progress(made)), number, charged, unheard(made))


def last_round(made: Consortium, silo: Path) -> int:
    with closing(open_ledger(load(silo))) as ledger:
        return ledger.account(made.study).last_round()


def unheard(made: Consortium) -> list[int]:
    files = [list((config.parent / "state" / FOLDER).glob("*")) for config in made.silos]
    return [sum(sum(json.loads(file.read_bytes())["unheard"]) for file in each) for each in files]


def check_rounds_from(made: Consortium, earlier: Standing) -> None:
    """Two rounds have no line, as the server died in them; nothing else is amiss."""
    lines = progress(made)[earlier.lines :]
    assert [line["round"] for line in lines] == list(range(earlier.round + 2, ROUNDS + 1))
    assert not any(line["void"] for line in lines)
    assert lines[-1]["accepted"] == 3
    played = [entry.rounds for entry in spending(made)]
    left = ROUNDS - earlier.round
    assert [now - then for now, then in zip(played, earlier.charged, strict=True)] == [left] * 3
    assert all(now <= then for now, then in zip(unheard(made), earlier.unheard, strict=True))


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
