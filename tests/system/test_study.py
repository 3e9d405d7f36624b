"""Whole studies with real processes."""

import re
import subprocess
from dataclasses import dataclass
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
from support.played_disk import played_disk
from support.processes import (
    Running,
    approve_all,
    progress,
    running,
    server_logs,
    silomix,
    spending,
)
from support.silos import altered


@dataclass(frozen=True, slots=True)
class Finished:
    """A study with three silos that was played to its end, and what could be seen of it."""

    made: Consortium
    refused: "Refused"
    second: "subprocess.CompletedProcess[str]"  # of silo-1, beside the first one
    commands: list[bytes]  # of all processes
    said: bytes  # by all processes


@dataclass(frozen=True, slots=True)
class Refused:
    """What a server did first, on a disk that was almost full."""

    status: int
    told: str
    rounds: list[int]  # that each silo was charged
    leased: bool


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("study") / "c"
    made = make_consortium(folder, rounds=12, records=(41, 41, 41))
    for config in made.silos:
        text = (config.parent / "data.csv").read_text().rstrip("\n").split("\n")
        text[1] = "77.123457,0.765433,1"  # a record that would be recognised
        (config.parent / "data.csv").write_text("\n".join(text) + "\n")
    approve_with_room(made)
    with running(made, server=False) as system:
        with pytest.MonkeyPatch.context() as patch:
            free = played_disk(folder.parent, patch)  # the others have room
            refused = start_in_vain(system)
            free.write_text("300000000")
            system.restart_server()
        system.wait_for_round(1)
        with system.standing_still():
            commands = command_lines(system)
        assert system.server_status() == 0, system.all_logs()
        second = silomix("silo", "run", str(made.silos[0]), cwd=made.folder)
        said = system.all_logs().encode()
    said += b"".join(path.read_bytes() for path in server_logs(made))
    return Finished(made, refused, second, commands, said)


def start_in_vain(system: Running) -> Refused:
    system.restart_server()
    status, told = system.server_status(), system.server.log.read_text()
    charged = [entry.rounds for entry in spending(system.made)]
    leased = any("lease_started" in silo.log.read_text() for silo in system.silos)
    return Refused(status, told, charged, leased)


def command_lines(system: Running) -> list[bytes]:
    """Of all processes that run."""
    files = [Path(f"/proc/{pid}/cmdline") for _, pid in system.processes.members()]
    return [file.read_bytes() for file in files if file.exists()]


def test_a_server_on_a_disk_that_is_almost_full_asks_nobody_and_goes_on_when_there_is_room(
    finished: Finished,
) -> None:
    made, refused = finished.made, finished.refused
    assert refused.status == 1
    assert f"only 30 MB are free in {made.server.parent / 'state'}" in refused.told
    assert "no silo was asked and no budget spent" in refused.told
    assert "Traceback" not in refused.told
    assert refused.rounds == [0, 0, 0]
    assert not refused.leased
    assert [line["round"] for line in progress(made)] == list(range(1, 13))
    assert [entry.rounds for entry in spending(made)] == [12, 12, 12]


def test_two_silos_do_not_share_a_folder(finished: Finished) -> None:
    assert finished.second.returncode == 1
    assert "silo-1 is already running" in finished.second.stderr


def test_a_finished_study_is_not_run_again(finished: Finished) -> None:
    again = silomix("server", "run", str(finished.made.server), cwd=finished.made.folder)
    assert again.returncode == 0
    assert "study_already_complete" in again.stderr
    assert len(progress(finished.made)) == 12


def test_no_log_or_command_line_shows_a_record_or_a_secret(finished: Finished) -> None:
    made, everything = finished.made, finished.said + b"".join(finished.commands)
    assert len(finished.commands) == 8  # 2 mixes, 3 silos, server, superlink, coordinator
    for canary in (b"77.12", b"0.7654", b"--token", b"PRIVATE KEY"):
        assert canary not in everything
    for key in made.folder.rglob("*.key"):
        assert key.read_bytes().hex().encode() not in everything
        assert key.stat().st_mode & 0o077 == 0
    # No mix or server line names a silo next to a round's report.
    mixes = [made.folder / "logs" / f"{config.parent.name}.log" for config in made.mixes]
    for log in (*mixes, *server_logs(made)):
        for line in log.read_text().splitlines():
            assert not (re.search(r"silo-\d", line) and re.search(r"\bround=", line)), line


KINDS_OF_STUDY = {
    "one pass, weighted, Poisson batches": [
        ('name = "noisy-mb-sgd"', 'name = "one-pass-mb-sgd"'),
        ("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5'),
        ('weights = "records"', 'weights = "named"'),
        ('name = "silo-1"\nrecords = 40', 'name = "silo-1"\nrecords = 40\nweight = 3'),
    ],
    "localized, ridge, own epsilon": [
        ('name = "noisy-mb-sgd"', 'name = "localized-accelerated"\nridge = 0.01'),
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
    made = make_consortium(tmp_path / "c", records=(40, 50), mixes=1, rounds=4)
    made = altered(made, *changes)
    run_to_the_end(made)
    check_model_and_spending(made)


def test_the_model_of_full_batches_is_the_one_that_the_journalled_sums_give(
    finished: Finished,
) -> None:
    check_model_and_spending(finished.made)


def check_model_and_spending(made: Consortium) -> None:
    rounds, mechanism = rounds_of_the_model(made), made.study.mechanism()
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
        make_consortium(tmp_path / "c", mixes=1, rounds=12, task=task),
        ('name = "noisy-mb-sgd"', 'name = "dp-scaffold"\nlocal_steps = 3\nparticipants = 2'),
    )
    run_to_the_end(made)
    rounds = rounds_of_the_model(made)
    total = sum((closed.total for closed in rounds if closed.total is not None), np.zeros(200))
    assert total.var() == pytest.approx(3 * 3 * SIGMA_UNITS**2, rel=0.5)
    assert sum(spent.rounds for spent in spending(made)) == 2 * 12


def run_to_the_end(made: Consortium) -> None:
    approve_with_room(made)
    with running(made) as system:
        assert system.server_status() == 0, system.all_logs()


def approve_with_room(made: Consortium) -> None:
    for config in made.silos:
        policy = 'epsilon = 6.0\ndelta = 1e-5\nminimum_batch = 1\naccountant = "renyi"\n'
        (config.parent / "policy.toml").write_text(policy, encoding="utf-8")
    approve_all(made)


def rounds_of_the_model(made: Consortium) -> list[ClosedRound]:
    """The rounds of a study, whose model is the one that their sums give in one process."""
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
        [StoredSums([closed.total for closed in rounds], made.study.setting.participants)]
        * len(made.silos),
        np.random.default_rng(1),
        bytes,
    )
    assert np.array_equal(model, simulated)
    return rounds
