"""A coordinator that dies in the middle of rounds, and silos that are well."""

from pathlib import Path

from support.consortia import make_consortium
from support.processes import approve_all, progress, running, spending
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
        for silo in system.silos:
            assert silo.state == "running"
            assert "report_missing" not in silo.log.read_text(), system.all_logs()
    lines = progress(made)
    assert [line["round"] for line in lines] == list(range(3, ROUNDS + 1))
    assert not any(line["void"] for line in lines)
    assert lines[-1]["accepted"] == 3
    assert [entry.rounds for entry in spending(made)] == [ROUNDS] * 3
    assert not any((config.parent / "state" / "neglect").exists() for config in made.silos)
