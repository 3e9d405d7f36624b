"""Whole studies with real processes, and silos that are missing."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from silomix_core.algorithms.base import Aggregate
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.discrete_gaussian import SIGMA_UNITS
from silomix_core.reports.reporter import RoundQuery
from silomix_core.simulation.one_process import run_study
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Consortium
from silomix_server.study.journal import ClosedRound, Journal
from support.consortia import make_consortium
from support.processes import (
    approve_all,
    progress,
    running,
    server_logs,
    silomix,
    spending,
)
from support.silos import altered


def test_a_killed_silo_is_done_without_while_the_minimum_holds(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=300, epsilon=5.0, deadline_s=20.0)
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(20)
        os.kill(system.silos[1].child.pid, signal.SIGKILL)
        assert system.server_status() == 0, system.all_logs()
    lines = progress(made)
    assert len(lines) == 300
    assert lines[-1]["accepted"] == 2
    assert sum(line["seconds"] > 1 for line in lines) <= 1  # waited for at most once
    assert sum(line["void"] for line in lines) <= 1  # it may have died before it confirmed
    answered = [entry.rounds for entry in spending(made)]
    assert answered[0] == answered[2] == 300
    assert answered[1] < 300


def test_too_few_silos_end_the_study_with_a_clear_refusal(tmp_path: Path) -> None:
    made = make_consortium(
        tmp_path / "c", rounds=5000, epsilon=5.0, minimum_batch=3, deadline_s=2.0
    )
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(5)
        os.kill(system.silos[2].child.pid, signal.SIGKILL)
        assert system.server_status() == 1
        said = system.server.log.read_text()
    assert "only 2 silos are connected and a batch needs 3" in said
    assert "Traceback" not in said


def test_without_mixes_no_silo_is_asked_and_nothing_is_spent(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=4)
    approve_all(made)
    with running(made) as system:
        for mix in system.mixes:
            os.kill(mix.child.pid, signal.SIGKILL)
        assert system.server_status() == 1
        said = system.server.log.read_text()
    assert "mix-2 (127.0.0.1:" in said
    assert "does not answer; no silo was asked" in said
    assert [entry.rounds for entry in spending(made)] == [0, 0, 0]


def test_a_finished_study_is_not_run_again_and_two_silos_do_not_share_a_folder(
    tmp_path: Path,
) -> None:
    made = make_consortium(tmp_path / "c", rounds=3)
    approve_all(made)
    with running(made) as system:
        assert system.server_status() == 0, system.all_logs()
        second = silomix("silo", "run", str(made.silos[0]), cwd=tmp_path)
        assert second.returncode == 1
        assert "silo-1 is already running" in second.stderr
    again = silomix("server", "run", str(made.server), cwd=tmp_path)
    assert again.returncode == 0
    assert "study_already_complete" in again.stderr
    assert len(progress(made)) == 3


def test_no_log_or_command_line_shows_a_record_or_a_secret(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=30, records=(41, 41, 41))
    for config in made.silos:
        text = (config.parent / "data.csv").read_text().rstrip("\n").split("\n")
        text[1] = "77.123457,0.765433,1"  # a record that would be recognised
        (config.parent / "data.csv").write_text("\n".join(text) + "\n")
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(3)
        commands = [
            Path(f"/proc/{pid}/cmdline").read_bytes() for _, pid in system.processes.members()
        ]
        assert system.server_status() == 0, system.all_logs()
        everything = system.all_logs().encode() + b"".join(commands)
        everything += b"".join(path.read_bytes() for path in server_logs(made))
    assert len(commands) == 8  # 2 mixes, 3 silos, server, superlink, coordinator
    for canary in (b"77.12", b"0.7654", b"--token", b"PRIVATE KEY"):
        assert canary not in everything
    for key in tmp_path.rglob("*.key"):
        assert key.read_bytes().hex().encode() not in everything
        assert key.stat().st_mode & 0o077 == 0
    # No mix or server line names a silo next to a round's report.
    for log in (*(mix.log for mix in system.mixes), *server_logs(made)):
        for line in log.read_text().splitlines():
            assert not (re.search(r"silo-\d", line) and re.search(r"\bround=", line)), line


KINDS_OF_STUDY = {
    "full batch": [],
    "one pass, weighted": [
        ('name = "noisy-mb-sgd"', 'name = "one-pass-mb-sgd"'),
        ('name = "silo-1"\nrecords = 40', 'name = "silo-1"\nrecords = 40\nweight = 3'),
    ],
    "localized, ridge": [
        ('name = "noisy-mb-sgd"', 'name = "localized-accelerated"\nridge = 0.01'),
    ],
    "Poisson batches, own epsilon": [
        ("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5'),
        ("records = 50", "records = 50\nepsilon = 1\ndelta = 1e-5"),
    ],
}


class StoredSums:
    """All silos of a finished study at once: the first to answer a round has the sum of it."""

    def __init__(self, totals: list[NDArray[np.int64] | None], silos: int) -> None:
        self._totals, self._silos, self._answers = totals, silos, 0

    def values(self, question: RoundQuery, *_: object) -> NDArray[np.int64]:
        silo = self._answers % self._silos
        self._answers += 1
        total = self._totals[question.round - 1]
        assert total is not None
        return total if silo == 0 else np.zeros_like(total)

    def takes_part(self, round_number: int) -> bool:
        return True


@pytest.mark.parametrize("changes", KINDS_OF_STUDY.values(), ids=KINDS_OF_STUDY)
def test_the_model_is_the_one_that_the_journalled_sums_give(
    tmp_path: Path, changes: list[tuple[str, str]]
) -> None:
    made = altered(make_consortium(tmp_path / "c", rounds=12), *changes)
    rounds = run_to_the_end(made)
    mechanism = made.study.mechanism()
    for silo, spent in zip(made.study.silos, spending(made), strict=True):
        participant = made.study.participant(silo)
        promised = participant.target
        assert spent.rounds == made.study.rounds == len(rounds)
        assert spent.epsilon(promised.delta) <= promised.epsilon
        planned = mechanism.epsilon(participant)
        assert spent.epsilon(promised.delta) == pytest.approx(planned, rel=1e-6)


def test_control_variates_stay_at_the_silos_and_their_changes_add_up_to_the_last_of_them(
    tmp_path: Path,
) -> None:
    """Reports are differences: all of them together contain each silo's last noise and no other.

    Silos that kept nothing, or what was not used, would leave the noise of some eight answers each.
    200 coordinates: the variance has a standard error of 10 %, so the false-alarm rate is below
    10⁻⁶.
    """
    features = tuple(Feature(f"x{place}", -1.0, 1.0, 0.0) for place in range(199))
    task = Task(LossName.LOGISTIC, "outcome", features, Scaling.UNIT_BALL, bias=0.3)
    made = altered(
        make_consortium(tmp_path / "c", rounds=12, task=task),
        ('name = "noisy-mb-sgd"', 'name = "dp-scaffold"\nlocal_steps = 3\nparticipants = 2'),
    )
    rounds = run_to_the_end(made)
    total = sum((closed.total for closed in rounds if closed.total is not None), np.zeros(200))
    assert total.var() == pytest.approx(3 * 3 * SIGMA_UNITS**2, rel=0.5)
    assert sum(spent.rounds for spent in spending(made)) == 2 * 12


def run_to_the_end(made: Consortium) -> list[ClosedRound]:
    """The rounds of a study, whose model is the one that their sums give in one process."""
    for config in made.silos:
        policy = 'epsilon = 6.0\ndelta = 1e-5\nminimum_batch = 1\naccountant = "renyi"\n'
        (config.parent / "policy.toml").write_text(policy, encoding="utf-8")
    approve_all(made)
    with running(made) as system:
        assert system.server_status() == 0, system.all_logs()
    state = made.server.parent / "state"
    mechanism = made.study.mechanism()
    steps = algorithm(made.study.algorithm).start(made.study.algorithm_plan(mechanism))
    next(steps)
    model = None
    rounds = Journal(state / f"journal-{made.study.short_id}.sqlite").rounds()
    for number, closed in enumerate(rounds, start=1):
        assert closed.total is not None
        grid = mechanism.grids[mechanism.phase_of(number)]
        mean = closed.total.astype(np.float64) * (grid / closed.reports)
        try:
            steps.send(Aggregate(mean, closed.reports))
        except StopIteration as finished:
            model = finished.value
    assert np.array_equal(model, np.load(state / "model.npz")["weights"])
    simulated = run_study(  # the same reports, as a simulation in one process puts them together
        algorithm(made.study.algorithm),
        made.study.algorithm_plan(mechanism),
        mechanism,
        [StoredSums([closed.total for closed in rounds], made.study.setting.participants)] * 3,
        np.random.default_rng(1),
        bytes,
    )
    assert np.array_equal(model, simulated)
    return rounds
