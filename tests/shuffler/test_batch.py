"""The batch of one round, without a network: it leaves once, permuted, or not at all."""

import random
import secrets
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from silomix_core.study import StudyId
from silomix_protocol.batches import Batch, Counts
from silomix_protocol.descriptor import Descriptor
from silomix_shuffler.batch import OpenBatch, State
from silomix_shuffler.errors import ReplayedReport, WrongRound, WrongSender

SILOS = ("silo-1", "silo-2", "silo-3", "silo-4")
NOBODY: frozenset[str] = frozenset()


def descriptor(silos: Sequence[str] = SILOS, minimum: int = 2) -> Descriptor:
    return Descriptor(
        study=StudyId(bytes(32)),
        round=1,
        silos=tuple(silos),
        query=bytes(32),
        deadline_s=5.0,
        minimum_batch=minimum,
        encoded=b"round 1",
        signature=b"",
    )


def opened_with(*silos: str, minimum: int = 2) -> OpenBatch:
    """A batch that holds a valid report of each of these silos."""
    batch = OpenBatch(descriptor(minimum=minimum))
    for silo in silos:
        put(batch, silo)
    return batch


def put(batch: OpenBatch, silo: str, *, valid: bool = True) -> None:
    name = silo.encode()
    assert batch.admit(silo, b"digest of " + name)
    batch.add(b"key of " + name, b"inner of " + name if valid else None)


def in_place(_: Any) -> None:
    """A shuffle that leaves the order alone."""


# Release ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(reports=st.lists(st.binary(max_size=4), min_size=1, max_size=12), seed=st.integers())
def test_a_batch_leaves_as_a_permutation(reports: list[bytes], seed: int) -> None:
    """Also of reports with equal contents: only an equal encapsulated key makes a duplicate."""
    batch = OpenBatch(descriptor(minimum=1))
    for number, report in enumerate(reports):
        batch.add(b"key %d" % number, report)
    released = batch.release(random.Random(seed).shuffle)
    assert Counter(released.reports) == Counter(reports)
    assert released.counts == Counts(len(reports), len(reports), 0)
    assert not released.aborted


@settings(deadline=None)
@given(order=st.permutations(range(6)))
def test_the_order_is_the_shuffles_and_not_the_arrivals(order: list[int]) -> None:
    batch = OpenBatch(descriptor())
    for number in range(6):
        batch.add(b"key %d" % number, b"%d" % number)

    def shuffle(reports: Any) -> None:
        reports[:] = [reports[index] for index in order]

    assert batch.release(shuffle).reports == tuple(b"%d" % index for index in order)


@pytest.mark.parametrize("silos", [SILOS, SILOS[:1]])
def test_a_batch_leaves_once(silos: tuple[str, ...]) -> None:
    batch = opened_with(*silos)
    batch.release(in_place)
    with pytest.raises(WrongRound):
        batch.release(in_place)


def test_at_the_minimum_a_batch_is_released() -> None:
    batch = opened_with(*SILOS[:2], minimum=2)
    released = batch.release(in_place)
    assert batch.state is State.RELEASED
    assert len(released.reports) == 2


def test_below_the_minimum_a_batch_is_aborted_and_nothing_leaves() -> None:
    batch = opened_with("silo-1", minimum=2)
    released = batch.release(in_place)
    assert batch.state is State.ABORTED
    assert released == Batch(batch.descriptor, (), Counts(1, 0, 0), "1 valid reports, 2 needed")


def test_an_empty_batch_is_aborted() -> None:
    batch = OpenBatch(descriptor(minimum=1))
    assert batch.release(in_place).aborted
    assert batch.state is State.ABORTED


def test_a_closed_batch_keeps_no_report() -> None:
    """What was released is gone from here, what was aborted is deleted."""
    for silos in (SILOS, SILOS[:1]):
        batch = opened_with(*silos)
        batch.release(in_place)
        kept = [value for name, value in vars(batch).items() if name != "_admitted"]
        assert b"inner of silo-1" not in repr(kept).encode()


