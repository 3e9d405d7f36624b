"""A lease at a silo, against a coordinator and a mix that do what each test says.

Only the other parties are played: they are real gRPC servers with their own certificates and keys;
desk, ledger, signatures and TLS are the silo's own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from silomix.consortium import Consortium
from silomix_client.config import SiloConfig
from silomix_client.keystream import fresh_keystream
from silomix_client.lease import Ending, Lease, LeaseHolder
from silomix_client.ledger import Ledger
from silomix_core.accounting.events import PrivacyTarget
from silomix_proto import channel_pb2, channel_pb2_grpc, mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.batches import read_batch
from silomix_protocol.descriptor import Descriptor, check
from silomix_protocol.keys import SealKey, SigningKey, verify
from silomix_protocol.onion import onion_bytes, open_layer
from silomix_protocol.tls import Identity, peer_name
from silomix_shuffler.register import RoundRegister
from silomix_shuffler.rounds import Rounds
from silomix_shuffler.service import MixService
from support.consortia import make_consortium
from support.silos import (
    approved_silo,
    asked,
    copied,
    hostile,
    open_desk,
    open_ledger,
    query_at,
    server_key,
    written,
)

Event = channel_pb2.ChannelEvent
ORIGIN = [0.0, 0.0, 0.0]
TRIES = 3


@pytest.fixture(scope="module")
def one_mix(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("one-mix") / "consortium"
    return make_consortium(folder, mixes=1, minimum_batch=1)


@pytest.fixture
def made(one_mix: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Consortium:
    """Three silos behind one mix; pauses between tries are taken out, connecting takes 0.3 s."""
    monkeypatch.setattr("silomix_client.lease.random", SimpleNamespace(random=lambda: -1.0))
    monkeypatch.setattr("silomix_client.lease._CONNECT_S", 0.3)
    monkeypatch.setattr("silomix_client.lease._CHANNEL_TRIES", TRIES)
    return copied(one_mix, tmp_path / "consortium")


@pytest.fixture
def config(made: Consortium) -> SiloConfig:
    return approved_silo(made)


# The mix, played ---------------------------------------------------------------------------------


class PlayedMix(mix_pb2_grpc.MixServicer):
    """Takes every report, keeps it, and gives the receipt that `reply` says."""

    def __init__(self, made: Consortium) -> None:
        folder = made.mixes[0].parent
        self.study = made.study
        self.sign_key = SigningKey.load(folder / "sign.key")
        self.seal_key = SealKey.load(folder / "seal.key")
        self.onions: asyncio.Queue[bytes] = asyncio.Queue()
        self.breaks = 0  # streams to break after a report, before its receipt
        self.reply: Callable[[bytes, bytes], mix_pb2.Receipt] = self.accept

    async def Submit(  # noqa: N802
        self,
        request_iterator: AsyncIterator[mix_pb2.SubmitFrame],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[mix_pb2.Receipt]:
        silo = self.study.silo(peer_name(context))
        assert silo is not None
        async for frame in request_iterator:
            assert frame.header.bytes == len(frame.chunk)
            digest = check(frame.header.descriptor, self.study).digest
            report = sha256(frame.chunk).digest()
            verify(silo.sign_key, frame.header.signature, "report", digest, report)
            self.onions.put_nowait(frame.chunk)
            if self.breaks:
                self.breaks -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")
            yield self.reply(digest, report)

    def accept(self, digest: bytes, report: bytes) -> mix_pb2.Receipt:
        signature = self.sign_key.sign("receipt", digest, report)
        return mix_pb2.Receipt(status=mix_pb2.Receipt.ACCEPTED, signature=signature)

    async def sealed(self, descriptor: Descriptor) -> bytes:
        """SHA-256 of what the next report holds for the server."""
        onion = await self.onions.get()
        return sha256(open_layer(onion, self.seal_key, 0, descriptor.digest)).digest()


# The coordinator, played -------------------------------------------------------------------------


@dataclass
class Stage:
    """What a script of the coordinator has at hand."""

    made: Consortium
    mix: PlayedMix
    context: grpc.aio.ServicerContext

    def opened(self, round_number: int) -> tuple[Descriptor, list[Event]]:
        descriptor, query = asked(self.made, round_number)
        return descriptor, opening(descriptor.to_wire(), query)

    def closed(
        self, descriptor: Descriptor, reports: list[bytes], key: SigningKey | None = None
    ) -> Event:
        parts = descriptor.digest, b"\0", b"".join(reports)
        signature = (key or server_key(self.made)).sign("closed", *parts)
        closed = channel_pb2.RoundClosed(
            digest=descriptor.digest, reports=reports, signature=signature
        )
        return Event(closed=closed)

    async def broken(self) -> None:
        await self.context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")


def opening(signed: round_pb2.SignedDescriptor, query: bytes) -> list[Event]:
    opened = channel_pb2.RoundOpened(descriptor=signed, query_bytes=len(query))
    return [Event(opened=opened), Event(query_chunk=query)]


ENDED = Event(ended=channel_pb2.LeaseEnded(reason="all rounds done"))
Script = Callable[[Stage], AsyncIterator[Event]]


@dataclass
class PlayedCoordinator(channel_pb2_grpc.RoundChannelServicer):
    """Plays one script per connection; the last one again for all that follow."""

    made: Consortium
    mix: PlayedMix
    scripts: list[Script]
    requests: list[channel_pb2.FollowRequest] = field(default_factory=list)

    async def Follow(  # noqa: N802
        self, request: channel_pb2.FollowRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Event]:
        assert peer_name(context) == "silo-1"
        self.requests.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        async for event in script(Stage(self.made, self.mix, context)):
            yield event


@asynccontextmanager
async def serving(
    made: Consortium,
    channel: channel_pb2_grpc.RoundChannelServicer | None,
    mix: mix_pb2_grpc.MixServicer,
    party: str = "server",
) -> AsyncIterator[None]:
    """Coordinator (under the certificate of `party`) and mix at the study's addresses."""
    study = made.study
    servers = [Identity.load("mix-1", made.folder / "mix-1").server(study.mixes[0].address)]
    mix_pb2_grpc.add_MixServicer_to_server(mix, servers[0])
    if channel is not None:
        folder = made.folder / party
        servers.append(Identity.load(party, folder).server(study.server.channel_address))
        channel_pb2_grpc.add_RoundChannelServicer_to_server(channel, servers[1])
    for server in servers:
        await server.start()
    try:
        yield
    finally:
        for server in servers:
            await server.stop(None)


