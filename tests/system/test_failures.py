"""Processes that die, stop or lose their keys in the middle of a study."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from silomix_client.audit_log import verify_log as audit_check
from silomix_client.config.silo_config import load as load_silo
from silomix_client.ledger.ledger import Ledger
from silomix_lab.consortium.create import Consortium
from silomix_server.flower.child_processes import end
from support.consortia import make_consortium
from support.processes import (
    Running,
    approve_all,
    kill,
    progress,
    running,
    server_logs,
    silomix,
    spending,
    wait_until,
)

# Studies that go on ------------------------------------------------------------------------------


def test_a_killed_mix_other_keys_and_rounds_without_a_batch_cost_no_budget(tmp_path: Path) -> None:
    """Two silos, batches of two: nobody is done without."""
    made = make_consortium(tmp_path / "c", records=(40, 50), rounds=40, deadline_s=1.0)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(3)
        system.restart(system.mixes[0])
        system.wait_for_more_rounds(3)
        assert not any(line["void"] for line in progress(made))  # what it held was on disk
        before = len(progress(made))
        rotate_keys_of_every_mix(system)
        system.wait_for_more_rounds(3)
        assert not any(line["void"] for line in progress(made))
        assert max(int(line["attempts"]) for line in progress(made)[before:]) == 2
        before = len(progress(made))
        stop_a_silo_until_an_attempt_fails(system)
        assert system.server_status() == 0, system.all_logs()
    lines = progress(made)
    assert len(lines) == 40
    assert lines[-1]["accepted"] == 2
    # One that was stopped between its report and its confirmation leaves that gate closed.
    assert sum(bool(line["void"]) for line in lines) <= 1
    assert max(int(line["attempts"]) for line in lines[before:]) >= 2
    assert [entry.rounds for entry in spending(made)] == [40, 40]  # one charge, one noise


def rotate_keys_of_every_mix(system: Running) -> None:
    with system.standing_still():  # so that there are rounds left when they are rotated
        for config in system.made.mixes:
            rotated = silomix("mix", "rotate", str(config), cwd=config.parent)
            assert rotated.returncode == 0, rotated.stderr
            assert re.search(r"\d", rotated.stdout), rotated.stdout


def stop_a_silo_until_an_attempt_fails(system: Running) -> None:
    failed = failed_attempts(system.made)
    os.kill(system.silos[0].child.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: failed_attempts(system.made) > failed, "a failed attempt")
    finally:
        os.kill(system.silos[0].child.pid, signal.SIGCONT)


def failed_attempts(made: Consortium) -> int:
    return coordinator_log(made).count(" attempt_failed ")


def coordinator_log(made: Consortium) -> str:
    return next(path for path in server_logs(made) if path.name == "serverapp.log").read_text()


def test_a_killed_silo_is_done_without_while_the_minimum_holds_and_is_back_when_restarted(
    tmp_path: Path,
) -> None:
    """One is started again, and charges nothing twice; then another one is not."""
    made = make_consortium(
        tmp_path / "c", mixes=1, rounds=45, epsilon=5.0, lease_rounds=10, deadline_s=20.0
    )
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(5)
        kill(system.silos[0])
        with system.standing_still():  # there are rounds left when it is back, whenever that is
            back = system.restart(system.silos[0])
            wait_until(lambda: back.log.read_text().count("silo_ready") == 2, "it joined")
            without = len(progress(made))
        wait_until(lambda: 3 in accepted(made)[without + 1 :], "it answers again")
        kill(system.silos[1])
        killed = len(progress(made))
        assert system.server_status() == 0, system.all_logs()
    lines = progress(made)
    assert len(lines) == 45
    assert accepted(made)[-1] == 2
    assert sum(line["seconds"] > 10 for line in lines[killed:]) <= 1  # waited for at most once
    assert sum(line["void"] for line in lines[killed:]) <= 1  # it may have died before it confirmed
    first, second, third = (entry.rounds for entry in spending(made))
    assert third == 45
    assert max(first, second) < 45
    for config, rounds in zip(made.silos, (first, second, third), strict=True):
        assert lines_of_whole_audit_log(config) > rounds


def accepted(made: Consortium) -> list[float]:
    return [line["accepted"] for line in progress(made)]


def lines_of_whole_audit_log(config: Path) -> int:
    settings = load_silo(config)
    with closing(Ledger(settings.state, settings.policy)) as ledger:
        return audit_check.verify(settings.state, ledger).lines


# Servers that end --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Mixes and silos of a study that no test plays to its end; each needs all three silos."""
    folder = tmp_path_factory.mktemp("failures")
    made = make_consortium(folder / "c", rounds=5000, epsilon=5.0, minimum_batch=3, deadline_s=2.0)
    approve_all(made)
    with running(made, server=False) as system:
        yield system


@pytest.fixture
def system(parties: Running) -> Iterator[Running]:
    """The same, with a server of this test's own."""
    for process in [*parties.mixes, *parties.silos]:
        if process.state != "running":
            parties.restart(process)
    parties.restart_server()
    try:
        yield parties
    finally:
        end(parties.server.child)
        parties.server.log.unlink()


def test_without_mixes_no_silo_is_asked_and_nothing_is_spent(system: Running) -> None:
    before = spending(system.made)
    for mix in system.mixes:
        kill(mix)
    assert system.server_status() == 1
    said = system.server.log.read_text()
    assert "mix-2 (127.0.0.1:" in said
    assert "does not answer; no silo was asked" in said
    assert spending(system.made) == before


def test_a_mix_that_is_gone_ends_the_study_before_the_budget_is_gone(system: Running) -> None:
    made = system.made
    before, spent = len(progress(made)), [entry.rounds for entry in spending(made)]
    system.wait_for_more_rounds(2)
    kill(system.mixes[1])
    assert system.server_status() == 1
    said = system.server.log.read_text()
    assert "no silo was asked and no budget spent" in said
    assert "mix-2" in said
    lines = progress(made)[before:]
    assert sum(bool(line["void"]) for line in lines) <= 1  # the one it died in
    assert not (made.server.parent / "state" / "model.npz").exists()
    assert len(progress(made)) < made.study.rounds
    for entry, earlier in zip(spending(made), spent, strict=True):
        assert entry.rounds - earlier <= len(lines)


def test_too_few_silos_end_the_study_with_a_clear_refusal(system: Running) -> None:
    system.wait_for_more_rounds(5)
    kill(system.silos[2])
    assert system.server_status() == 1
    said = system.server.log.read_text()
    assert "only 2 silos are connected and a batch needs 3" in said
    assert "Traceback" not in said


def test_a_dead_coordinator_is_noticed_and_named(system: Running) -> None:
    system.wait_for_more_rounds(3)
    os.kill(system.coordinator(), signal.SIGKILL)
    assert system.server_status() == 1
    assert "serverapp.log" in system.server.log.read_text()
