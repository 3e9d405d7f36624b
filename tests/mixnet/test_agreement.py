"""Silo and server agree about every control variate, whatever was killed or lost when.

The silo's desk, ledger and inclusion and the coordinator's journal and attempts' outcomes are real
ones; a schedule drawn from a seed kills either of them and loses what they say to each other.  With
one local step and the noise off a report is exactly g(x) − S, so that every answer shows, to the
integer, what the silo takes for its last used answer.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from mixnet.real_mix import quick_folder
from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import Unsettled
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.outcome_rules import ReportOutcome
from silomix_client.ledger.reports import StoredReport
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.inclusion import Inclusion
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2, round_pb2
from silomix_protocol.rounds.descriptor import Descriptor
from silomix_protocol.rounds.statements import sign_voided
from silomix_server.errors import MixFailed, MixRefused
from silomix_server.silos.attempt_outcomes import AttemptOutcomes
from silomix_server.silos.complaint_box import ComplaintBox
from silomix_server.study.journal import AttemptOutcome, ClosedRound, Journal
from support.consortia import make_consortium
from support.controls import ONE_STEP
from support.mixes import run
from support.silos import (
    altered,
    approved_silo,
    asked,
    committed_list,
    copied,
    mix_key,
    no_noise,
    open_desk,
    open_ledger,
    opened,
    server_key,
    silo_key,
)

ROUNDS = 40
SCHEDULES = range(4)
Gradients = list[np.ndarray]


def points() -> list[list[float]]:
    draw = random.Random(1)
    return [[draw.uniform(-3, 3) for _ in range(3)] for _ in range(ROUNDS)]


@pytest.fixture(scope="module")
def made() -> Iterator[Consortium]:
    with quick_folder() as folder:
        made = make_consortium(folder / "c", rounds=ROUNDS, epsilon=20.0, minimum_batch=2)
        yield altered(made, ONE_STEP)


@pytest.fixture(scope="module")
def gradients() -> Gradients:
    """What the same silo answers at these points where there are no control variates."""
    with quick_folder() as folder:
        plain = make_consortium(folder / "c", rounds=ROUNDS, epsilon=20.0, minimum_batch=2)
        plain = altered(plain, (ONE_STEP[0], 'name = "dp-fedavg"\nlocal_steps = 1'))
        config = approved_silo(plain)
        ledger = open_ledger(config)
        desk = open_desk(config, plain.study, ledger, no_noise)
        found = [
            opened(plain, desk.answer(asked(plain, number, point)))
            for number, point in enumerate(points(), start=1)
        ]
        ledger.close()
        return found


@dataclass(slots=True)
class Mixes:
    """What the mixes say when a round came to nothing; sometimes one does not answer."""

    made: Consortium
    draw: random.Random
    released: bool = False

    async def void(self, descriptor: Descriptor) -> list[round_pb2.Ending | MixFailed]:
        if self.released:
            return [MixRefused("the key was given away")] * 2
        answers: list[round_pb2.Ending | MixFailed] = [
            sign_voided(descriptor.digest, "void", b"", mix_key(self.made, hop))
            for hop in range(len(self.made.study.mixes))
        ]
        if self.draw.random() < 0.3:
            answers[0] = MixFailed("does not answer")
        return answers


@dataclass(slots=True)
class World:
    """One silo and one coordinator, each of which may be started again at any time."""

    made: Consortium
    config: SiloConfig
    state: Path
    draw: random.Random
    gradients: Gradients
    used: np.ndarray = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    answered: int = 0
    passed_over: int = 0
    ledger: Ledger = field(init=False)
    desk: StudyDesk = field(init=False)
    inclusion: Inclusion = field(init=False)
    journal: Journal = field(init=False)
    attempt_outcomes: AttemptOutcomes = field(init=False)
    mixes: Mixes = field(init=False)

    def __post_init__(self) -> None:
        self.mixes = Mixes(self.made, self.draw)
        self.start_silo()
        self.start_coordinator()

    def start_silo(self) -> None:
        self.ledger = open_ledger(self.config)
        self.desk = open_desk(self.config, self.made.study, self.ledger, no_noise)
        key = silo_key(self.made, 0)
        self.inclusion = Inclusion(
            self.made.study, self.config.name, self.ledger, key, self.config.state
        )

    def start_coordinator(self) -> None:
        self.journal = Journal(self.state / "journal.sqlite")
        box, chain = ComplaintBox(self.made.study, self.state), cast(Any, self.mixes)
        key = server_key(self.made)
        self.attempt_outcomes = AttemptOutcomes(self.made.study, key, self.journal, chain, box)

    def kill_silo(self) -> None:
        self.ledger.close()
        self.start_silo()

    async def kill_coordinator(self) -> None:
        self.journal.close()
        self.start_coordinator()
        await self.attempt_outcomes.settle_left()

    def happens(self, probability: float) -> bool:
        return self.draw.random() < probability

    def connect(self) -> None:
        """The silo says what it does not know, and hears it; or the connection breaks at once."""
        digest = self.inclusion.unsettled
        if digest is None or self.happens(0.2):
            return
        for event in self.attempt_outcomes.events(digest, self.config.name):
            if event.HasField("committed"):
                self.inclusion.committed(event.committed, over=True)
            else:
                self.inclusion.closed(event.closed)
            if self.happens(0.1):
                self.kill_silo()

    async def round(self, number: int) -> None:
        if self.happens(0.2):
            self.kill_silo()
        self.connect()
        question = asked(self.made, number, points()[number - 1])
        self.mixes.released = False
        self.journal.opened(question.descriptor)
        self.inclusion.opened(question.descriptor)
        try:
            report = self.desk.answer(question)
        except Unsettled:
            self.passed_over += 1
            await self._over(question.descriptor, None)
            return
        self.inclusion.answered(report)
        self.answered += 1
        expected = self.gradients[number - 1] - self.used
        assert np.array_equal(opened(self.made, report), expected), (
            f"round {number}: the silo takes another answer for its last used one"
        )
        await self._over(question.descriptor, report)

    async def _over(self, descriptor: Descriptor, report: StoredReport | None) -> None:
        """The round comes to an end, with or without this silo's report."""
        there = report is not None and self.happens(0.8)
        if report is not None and there:
            receipt = mix_pb2.Receipt(status=mix_pb2.Receipt.ACCEPTED)
            self.ledger.account(self.made.study).note_receipt(descriptor.digest, receipt)
        own = report.trail[-1] if report is not None and there else b"\1" * 32
        committed = committed_list(self.made, descriptor.digest, [bytes(32), own])
        course = self.draw.choice(["no list", "list", "list", "sum", "sum", "sum"])
        if course != "no list":
            self._publish(committed, descriptor)
        if course == "sum":
            self.mixes.released = True
        await self._end(course, descriptor, report if there else None)

    def _publish(self, committed: channel_pb2.RoundCommitted, descriptor: Descriptor) -> None:
        self.journal.listed(committed)
        if self.happens(0.2):
            self.kill_silo()
        if self.happens(0.7) and self.inclusion._of(descriptor.digest) is not None:
            self.inclusion.committed(committed)
        if self.happens(0.2):
            self.kill_silo()

    async def _end(self, course: str, descriptor: Descriptor, report: StoredReport | None) -> None:
        """The coordinator dies before it closes the round, or writes down what came of it."""
        if self.happens(0.25):
            await self.kill_coordinator()
            return
        used = course == "sum" and self.happens(0.9)
        if used:
            outcome = self.attempt_outcomes.used(descriptor)
            result = ClosedRound(2, np.zeros(3, dtype=np.int64))
            if report is not None:
                self.used = self.used + opened(self.made, report)
        else:
            outcome = await self.attempt_outcomes.void(descriptor, listed=course != "no list")
            result = ClosedRound(0, None)
        self.journal.closed(descriptor.round, result, outcome)
        self._tell(outcome)
        if self.happens(0.1):
            await self.kill_coordinator()

    def _tell(self, outcome: AttemptOutcome) -> None:
        if self.happens(0.6) and outcome.closed is not None:
            self.inclusion.closed(outcome.closed)
        if self.happens(0.2):
            self.kill_silo()


