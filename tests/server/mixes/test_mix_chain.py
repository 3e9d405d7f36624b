"""The connections to the mixes: what comes back is checked, and who fails is named."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.statements import check_abandoned, check_committed
from silomix_server.errors import BatchAborted, BatchBroken, MixFailed
from silomix_server.mixes import mix_chain as chain_module
from silomix_server.mixes.batch_file import BatchFile
from silomix_server.mixes.mix_chain import CollectedBatch, MixChain
from support.consortia import make_consortium
from support.coordinators import (
    FakeChain,
    aborted,
    identity,
    own_commitment,
    report_of,
    serving_mix,
    signer,
    stated,
)
from support.mixes import run
from support.rounds import Round, make_round

PATIENCE_S = 1.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("chain") / "consortium")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "_CALL_S", PATIENCE_S)


@asynccontextmanager
async def connected(
    made: Consortium, folder: Path, *, but: tuple[int, ...] = ()
) -> AsyncIterator[tuple[MixChain, FakeChain]]:
    async with FakeChain(made).serving(but=but) as fake:
        chain = MixChain(made.study, identity(made, "server"), folder)
        try:
            yield chain, fake
        finally:
            await chain.close()


def asked(made: Consortium) -> Round:
    return make_round(made.study, signer(made, "server"))


def gated(made: Consortium, round_: Round, count: int) -> list[bytes]:
    """Reports as they are behind the last mix: what is in them does not matter here."""
    study = made.study
    bare = make_round(study, signer(made, "server"))
    inner = Round(study, round_.descriptor, bare.server, (), round_.issuer)
    length = len(inner.seal(inner.payload(report_of(study, 1))).sealed)
    length += len(study.mixes) * 1136 if study.batching.gate else 0
    return [bytes([number]) * length for number in range(count)]


# Keys --------------------------------------------------------------------------------------------


def test_keys_for_a_stretch_come_from_every_mix(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path) as (chain, fake):
            await chain.check_reachable()
            stretch = await chain.prepare(1, 2, 3)
            assert [number in stretch for number in (1, 2, 4, 5)] == [False, True, True, False]
            for number in (2, 3, 4):
                known = [mix.keys(number, 1).public for mix in fake.mixes]
                assert list(stretch.of(number)) == known

    run(scenario())


def _another_signature(answer: mix_pb2.PreparedRounds) -> mix_pb2.PreparedRounds:
    answer.list.signature = bytes(64)
    return answer


def _other_keys(answer: mix_pb2.PreparedRounds) -> mix_pb2.PreparedRounds:
    answer.keys[0].seal = SealKey.generate().public
    return answer


def _short_keys(answer: mix_pb2.PreparedRounds) -> mix_pb2.PreparedRounds:
    answer.keys[0].release = b""
    return answer


def _fewer(answer: mix_pb2.PreparedRounds) -> mix_pb2.PreparedRounds:
    del answer.keys[-1]
    return answer


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_another_signature, "sent unusable keys"),
        (_short_keys, "sent unusable keys"),
        (_other_keys, "sent keys for other rounds"),
        (_fewer, "sent keys for other rounds"),
        (lambda _: mix_pb2.PreparedRounds(), "sent unusable keys"),
        (lambda _: grpc.StatusCode.FAILED_PRECONDITION, "refused (FAILED_PRECONDITION: refused)"),
    ],
)
def test_a_mix_that_does_not_vouch_for_its_keys_is_named(
    made: Consortium, tmp_path: Path, fault: Callable[[Any], Any], said: str
) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path) as (chain, fake):
            fake.mixes[1].faults["Prepare"] = fault
            with pytest.raises(MixFailed) as failure:
                await chain.prepare(1, 1, 2)
            assert str(failure.value).startswith(f"mix-2 ({made.study.mixes[1].address}) {said}")

    run(scenario())


def test_keys_of_another_attempt_or_round_are_not_those_asked_for(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path) as (chain, fake):
            kept: list[mix_pb2.PreparedRounds] = []

            def keep(answer: mix_pb2.PreparedRounds) -> mix_pb2.PreparedRounds:
                kept.append(answer)
                return kept[0]

            fake.mixes[0].faults["Prepare"] = keep
            await chain.prepare(1, 1, 2)
            for attempt, first in ((2, 1), (1, 2)):
                with pytest.raises(MixFailed, match=r"mix-1 .* for other rounds"):
                    await chain.prepare(attempt, first, 2)

    run(scenario())


# Opening and abandoning --------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [0, 1])
def test_a_dead_mix_is_named_whichever_it_is(made: Consortium, tmp_path: Path, dead: int) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path, but=(dead,)) as (chain, fake):
            for work in (
                chain.check_reachable(),
                chain.prepare(1, 1, 2),
                chain.open(asked(made).descriptor),
                chain.abandon(asked(made).descriptor),
            ):
                with pytest.raises(MixFailed, match=f"mix-{dead + 1} .* does not answer"):
                    await work
            assert fake.mixes[1 - dead].told.calls == ["Prepare", "Open", "Abandon"]

    run(scenario())


def test_all_dead_mixes_are_named_at_once(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path, but=(0, 1)) as (chain, _):
            with pytest.raises(MixFailed, match=r"mix-1 .*; mix-2 .* does not answer"):
                await chain.check_reachable()

    run(scenario())


def test_a_mix_that_comes_back_in_time_has_failed_nobody(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path, but=(1,)) as (chain, fake):
            opening = asyncio.create_task(chain.open(asked(made).descriptor))
            await asyncio.sleep(0.2)
            async with serving_mix(fake.mixes[1]):
                await opening
            assert [len(mix.told.opened) for mix in fake.mixes] == [1, 1]

    run(scenario())


def test_every_mix_states_that_it_abandoned(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path) as (chain, fake):
            round_ = asked(made)
            statements = await chain.abandon(round_.descriptor)
            check_abandoned(statements, round_.digest, made.study)
            fake.mixes[0].faults["Abandon"] = lambda _: statements[1]
            with pytest.raises(MixFailed, match=r"mix-1 .* did not sign"):
                await chain.abandon(round_.descriptor)
            fake.mixes[0].faults["Abandon"] = lambda _: round_pb2.Abandonment(
                digest=bytes(32), reason=statements[0].reason, signature=statements[0].signature
            )
            with pytest.raises(MixFailed, match=r"mix-1 .* another round"):
                await chain.abandon(round_.descriptor)

    run(scenario())


# Collecting --------------------------------------------------------------------------------------


def test_a_batch_is_what_its_mixes_stated(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path) as (chain, fake):
            round_ = asked(made)
            reports = gated(made, round_, 3)
            stating = stated(made, round_.digest, reports)
            fake.batches[round_.digest] = list(frames(round_.digest, stating, reports))
            batch = await chain.collect(round_.descriptor)
            assert list(batch.reports) == reports
            assert list(batch.chain) == stating
            assert (batch.output, batch.dropped) == (stating[-1].output, 0)
            batch.reports.close()

    run(scenario())


def collecting(
    made: Consortium, folder: Path, batch: Callable[[Round], list[mix_pb2.BatchFrame]]
) -> None:
    async def scenario() -> None:
        async with connected(made, folder) as (chain, fake):
            round_ = asked(made)
            fake.batches[round_.digest] = batch(round_)
            await chain.collect(round_.descriptor)

    run(scenario())


def test_an_aborted_chain_says_who_and_why(made: Consortium, tmp_path: Path) -> None:
    with pytest.raises(BatchAborted, match="mix-1 forwarded nothing: too few"):
        collecting(
            made,
            tmp_path,
            lambda round_: list(frames(round_.digest, aborted(made, round_.digest, "too few"), [])),
        )


def test_statements_that_do_not_hold_are_no_batch(made: Consortium, tmp_path: Path) -> None:
    other = asked(made)

    def batches(round_: Round) -> list[list[mix_pb2.BatchFrame]]:
        reports = gated(made, round_, 3)
        stating = stated(made, round_.digest, reports)
        return [
            [],
            list(frames(round_.digest, stating[:1], reports)),
            list(frames(round_.digest, stated(made, other.digest, reports), reports)),
            list(frames(other.digest, stating, reports)),
            list(frames(round_.digest, stated(made, round_.digest, reports[:1]), reports[:1])),
        ]

    for index in range(5):
        with pytest.raises(MixFailed, match=r"mix-2 .* a batch that cannot be used"):
            collecting(made, tmp_path, lambda round_, at=index: batches(round_)[at])  # type: ignore[misc]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda reports: [reports[1], reports[0], reports[2]],
        lambda reports: reports[:2],
        lambda reports: [*reports, reports[0]],
        lambda reports: [*reports[:2], bytes(len(reports[0]))],
    ],
)
def test_other_reports_than_stated_are_a_broken_batch(
    made: Consortium, tmp_path: Path, break_it: Callable[[list[bytes]], list[bytes]]
) -> None:
    def batch(round_: Round) -> list[mix_pb2.BatchFrame]:
        reports = gated(made, round_, 3)
        stating = stated(made, round_.digest, reports)
        return list(frames(round_.digest, stating, break_it(reports)))

    with pytest.raises(BatchBroken, match="mix-2 sent a broken batch"):
        collecting(made, tmp_path, batch)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_the_last_mix_does_not_have_is_lost(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path) as (chain, fake):
            round_ = asked(made)
            fake.batches[round_.digest] = []
            fake.mixes[1].faults["Collect"] = lambda _: grpc.StatusCode.DEADLINE_EXCEEDED
            with pytest.raises(MixFailed, match=r"mix-2 .* does not answer"):
                await chain.collect(round_.descriptor)

    run(scenario())


def test_a_batch_is_asked_for_again_when_the_mix_was_gone(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path) as (chain, fake):
            round_ = asked(made)
            reports = gated(made, round_, 3)
            stating = stated(made, round_.digest, reports)
            fake.batches[round_.digest] = list(frames(round_.digest, stating, reports))
            tries: list[int] = []

            def first_gone(answer: list[mix_pb2.BatchFrame]) -> Any:
                tries.append(1)
                return answer if len(tries) > 1 else grpc.StatusCode.UNAVAILABLE

            fake.mixes[1].faults["Collect"] = first_gone
            batch = await chain.collect(round_.descriptor)
            assert len(batch.reports) == 3
            batch.reports.close()

    run(scenario())


# Commitments -------------------------------------------------------------------------------------


def test_every_mix_gives_its_word_for_the_list(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(made, tmp_path) as (chain, fake):
            round_, output = asked(made), bytes(range(64))
            statement = round_pb2.HopStatement(output=output)
            own = own_commitment(made, round_.digest, output)
            batch = CollectedBatch((statement,), own, BatchFile(tmp_path, 1))
            committed = await chain.commit(round_.descriptor, batch)
            assert (committed.digest, committed.list) == (round_.digest, output)
            check_committed(committed, made.study)
            for word in (b"", committed.signatures[0]):
                with pytest.raises(MixFailed, match=r"mix-2 .* did not sign the list"):
                    await chain.commit(round_.descriptor, replace(batch, commitment=word))
            other = mix_pb2.Commitment(signature=own)
            fake.mixes[0].faults["Commit"] = lambda _: other
            with pytest.raises(MixFailed, match=r"mix-1 .* did not sign the list"):
                await chain.commit(round_.descriptor, batch)
            fake.mixes[0].faults["Commit"] = lambda _: grpc.StatusCode.FAILED_PRECONDITION
            with pytest.raises(MixFailed, match=r"mix-1 .* refused"):
                await chain.commit(round_.descriptor, batch)
            batch.reports.close()

    run(scenario())


# Release -----------------------------------------------------------------------------------------


def release_with(made: Consortium, folder: Path, fault: Callable[[Any], Any] | None) -> list[bytes]:
    """The raw keys that the mixes released; the second one's answer is `fault`'s."""

    async def scenario() -> list[bytes]:
        async with connected(made, folder) as (chain, fake):
            stretch = await chain.prepare(1, 1, 1)
            round_ = asked(made)
            await chain.open(round_.descriptor)
            if fault is not None:
                fake.mixes[1].faults["Release"] = fault
            confirmations = [round_pb2.Confirmation(silo=1, signature=bytes(64))]
            keys = await chain.release(round_.descriptor, bytes(32), confirmations, stretch.of(1))
            assert fake.mixes[1].told.confirmations == confirmations
            assert [key.public for key in keys] == [each.release for each in stretch.of(1)]
            return [key.raw for key in keys]

    return run(scenario())


def test_released_keys_are_those_announced(made: Consortium, tmp_path: Path) -> None:
    assert len(set(release_with(made, tmp_path, None))) == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda _: mix_pb2.ReleasedKey(key=SealKey.generate().raw), "another key"),
        (lambda _: mix_pb2.ReleasedKey(key=bytes(95)), "no key"),
        (lambda _: mix_pb2.ReleasedKey(), "no key"),
        (lambda _: grpc.StatusCode.FAILED_PRECONDITION, "refused"),
    ],
)
def test_a_mix_that_releases_something_else_is_named(
    made: Consortium, tmp_path: Path, fault: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(MixFailed, match=f"mix-2 .*{said}"):
        release_with(made, tmp_path, fault)
