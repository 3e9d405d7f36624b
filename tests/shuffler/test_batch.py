"""The batch of one round, without a network: it leaves once, permuted, or not at all."""

import random
import secrets
from collections import Counter
from hashlib import sha256
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_shuffler.batch import Batch, BatchOutcome, State
from silomix_shuffler.errors import GateClosed, UnfitList, WrongRound
from support.batches import (
    EVENTS,
    HASH,
    LIST,
    OTHER_HASH,
    OTHER_LIST,
    SILOS,
    batch_in,
    in_place,
    listing,
    opened_with,
    put,
)
from support.descriptors import plain_descriptor

ALLOWED = {  # (state, event): state afterwards; what is not here is refused
    (State.OPEN, "admit"): State.OPEN,
    (State.OPEN, "seal"): State.SEALED,
    (State.OPEN, "abort"): State.ABORTED,
    (State.SEALED, "abort"): State.ABORTED,
    (State.SEALED, "forward"): State.FORWARDED,
    (State.FORWARDED, "forward"): State.FORWARDED,
    (State.FORWARDED, "commit"): State.FORWARDED,
    (State.RELEASED, "commit"): State.RELEASED,
    (State.RELEASED, "forward"): State.RELEASED,
    (State.RELEASED, "release"): State.RELEASED,
    (State.ABORTED, "abort"): State.ABORTED,
    (State.OPEN, "void"): State.ABORTED,
    (State.SEALED, "void"): State.ABORTED,
    (State.ABORTED, "void"): State.ABORTED,
    (State.FORWARDED, "void"): State.VOIDED,
    (State.VOIDED, "void"): State.VOIDED,
    **{(state, "purge"): State.PURGED for state in State},
    (State.VOIDED, "purge"): State.VOIDED,
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", State)
def test_every_event_in_every_state(state: State, event: str) -> None:
    batch = batch_in(state)
    if (state, event) in ALLOWED:
        EVENTS[event](batch)
        assert batch.state is ALLOWED[state, event]
    else:
        with pytest.raises(WrongRound):
            EVENTS[event](batch)
        assert batch.state is state


def test_a_committed_batch_is_released() -> None:
    batch = batch_in(State.FORWARDED)
    batch.commit(LIST)
    batch.release(HASH, frozenset(SILOS))
    assert batch.state is State.RELEASED


def test_a_released_batch_stands_by_its_list() -> None:
    """Otherwise a server could show each silo another list and see who finds itself in it."""
    batch = batch_in(State.RELEASED)
    batch.commit(LIST)
    with pytest.raises(WrongRound, match="another list"):
        batch.commit(OTHER_LIST)
    with pytest.raises(WrongRound, match="not the list"):
        batch.release(OTHER_HASH, frozenset(SILOS))
    assert (batch.state, batch.committed) == (State.RELEASED, HASH)


def test_a_second_list_makes_the_batch_void() -> None:
    batch = batch_in(State.FORWARDED)
    batch.commit(LIST)
    with pytest.raises(UnfitList, match="another list"):
        batch.commit(OTHER_LIST)
    assert batch.state is State.VOIDED
    with pytest.raises(WrongRound):
        batch.release(HASH, frozenset(SILOS))


@pytest.mark.parametrize(
    "joined",
    [
        listing("a", "b"),
        listing("a", "b", "c", "d"),
        listing("a", "b", "b"),
        listing("a", "b", "c")[:-1],
        b"",
    ],
)
def test_a_list_that_is_not_as_long_as_what_was_forwarded_makes_the_batch_void(
    joined: bytes,
) -> None:
    """Who is not in it would not confirm, and be known as the sender of what was left out."""
    batch = batch_in(State.FORWARDED)
    with pytest.raises(UnfitList, match="3 different reports"):
        batch.commit(joined)
    assert (batch.state, batch.committed) == (State.VOIDED, b"")
    with pytest.raises(WrongRound):
        batch.release(sha256(joined).digest(), frozenset(SILOS))


def test_nothing_is_released_before_a_list_is_committed_to() -> None:
    for list_hash in (b"", HASH):
        with pytest.raises(WrongRound, match="not the list"):
            batch_in(State.FORWARDED).release(list_hash, frozenset(SILOS))


def test_what_was_released_is_never_said_to_be_void() -> None:
    with pytest.raises(WrongRound, match="given away"):
        batch_in(State.RELEASED).void()


def test_only_what_surely_cannot_be_opened_is_disclosed() -> None:
    """A mix that was started again behind its list does not know whether it gave its key away."""
    batch = batch_in(State.FORWARDED)
    assert not batch.discloses
    batch.void()
    assert batch.discloses
    batch.doubtful = True
    assert not batch.discloses


@pytest.mark.parametrize("state", [State.FORWARDED, State.RELEASED, State.VOIDED, State.PURGED])
def test_what_may_have_left_is_never_abandoned(state: State) -> None:
    """Otherwise a second attempt of the round could be collected beside the first."""
    with pytest.raises(WrongRound, match="may have been forwarded"):
        batch_in(state).abort()


def test_a_purged_batch_remembers_no_report() -> None:
    batch = batch_in(State.RELEASED)
    batch.purge()
    assert batch.admitted == {}
    assert "output of silo-1" not in repr(batch)


@settings(deadline=None)
@given(
    outputs=st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=12, unique=True),
    seed=st.integers(),
)
def test_a_batch_leaves_as_a_permutation(outputs: list[bytes], seed: int) -> None:
    batch = Batch(plain_descriptor(minimum=1))
    for slot, output in enumerate(outputs):
        batch.add(slot, output)
    outcome = batch.seal(random.Random(seed).shuffle)
    assert sorted(outcome.sequence) == list(range(len(outputs)))
    assert [outputs[slot] for slot in outcome.sequence] == list(outcome.outputs)
    assert (outcome.received, outcome.dropped, outcome.aborted) == (len(outputs), 0, "")


