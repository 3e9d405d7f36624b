"""The gate: a mix gives its release key away once, when all silos in a list confirmed it."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.onion import UnopenableLayer, open_at_server, open_gates
from silomix_shuffler.metrics import Metrics
from support.consortia import make_consortium
from support.mixes import (
    Collected,
    PlayedRound,
    abandon,
    asked,
    calling,
    chain_serving,
    collect,
    commit_at,
    confirmations,
    described,
    invented_keys,
    mix_serving,
    opened_round,
    refusal,
    release_at,
    run,
    sealed_reports,
    signer,
    state_of,
    submit_all,
)
from support.silos import altered

OVER, DENIED = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED
ASKED = ("silo-1", "silo-2", "silo-3")  # silo-4 belongs to the study, not to the round


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    made = make_consortium(
        tmp_path / "c",
        records=(40,) * 4,
        mixes=2,
        minimum_batch=2,
        deadline_s=20.0,
        participants=len(ASKED),
    )
    while made.study.asked(1) != ASKED:
        made = altered(made, ('name = "test', 'name = "test+'))
    return made


async def collected(made: Consortium) -> tuple[PlayedRound, Collected, bytes]:
    """A round whose batch was collected, and its list."""
    played = await opened_round(made)
    await submit_all(played, sealed_reports(played))
    batch = await collect(played)
    return played, batch, batch.chain[-1].output


async def committed(made: Consortium) -> tuple[PlayedRound, Collected, bytes]:
    """The same, and every mix gave its word for the list."""
    played, batch, joined = await collected(made)
    for mix in made.study.mixes:
        await commit_at(played, mix.name, joined)
    return played, batch, joined


def test_the_confirmations_of_all_silos_in_the_list_open_every_gate(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played, batch, joined = await committed(made)
            enough = confirmations(played, joined, ASKED)
            released = [await release_at(played, mix, joined, enough) for mix in ("mix-1", "mix-2")]
        assert [key.public for key in released] == [keys.release for keys in played.mix_keys]
        digest, server = played.descriptor.digest, played.server_key
        for report in batch.reports:
            closed = open_at_server(report, server, digest)
            open_gates(closed, released, digest)
            for wrong in (released[1:], [released[0], SealKey.generate()]):
                with pytest.raises(UnopenableLayer):
                    open_gates(closed, wrong, digest)
            with pytest.raises(UnopenableLayer):  # one gate opened, one to go
                open_gates(open_gates(closed, released[:1], digest), released[:1], digest)

    run(scene())


def two(played: PlayedRound, joined: bytes) -> list[round_pb2.Confirmation]:
    """As many as a batch needs, one less than this one has."""
    return confirmations(played, joined, ["silo-1", "silo-2"])


def two_of_one_silo(played: PlayedRound, joined: bytes) -> list[round_pb2.Confirmation]:
    return [*two(played, joined), *confirmations(played, joined, ["silo-1"])]


def none(_: PlayedRound, __: bytes) -> list[round_pb2.Confirmation]:
    return []


def one_of_a_silo_outside_the_round(
    played: PlayedRound, joined: bytes
) -> list[round_pb2.Confirmation]:
    return confirmations(played, joined, ["silo-1", "silo-2", "silo-4"])


def one_of_another_list(played: PlayedRound, joined: bytes) -> list[round_pb2.Confirmation]:
    other = confirmations(played, joined[::-1], ["silo-3"])
    return [*two(played, joined), *other]


def one_of_another_round(played: PlayedRound, joined: bytes) -> list[round_pb2.Confirmation]:
    other = described(played.made, played.mix_keys, query=b"another")
    return [*two(played, joined), *confirmations(other, joined, ["silo-3"])]


def one_under_another_name(played: PlayedRound, joined: bytes) -> list[round_pb2.Confirmation]:
    own = two(played, joined)
    return [*own, round_pb2.Confirmation(silo=2, signature=own[0].signature)]


def one_of_nobody(played: PlayedRound, joined: bytes) -> list[round_pb2.Confirmation]:
    own = two(played, joined)
    return [*own, round_pb2.Confirmation(silo=99, signature=own[0].signature)]


def one_signed_for_something_else(
    played: PlayedRound, joined: bytes
) -> list[round_pb2.Confirmation]:
    """A silo signs its reports, too: that is no confirmation."""
    parts = played.descriptor.digest, sha256(joined).digest()
    signature = signer(played.made, "silo-3").sign("report", *parts)
    return [*two(played, joined), round_pb2.Confirmation(silo=2, signature=signature)]


@pytest.mark.parametrize(
    "too_few",
    [
        none,
        two,
        two_of_one_silo,
        one_of_a_silo_outside_the_round,
        one_of_another_list,
        one_of_another_round,
        one_under_another_name,
        one_of_nobody,
        one_signed_for_something_else,
    ],
)
def test_what_is_not_a_confirmation_of_everybody_in_the_list_opens_nothing(
    made: Consortium,
    too_few: Callable[[PlayedRound, bytes], list[round_pb2.Confirmation]],
) -> None:
    """And does no harm: with one more, the gate opens."""
    metrics = Metrics()

    async def scene() -> None:
        async with mix_serving(made, 0, metrics=metrics), mix_serving(made, 1):
            played, _, joined = await committed(made)
            given = too_few(played, joined)
            assert await refusal(release_at(played, "mix-1", joined, given)) is OVER
            counted = {"reason": "gate_closed"}
            assert metrics.registry.get_sample_value("silomix_mix_refused_total", counted) == 1
            enough = confirmations(played, joined, ASKED)
            await release_at(played, "mix-1", joined, enough)

    run(scene())


def test_more_confirmations_than_silos_are_not_even_looked_at(made: Consortium) -> None:
    async def scene() -> grpc.StatusCode:
        async with chain_serving(made):
            played, _, joined = await committed(made)
            many = confirmations(played, joined, ["silo-1"] * 4 + ["silo-2"])
            return await refusal(release_at(played, "mix-1", joined, many))

    assert run(scene()) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_asked_again_it_is_the_same_key(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played, _, joined = await committed(made)
            enough = confirmations(played, joined)
            keys = {(await release_at(played, "mix-1", joined, enough)).raw for _ in range(2)}
            other = joined[32:] + joined[:32]
            assert await refusal(release_at(played, "mix-1", other, enough)) is OVER
        assert len(keys) == 1

    run(scene())


def test_stopped_a_mix_keeps_no_byte_of_a_key_that_it_gave_away(made: Consortium) -> None:
    async def scene() -> bytes:
        async with chain_serving(made):
            played, _, joined = await committed(made)
            key = await release_at(played, "mix-1", joined, confirmations(played, joined))
            return key.raw

    key = run(scene())
    for path in state_of(made, 0).glob("mix.sqlite*"):
        assert key[:32] not in path.read_bytes(), path.name


# One list -----------------------------------------------------------------------------------------


def other_list(joined: bytes) -> bytes:
    """As long, with another report in place of the last."""
    return joined[:-32] + bytes(32)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_mix_gives_its_word_for_one_list_only(made: Consortium, restarted: bool) -> None:
    """A server cannot show each silo another list; if it tries, nothing is ever opened."""

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(mix_serving(made, 1))
            async with mix_serving(made, 0):
                played, _, joined = await collected(made)
                word = await commit_at(played, "mix-1", joined)
                assert await commit_at(played, "mix-1", joined) == word
                if not restarted:
                    await no_other_list(played, joined)
            async with mix_serving(made, 0):
                if restarted:
                    assert await commit_at(played, "mix-1", joined) == word
                    await no_other_list(played, joined)

    async def no_other_list(played: PlayedRound, joined: bytes) -> None:
        other = other_list(joined)
        assert await refusal(commit_at(played, "mix-1", other)) is OVER
        for listed in (joined, other):
            confirmed = confirmations(played, listed)
            assert await refusal(commit_at(played, "mix-1", listed)) is OVER
            assert await refusal(release_at(played, "mix-1", listed, confirmed)) is OVER

    run(scene())


def test_the_last_mix_knows_the_list(made: Consortium) -> None:
    """It is what it handed over; any other list makes the round void."""

    async def scene() -> None:
        async with chain_serving(made):
            played, _, joined = await collected(made)
            await commit_at(played, "mix-2", joined)
            other = joined[32:] + joined[:32]
            assert await refusal(commit_at(played, "mix-2", other)) is OVER
            assert await refusal(commit_at(played, "mix-2", joined)) is OVER

    run(scene())


@pytest.mark.parametrize("change", ["shorter", "longer", "twice"])
def test_a_list_that_is_not_as_long_as_what_was_forwarded_makes_the_round_void(
    made: Consortium, change: str
) -> None:
    """Who is left out would not confirm, and be known as the sender of what was held back."""
    metrics = Metrics()

    async def scene() -> None:
        async with mix_serving(made, 0, metrics=metrics), mix_serving(made, 1):
            played, _, joined = await collected(made)
            changed = {
                "shorter": joined[32:],
                "longer": joined + bytes(32),
                "twice": joined[32:] + joined[-32:],
            }[change]
            assert await refusal(commit_at(played, "mix-1", changed)) is OVER
            confirmed = confirmations(played, joined)
            assert await refusal(commit_at(played, "mix-1", joined)) is OVER
            assert await refusal(release_at(played, "mix-1", joined, confirmed)) is OVER
            counted = {"reason": "unfit_list"}
            assert metrics.registry.get_sample_value("silomix_mix_refused_total", counted) == 1

    run(scene())


def test_without_its_word_for_the_list_a_mix_releases_nothing(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played, _, joined = await collected(made)
            enough = confirmations(played, joined)
            assert await refusal(release_at(played, "mix-1", joined, enough)) is OVER
            await commit_at(played, "mix-1", joined)
            await release_at(played, "mix-1", joined, enough)

    run(scene())


@pytest.mark.parametrize("caller", ["silo-1", "mix-1", "mix-2"])
def test_only_the_coordinator_gets_a_mixs_word(made: Consortium, caller: str) -> None:
    async def scene() -> grpc.StatusCode:
        async with chain_serving(made):
            played, _, joined = await collected(made)
            return await refusal(commit_at(played, "mix-1", joined, caller=caller))

    assert run(scene()) is DENIED


def test_there_is_no_word_for_a_list_before_the_batch_left(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            assert await refusal(commit_at(played, "mix-1", b"list")) is OVER
            await abandon(made, played.descriptor, "mix-1")
            assert await refusal(commit_at(played, "mix-1", b"list")) is OVER
            unknown = described(made, invented_keys(made))
            assert await refusal(commit_at(unknown, "mix-1", b"list")) is OVER

    run(scene())


# Who, and when ------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["silo-1", "mix-1", "mix-2"])
def test_only_the_coordinator_gets_the_key(made: Consortium, caller: str) -> None:
    async def scene() -> grpc.StatusCode:
        async with chain_serving(made):
            played, _, joined = await committed(made)
            enough = confirmations(played, joined)
            return await refusal(release_at(played, "mix-2", joined, enough, caller=caller))

    assert run(scene()) is DENIED


def test_no_key_leaves_before_the_batch_did(tmp_path: Path) -> None:
    """Neither while reports come in nor when it is sealed: nothing was committed then."""
    made = make_consortium(tmp_path / "c", mixes=1, deadline_s=20.0)

    async def scene() -> None:
        async with mix_serving(made, 0) as rounds:
            played = await opened_round(made)
            anything = confirmations(played, b"list")
            assert await refusal(release_at(played, "mix-1", b"list", anything)) is OVER
            await submit_all(played, sealed_reports(played))
            current = rounds.rounds.named(played.descriptor.digest)
            await current.closed.wait()
            assert current.batch.state.value == "sealed"
            assert await refusal(release_at(played, "mix-1", b"list", anything)) is OVER
            joined = (await collect(played)).chain[-1].output
            await commit_at(played, "mix-1", joined)
            await release_at(played, "mix-1", joined, confirmations(played, joined))

    run(scene())


def test_an_abandoned_or_unknown_round_has_no_key(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            await abandon(made, played.descriptor, "mix-1")
            unknown = described(made, invented_keys(made))
            for each in (played, unknown):
                anything = confirmations(each, b"list")
                assert await refusal(release_at(each, "mix-1", b"list", anything)) is OVER

    run(scene())


def test_a_study_without_a_gate_has_no_key_to_give(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, deadline_s=20.0, gate=False)

    async def scene() -> None:
        async with chain_serving(made), calling(made, "server", "mix-1") as stub:
            played = await opened_round(made)
            await submit_all(played, sealed_reports(played))
            joined = (await collect(played)).chain[-1].output
            request = mix_pb2.ReleaseRequest(
                digest=played.descriptor.digest,
                list=sha256(joined).digest(),
                confirmations=confirmations(played, joined),
            )
            with pytest.raises(grpc.aio.AioRpcError, match="no gate"):
                await asked(stub.Release, request)

    run(scene())