def play(made: Consortium, gradients: Gradients, seed: int, folder: Path) -> World:
    scratch = folder / "state"
    scratch.mkdir()
    made = copied(made, folder / "c")
    world = World(made, approved_silo(made), scratch, random.Random(seed), gradients)

    async def scenario() -> None:
        for number in range(1, ROUNDS + 1):
            await world.round(number)

    try:
        run(scenario(), timeout_s=120.0)
    finally:
        world.ledger.close()
        world.journal.close()
    return world


@pytest.mark.parametrize("seed", SCHEDULES)
def test_after_any_schedule_of_faults_every_answer_is_the_difference_from_the_last_used_one(
    made: Consortium, gradients: Gradients, seed: int
) -> None:
    with quick_folder() as folder:
        world = play(made, gradients, seed, folder)
    assert world.answered > ROUNDS / 2
    assert world.passed_over > 0, "the schedule has faults"
    assert not world.inclusion.stop_rule.stops, "and none of them looks like an attack"


def test_a_silo_that_does_not_wait_for_the_servers_word_is_caught(
    made: Consortium, gradients: Gradients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: what it heard before it was killed is all it goes by."""
    monkeypatch.setattr(ReportOutcome, "settled", True)

    def play_all() -> None:
        for seed in SCHEDULES:
            with quick_folder() as folder:
                play(made, gradients, seed, folder)

    with pytest.raises(AssertionError, match="another answer"):
        play_all()