# Unopenable and repeated reports ----------------------------------------------------------------


def test_unopenable_reports_are_dropped_and_counted() -> None:
    batch = opened_with(*SILOS[:2])
    put(batch, "silo-3", valid=False)
    released = batch.release(in_place)
    assert released.counts == Counts(received=3, forwarded=2, dropped=1)


def test_unopenable_reports_do_not_help_to_reach_the_minimum() -> None:
    batch = opened_with(*SILOS[:2], minimum=3)
    put(batch, "silo-3", valid=False)
    released = batch.release(in_place)
    assert released.aborted
    assert released.counts == Counts(received=3, forwarded=0, dropped=1)


def test_a_duplicate_is_dropped_and_does_not_help_either() -> None:
    batch = OpenBatch(descriptor(minimum=2))
    batch.add(b"key", b"inner")
    batch.add(b"key", b"inner")
    released = batch.release(in_place)
    assert released.aborted
    assert released.counts == Counts(received=2, forwarded=0, dropped=1)


def test_a_copy_with_other_contents_is_a_duplicate_too() -> None:
    batch = OpenBatch(descriptor(minimum=1))
    batch.add(b"key", b"one")
    batch.add(b"key", b"two")
    assert batch.release(in_place).reports == (b"one",)


@settings(deadline=None)
@given(
    layers=st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.none() | st.binary(max_size=2)),
        max_size=10,
    ),
    minimum=st.integers(1, 4),
)
def test_counts_add_up(layers: list[tuple[bytes, bytes | None]], minimum: int) -> None:
    batch = OpenBatch(descriptor(minimum=minimum))
    for key, opened in layers:
        batch.add(key, opened)
    released = batch.release(in_place)
    first = dict(reversed(layers))  # a repeated key: its first layer
    expected = [opened for opened in first.values() if opened is not None]
    assert released.counts.received == len(layers)
    assert released.counts.dropped == len(layers) - len(expected)
    if len(expected) >= minimum:
        assert Counter(released.reports) == Counter(expected)
        assert released.counts.forwarded == len(expected)
    else:
        assert (released.reports, released.counts.forwarded) == ((), 0)
        assert released.aborted


# Who may put a report in ------------------------------------------------------------------------


def test_the_same_report_again_is_no_news() -> None:
    batch = OpenBatch(descriptor())
    assert batch.admit("silo-1", b"digest") is True
    assert batch.admit("silo-1", b"digest") is False


def test_a_silos_second_report_is_refused_if_it_differs() -> None:
    batch = OpenBatch(descriptor())
    batch.admit("silo-1", b"digest")
    with pytest.raises(ReplayedReport):
        batch.admit("silo-1", b"another")
    assert batch.admit("silo-1", b"digest") is False, "the first one stands"


def test_a_silo_that_the_round_does_not_name_is_refused() -> None:
    batch = OpenBatch(descriptor(silos=SILOS[:3]))
    with pytest.raises(WrongSender):
        batch.admit("silo-4", b"digest")


@pytest.mark.parametrize("silos", [SILOS[:3], SILOS[:1]])
def test_a_closed_batch_takes_nothing_new_but_knows_what_it_took(silos: tuple[str, ...]) -> None:
    batch = opened_with(*silos)
    batch.release(in_place)
    with pytest.raises(WrongRound):
        batch.admit("silo-4", b"digest of silo-4")
    with pytest.raises(ReplayedReport):
        batch.admit("silo-1", b"another")
    assert batch.admit("silo-1", b"digest of silo-1") is False
    batch.add(b"late key", b"late")
    with pytest.raises(WrongRound):
        batch.release(in_place)


# When nobody is left to wait for ----------------------------------------------------------------