@asynccontextmanager
async def holding(
    config: SiloConfig, made: Consortium, ledger: Ledger
) -> AsyncIterator[LeaseHolder]:
    desk = open_desk(config, made.study, ledger, fresh_keystream)
    sign_key = SigningKey.load(config.folder / "sign.key")
    holder = LeaseHolder(desk, Identity.load(config.name, config.folder), sign_key)
    try:
        yield holder
    finally:
        await holder.close()
        ledger.close()


def follow(
    made: Consortium,
    config: SiloConfig,
    *scripts: Script,
    prepare: Callable[[PlayedMix], None] = lambda mix: None,
    deadline_s: float = 30.0,
    lifetime: PrivacyTarget | None = None,
) -> tuple[Ending, int, PlayedMix, PlayedCoordinator]:
    """One lease from its first to its last event."""

    async def play() -> tuple[Ending, int, PlayedMix, PlayedCoordinator]:
        mix = PlayedMix(made)
        prepare(mix)
        coordinator = PlayedCoordinator(made, mix, list(scripts))
        ledger = open_ledger(config, lifetime)
        async with serving(made, coordinator, mix), holding(config, made, ledger) as holder:
            ending, answered = await holder.follow(Lease("lease-1", deadline_s))
        return ending, answered, mix, coordinator

    return asyncio.run(asyncio.wait_for(play(), 40.0))


def rounds_charged(config: SiloConfig) -> int:
    ledger = open_ledger(config)
    try:
        return ledger.total().rounds
    finally:
        ledger.close()


def left_over(mix: PlayedMix) -> list[bytes]:
    """Reports that reached the mix and that no script took."""
    return [mix.onions.get_nowait() for _ in range(mix.onions.qsize())]


async def round_with(
    stage: Stage, number: int, published: Callable[[bytes], list[bytes]] = lambda sealed: [sealed]
) -> AsyncIterator[Event]:
    """One whole round; `published` makes the closing list from the silo's own digest."""
    descriptor, events = stage.opened(number)
    for event in events:
        yield event
    yield stage.closed(descriptor, published(await stage.mix.sealed(descriptor)))


