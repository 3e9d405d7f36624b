"""The batch of one round, without a network: it leaves once, permuted, or not at all."""

import random
import secrets
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from silomix_protocol.rounds.statements import digests
from silomix_shuffler.batch import Batch, BatchOutcome, State
from silomix_shuffler.errors import GateClosed, ReplayedReport, UnfitList, WrongRound, WrongSender
from support.descriptors import plain_descriptor

SILOS = ("silo-1", "silo-2", "silo-3", "silo-4")
NOBODY: frozenset[str] = frozenset()


def listing(*reports: str) -> bytes:
    """A list of these reports."""
    return b"".join(sha256(each.encode()).digest() for each in reports)


LIST, OTHER_LIST = listing("a", "b", "c"), listing("a", "b", "d")  # of batches of three
HASH, OTHER_HASH = sha256(LIST).digest(), sha256(OTHER_LIST).digest()


def opened_with(*silos: str, minimum: int = 2) -> Batch:
    """A batch that holds a valid report of each of these silos."""
    batch = Batch(plain_descriptor(minimum=minimum))
    for silo in silos:
        put(batch, silo)
    return batch


def put(batch: Batch, silo: str, *, valid: bool = True) -> None:
    assert batch.admit(silo, b"onion of " + silo.encode())
    slot = SILOS.index(silo)
    assert batch.add(slot, b"output of " + silo.encode() if valid else None, silo) is valid


def in_place(_: Any) -> None:
    """A shuffle that leaves the order alone."""


# What is allowed in which state -------------------------------------------------------------------

EVENTS: dict[str, Callable[[Batch], object]] = {
    "admit": lambda batch: batch.admit("silo-4", b"onion of silo-4"),
    "seal": lambda batch: batch.seal(in_place),
    "abort": lambda batch: batch.abort(),
    "forward": lambda batch: batch.forward(),
    "commit": lambda batch: batch.commit(LIST),
    "release": lambda batch: batch.release(HASH, frozenset(SILOS)),
    "void": lambda batch: batch.void(),
    "purge": lambda batch: batch.purge(),
}
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


def batch_in(state: State) -> Batch:
    """A batch of three silos that came to this state by the usual way."""
    batch = opened_with(*SILOS[:3])
    way = {
        State.OPEN: (),
        State.SEALED: ("seal",),
        State.FORWARDED: ("seal", "forward"),
        State.RELEASED: ("seal", "forward", "commit", "release"),
        State.VOIDED: ("seal", "forward", "commit", "void"),
        State.ABORTED: ("abort",),
        State.PURGED: ("purge",),
    }
    for event in way[state]:
        EVENTS[event](batch)
    assert batch.state is state
    return batch


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


# Sealing ----------------------------------------------------------------------------------------


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


# Unopenable and repeated reports ----------------------------------------------------------------


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


# Who may put a report in ------------------------------------------------------------------------


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


# When nobody is left to wait for ----------------------------------------------------------------


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


# The gate ---------------------------------------------------------------------------------------


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


# Any order of events ----------------------------------------------------------------------------


