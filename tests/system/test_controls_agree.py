"""Control variates of real silos after kill -9, against what the server summed."""

import random
import time
from contextlib import closing
from pathlib import Path

import pytest
from silomix_client.config.silo_config import load
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.counted import check_controls
from support.processes import Running, approve_all, progress, running, wait_until
from support.silos import altered, open_ledger
from support.stops import Point, Stops, kill_server, stops

__all__ = ["stops"]

SCAFFOLD = ('name = "noisy-mb-sgd"', 'name = "dp-scaffold"\nlocal_steps = 2')
SO_MANY = 5000  # rounds: the study does not end before the test


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    found = altered(
        make_consortium(
            tmp_path / "c", rounds=SO_MANY, epsilon=5.0, lease_rounds=5, deadline_s=2.0
        ),
        SCAFFOLD,
    )
    approve_all(found)
    return found


def last_round(made: Consortium, silo: int) -> int:
    """The last round that a silo answered."""
    with closing(open_ledger(load(made.silos[silo]))) as ledger:
        return ledger.account(made.study).last_round()


def answer_again(system: Running, silos: tuple[int, ...]) -> None:
    """Wait until each of them answered a round that was opened after this was called."""
    made = system.made
    before = max([int(line["round"]) for line in progress(made)], default=0) + 1
    wait_until(
        lambda: all(last_round(made, silo) > before for silo in silos),
        f"all answer rounds after {before}: {system.all_logs()}",
    )


def test_a_silo_killed_between_its_answer_and_its_list_keeps_what_the_server_counted(
    made: Consortium, stops: Stops
) -> None:
    """By turns before anybody heard of the list, so that the round is void, and after all confirmed
    it, so that it is used."""
    with running(made) as system:
        for point in [*Point, *Point]:
            with stops.stopped(system, point):
                system.restart(system.silos[0])
            answer_again(system, (0,))
        kill_server(system)
        assert all(each.state == "running" for each in system.silos)
    assert check_controls(made) > 8
    void = [line["round"] for line in progress(made) if line["void"]]
    assert len(void) >= 2


SEEDS = 0, 2, 3, 4  # a mix and a silo, a silo and the server, a mix and the server, two silos


def test_silos_keep_what_the_server_counted_whoever_is_killed_at_any_moment(
    made: Consortium,
) -> None:
    """Schedules of faults, one after the other: two parties each, killed at moments that the seed
    gives and started again.  A silo that was wrong once would differ to the end."""
    with running(made) as system:
        names = [process.name for process in [*system.silos, *system.mixes]]
        for seed in SEEDS:
            rng = random.Random(seed)
            system.wait_for_more_rounds(rng.randint(1, 6))
            for name in rng.sample([*names, "server"], 2):
                time.sleep(rng.uniform(0, 0.05))  # anywhere within a round
                kill_and_start(system, name)
            answer_again(system, (0, 1, 2))
        kill_server(system)
        parties = [*system.silos, *system.mixes]
        assert all(each.state == "running" for each in parties), system.all_logs()
    assert check_controls(made) > len(SEEDS)


def kill_and_start(system: Running, name: str) -> None:
    if name == "server":
        kill_server(system)
        system.restart_server()
        return
    (process,) = (each for each in [*system.silos, *system.mixes] if each.name == name)
    system.restart(process)