@settings(deadline=None)
@given(order=st.permutations(range(6)))
def test_the_order_is_the_shuffles_and_not_the_arrivals(order: list[int]) -> None:
    batch = Batch(plain_descriptor())
    for number in range(6):
        batch.add(number, b"%d" % number)

    def shuffle(entries: Any) -> None:
        entries[:] = [entries[index] for index in order]

    outcome = batch.seal(shuffle)
    assert outcome.sequence == tuple(order)
    assert outcome.outputs == tuple(b"%d" % index for index in order)


@pytest.mark.parametrize("silos", [SILOS, SILOS[:1]])
def test_a_batch_is_sealed_once(silos: tuple[str, ...]) -> None:
    batch = opened_with(*silos)
    batch.seal(in_place)
    with pytest.raises(WrongRound):
        batch.seal(in_place)


def test_at_the_minimum_a_batch_is_sealed() -> None:
    batch = opened_with(*SILOS[:2], minimum=2)
    assert len(batch.seal(in_place).outputs) == 2
    assert batch.state is State.SEALED


def test_below_the_minimum_a_batch_is_aborted_and_nothing_leaves() -> None:
    batch = opened_with("silo-1", minimum=2)
    assert batch.seal(in_place) == BatchOutcome(1, (), (), "1 valid reports, 2 needed")
    assert batch.state is State.ABORTED
    with pytest.raises(WrongRound):
        batch.forward()


def test_an_empty_batch_is_aborted() -> None:
    batch = Batch(plain_descriptor(minimum=1))
    assert batch.seal(in_place).aborted
    assert batch.state is State.ABORTED


def test_unopenable_reports_are_dropped_and_counted() -> None:
    batch = opened_with(*SILOS[:2])
    put(batch, "silo-3", valid=False)
    outcome = batch.seal(in_place)
    assert (outcome.received, len(outcome.outputs), outcome.dropped) == (3, 2, 1)
    assert outcome.sequence == (0, 1), "the slot of the dropped one never goes out"


def test_unopenable_reports_do_not_help_to_reach_the_minimum() -> None:
    batch = opened_with(*SILOS[:2], minimum=3)
    put(batch, "silo-3", valid=False)
    assert batch.seal(in_place).aborted == "2 valid reports, 3 needed"


