"""Who may put a report into a batch, and when nobody is left to wait for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_shuffler.batch import Batch, State
from silomix_shuffler.errors import ReplayedReport, WrongRound, WrongSender
from support.batches import SILOS, batch_in, opened_with, put
from support.descriptors import plain_descriptor

NOBODY: frozenset[str] = frozenset()


def test_the_same_report_again_is_no_news() -> None:
    batch = Batch(plain_descriptor())
    assert batch.admit("silo-1", b"onion") is True
    assert batch.admit("silo-1", b"onion") is False


def test_a_silos_second_report_is_refused_if_it_differs() -> None:
    batch = Batch(plain_descriptor())
    batch.admit("silo-1", b"onion")
    with pytest.raises(ReplayedReport):
        batch.admit("silo-1", b"another")
    assert batch.admit("silo-1", b"onion") is False, "the first one stands"


def test_a_silo_that_the_round_does_not_name_is_refused() -> None:
    batch = Batch(plain_descriptor(silos=SILOS[:3]))
    with pytest.raises(WrongSender):
        batch.admit("silo-4", b"onion")


@pytest.mark.parametrize("state", [State.SEALED, State.FORWARDED, State.RELEASED, State.ABORTED])
def test_a_closed_batch_takes_nothing_new_but_knows_what_it_took(state: State) -> None:
    batch = batch_in(state)
    with pytest.raises(WrongRound, match="closed"):
        batch.admit("silo-4", b"onion of silo-4")
    with pytest.raises(ReplayedReport):
        batch.admit("silo-1", b"another")
    assert batch.admit("silo-1", b"onion of silo-1") is False


def test_after_the_deadline_nobody_is_admitted() -> None:
    batch = opened_with(*SILOS[:2])
    batch.close()
    with pytest.raises(WrongRound, match="closed"):
        batch.admit("silo-3", b"onion of silo-3")
    assert batch.admit("silo-1", b"onion of silo-1") is False


def test_a_report_that_could_not_be_kept_never_came() -> None:
    batch = opened_with("silo-1")
    batch.admit("silo-2", b"onion")
    batch.withdraw("silo-2")
    assert "silo-2" in batch.missing()
    assert batch.admit("silo-2", b"another") is True, "it may even be another one now"


def test_a_batch_is_complete_when_every_silo_of_the_round_is_there() -> None:
    batch = Batch(plain_descriptor())
    for silo in SILOS:
        assert not batch.complete(NOBODY)
        put(batch, silo)
    assert batch.complete(NOBODY)


def test_a_report_that_is_still_being_opened_is_waited_for() -> None:
    batch = opened_with(*SILOS[:3])
    batch.admit("silo-4", b"onion")
    assert not batch.complete(NOBODY)
    assert not batch.complete(frozenset({"silo-4"}))
    batch.close()
    assert not batch.complete(NOBODY), "it came before the deadline"
    batch.add(3, b"output")
    assert batch.complete(NOBODY)


def test_at_the_deadline_the_batch_goes_with_whoever_is_there() -> None:
    batch = opened_with("silo-1")
    assert not batch.complete(NOBODY)
    batch.close()
    assert batch.complete(NOBODY)


def test_a_silo_that_is_gone_is_not_waited_for() -> None:
    batch = opened_with(*SILOS[:3])
    assert not batch.complete(frozenset({"silo-1"}))
    assert batch.complete(frozenset({"silo-4"}))


def test_below_the_minimum_even_the_gone_are_waited_for() -> None:
    """They may come back before the deadline; giving up now could only abort the round."""
    batch = opened_with("silo-1", minimum=2)
    gone = frozenset(SILOS[1:])
    assert not batch.complete(gone)
    put(batch, "silo-2")
    assert batch.complete(gone)


def test_garbage_is_no_reason_to_give_up_the_gone() -> None:
    """One valid report and one of garbage: sealing now could only abort the round."""
    batch = opened_with("silo-1", minimum=2)
    put(batch, "silo-2", valid=False)
    assert not batch.complete(frozenset({"silo-3", "silo-4"}))
    put(batch, "silo-3")
    assert batch.complete(frozenset({"silo-4"}))


def test_a_batch_without_reports_is_not_complete_before_its_deadline() -> None:
    assert not Batch(plain_descriptor(minimum=1)).complete(frozenset(SILOS))


@pytest.mark.parametrize("state", [state for state in State if state is not State.OPEN])
def test_what_is_closed_is_not_sealed_again(state: State) -> None:
    assert not batch_in(state).complete(frozenset(SILOS))


@settings(deadline=None)
@given(
    there=st.sets(st.sampled_from(SILOS)),
    gone=st.frozensets(st.sampled_from(SILOS)),
    minimum=st.integers(1, 4),
)
def test_complete_means_nobody_present_is_left_out(
    there: set[str], gone: frozenset[str], minimum: int
) -> None:
    batch = opened_with(*there, minimum=minimum)
    waited_for = set(SILOS) - there
    expected = not waited_for or (len(there) >= minimum and waited_for <= gone)
    assert batch.complete(gone) == expected
