"""The round channel with silos on it: who is let in, what each may say, and what happens then."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.json_format import Parse
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, channel_pb2_grpc, round_pb2
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.complaints import check_complaint, sign_complaint
from silomix_protocol.rounds.statements import (
    check_closing,
    is_ended,
    sign_closing,
    sign_confirmation,
    sign_receipt,
    sign_token_request,
    sign_voided,
)
from silomix_protocol.rounds.tokens import blind
from silomix_server.mixes.token_desk import TokenDesk
from silomix_server.silos import followers as followers_module
from silomix_server.silos import round_channel as channel_module
from silomix_server.silos.attempt_outcomes import AttemptOutcomes
from silomix_server.silos.complaint_box import ComplaintBox
from silomix_server.silos.frames import FrameReader
from silomix_server.silos.gate import Gate
from silomix_server.silos.round_channel import RoundChannel
from silomix_server.study.journal import AttemptOutcome, ClosedRound, Journal
from support.consortia import make_consortium
from support.coordinators import (
    Follow,
    Listed,
    following,
    identity,
    listed,
    parties,
    report_of,
    signer,
)
from support.mixes import refusal, run
from support.rounds import Round, key_lists, make_round

SILOS = ("silo-1", "silo-2", "silo-3")
QUERY = b"query"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("channel") / "consortium")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """Ten silos, of which a batch needs three."""
    folder = tmp_path_factory.mktemp("many") / "consortium"
    return make_consortium(folder, records=(40,) * 10, minimum_batch=3)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """Three silos, of which a round asks two."""
    return make_consortium(tmp_path_factory.mktemp("pairs") / "consortium", participants=2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_HELLO_S", 0.5)
    monkeypatch.setattr(followers_module, "_FAREWELL_S", 0.5)


@dataclass(slots=True)
class Desk:
    """The coordinator's side of a channel that is served at its address."""

    made: Consortium
    channel: RoundChannel
    state: Path
    tokens: TokenDesk
    journal: Journal

    def open_stretch(self, rounds: list[Round]) -> None:
        first = rounds[0].descriptor.round
        self.channel.open_stretch(
            channel_pb2.StretchOpened(
                first_round=first,
                lists=key_lists(parties(self.made), rounds),
                token_keys=self.tokens.public_keys(first, len(rounds)),
            )
        )

    def open_round(self, round_: Round) -> None:
        opened = channel_pb2.RoundOpened(
            descriptor=round_.descriptor.to_wire(),
            query_bytes=len(QUERY),
            server_key=round_.server.public,
            mix_keys=round_.mix_keys,
        )
        with suppress(sqlite3.IntegrityError):  # asked again
            self.journal.opened(round_.descriptor)
        self.channel.journalled()
        self.channel.open_round(round_.descriptor, opened, QUERY)

    def close_round(
        self,
        round_: Round,
        *,
        void: bool = False,
        endings: Sequence[round_pb2.Ending] = (),
        batch: Listed | None = None,
        traced: tuple[int, ...] = (),
    ) -> None:
        key, digest = signer(self.made, "server"), round_.digest
        evidence = None
        if endings and batch is not None:
            evidence = channel_pb2.Complaint(
                descriptor=round_.descriptor.to_wire(), chain=batch.chain, endings=endings
            )
        closed = sign_closing(digest, endings, key, void=void)
        outcome = AttemptOutcome(digest, closed=closed, evidence=evidence, traced=traced)
        self.journal.closed(round_.descriptor.round, ClosedRound(0, None), outcome)
        self.channel.close_round(outcome)

    def commit(self, round_: Round, batch: Listed) -> Gate:
        gate = Gate(self.made.study, round_.descriptor, batch.committed.list)
        self.channel.commit(batch.committed, tuple(batch.chain), gate)
        return gate

    def complaints(self) -> list[Path]:
        return sorted((self.state / "complaints").glob("*"))