# How a lease ends --------------------------------------------------------------------------------


def test_a_lease_whose_rounds_were_all_answered_is_done(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in range(1, 6):
            async for event in round_with(stage, number):
                yield event
        yield ENDED

    ending, answered, mix, coordinator = follow(made, config, script)
    assert (ending, answered) == (Ending.DONE, 5)
    assert rounds_charged(config) == 5
    assert left_over(mix) == []
    assert [(entry.lease, entry.study) for entry in coordinator.requests] == [
        ("lease-1", made.study.identity)
    ]


def test_what_reaches_the_mix_is_what_the_ledger_keeps(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        _, events = stage.opened(1)
        for event in events:
            yield event
        yield ENDED

    _, _, mix, _ = follow(made, config, script)
    (onion,) = left_over(mix)
    ledger = open_ledger(config)
    stored = ledger.stored(made.study, 1, asked(made, 1)[0].digest)
    ledger.close()
    assert stored is not None
    assert stored.onion == onion


def test_a_lease_ends_at_its_deadline(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in round_with(stage, 1):
            yield event
        await asyncio.Event().wait()

    ending, answered, _, _ = follow(made, config, script, deadline_s=0.6)
    assert (ending, answered) == (Ending.DEADLINE, 1)


def test_the_stop_signal_of_an_idle_lease_ends_it(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        yield ENDED

    ending, answered, _, _ = follow(made, config, script)
    assert (ending, answered) == (Ending.DONE, 0)
    assert rounds_charged(config) == 0


def test_a_lease_ends_when_the_budget_is_exhausted(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number in range(1, 6):
            async for event in round_with(stage, number):
                yield event

    lowered = PrivacyTarget(0.9, made.study.target.delta)
    ending, answered, mix, _ = follow(made, config, script, lifetime=lowered)
    assert (ending, answered) == (Ending.BUDGET, 1)
    assert left_over(mix) == []
    assert rounds_charged(config) == 1


# What a lease refuses ----------------------------------------------------------------------------


def refused(made: Consortium, config: SiloConfig, events: list[Event]) -> None:
    """These events end the lease as refused; nothing is charged, nothing is sent."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in events:
            yield event
        await asyncio.Event().wait()

    before = written(config)
    ending, answered, mix, _ = follow(made, config, script)
    assert (ending, answered) == (Ending.REFUSED, 0)
    assert left_over(mix) == []
    assert written(config) == before


@pytest.mark.parametrize("signer", ["mix-1", "silo-1"])
def test_a_descriptor_signed_by_another_party_ends_the_lease(
    made: Consortium, config: SiloConfig, signer: str
) -> None:
    query = query_at(ORIGIN)
    key = SigningKey.load(made.folder / signer / "sign.key")
    refused(made, config, opening(hostile(made, query, key), query))


@pytest.mark.parametrize("fields", [{"round": 6}, {"round": 0}, {"silos": ["silo-2", "silo-3"]}])
def test_a_round_outside_the_study_ends_the_lease(
    made: Consortium, config: SiloConfig, fields: dict[str, object]
) -> None:
    query = query_at(ORIGIN)
    refused(made, config, opening(hostile(made, query, **fields), query))


def test_a_point_outside_the_ball_ends_the_lease(made: Consortium, config: SiloConfig) -> None:
    query = query_at([50.1, 0.0, 0.0])
    refused(made, config, opening(hostile(made, query), query))


def test_a_query_announced_larger_than_the_study_allows_is_not_even_read(
    made: Consortium, config: SiloConfig
) -> None:
    signed = hostile(made, query_at(ORIGIN))
    opened = channel_pb2.RoundOpened(descriptor=signed, query_bytes=2**62)
    refused(made, config, [Event(opened=opened)])


def test_a_query_that_breaks_off_ends_the_lease(made: Consortium, config: SiloConfig) -> None:
    first, _ = opening(hostile(made, query_at(ORIGIN)), query_at(ORIGIN))
    refused(made, config, [first, Event(query_chunk=b"\x0a"), ENDED])


def test_a_query_longer_than_announced_ends_the_lease(made: Consortium, config: SiloConfig) -> None:
    first, chunk = opening(hostile(made, query_at(ORIGIN)), query_at(ORIGIN))
    refused(made, config, [first, Event(query_chunk=chunk.query_chunk + b"\0")])


def test_a_query_may_come_in_pieces(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        descriptor, (first, chunk) = stage.opened(1)
        yield first
        for byte in chunk.query_chunk:
            yield Event(query_chunk=bytes([byte]))
        yield stage.closed(descriptor, [await stage.mix.sealed(descriptor)])
        yield ENDED

    ending, answered, _, _ = follow(made, config, script)
    assert (ending, answered) == (Ending.DONE, 1)


def test_the_same_round_with_another_query_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in round_with(stage, 1):
            yield event
        query = query_at([1.0, 0.0, 0.0])
        for event in opening(hostile(made, query), query):
            yield event
        await asyncio.Event().wait()

    ending, answered, mix, _ = follow(made, config, script)
    assert (ending, answered) == (Ending.REFUSED, 1)
    assert left_over(mix) == []
    assert rounds_charged(config) == 1


def test_a_closing_list_that_the_server_did_not_sign_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        descriptor, events = stage.opened(1)
        for event in events:
            yield event
        sealed = await stage.mix.sealed(descriptor)
        yield stage.closed(descriptor, [sealed], key=stage.mix.sign_key)
        yield ENDED

    ending, answered, _, _ = follow(made, config, script)
    assert (ending, answered) == (Ending.REFUSED, 1)


# Inclusion ---------------------------------------------------------------------------------------


def lists_of(*published: Callable[[bytes], list[bytes]]) -> Script:
    """A lease whose rounds close with these lists, made from the silo's own digest."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number, make in enumerate(published, start=1):
            async for event in round_with(stage, number, make):
                yield event
        yield ENDED

    return script


def there(sealed: bytes) -> list[bytes]:
    return [bytes(32), sealed, b"\1" * 32]


def dropped(sealed: bytes) -> list[bytes]:
    return [bytes(32), b"\1" * 32]


def test_a_silo_missing_from_two_closing_lists_stops_answering(
    made: Consortium, config: SiloConfig
) -> None:
    script = lists_of(dropped, dropped, there, there)
    ending, answered, mix, _ = follow(made, config, script)
    assert (ending, answered) == (Ending.MISSING, 2)
    assert left_over(mix) == []
    assert rounds_charged(config) == 2


def test_a_silo_missing_from_one_closing_list_goes_on(made: Consortium, config: SiloConfig) -> None:
    ending, answered, _, _ = follow(made, config, lists_of(there, dropped, there))
    assert (ending, answered) == (Ending.DONE, 3)


def test_a_closing_list_that_swaps_the_digest_of_the_onion_for_that_of_the_report_is_a_missing_one(
    made: Consortium, config: SiloConfig
) -> None:
    """Only the innermost layer shows that the server has the report itself."""

    def almost(sealed: bytes) -> list[bytes]:
        return [sealed[:-1] + bytes([sealed[-1] ^ 1]), sealed + b"\0"]

    ending, _, _, _ = follow(made, config, lists_of(almost, almost))
    assert ending is Ending.MISSING


def test_a_closing_list_of_another_round_neither_helps_nor_harms(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        other, _ = stage.opened(2)
        descriptor, events = stage.opened(1)
        for event in events:
            yield event
        sealed = await stage.mix.sealed(descriptor)
        for _ in range(3):
            yield stage.closed(other, [])
        yield stage.closed(descriptor, [sealed])
        yield ENDED

    ending, answered, _, _ = follow(made, config, script)
    assert (ending, answered) == (Ending.DONE, 1)


# Broken channels ---------------------------------------------------------------------------------


def test_a_silo_that_lost_the_channel_answers_the_same_round_with_the_same_bytes(
    made: Consortium, config: SiloConfig
) -> None:
    taken: list[bytes] = []

    async def broken(stage: Stage) -> AsyncIterator[Event]:
        _, events = stage.opened(1)
        for event in events:
            yield event
        taken.append(await stage.mix.onions.get())
        await stage.broken()

    async def again(stage: Stage) -> AsyncIterator[Event]:
        descriptor, events = stage.opened(1)
        for event in events:
            yield event
        taken.append(await stage.mix.onions.get())
        inner = open_layer(taken[-1], stage.mix.seal_key, 0, descriptor.digest)
        yield stage.closed(descriptor, [sha256(inner).digest()])
        yield ENDED

    breaks = TRIES + 2  # more than a silent channel would be forgiven: each brought a round
    ending, _, _, coordinator = follow(made, config, *[broken] * breaks, again)
    assert ending is Ending.DONE
    assert len(coordinator.requests) == len(taken) == breaks + 1
    assert len(set(taken)) == 1
    assert rounds_charged(config) == 1


def test_a_new_lease_that_asks_the_answered_round_again_gets_the_same_bytes(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        _, events = stage.opened(1)
        for event in events:
            yield event
        yield ENDED

    onions = [left_over(follow(made, config, script)[2]) for _ in range(2)]
    assert len(onions[0]) == 1
    assert onions[0] == onions[1]
    assert rounds_charged(config) == 1


def test_a_channel_that_closes_without_ending_the_lease_is_dialled_a_few_times_then_lost(
    made: Consortium, config: SiloConfig
) -> None:
    async def silent(stage: Stage) -> AsyncIterator[Event]:
        for event in ():
            yield event

    ending, answered, _, coordinator = follow(made, config, silent)
    assert (ending, answered) == (Ending.CHANNEL_LOST, 0)
    assert len(coordinator.requests) == TRIES


def test_a_channel_that_keeps_breaking_is_lost(made: Consortium, config: SiloConfig) -> None:
    async def breaking(stage: Stage) -> AsyncIterator[Event]:
        await stage.broken()
        yield ENDED

    ending, answered, _, coordinator = follow(made, config, breaking)
    assert (ending, answered) == (Ending.CHANNEL_LOST, 0)
    assert len(coordinator.requests) == TRIES


def test_a_lease_that_the_coordinator_does_not_know_is_lost_at_once(
    made: Consortium, config: SiloConfig
) -> None:
    async def unknown(stage: Stage) -> AsyncIterator[Event]:
        await stage.context.abort(grpc.StatusCode.PERMISSION_DENIED, "that lease is not open")
        yield ENDED

    ending, answered, _, coordinator = follow(made, config, unknown)
    assert (ending, answered) == (Ending.CHANNEL_LOST, 0)
    assert len(coordinator.requests) == 1


def unanswered(made: Consortium, config: SiloConfig, party: str | None) -> PlayedCoordinator:
    """A lease that is lost, with nobody or the wrong party at the coordinator's address."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event

    async def play() -> PlayedCoordinator:
        mix = PlayedMix(made)
        coordinator = PlayedCoordinator(made, mix, [script])
        channel = coordinator if party else None
        async with (
            serving(made, channel, mix, party or ""),
            holding(config, made, open_ledger(config)) as holder,
        ):
            ending, answered = await holder.follow(Lease("lease-1", 30.0))
        assert (ending, answered) == (Ending.CHANNEL_LOST, 0)
        assert mix.onions.empty()
        return coordinator

    return asyncio.run(asyncio.wait_for(play(), 20.0))


def test_a_lease_with_nobody_at_the_channel_is_lost_without_a_charge(
    made: Consortium, config: SiloConfig
) -> None:
    unanswered(made, config, None)
    assert rounds_charged(config) == 0


@pytest.mark.parametrize("party", ["mix-1", "silo-2"])
def test_nobody_but_the_server_can_stand_at_the_channel(
    made: Consortium, config: SiloConfig, party: str
) -> None:
    """A certificate of the same authority with another name: the silo does not say a word."""
    assert unanswered(made, config, party).requests == []
    assert rounds_charged(config) == 0


# The mix -----------------------------------------------------------------------------------------


def test_a_report_is_sent_again_with_the_same_bytes_when_the_mix_breaks_off(
    made: Consortium, config: SiloConfig
) -> None:
    taken: list[bytes] = []

    async def script(stage: Stage) -> AsyncIterator[Event]:
        descriptor, events = stage.opened(1)
        for event in events:
            yield event
        taken.extend([await stage.mix.onions.get() for _ in range(2)])
        inner = open_layer(taken[1], stage.mix.seal_key, 0, descriptor.digest)
        yield stage.closed(descriptor, [sha256(inner).digest()])
        async for event in round_with(stage, 2):
            yield event
        yield ENDED

    def break_once(mix: PlayedMix) -> None:
        mix.breaks = 1

    ending, answered, mix, _ = follow(made, config, script, prepare=break_once)
    assert (ending, answered) == (Ending.DONE, 2)
    assert taken[0] == taken[1]
    assert left_over(mix) == []


def test_a_mix_that_always_breaks_off_costs_a_few_tries_and_the_lease_goes_on(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        yield ENDED

    def break_always(mix: PlayedMix) -> None:
        mix.breaks = 1000

    ending, answered, mix, _ = follow(made, config, script, prepare=break_always)
    assert (ending, answered) == (Ending.DONE, 1)
    onions = left_over(mix)
    assert len(onions) == 4
    assert len(set(onions)) == 1


def test_a_refusing_mix_does_not_end_the_lease(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        yield ENDED

    def refuse(mix: PlayedMix) -> None:
        receipt = mix_pb2.Receipt(status=mix_pb2.Receipt.REFUSED, reason="this round is over")
        mix.reply = lambda digest, report: receipt

    ending, answered, mix, _ = follow(made, config, script, prepare=refuse)
    assert (ending, answered) == (Ending.DONE, 1)
    assert len(left_over(mix)) == 1


def test_a_receipt_that_the_mix_did_not_sign_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        await asyncio.Event().wait()

    def forge(mix: PlayedMix) -> None:
        mix.reply = lambda digest, report: mix_pb2.Receipt(
            status=mix_pb2.Receipt.ACCEPTED, signature=mix.sign_key.sign("receipt", digest, digest)
        )

    ending, answered, _, _ = follow(made, config, script, prepare=forge)
    assert (ending, answered) == (Ending.REFUSED, 1)


def test_through_a_real_mix_the_report_arrives_and_is_found_in_the_closing_list(
    made: Consortium, config: SiloConfig, tmp_path: Path
) -> None:
    """The coordinator is played, the mix is the shipped one."""

    @dataclass
    class Collecting(channel_pb2_grpc.RoundChannelServicer):
        reports: list[bytes] = field(default_factory=list)

        async def Follow(  # noqa: N802
            self, request: channel_pb2.FollowRequest, context: grpc.aio.ServicerContext
        ) -> AsyncIterator[Event]:
            stage = Stage(made, PlayedMix(made), context)
            for number in (1, 2, 3):
                signed = hostile(made, query_at(ORIGIN), round=number, silos=["silo-1"])
                descriptor = check(signed, made.study)
                for event in opening(signed, query_at(ORIGIN)):
                    yield event
                (report,) = await collected(made, descriptor)
                self.reports.append(report)
                yield stage.closed(descriptor, [sha256(report).digest()])
            yield ENDED

    async def play() -> tuple[Ending, int, list[bytes]]:
        folder = made.mixes[0].parent
        rounds = Rounds(
            Identity.load("mix-1", folder),
            (made.study,),
            SigningKey.load(folder / "sign.key"),
            SealKey.load(folder / "seal.key"),
            RoundRegister(tmp_path / "rounds.sqlite"),
            1.0,
        )
        mix = MixService(rounds, SigningKey.load(folder / "sign.key"), (made.study,))
        channel = Collecting()
        ledger = open_ledger(config)
        async with serving(made, channel, mix), holding(config, made, ledger) as holder:
            ending, answered = await holder.follow(Lease("lease-1", 30.0))
        await rounds.close()
        return ending, answered, channel.reports

    ending, answered, reports = asyncio.run(asyncio.wait_for(play(), 40.0))
    assert (ending, answered) == (Ending.DONE, 3)
    assert len(set(reports)) == 3


async def collected(made: Consortium, descriptor: Descriptor) -> tuple[bytes, ...]:
    """The batch of a round, as the coordinator fetches it from the last mix."""
    study = made.study
    identity = Identity.load("server", made.server.parent)
    async with identity.channel("mix-1", study.mixes[0].address) as channel:
        frames = mix_pb2_grpc.MixStub(channel).Collect(descriptor.to_wire(), wait_for_ready=True)
        length = onion_bytes(8 + study.mechanism().width * study.task.dimension, 1, 1)
        batch = await read_batch(aiter(frames), study, study.mixes[0].sign_key, length)
    return batch.reports
