"""Whom the first mix waits for."""

from silomix_core.study.study import StudyId
from silomix_shuffler.round.expected_silos import ExpectedSilos

STUDY, OTHER = StudyId(b"a" * 32), StudyId(b"b" * 32)


def test_a_silo_whose_stream_broke_is_not_waited_for_until_it_connects_again() -> None:
    attendance = ExpectedSilos()
    attendance.connected("silo-1")
    assert attendance.disconnected("silo-1")
    attendance.gave_up("silo-1")
    assert attendance.gone(STUDY, 5) == {"silo-1"}
    attendance.connected("silo-1")
    assert attendance.gone(STUDY, 6) == frozenset()


def test_a_silo_that_came_back_in_time_is_not_given_up_on() -> None:
    attendance = ExpectedSilos()
    attendance.connected("silo-1")
    attendance.disconnected("silo-1")
    attendance.connected("silo-1")
    attendance.gave_up("silo-1")
    assert attendance.gone(STUDY, 1) == frozenset()


def test_a_missed_deadline_costs_one_study_a_silo_for_ever_longer_pauses() -> None:
    attendance = ExpectedSilos()
    paused = []
    number = 1
    for _ in range(8):
        attendance.missed(STUDY, "silo-1", number)
        again = number + 1
        while "silo-1" in attendance.gone(STUDY, again):
            again += 1
        paused.append(again - number)
        number = again
    assert paused == [2, 4, 8, 16, 32, 64, 64, 64]
    assert attendance.gone(OTHER, 2) == frozenset()


def test_reconnecting_does_not_make_up_for_a_missed_deadline() -> None:
    attendance = ExpectedSilos()
    attendance.missed(STUDY, "silo-1", 1)
    attendance.connected("silo-1")
    assert attendance.gone(STUDY, 2) == {"silo-1"}


def test_answered_rounds_forget_misses_one_at_a_time() -> None:
    attendance = ExpectedSilos()
    for number in (1, 2, 3):
        attendance.missed(STUDY, "silo-1", number)
    attendance.answered(STUDY, "silo-1")
    attendance.missed(STUDY, "silo-1", 100)
    assert attendance.gone(STUDY, 107) == {"silo-1"}
    assert attendance.gone(STUDY, 108) == frozenset()
