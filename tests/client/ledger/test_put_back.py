"""Leases of a silo that was put back or copied, against a real first mix and a real coordinator.

The mix is the real service in this process, with its store on disk; it opens rounds for a played
server, which may ask whatever it likes.  What the silo does about it must show in what it charges
and sends: nothing, once somebody shows it that its ledger is not the last one.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import grpc.aio
import pytest
from silomix_client.approval.approve import approve, review
from silomix_client.backup.backup import Since, collect, restore
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.ledger.witnessed_height import FILE, Witness
from silomix_client.rounds.lease import Ending, LeaseTerms
from silomix_core.study.reader import parse_study
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, channel_pb2_grpc, ledger_pb2, mix_pb2
from silomix_protocol.connections.introduction import welcome
from silomix_protocol.connections.tls import Identity
from silomix_protocol.rounds.descriptor import Descriptor, RoundDigest
from silomix_protocol.rounds.heights import HeightBook
from silomix_server.silos.round_channel import RoundChannel
from silomix_shuffler.round.rounds import MixRounds
from support.consortia import make_consortium
from support.coordinators import frame_reader
from support.heights import some_height
from support.mixes import calling, described, mix_serving, open_at, run, signer
from support.put_back import StateCopy
from support.scripted_lease import (
    ENDED,
    Event,
    PlayedMix,
    Script,
    Stage,
    follow,
    holding,
    opening,
    round_with,
    rounds_charged,
)
from support.silos import (
    NOW,
    approved_silo,
    closed_round,
    copied,
    open_ledger,
    query_at,
    study_file,
    written,
)

DEADLINE_S = 20.0
Asks = list[tuple[int, list[float]]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("one-mix") / "consortium"
    return make_consortium(folder, mixes=1, minimum_batch=1, tokens=False, deadline_s=DEADLINE_S)


@pytest.fixture
def made(template: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Consortium:
    no_pause = SimpleNamespace(uniform=lambda low, high: 0.0)
    monkeypatch.setattr("silomix_protocol.host.backoff.random", no_pause)
    return copied(template, tmp_path / "consortium")


@pytest.fixture
def config(made: Consortium) -> SiloConfig:
    return approved_silo(made)


class AskingServer(channel_pb2_grpc.RoundChannelServicer):
    """Asks each round at its point, and goes on when the mix has the report or the silo left."""

    def __init__(self, made: Consortium, mix: MixRounds, asks: Asks) -> None:
        self.made, self.mix, self.asks = made, mix, asks

    async def Follow(  # noqa: N802
        self,
        request_iterator: AsyncIterator[channel_pb2.SiloFrame],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[Event]:
        await anext(request_iterator)
        for number, point in self.asks:
            stretch, events, descriptor = await self._opened(number, point)
            yield stretch
            for event in events:
                yield event
            batch = self.mix.rounds.named(descriptor.digest).batch
            while "silo-1" not in batch.admitted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            yield Event(closed=closed_round(self.made, descriptor, void=True))
        yield ENDED
        await anext(request_iterator, None)

    async def _opened(
        self, number: int, point: list[float]
    ) -> tuple[Event, list[Event], Descriptor]:
        """The round with the mix's own keys, open there."""
        query, study = query_at(point), self.made.study
        request = mix_pb2.PrepareRequest(
            study=study.identity, attempt=1, first_round=number, rounds=1
        )
        async with calling(self.made, "server", "mix-1") as stub:
            prepared = await stub.Prepare(request, timeout=10.0)
        played = described(self.made, prepared.keys, number, query=query)
        await open_at(self.made, played.descriptor, "mix-1")
        stretch = channel_pb2.StretchOpened(first_round=number, lists=[prepared.list])
        opened = channel_pb2.RoundOpened(
            descriptor=played.descriptor.to_wire(),
            query_bytes=len(query),
            server_key=played.server_key.public,
            mix_keys=prepared.keys,
        )
        events = [Event(opened=opened), Event(query_chunk=query)]
        return Event(stretch=stretch), events, played.descriptor