def test_a_duplicate_is_dropped_and_does_not_help_either() -> None:
    batch = Batch(plain_descriptor(minimum=2))
    assert batch.add(0, b"output") is True
    assert batch.add(1, b"output") is False
    outcome = batch.seal(in_place)
    assert outcome.aborted
    assert outcome.received == 2


@settings(deadline=None)
@given(
    outputs=st.lists(st.none() | st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=10),
    minimum=st.integers(1, 4),
)
def test_counts_add_up(outputs: list[bytes | None], minimum: int) -> None:
    batch = Batch(plain_descriptor(minimum=minimum))
    for slot, output in enumerate(outputs):
        batch.add(slot, output)
    outcome = batch.seal(in_place)
    expected = {output for output in outputs if output is not None}
    assert outcome.received == len(outputs)
    assert outcome.received == len(outcome.sequence) + outcome.dropped
    if len(expected) >= minimum:
        assert set(outcome.outputs) == expected
        assert len(outcome.outputs) == len(expected)
        firsts = [outputs.index(output) for output in outcome.outputs]
        assert list(outcome.sequence) == firsts, "of copies, the first stands"
    else:
        assert (outcome.sequence, outcome.outputs) == ((), ())
        assert outcome.aborted


@pytest.mark.parametrize(
    ("confirmed", "opens"),
    [
        ((), False),
        (("silo-1", "silo-2"), False),
        (("silo-1", "silo-2", "silo-9"), False),
        (("silo-1", "silo-2", "silo-4"), False),
        (("silo-1", "silo-2", "silo-3"), True),
        (("silo-1", "silo-2", "silo-3", "silo-9"), True),
    ],
)
def test_the_gate_opens_for_as_many_of_the_rounds_silos_as_the_list_has_reports(
    confirmed: tuple[str, ...], opens: bool
) -> None:
    """silo-4 belongs to the study but not to the round, silo-9 to neither; a later mix."""
    batch = Batch(plain_descriptor(silos=SILOS[:3], minimum=2), State.FORWARDED, forwarded=3)
    batch.commit(LIST)
    if opens:
        batch.release(HASH, frozenset(confirmed))
        assert batch.state is State.RELEASED
    else:
        with pytest.raises(GateClosed, match="3 needed"):
            batch.release(HASH, frozenset(confirmed))
        assert batch.state is State.FORWARDED


def test_the_first_mix_wants_the_confirmation_of_everybody_whose_report_it_forwarded() -> None:
    """As many others do not do: one that colludes could stand in for one that was left out."""
    batch = opened_with(*SILOS[:3])
    put(batch, "silo-4", valid=False)
    batch.seal(in_place)
    batch.forward()
    batch.commit(LIST)
    with pytest.raises(GateClosed, match="1 silos whose reports went out"):
        batch.release(HASH, frozenset({"silo-1", "silo-2", "silo-4"}))
    batch.release(HASH, frozenset(SILOS[:3]))
    assert batch.state is State.RELEASED


def test_every_order_of_three_reports_is_equally_likely() -> None:
    """Pearson's chi-square over the 3! orders with the source that a mix uses.

    False-alarm probability 1e-6: 35.89 is the upper 1e-6 quantile of chi-square with 5 degrees
    of freedom (`scipy.stats.chi2.isf(1e-6, 5)`).  The source cannot be seeded.  Swapping each
    position with any other (the classic wrong shuffle: orders 4/27 and 5/27) gives a statistic
    around 150 at this size and is missed with a probability below 1e-9.
    """
    trials = 12_000
    shuffle = secrets.SystemRandom().shuffle
    seen: Counter[tuple[bytes, ...]] = Counter()
    for _ in range(trials):
        batch = Batch(plain_descriptor(silos=SILOS[:3]))
        for number in range(3):
            batch.add(number, b"%d" % number)
        seen[batch.seal(shuffle).outputs] += 1
    orders = list(permutations([b"0", b"1", b"2"]))
    expected = trials / len(orders)
    assert set(seen) <= set(orders)
    statistic = sum((seen[order] - expected) ** 2 / expected for order in orders)
    assert statistic < 35.89