class BatchLife(RuleBasedStateMachine):
    """Random events on a batch beside a model of it that is too simple to be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = Batch(plain_descriptor(minimum=2))
        self.taken: dict[str, bytes] = {}
        self.opened: list[bytes | None] = []
        self.deadline_passed = False
        self.outcomes: list[BatchOutcome] = []
        self.left = False
        self.aborted = False
        self.committed = b""
        self.released = False
        self.voided = False

    @property
    def forwarded(self) -> int:
        return len(self.outcomes[0].outputs) if self.outcomes else 0

    @rule(silo=st.sampled_from((*SILOS, "silo-9")), onion=st.sampled_from([b"1", b"2"]))
    def admit(self, silo: str, onion: bytes) -> None:
        expected: type[Exception] | bool
        if silo not in SILOS:
            expected = WrongSender
        elif silo in self.taken:
            expected = False if self.taken[silo] == onion else ReplayedReport
        else:
            over = self.outcomes or self.aborted or self.deadline_passed
            expected = WrongRound if over else True
        if isinstance(expected, bool):
            assert self.batch.admit(silo, onion) is expected
            self.taken.setdefault(silo, onion)
        else:
            with pytest.raises(expected):
                self.batch.admit(silo, onion)

    @precondition(lambda self: self.taken and not self.outcomes)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        silo = data.draw(st.sampled_from(sorted(self.taken)))
        self.batch.withdraw(silo)
        del self.taken[silo]

    @precondition(lambda self: not self.outcomes and not self.aborted)
    @rule(output=st.none() | st.sampled_from([b"a", b"b", b"c"]))
    def add(self, output: bytes | None) -> None:
        news = output is not None and output not in self.opened
        assert self.batch.add(len(self.opened), output) is news
        self.opened.append(output)

    @rule()
    def close(self) -> None:
        self.batch.close()
        self.deadline_passed = True

    @rule(seed=st.integers())
    def seal(self, seed: int) -> None:
        if self.outcomes or self.aborted:
            with pytest.raises(WrongRound):
                self.batch.seal(random.Random(seed).shuffle)
            return
        outcome = self.batch.seal(random.Random(seed).shuffle)
        self.outcomes.append(outcome)
        self.aborted = len({each for each in self.opened if each is not None}) < 2

    @rule()
    def forward(self) -> None:
        if self.aborted or self.voided or not self.outcomes:
            with pytest.raises(WrongRound):
                self.batch.forward()
        else:
            self.batch.forward()
            self.left = True

    @rule()
    def abort(self) -> None:
        if self.left:
            with pytest.raises(WrongRound):
                self.batch.abort()
        else:
            self.batch.abort()
            self.aborted = True

    @rule(listed=st.sampled_from([LIST, OTHER_LIST, listing("a", "b"), listing("a", "a")]))
    def commit(self, listed: bytes) -> None:
        fits = len(set(digests(listed))) == self.forwarded == len(listed) / 32
        if self.left and not self.voided and (self.committed == listed or self._first(fits=fits)):
            self.batch.commit(listed)
            self.committed = listed
            return
        with pytest.raises(WrongRound):
            self.batch.commit(listed)
        self.voided = self.voided or (self.left and not self.released)

    def _first(self, *, fits: bool) -> bool:
        return fits and not self.committed

    @rule(
        listed=st.sampled_from([LIST, listing("a", "b")]),
        confirmed=st.frozensets(st.sampled_from((*SILOS, "silo-9"))),
    )
    def release(self, listed: bytes, confirmed: frozenset[str]) -> None:
        stands = self.left and not self.voided and self.committed == listed
        enough = len(confirmed & set(SILOS)) >= self.forwarded
        if stands and (enough or self.released):
            self.batch.release(sha256(listed).digest(), confirmed)
            self.released = True
        else:
            with pytest.raises(GateClosed if stands else WrongRound):
                self.batch.release(sha256(listed).digest(), confirmed)

    @rule()
    def void(self) -> None:
        if self.released:
            with pytest.raises(WrongRound):
                self.batch.void()
            return
        self.batch.void()
        self.voided, self.aborted = self.left, self.aborted or not self.left

    @invariant()
    def it_was_sealed_at_most_once_and_counts_add_up(self) -> None:
        assert len(self.outcomes) <= 1
        for outcome in self.outcomes:
            assert outcome.received == len(self.opened)
            assert outcome.received == len(outcome.sequence) + outcome.dropped
            assert len(set(outcome.outputs)) == len(outcome.outputs) == len(outcome.sequence)
            if not outcome.aborted:
                valid = {each for each in self.opened if each is not None}
                assert set(outcome.outputs) == valid
                assert len(valid) >= 2

    @invariant()
    def it_never_both_left_and_was_aborted(self) -> None:
        assert not (self.left and self.aborted)
        gone = self.batch.state in (State.FORWARDED, State.RELEASED, State.VOIDED)
        assert gone is self.left
        assert (self.batch.state is State.VOIDED) is self.voided
        assert (self.batch.state is State.RELEASED) is self.released
        assert (self.batch.state is State.ABORTED) is self.aborted


TestBatchLife = BatchLife.TestCase
TestBatchLife.settings = settings(deadline=None, max_examples=80, stateful_step_count=25)


# Every order is equally likely ------------------------------------------------------------------


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
