"""A batch through any order of events."""

import random
from hashlib import sha256

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from silomix_protocol.rounds.statements import digests
from silomix_shuffler.batch import Batch, BatchOutcome, State
from silomix_shuffler.errors import GateClosed, ReplayedReport, WrongRound, WrongSender
from support.batches import LIST, OTHER_LIST, SILOS, listing
from support.descriptors import plain_descriptor


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