@asynccontextmanager
async def at_channel(
    made: Consortium, servicer: channel_pb2_grpc.RoundChannelServicer
) -> AsyncIterator[None]:
    server = Identity.load("server", made.folder / "server").server(
        made.study.server.channel_address
    )
    channel_pb2_grpc.add_RoundChannelServicer_to_server(servicer, server)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def lease(
    made: Consortium, config: SiloConfig, mix: MixRounds, asks: Asks
) -> tuple[Ending, int]:
    """A silo process that starts, follows one lease with these questions, and stops."""
    ledger = open_ledger(config)
    server = AskingServer(made, mix, asks)
    async with at_channel(made, server), holding(config, made, ledger) as holder:
        return await holder.follow(LeaseTerms("lease-1", DEADLINE_S))


def leased(made: Consortium, config: SiloConfig, *asks: tuple[int, list[float]]) -> object:
    """The same, with the mix started for it and stopped again: what it knows is on its disk."""

    async def scene() -> tuple[Ending, int]:
        async with mix_serving(made, 0) as mix:
            return await lease(made, config, mix, list(asks))

    return run(scene())


HERE, THERE = [0.0, 0.0, 0.0], [1.0, 0.0, -1.0]


# Put back ----------------------------------------------------------------------------------------


def test_a_silo_that_was_put_back_answers_no_other_question(
    made: Consortium, config: SiloConfig
) -> None:
    """The ledger forgot round 1; the mix did not."""
    earlier = StateCopy.of(config)
    assert leased(made, config, (1, HERE)) == (Ending.DONE, 1)
    earlier.put_back()
    before = written(config)
    assert leased(made, config, (2, THERE)) == (Ending.REFUSED, 0)
    rows, files = written(config)
    assert files.pop(FILE)
    (untold,) = [name for name in files if name.startswith("neglect/")]
    del files[untold]  # it was not told of round 1, as far as it knows
    assert (rows, files) == before, "nothing was charged, or stored"


