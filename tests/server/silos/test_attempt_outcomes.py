"""What became of rounds: asked of real mixes, traced to whom it was dropped from, written down."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.json_format import Parse
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.complaints import ComplaintFinding, check_evidence
from silomix_protocol.rounds.onion import seal
from silomix_protocol.rounds.statements import check_closing, is_ended
from silomix_server.mixes import mix_chain as chain_module
from silomix_server.mixes.mix_chain import MixChain
from silomix_server.silos.attempt_outcomes import AttemptOutcomes, closing_for
from silomix_server.silos.complaint_box import ComplaintBox
from silomix_server.study.journal import AttemptOutcome, ClosedRound, Journal
from support.consortia import make_consortium
from support.mixes import (
    Collected,
    PlayedRound,
    chain_serving,
    collect,
    commit_at,
    confirmations,
    identity,
    mix_serving,
    opened_round,
    payload_length,
    release_at,
    run,
    sealed_reports,
    signer,
    submit_all,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "_CALL_S", 2.0)


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(
        tmp_path / "c", records=(40,) * 4, mixes=2, minimum_batch=2, deadline_s=20.0
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@dataclass(slots=True)
class Office:
    """A coordinator's journal and attempts' outcomes, and its connections to the mixes."""

    made: Consortium
    state: Path
    chain: MixChain
    journal: Journal
    attempt_outcomes: AttemptOutcomes

    def events(self, played: PlayedRound, silo: str) -> list[str | None]:
        told = self.attempt_outcomes.events(played.descriptor.digest, silo)
        return [event.WhichOneof("event") for event in told]


@asynccontextmanager
async def office(made: Consortium, state: Path) -> AsyncIterator[Office]:
    chain = MixChain(made.study, identity(made, "server"), state)
    journal = Journal(state / "journal.sqlite")
    box = ComplaintBox(made.study, state)
    attempt_outcomes = AttemptOutcomes(made.study, signer(made, "server"), journal, chain, box)
    try:
        yield Office(made, state, chain, journal, attempt_outcomes)
    finally:
        await chain.close()
        journal.close()


async def played_round(
    made: Consortium, desk: Office, *, wrong: str | None = None
) -> tuple[PlayedRound, Collected]:
    """A round that was collected; the report of `wrong` has no layer for the second mix."""
    played = await opened_round(made)
    desk.journal.opened(played.descriptor)
    reports = sealed_reports(played)
    if wrong is not None:
        keys = list(played.mix_keys)
        keys[1] = round_pb2.RoundKeys(seal=SealKey.generate().public, release=keys[1].release)
        payload = bytes(payload_length(made))
        digest = played.descriptor.digest
        reports[wrong] = seal(payload, played.server_key.public, keys, digest)
    await submit_all(played, reports)
    return played, await collect(played)


def test_a_dropped_report_names_the_mix_and_the_silo_and_leaves_evidence(
    made: Consortium, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> AttemptOutcome:
        async with chain_serving(made), office(made, state) as desk:
            played, batch = await played_round(made, desk, wrong="silo-3")
            outcome = await desk.attempt_outcomes.void(played.descriptor, batch.chain)
            desk.journal.closed(1, ClosedRound(0, None), outcome)
            assert desk.events(played, "silo-3") == ["closed"]
            shown = desk.attempt_outcomes.passages(played.descriptor.digest)
            assert [each.passage.ending.HasField("voided") for each in shown] == [True, True]
            return outcome

    with caplog.at_level(logging.WARNING, "silomix"):
        outcome = run(scene())
    assert outcome.traced == (0, 1, 2, 3), "each looks for its own: a mix may name another"
    assert all(closing_for(outcome, place).traced for place in range(4))
    assert "report_dropped round=1 mix=mix-2 silo=silo-3" in caplog.text
    (file,) = (state / "complaints").iterdir()
    evidence = Parse(file.read_text(), channel_pb2.Complaint())
    assert check_evidence(evidence, made.study) == [ComplaintFinding("silo-3", 1, "mix-2")]


def test_nobody_is_named_in_a_round_that_was_void_for_another_reason(
    made: Consortium, state: Path
) -> None:
    async def scene() -> AttemptOutcome:
        async with chain_serving(made), office(made, state) as desk:
            played, batch = await played_round(made, desk)
            outcome = await desk.attempt_outcomes.void(played.descriptor, batch.chain, listed=True)
            assert outcome.closed is not None
            check_closing(outcome.closed, made.study)
            digest = played.descriptor.digest
            assert is_ended(outcome.closed.endings, digest, made.study)
            return outcome

    outcome = run(scene())
    assert (outcome.traced, outcome.pending) == ((), False)
    assert not (state / "complaints").exists()


def test_a_mix_that_is_away_is_asked_again_when_it_is_back(made: Consortium, state: Path) -> None:
    """Also by the next process of the coordinator; until then nothing is claimed."""

    async def scene() -> None:
        async with mix_serving(made, 0):
            async with mix_serving(made, 1), office(made, state) as desk:
                played, _ = await played_round(made, desk)
            async with office(made, state) as desk:
                (pending,) = await desk.attempt_outcomes.settle_left()
                assert pending.pending
                assert pending.closed is not None
                assert (pending.closed.void, len(pending.closed.endings)) == (True, 0)
            async with mix_serving(made, 1), office(made, state) as desk:
                (settled,) = await desk.attempt_outcomes.settle_left()
                assert settled.closed is not None
                digest = played.descriptor.digest
                assert is_ended(settled.closed.endings, digest, made.study)
                assert await desk.attempt_outcomes.settle_left() == []
            async with office(made, state) as desk:
                assert desk.journal.unsettled() == []

    run(scene())


def test_a_round_whose_keys_were_given_away_is_closed_without_their_word(
    made: Consortium, state: Path
) -> None:
    """The coordinator died with the keys in its hands: silos know the list that they confirmed."""

    async def scene() -> None:
        async with chain_serving(made):
            async with office(made, state) as desk:
                played, batch = await played_round(made, desk)
                joined = batch.chain[-1].output
                words = [await commit_at(played, mix, joined) for mix in ("mix-1", "mix-2")]
                committed = channel_pb2.RoundCommitted(
                    digest=played.descriptor.digest, list=joined, signatures=words
                )
                desk.journal.listed(committed)
                everybody = confirmations(played, joined)
                await release_at(played, "mix-1", joined, everybody)
            async with office(made, state) as desk:
                (settled,) = await desk.attempt_outcomes.settle_left()
                assert not settled.pending
                assert desk.events(played, "silo-1") == ["committed", "closed"]
                assert await desk.attempt_outcomes.settle_left() == []

    run(scene())


def test_an_attempt_that_every_mix_abandoned_is_settled_with_their_word(
    made: Consortium, state: Path
) -> None:
    async def scene() -> None:
        async with chain_serving(made), office(made, state) as desk:
            played = await opened_round(made)
            desk.journal.opened(played.descriptor)
            statements = await desk.chain.abandon(played.descriptor)
            desk.attempt_outcomes.abandoned(played.descriptor, statements)
            known = desk.journal.outcome(played.descriptor.digest)
            assert known is not None
            assert known.closed is not None
            digest = played.descriptor.digest
            assert is_ended(known.closed.endings, digest, made.study)
            assert desk.journal.unsettled() == []

    run(scene())
