"""Rounds on the channel: who is asked, confirms, and hears of lists and endings."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import round_pb2
from silomix_protocol.rounds.statements import check_closing, is_ended, sign_voided
from support.consortia import make_consortium
from support.coordinators import Follow, following, listed, signer
from support.mixes import run
from support.round_channels import (
    QUERY,
    SILOS,
    Desk,
    asked,
    batch_of,
    confirmed,
    desk_open,
    lossy,
    outside,
)
from support.rounds import Round


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """Ten silos, of which a batch needs three."""
    folder = tmp_path_factory.mktemp("many") / "consortium"
    return make_consortium(folder, records=(40,) * 10, minimum_batch=3)


def test_only_those_whom_the_descriptor_names_are_asked(pairs: Consortium, tmp_path: Path) -> None:
    made, (first, second) = pairs, pairs.study.asked(1)

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, first) as one, following(made, outside(made)) as three:
                await one.hear("stretch")
                await three.hear("stretch")
                round_ = asked(made)
                desk.open_round(round_)
                opened = (await one.hear("opened")).opened
                assert opened.descriptor == round_.descriptor.to_wire()
                assert (await one.hear("query_chunk")).query_chunk == QUERY
                async with following(made, second) as two:  # comes back in the middle of it
                    await two.hear("stretch")
                    await two.hear("opened")
                    await two.hear("query_chunk")
                desk.close_round(round_, void=True)
                desk.channel.close_lease("enough")
                assert (await one.hear("closed")).closed.void
                await one.hear("ended")
                await three.hear("ended")

    run(scenario())


def test_confirmations_open_the_gate(pairs: Consortium, tmp_path: Path) -> None:
    made, (first, second) = pairs, pairs.study.asked(1)

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            batch, _, _ = batch_of(made, round_)
            desk.open_stretch([round_])
            async with following(made, first) as one, following(made, second) as two:
                for stream in (one, two):
                    await stream.hear("stretch")
                desk.open_round(round_)
                for stream in (one, two):
                    await stream.hear("opened")
                    await stream.hear("query_chunk")
                gate = desk.commit(round_, batch)
                for stream in (one, two):
                    assert (await stream.hear("committed")).committed == batch.committed
                await one.say(answer=confirmed(made, round_, batch, first))
                await one.say(answer=confirmed(made, round_, batch, first))
                await one.say(answer=confirmed(made, round_, batch, second))
                assert not await gate.opens(0.2)
                await two.say(answer=confirmed(made, round_, batch, second))
                assert await gate.opens(5.0)
                assert [each.silo for each in gate.confirmations] == sorted(
                    map(SILOS.index, (first, second))
                )

    run(scenario())


@asynccontextmanager
async def all_following(made: Consortium) -> AsyncIterator[dict[str, Follow]]:
    """Every silo of the study on the channel, told of the stretch."""
    async with AsyncExitStack() as stack:
        streams = {
            each.name: await stack.enter_async_context(following(made, each.name))
            for each in made.study.silos
        }
        for stream in streams.values():
            await stream.hear("stretch")
        yield streams


async def hear_round(streams: Iterable[Follow]) -> None:
    for stream in streams:
        await stream.hear("opened")
        await stream.hear("query_chunk")


@pytest.mark.parametrize("missing", [False, True])
def test_everybody_hears_of_a_list_at_once_and_of_the_end_with_the_next_round(
    many: Consortium, tmp_path: Path, missing: bool
) -> None:
    async def scenario() -> None:
        async with desk_open(many, tmp_path) as desk:
            first = asked(many)
            batch, sealed, _ = batch_of(many, first)
            if missing:
                batch = listed(many, first, sealed[1:])
            second = asked(many, 2)
            desk.open_stretch([first, second])
            async with all_following(many) as streams:
                desk.open_round(first)
                await hear_round(streams.values())
                desk.commit(first, batch)
                for stream in streams.values():
                    assert (await stream.hear("committed")).committed == batch.committed
                desk.close_round(first)
                desk.open_round(second)
                for stream in streams.values():
                    await stream.hear("closed")
                await hear_round(streams.values())

    run(scenario())


@pytest.mark.parametrize("void", [False, True])
def test_a_silo_that_joins_hears_how_its_last_round_ended(
    pairs: Consortium, tmp_path: Path, void: bool
) -> None:
    """That it was used, once the journal is surely on disk: the next round was written down."""
    made, (first, _), other = pairs, pairs.study.asked(1), outside(pairs)

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            batch, _, _ = batch_of(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            desk.commit(round_, batch)
            desk.close_round(round_, void=void)
            async with following(made, first) as one, following(made, other) as three:
                await one.hear("stretch")
                assert (await one.hear("committed")).committed == batch.committed
                if not void:
                    desk.open_round(asked(made, 2))
                closed = (await one.hear("closed")).closed
                check_closing(closed, made.study)
                assert closed.void is void
                await three.hear("stretch")
                if not void and other in made.study.asked(2):
                    await three.hear("opened")

    run(scenario())


def test_that_a_round_was_used_is_told_when_the_journal_has_it(
    made: Consortium, tmp_path: Path
) -> None:
    """A power cut must not make the server say the contrary afterwards."""

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            synced: list[str] = []
            desk.channel._sync = lambda: synced.append("sync")
            round_ = asked(made)
            desk.open_stretch([round_])
            desk.open_round(round_)
            async with following(made, "silo-1") as one:
                for kind in ("stretch", "opened", "query_chunk"):
                    await one.hear(kind)
                desk.close_round(round_)
                await one.say(echo=b"echo")
                await one.hear("echo")  # a message that would take along what waits
                assert synced == []
                desk.channel.close_lease("enough")
                assert synced == ["sync"]
                assert not (await one.hear("closed")).closed.void
                await one.hear("ended")

    run(scenario())


def voided(made: Consortium, round_: Round) -> list[round_pb2.Ending]:
    """What every mix states about a void round, with something disclosed."""
    return [
        sign_voided(round_.digest, "void", b"disclosed", signer(made, mix.name))
        for mix in made.study.mixes
    ]


def test_a_silo_that_does_not_know_hears_from_the_journal_what_became_of_its_report(
    made: Consortium, tmp_path: Path
) -> None:
    """Another process wrote it down: this one has asked nobody yet."""
    first, second = asked(made, 1), asked(made, 2)
    batch, _, _ = batch_of(made, first)

    async def before() -> None:
        async with desk_open(made, tmp_path) as desk:
            for round_ in (first, second):
                desk.open_round(round_)
                if round_ is first:
                    desk.journal.listed(batch.committed)
                ended = voided(made, round_) if round_ is second else []
                desk.close_round(round_, void=round_ is second, endings=ended, batch=batch)

    async def after() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made, 3)])
            async with following(made, "silo-1", unsettled=first.digest) as one:
                assert (await one.hear("committed")).committed == batch.committed
                assert not (await one.hear("closed")).closed.void
                await one.hear("stretch")
            async with following(made, "silo-2", unsettled=second.digest) as two:
                closed = (await two.hear("closed")).closed
                check_closing(closed, made.study)
                assert is_ended(closed.endings, second.digest, made.study)
                assert not any(each.disclosure for each in closed.endings)
                await two.hear("stretch")
            async with following(made, "silo-3", unsettled=bytes(32)) as three:
                await three.hear("stretch")

    run(before())
    run(after())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_silo_whose_report_was_dropped_is_told_and_shown_what_the_mixes_disclosed(
    made: Consortium, tmp_path: Path, restarted: bool
) -> None:
    round_ = asked(made)
    batch, _, _ = lossy(made, round_)

    async def closing(desk: Desk) -> None:
        desk.open_stretch([round_])
        desk.open_round(round_)
        ended = voided(made, round_)
        desk.close_round(round_, void=True, endings=ended, batch=batch, traced=(2,))

    async def inspecting(desk: Desk) -> None:
        for silo, traced in (("silo-3", True), ("silo-1", False)):
            async with following(made, silo, unsettled=round_.digest) as stream:
                while (event := await stream.next()) is not None and not event.HasField("closed"):
                    pass
                assert event is not None
                assert event.closed.traced is traced
                await stream.say(inspect=round_.digest)
                shown = [(await stream.hear("passage")).passage for _ in made.study.mixes]
                assert [each.statement for each in shown] == batch.chain
                assert [each.ending.disclosure for each in shown] == [b"disclosed"] * len(shown)

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            await closing(desk)
            if not restarted:
                await inspecting(desk)
        if restarted:
            async with desk_open(made, tmp_path) as desk:
                await inspecting(desk)

    run(scenario())