@asynccontextmanager
async def desk_open(made: Consortium, state: Path, lease: str = "lease") -> AsyncIterator[Desk]:
    study = made.study
    tokens = TokenDesk(study, state)
    journal, complaints = Journal(state / "journal.sqlite"), ComplaintBox(study, state)
    chain: Any = None  # no mix is asked here
    attempt_outcomes = AttemptOutcomes(study, signer(made, "server"), journal, chain, complaints)
    reader = FrameReader(study, tokens, complaints, attempt_outcomes)
    channel = RoundChannel(study, reader, sync=journal.sync)
    server = identity(made, study.server.name).server(study.server.channel_address)
    channel_pb2_grpc.add_RoundChannelServicer_to_server(channel, server)
    await server.start()
    channel.open_lease(lease)
    try:
        yield Desk(made, channel, state, tokens, journal)
    finally:
        await server.stop(None)
        tokens.close()
        journal.close()


def asked(made: Consortium, number: int = 1) -> Round:
    return make_round(made.study, signer(made, "server"), number, query=QUERY)


def outside(made: Consortium, number: int = 1) -> str:
    """The one silo that a round does not ask."""
    (silo,) = {silo.name for silo in made.study.silos} - set(made.study.asked(number))
    return silo


def batch_of(
    made: Consortium, round_: Round
) -> tuple[Listed, list[bytes], list[tuple[bytes, ...]]]:
    """A batch with a report of every silo: what the mixes made of it, the onions, their trails."""
    onions = [
        round_.seal_with_token(round_.payload(report_of(made.study, value)))
        for value in range(len(round_.descriptor.silos))
    ]
    sealed = [each.sealed for each in onions]
    return listed(made, round_, sealed), sealed, [each.trail for each in onions]


def token_request(
    made: Consortium, silo: str = "silo-1", first: int = 1, rounds: int = 1
) -> channel_pb2.TokenRequest:
    blinded = [blind().blinded for _ in range(rounds)]
    return sign_token_request(first, blinded, made.study, signer(made, silo))


def confirmed(
    made: Consortium, round_: Round, batch: Listed, silo: str
) -> channel_pb2.CommittedAnswer:
    place, key = SILOS.index(silo), signer(made, silo)
    signed = sign_confirmation(round_.digest, batch.committed.list, place, key)
    return channel_pb2.CommittedAnswer(digest=round_.digest, confirmation=signed)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 nobody tells
        await asyncio.sleep(0.01)


# Who is let in -----------------------------------------------------------------------------------