def test_it_stays_stopped_when_nobody_shows_it_any_more(
    made: Consortium, config: SiloConfig
) -> None:
    earlier = StateCopy.of(config)
    assert leased(made, config, (1, HERE)) == (Ending.DONE, 1)
    earlier.put_back()
    assert leased(made, config, (2, THERE)) == (Ending.REFUSED, 0)
    shutil.rmtree(made.folder / "mix-1" / "state")  # a mix that has forgotten everything
    assert leased(made, config, (2, THERE)) == (Ending.REFUSED, 0)
    assert rounds_charged(config) == 0


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["silo", "mix"])
def test_a_silo_that_does_not_listen_and_a_mix_that_shows_nothing_are_caught(
    made: Consortium, config: SiloConfig, monkeypatch: pytest.MonkeyPatch, deaf: str
) -> None:
    if deaf == "silo":
        monkeypatch.setattr(Witness, "hear", lambda *_: None)
    else:
        monkeypatch.setattr("silomix_shuffler.service.welcome", lambda _height: welcome())
        monkeypatch.setattr(HeightBook, "take", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_silo_that_was_put_back_answers_no_other_question(made, config)


# Copied ------------------------------------------------------------------------------------------


def clone(config: SiloConfig, folder: Path) -> SiloConfig:
    """The whole silo on another machine: same keys, same state."""
    shutil.copytree(config.folder, folder)
    return load(folder / "silo.toml")


@pytest.mark.parametrize("first", ["original", "clone"])
def test_of_two_copies_the_one_that_comes_second_stops(
    made: Consortium, config: SiloConfig, tmp_path: Path, first: str
) -> None:
    second = clone(config, tmp_path / "elsewhere")
    pair = (config, second) if first == "original" else (second, config)
    assert leased(made, pair[0], (1, HERE)) == (Ending.DONE, 1)
    assert leased(made, pair[1], (2, HERE)) == (Ending.REFUSED, 0)
    assert rounds_charged(pair[1]) == 0
    assert leased(made, pair[0], (3, HERE)) == (Ending.DONE, 1), "the other goes on"


def test_two_copies_that_listen_at_once_are_told_apart_by_their_reports(
    made: Consortium, config: SiloConfig, tmp_path: Path
) -> None:
    """Both were greeted when neither had answered; the mix takes the first ledger's reports."""
    second = clone(config, tmp_path / "elsewhere")

    async def scene() -> tuple[Ending, int]:
        async with AsyncExitStack() as stack:
            mix = await stack.enter_async_context(mix_serving(made, 0))
            ledger = open_ledger(second)
            holder = await stack.enter_async_context(holding(second, made, ledger))
            assert await holder._mix.is_there()
            assert await lease(made, config, mix, [(1, HERE)]) == (Ending.DONE, 1)
            holder._mix.begin = lambda: None  # type: ignore[method-assign]  # greeted before
            server = AskingServer(made, mix, [(2, THERE)])
            async with at_channel(made, server):
                return await holder.follow(LeaseTerms("lease-1", DEADLINE_S))

    assert run(scene()) == (Ending.REFUSED, 1)
    assert rounds_charged(second) == 1, "charged before it was sent, and then told"
    assert (second.state / FILE).exists()
    assert leased(made, second, (3, HERE)) == (Ending.REFUSED, 0)


# Restored ----------------------------------------------------------------------------------------


def test_a_silo_that_was_properly_restored_goes_on_with_another_study(
    made: Consortium, config: SiloConfig, tmp_path: Path
) -> None:
    """Of the same mix, which has heights above the restored ledger's entries."""
    (config.folder / "policy.toml").write_text("epsilon = 6.0\ndelta = 1e-5\nminimum_batch = 1\n")
    _, packed = collect(load(config.folder / "silo.toml"), "silo.toml", NOW)
    assert leased(made, config, (1, HERE), (2, HERE), (3, HERE), (4, HERE)) == (Ending.DONE, 4)
    later = NOW + timedelta(days=1)
    again = load(restore(packed, tmp_path / "new", Since(complete=True), later).config)
    shutil.copy(config.folder / "data.csv", again.folder / "data.csv")
    content = study_file(made).replace(b'name = "test"', b'name = "another"', 1)
    (made.folder / "study.toml").write_bytes(content)
    another = replace(made, study=parse_study(content))
    approve(again, review(again, content), later)
    with closing(open_ledger(again)) as ledger:
        assert ledger.height()[1] < 5, "fewer entries than the mix has seen"
    assert leased(another, again, (1, THERE)) == (Ending.DONE, 1)
    assert leased(made, config, (5, HERE)) == (Ending.REFUSED, 0), "the lost machine, found again"


# The coordinator ---------------------------------------------------------------------------------


def test_the_coordinator_alone_stops_a_silo_that_was_put_back(
    made: Consortium, config: SiloConfig, tmp_path: Path
) -> None:
    """Its mix has forgotten: what the round channel holds is shown before anything is asked."""
    heights = HeightBook()

    async def scene() -> tuple[Ending, int]:
        channel = RoundChannel(made.study, frame_reader(made, tmp_path), heights=heights)
        async with at_channel(made, channel), mix_serving(made, 0):
            channel.open_lease("lease-1")
            async with holding(config, made, open_ledger(config)) as holder:
                following = asyncio.create_task(holder.follow(LeaseTerms("lease-1", DEADLINE_S)))
                while not channel.followers and not following.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                channel.close_lease("enough")
                return await following

    earlier = StateCopy.of(config)
    assert leased(made, config, (1, HERE)) == (Ending.DONE, 1)
    assert run(scene()) == (Ending.DONE, 0)
    earlier.put_back()
    shutil.rmtree(made.folder / "mix-1" / "state")
    assert run(scene()) == (Ending.REFUSED, 0)
    key = signer(made, "silo-1").public
    held = heights.of(key)
    assert held is not None
    assert held.entries == 2, "the lower one did not take its place"


# A mix that lies ---------------------------------------------------------------------------------


def playing(*numbers: int) -> Script:
    """These rounds, as an honest server plays them."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in numbers:
            async for event in round_with(stage, number):
                yield event
        yield ENDED

    return script


def lies(made: Consortium) -> dict[str, ledger_pb2.LedgerHeight]:
    genuine = some_height(made, "silo-1", 99).to_wire()
    changed = ledger_pb2.LedgerHeight.FromString(genuine.SerializeToString())
    changed.entries = 100
    return {
        "another silo's": some_height(made, "silo-2", 99).to_wire(),
        "changed": changed,
        "empty": ledger_pb2.LedgerHeight(),
    }


@pytest.mark.parametrize("lie", ["another silo's", "changed", "empty"])
def test_a_mix_that_shows_what_the_silo_never_signed_stops_nobody(
    made: Consortium, config: SiloConfig, lie: str
) -> None:
    shown = lies(made)[lie]
    followed = follow(made, config, playing(1, 2), prepare=lambda mix: setattr(mix, "shown", shown))
    assert followed.outcome == (Ending.DONE, 2)
    assert not (config.state / FILE).exists()


def test_a_mix_that_shows_an_old_height_for_ever_stops_nobody(
    made: Consortium, config: SiloConfig
) -> None:
    first = follow(made, config, playing(1, 2))
    old = first.mix.heights[0]

    followed = follow(made, config, playing(3), prepare=lambda mix: setattr(mix, "shown", old))
    assert followed.outcome == (Ending.DONE, 1)


def test_a_mix_that_refuses_with_an_old_height_costs_that_round_and_nothing_else(
    made: Consortium, config: SiloConfig
) -> None:
    """Sent again with the ledger's height of then, a few times; then it counts as not taken."""

    def prepare(mix: PlayedMix) -> None:
        def refuse(digest: RoundDigest, report: bytes) -> mix_pb2.Receipt:
            refused, reason = mix_pb2.Receipt.REFUSED, "your ledger is behind"
            return mix_pb2.Receipt(
                digest=digest, report=report, status=refused, reason=reason, height=mix.heights[0]
            )

        mix.reply = refuse

    async def asking(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        for _ in range(4):
            await stage.mix.onions.get()
        yield ENDED

    followed = follow(made, config, asking, prepare=prepare)
    assert followed.outcome == (Ending.DONE, 1)
    assert len(followed.mix.heights) == 4
    assert not (config.state / FILE).exists()


def test_a_ledger_that_grew_on_the_way_is_shown_as_it_is_now(
    made: Consortium, config: SiloConfig
) -> None:
    """A round of another study was taken first, with a higher height of this very ledger."""

    def prepare(mix: PlayedMix) -> None:
        def reply(digest: RoundDigest, report: bytes) -> mix_pb2.Receipt:
            if len(mix.heights) > 1:
                return mix.accept(digest, report)
            return mix_pb2.Receipt(
                digest=digest, status=mix_pb2.Receipt.REFUSED, height=mix.heights[0]
            )

        mix.reply = reply

    async def asking(stage: Stage) -> AsyncIterator[Event]:
        descriptor, events = stage.opened(1)
        for event in events:
            yield event
        for _ in range(2):
            await stage.mix.gated(descriptor)
        yield ENDED

    followed = follow(made, config, asking, prepare=prepare)
    assert followed.outcome == (Ending.DONE, 1)
    with closing(open_ledger(config)) as ledger:
        report = ledger.account(made.study).last_report()
        assert report is not None
        afterwards = ledger.account(made.study).outcome(report.descriptor.digest)
        assert afterwards is not None
        assert afterwards.receipt is not None


# When it asks ------------------------------------------------------------------------------------


def test_the_mix_is_greeted_once_in_a_lease_and_again_after_a_break(
    made: Consortium, config: SiloConfig
) -> None:
    followed = follow(made, config, playing(1, 2))
    assert (followed.answered, followed.mix.greeted) == (2, 1)

    async def broken(stage: Stage) -> AsyncIterator[Event]:
        descriptor, events = stage.opened(3)
        for event in events:
            yield event
        await stage.mix.onions.get()  # the stream breaks before its receipt
        await stage.mix.onions.get()
        yield stage.closed(descriptor, void=True)
        async for event in playing(4)(stage):
            yield event

    followed = follow(made, config, broken, prepare=lambda mix: setattr(mix, "breaks", 1))
    assert (followed.answered, followed.mix.greeted) == (2, 2)


def test_without_a_greeting_nothing_is_computed_or_charged(
    made: Consortium, config: SiloConfig
) -> None:
    class Silent(PlayedMix):
        async def Greet(self, request: object, context: object) -> object:  # type: ignore[override] # noqa: N802
            await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")  # type: ignore[attr-defined]

    async def asking(stage: Stage) -> AsyncIterator[Event]:
        for event in opening(made, stage.opened(1)[0].to_wire(), query_at(HERE)):
            yield event
        yield ENDED

    def silence(mix: PlayedMix) -> None:
        mix.__class__ = Silent

    followed = follow(made, config, asking, prepare=silence)
    assert followed.answered == 0
    assert followed.mix.left_over() == []
    assert rounds_charged(config) == 0
