"""Processes that die, stop or lose their keys in the middle of a study."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from silomix_client.audit_log import verify_log as audit_check
from silomix_client.config.silo_config import load as load_silo
from silomix_client.ledger.ledger import Ledger
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.processes import (
    approve_all,
    progress,
    running,
    server_logs,
    spending,
    wait_until,
)


def test_a_server_killed_again_and_again_goes_on_with_the_next_round(tmp_path: Path) -> None:
    """In the middle of rounds: nobody takes that for lost reports, and nobody stops."""
    made = make_consortium(tmp_path / "c", rounds=120, epsilon=5.0)
    approve_all(made)
    with running(made) as system:
        for killed_after in (10, 20, 30):
            system.wait_for_round(killed_after)
            os.kill(system.server.child.pid, signal.SIGKILL)
            system.server_status()
            wait_until(lambda: _server_children_gone(made), "the dead server's children are gone")
            before = len(progress(made))
            system.restart_server()
        assert system.server_status() == 0, system.all_logs()
        for silo in system.silos:
            assert "report_missing" not in silo.log.read_text(), system.all_logs()
    assert not any((config.parent / "state" / "neglect").exists() for config in made.silos)
    rounds = [int(line["round"]) for line in progress(made)]
    assert len(rounds) > before
    assert rounds == sorted(set(rounds))  # no round twice
    assert rounds[-1] == 120
    for entry in spending(made):
        assert entry.rounds <= 120
        assert entry.epsilon(made.study.target.delta) <= made.study.target.epsilon
    assert "study_resumed" in _log(made, "serverapp.log")


def test_a_restarted_silo_comes_back_and_charges_nothing_twice(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=240, epsilon=5.0, lease_rounds=60)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(20)
        os.kill(system.silos[0].child.pid, signal.SIGKILL)
        system.silos[0].child.wait(10)
        from silomix_lab.consortium.processes import Role

        system.processes.start(Role.SILO, made.silos[0])
        assert system.server_status() == 0, system.all_logs()
    assert progress(made)[-1]["accepted"] == 3
    assert spending(made)[0].rounds < 240
    assert spending(made)[1].rounds == 240
    for config in map(load_silo, made.silos):  # and the audit log of each is whole
        ledger = Ledger(config.state, config.policy)
        assert audit_check.verify(config.state, ledger).lines > 200
        ledger.close()


def test_a_killed_mix_voids_no_round_and_loses_nothing(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=60, deadline_s=1.0)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(5)
        os.kill(system.mixes[0].child.pid, signal.SIGKILL)
        system.mixes[0].child.wait(10)
        from silomix_lab.consortium.processes import Role

        system.processes.start(Role.MIX, made.mixes[0])
        assert system.server_status() == 0, system.all_logs()
    lines = progress(made)
    assert len(lines) == 60
    assert lines[-1]["accepted"] == 3
    assert not any(line["void"] for line in lines)  # what it held was on disk


def test_a_mix_that_is_gone_ends_the_study_before_the_budget_is_gone(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=40, deadline_s=0.5)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(2)
        os.kill(system.mixes[1].child.pid, signal.SIGKILL)
        assert system.server_status() == 1
        said = system.server.log.read_text()
    assert "no silo was asked and no budget spent" in said
    assert "mix-2" in said
    assert sum(bool(line["void"]) for line in progress(made)) <= 1  # the one it died in
    assert not (made.server.parent / "state" / "model.npz").exists()
    for entry in spending(made):
        assert entry.rounds <= len(progress(made)) < 40


def test_rotating_the_keys_of_every_mix_costs_no_round(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=60)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(5)
        coordinator = next(pid for kind, pid in system.processes.members() if kind == "coordinator")
        os.kill(coordinator, signal.SIGSTOP)  # so that there are rounds left when they are rotated
        for config in made.mixes:
            command = [sys.executable, "-m", "silomix", "mix", "rotate", str(config)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            assert re.search(r"\d", said), said
        os.kill(coordinator, signal.SIGCONT)
        assert system.server_status() == 0, system.all_logs()
    assert len(progress(made)) == 60
    assert not any(line["void"] for line in progress(made))
    assert max(int(line["attempts"]) for line in progress(made)) == 2
    assert [entry.rounds for entry in spending(made)] == [60, 60, 60]


def test_a_round_without_a_batch_is_tried_again_and_charged_once(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=40, minimum_batch=3, deadline_s=1.0)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(5)
        os.kill(system.silos[0].child.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: "attempt_failed" in _log(made, "serverapp.log"), "a failed attempt")
        finally:
            os.kill(system.silos[0].child.pid, signal.SIGCONT)
        assert system.server_status() == 0, system.all_logs()
    lines = progress(made)
    # One that was stopped between its report and its confirmation leaves that gate closed.
    assert sum(bool(line["void"]) for line in lines) <= 1
    assert max(int(line["attempts"]) for line in lines) >= 2
    assert [entry.rounds for entry in spending(made)] == [40, 40, 40]  # one charge, one noise


def test_a_dead_coordinator_is_noticed_and_named(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=5000, epsilon=5.0)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(3)
        coordinator = next(pid for kind, pid in system.processes.members() if kind == "coordinator")
        os.kill(coordinator, signal.SIGKILL)
        assert system.server_status() == 1
        assert "serverapp.log" in system.server.log.read_text()


def _server_children_gone(made: Consortium) -> bool:
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


def _log(made: Consortium, name: str) -> str:
    return next(path for path in server_logs(made) if path.name == name).read_text()