def test_only_enrolled_silos_with_the_open_lease_are_let_in(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            for silo, lease, study in (
                ("mix-1", "lease", None),
                ("silo-1", "another", None),
                ("silo-1", "", None),
                ("silo-1", "lease", bytes(32)),
            ):
                async with following(made, silo, lease, study=study) as stream:
                    code = await refusal(_read(stream.call))
                    assert code is grpc.StatusCode.PERMISSION_DENIED
            assert desk.channel.followers == frozenset()

    run(scenario())


async def _read(call: "grpc.aio.StreamStreamCall[object, object]") -> object:
    return await call.read()


@pytest.mark.parametrize("first", [None, channel_pb2.SiloFrame(inspect=bytes(32))])
def test_who_does_not_say_which_lease_is_sent_away(
    made: Consortium, tmp_path: Path, first: channel_pb2.SiloFrame | None
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path):
            server = made.study.server
            own = identity(made, "silo-1")
            async with own.channel(server.name, server.channel_address) as connection:
                call = channel_pb2_grpc.RoundChannelStub(connection).Follow(wait_for_ready=True)
                if first is not None:
                    await call.write(first)
                assert await refusal(call.read()) is grpc.StatusCode.PERMISSION_DENIED

    run(scenario())


def test_a_second_connection_of_a_silo_ends_the_first(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, "silo-1") as first:
                await first.hear("stretch")
                async with following(made, "silo-1") as second:
                    await second.hear("stretch")
                    assert "took over" in (await first.hear("ended")).ended.reason
                    assert await first.is_over()
                    assert desk.channel.followers == {"silo-1"}

    run(scenario())


# Stretches and tokens ----------------------------------------------------------------------------


def test_a_silo_is_asked_only_when_it_has_its_tokens(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk, following(made, "silo-1") as early:
            await desk.channel.wait_for(frozenset({"silo-1"}), 1, 0.2)
            assert desk.channel.followers == {"silo-1"}
            desk.open_stretch([asked(made, 1), asked(made, 2)])
            await early.hear("stretch")
            assert desk.channel.ready(1) == frozenset()
            async with following(made, "silo-2") as late:
                await late.hear("stretch")
                request = token_request(made, "silo-2", 1, 2)
                await late.say(tokens=request)
                reply = (await late.hear("tokens")).tokens
                assert [len(each) for each in reply.evaluated] == [96, 96]
                ready = await desk.channel.wait_for(frozenset({"silo-2"}), 1, 5.0)
                assert ready == desk.channel.ready(2) == {"silo-2"}
            async with following(made, "silo-2") as again:  # its tokens are at home
                await again.hear("stretch")
                assert "silo-2" in desk.channel.ready(2)
                assert desk.channel.ready(3) == frozenset()

    run(scenario())


def test_a_silo_that_lost_a_token_is_not_asked_in_that_round(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.tokens.issue("silo-1", token_request(made, "silo-1", 2, 1))
            desk.open_stretch([asked(made, 1), asked(made, 2)])
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                await stream.say(tokens=token_request(made, "silo-1", 1, 2))
                reply = (await stream.hear("tokens")).tokens
                assert [bool(each) for each in reply.evaluated] == [True, False]
                await desk.channel.wait_for(frozenset({"silo-1"}), 1, 5.0)
                assert desk.channel.ready(1) == {"silo-1"}
                assert desk.channel.ready(2) == frozenset()

    run(scenario())


def test_tokens_are_given_once_for_a_stretch_and_only_for_its_rounds(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made, 1), asked(made, 2)])
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                await stream.say(tokens=token_request(made, "silo-1", 2, 2))
                await stream.say(tokens=token_request(made, "silo-1", 1, 5))
                await stream.say(tokens=token_request(made, "silo-1", 1, 2))
                assert (await stream.hear("tokens")).tokens.first_round == 1
                await stream.say(tokens=token_request(made, "silo-1", 1, 2))
                desk.open_stretch([asked(made, 3)])
                await stream.hear("stretch")  # and no reply before it
                await stream.say(tokens=token_request(made, "silo-1", 3, 1))
                assert (await stream.hear("tokens")).tokens.first_round == 3

    run(scenario())


def test_a_silo_s_certificate_alone_gets_none_of_its_tokens(
    made: Consortium, tmp_path: Path
) -> None:
    """Who stole it could have reports summed in that silo's place."""

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                own = token_request(made)
                unsigned = channel_pb2.TokenRequest(first_round=1, blinded=own.blinded)
                changed = channel_pb2.TokenRequest(
                    first_round=1, blinded=[blind().blinded], signature=own.signature
                )
                for request in (unsigned, changed, token_request(made, "silo-2")):
                    await stream.say(tokens=request)
                await stream.say(tokens=own)
                await stream.hear("tokens")
                assert desk.tokens.has_all("silo-1", range(1, 2))
                register = desk.tokens._register.issued("silo-1", range(1, 2))
                assert register == {1: own.blinded[0]}

    run(scenario())


# Rounds ------------------------------------------------------------------------------------------


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


# Missing reports ---------------------------------------------------------------------------------


def lossy(made: Consortium, round_: Round) -> tuple[Listed, bytes, tuple[bytes, ...]]:
    """A batch that the last silo's report is missing from: the batch, its onion, its trail."""
    _, onions, trails = batch_of(made, round_)
    return listed(made, round_, onions[:-1]), onions[-1], trails[-1]


def complaint_of(
    made: Consortium, round_: Round, batch: Listed, onion: bytes, silo: str = "silo-3"
) -> channel_pb2.Complaint:
    place = SILOS.index(silo)
    receipt = sign_receipt(round_.digest, place, sha256(onion).digest(), signer(made, "mix-1"))
    return sign_complaint(round_.descriptor, place, receipt, batch.committed, signer(made, silo))


def test_a_missing_report_is_looked_into_and_complained_about(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            batch, onion, trail = lossy(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            async with following(made, "silo-3") as stream:
                for kind in ("stretch", "opened", "query_chunk"):
                    await stream.hear(kind)
                desk.commit(round_, batch)
                await stream.hear("committed")
                await stream.say(inspect=round_.digest)
                complaint = complaint_of(made, round_, batch, onion)
                complaint.trail.extend(trail)  # neither must be kept
                complaint.chain.extend(batch.chain)
                answer = channel_pb2.CommittedAnswer(digest=round_.digest, complaint=complaint)
                await stream.say(answer=answer)
                await stream.say(answer=answer)
                await until(lambda: bool(desk.complaints()))
                desk.close_round(round_)
                passages = [(await stream.hear("passage")).passage for _ in made.study.mixes]
                assert [each.statement for each in passages] == batch.chain
                assert not any(each.HasField("ending") for each in passages)
                await stream.call.done_writing()
                desk.channel.close_lease("enough")
                await stream.hear("closed")
                await stream.hear("ended")
                assert await stream.is_over()
            (kept,) = desk.complaints()
            text = kept.read_text()
            finding = check_complaint(Parse(text, channel_pb2.Complaint()), made.study)
            assert (finding.silo, finding.round, finding.accused) == ("silo-3", 1, None)
            assert "trail" not in text
            assert "chain" not in text

    run(scenario())


def unwelcome(desk: Desk, silo: str) -> int:
    return desk.channel._followers[silo].unwelcome


def test_a_complaint_that_shows_nothing_is_not_kept(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_, other = asked(made, 1), asked(made, 2)
            batch, onion, _ = lossy(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            desk.commit(round_, batch)
            unsigned = complaint_of(made, round_, batch, onion)
            unsigned.signature = bytes(64)
            with pytest.raises(ForgedSignature):
                check_complaint(unsigned, made.study)
            elsewhere, its_onion, _ = lossy(made, other)
            for nonsense in (
                channel_pb2.Complaint(),
                unsigned,
                complaint_of(made, round_, batch, onion, "silo-2"),
                complaint_of(made, other, elsewhere, its_onion),
            ):
                async with following(made, "silo-3") as stream:
                    for kind in ("stretch", "opened", "query_chunk", "committed"):
                        await stream.hear(kind)
                    await stream.say(
                        answer=channel_pb2.CommittedAnswer(digest=round_.digest, complaint=nonsense)
                    )
                    await stream.say(inspect=other.digest)
                    await until(lambda: unwelcome(desk, "silo-3") == 2)  # both were read
            assert desk.complaints() == []

    run(scenario())


def test_statements_are_shown_once_and_only_of_the_current_and_the_two_last_rounds(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            rounds = [asked(made, number) for number in (1, 2, 3)]
            desk.open_stretch(rounds)
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                for round_ in rounds:
                    desk.open_round(round_)
                    batch, _, _ = batch_of(made, round_)
                    desk.commit(round_, batch)
                    desk.close_round(round_)
                    if round_ is not rounds[0]:  # how the last one ended comes with the next
                        await stream.hear("closed")
                    for kind in ("opened", "query_chunk", "committed"):
                        await stream.hear(kind)
                for round_ in (*rounds, rounds[2]):
                    await stream.say(inspect=round_.digest)
                for round_ in rounds[1:]:
                    for _ in made.study.mixes:
                        assert (await stream.hear("passage")).passage.digest == round_.digest
                desk.open_round(asked(made, 4))
                await stream.hear("closed")
                await stream.hear("opened")

    run(scenario())


def test_statements_are_shown_after_the_end_of_the_lease(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            batch, _, _ = lossy(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            desk.commit(round_, batch)
            async with following(made, "silo-3") as stream:
                for kind in ("stretch", "opened", "query_chunk", "committed"):
                    await stream.hear(kind)
                desk.close_round(round_)
                desk.channel.close_lease("enough")
                await stream.hear("closed")
                await stream.hear("ended")
                assert desk.channel.followers == frozenset()
                await stream.say(inspect=round_.digest)
                for _ in made.study.mixes:
                    await stream.hear("passage")
                assert await stream.is_over()  # but not for ever

    run(scenario())


# Abuse -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense",
    [
        channel_pb2.SiloFrame(),
        channel_pb2.SiloFrame(follow=channel_pb2.FollowRequest(lease="lease")),
        channel_pb2.SiloFrame(inspect=bytes(32)),
        channel_pb2.SiloFrame(inspect=b"x" * 100_000),
        channel_pb2.SiloFrame(tokens=channel_pb2.TokenRequest(first_round=9)),
        channel_pb2.SiloFrame(answer=channel_pb2.CommittedAnswer(digest=bytes(32))),
    ],
)
def test_a_silo_that_talks_nonsense_is_dismissed_and_the_others_stay(
    made: Consortium, tmp_path: Path, nonsense: channel_pb2.SiloFrame
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, "silo-1") as bad, following(made, "silo-2") as good:
                for stream in (bad, good):
                    await stream.hear("stretch")
                for _ in range(21):
                    await bad.call.write(nonsense)
                assert "nobody asked for" in (await bad.hear("ended")).ended.reason
                assert await bad.is_over()
                await good.say(tokens=token_request(made, "silo-2"))
                await good.hear("tokens")
                assert desk.channel.followers == {"silo-2"}

    run(scenario())


def test_an_echo_comes_behind_what_was_told_before_once_for_every_round(
    made: Consortium, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            rounds = [asked(made, number) for number in (1, 2)]
            desk.open_stretch(rounds)
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                await stream.say(echo=b"too early")
                await stream.say(tokens=token_request(made, rounds=2))
                await stream.hear("tokens")
                desk.open_round(rounds[0])
                await stream.hear("opened")
                await stream.say(echo=b"longer than it may be")
                await stream.say(echo=b"first")
                await stream.say(echo=b"a second one")
                await stream.hear("query_chunk")
                assert (await stream.hear("echo")).echo == b"first"
                await until(lambda: caplog.text.count("an echo that is not due") == 3)
                desk.open_round(rounds[1])
                await stream.say(echo=b"second")
                for kind in ("opened", "query_chunk"):
                    await stream.hear(kind)
                assert (await stream.hear("echo")).echo == b"second"

    run(scenario())


def test_an_answer_before_the_list_or_of_somebody_not_asked_counts_for_nothing(
    pairs: Consortium, tmp_path: Path
) -> None:
    made, (first, _), other = pairs, pairs.study.asked(1), outside(pairs)

    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            batch, _, _ = batch_of(made, round_)
            desk.open_stretch([round_])
            desk.open_round(round_)
            async with following(made, first) as one, following(made, other) as three:
                for kind in ("stretch", "opened", "query_chunk"):
                    await one.hear(kind)
                await three.hear("stretch")
                await one.say(answer=confirmed(made, round_, batch, first))  # too early
                await one.say(tokens=token_request(made, first))
                await one.hear("tokens")
                gate = desk.commit(round_, batch)
                await three.say(answer=confirmed(made, round_, batch, other))
                await three.say(tokens=token_request(made, other))
                await three.hear("tokens")
                assert gate.confirmations == []
                await one.say(answer=confirmed(made, round_, batch, first))
                await until(lambda: bool(gate.confirmations))

    run(scenario())


def test_a_request_for_thousands_of_tokens_is_not_looked_at(
    made: Consortium, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            desk.open_stretch([asked(made)])
            async with following(made, "silo-1") as stream:
                await stream.hear("stretch")
                element = blind().blinded
                await stream.say(tokens=channel_pb2.TokenRequest(blinded=[element] * 29_000))
                await stream.say(tokens=token_request(made))
                assert len((await stream.hear("tokens")).tokens.evaluated) == 1

    run(scenario())


def test_a_silo_that_does_not_read_is_let_go(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk, following(made, "silo-1"):
            await until(lambda: bool(desk.channel.followers))
            for number in range(60):  # without giving it a chance to read
                desk.open_round(asked(made, 1 + number % 5))
            assert desk.channel.followers == frozenset()

    run(scenario())


def test_the_committed_list_is_that_of_the_current_round(made: Consortium, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with desk_open(made, tmp_path) as desk:
            round_ = asked(made)
            committed = channel_pb2.RoundCommitted(digest=round_.digest, list=bytes(32))
            with pytest.raises(ValueError, match="another round"):
                desk.channel.commit(committed, (round_pb2.HopStatement(),), None)

    run(scenario())