def test_a_batch_is_complete_when_every_silo_of_the_round_is_there() -> None:
    batch = OpenBatch(descriptor())
    for silo in SILOS:
        assert not batch.complete(NOBODY)
        put(batch, silo)
    assert batch.complete(NOBODY)


def test_a_report_that_is_still_being_opened_is_waited_for() -> None:
    batch = opened_with(*SILOS[:3])
    batch.admit("silo-4", b"digest")
    assert not batch.complete(NOBODY)
    assert not batch.complete(frozenset({"silo-4"}))
    batch.add(b"key", b"inner")
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
    """One valid report and one of garbage: releasing now could only abort the round."""
    batch = opened_with("silo-1", minimum=2)
    put(batch, "silo-2", valid=False)
    assert not batch.complete(frozenset({"silo-3", "silo-4"}))
    put(batch, "silo-3")
    assert batch.complete(frozenset({"silo-4"}))


def test_a_batch_without_reports_is_never_complete() -> None:
    assert not OpenBatch(descriptor(minimum=1)).complete(frozenset(SILOS))


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


# Any order of events ----------------------------------------------------------------------------


class BatchLife(RuleBasedStateMachine):
    """Random events on a batch beside a model of it that is too simple to be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = OpenBatch(descriptor(minimum=2))
        self.taken: dict[str, bytes] = {}
        self.keys: set[bytes] = set()
        self.inside: list[bytes] = []
        self.added = 0
        self.released: list[Batch] = []

    @rule(silo=st.sampled_from((*SILOS, "silo-9")), digest=st.sampled_from([b"1", b"2"]))
    def admit(self, silo: str, digest: bytes) -> None:
        if silo not in SILOS:
            expected: type[Exception] | bool = WrongSender
        elif silo in self.taken:
            expected = False if self.taken[silo] == digest else ReplayedReport
        else:
            expected = WrongRound if self.released else True
        if isinstance(expected, bool):
            assert self.batch.admit(silo, digest) is expected
            self.taken.setdefault(silo, digest)
        else:
            with pytest.raises(expected):
                self.batch.admit(silo, digest)

    @rule(key=st.sampled_from([b"a", b"b", b"c"]), opened=st.none() | st.binary(max_size=2))
    def add(self, key: bytes, opened: bytes | None) -> None:
        self.batch.add(key, opened)
        if self.released:
            return
        self.added += 1
        if opened is not None and key not in self.keys:
            self.inside.append(opened)
        self.keys.add(key)

    @precondition(lambda self: not self.released)
    @rule(seed=st.integers())
    def release(self, seed: int) -> None:
        batch = self.batch.release(random.Random(seed).shuffle)
        self.released.append(batch)
        enough = len(self.inside) >= 2
        assert Counter(batch.reports) == Counter(self.inside if enough else [])
        assert batch.counts.received == self.added
        assert batch.counts.dropped == self.added - len(self.inside)
        assert bool(batch.aborted) is not enough

    @precondition(lambda self: self.released)
    @rule()
    def release_again(self) -> None:
        with pytest.raises(WrongRound):
            self.batch.release(in_place)

    @invariant()
    def the_state_says_what_happened(self) -> None:
        if not self.released:
            assert self.batch.state is State.OPEN
        else:
            aborted = bool(self.released[0].aborted)
            assert self.batch.state is (State.ABORTED if aborted else State.RELEASED)


TestBatchLife = BatchLife.TestCase
TestBatchLife.settings = settings(deadline=None, max_examples=60, stateful_step_count=20)


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
        batch = OpenBatch(descriptor(silos=SILOS[:3]))
        for number in range(3):
            batch.add(b"key %d" % number, b"%d" % number)
        seen[batch.release(shuffle).reports] += 1
    orders = list(permutations([b"0", b"1", b"2"]))
    expected = trials / len(orders)
    assert set(seen) <= set(orders)
    statistic = sum((seen[order] - expected) ** 2 / expected for order in orders)
    assert statistic < 35.89
