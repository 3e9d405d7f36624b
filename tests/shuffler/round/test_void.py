"""Void rounds: a mix destroys its release key, says so, and tells what it did to every report."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import round_pb2
from silomix_protocol.keys import SealKey
from silomix_protocol.rounds.blame import Drop, at_fault, trace
from silomix_protocol.rounds.onion import Onion, seal
from silomix_shuffler.storage.store import Store
from support.consortia import make_consortium
from support.mixes import (
    Collected,
    PlayedRound,
    abandon,
    chain_serving,
    collect,
    commit_at,
    confirmations,
    mix_serving,
    opened_round,
    payload_length,
    refusal,
    release_at,
    run,
    sealed_reports,
    state_of,
    submit_all,
    void_at,
)

OVER, DENIED = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED
MIXES = ("mix-1", "mix-2", "mix-3")


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(
        tmp_path / "c", records=(40,) * 4, mixes=3, minimum_batch=2, deadline_s=20.0
    )


async def collected(
    made: Consortium, reports: dict[str, Onion] | None = None
) -> tuple[PlayedRound, Collected]:
    """A round whose batch was collected."""
    played = await opened_round(made)
    await submit_all(played, reports or sealed_reports(played))
    return played, await collect(played)


async def voided(played: PlayedRound) -> list[round_pb2.Ending]:
    """What every mix says."""
    return [await void_at(played.made, played.descriptor, mix) for mix in MIXES]


# The key is gone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("listed", [False, True])
def test_a_mix_that_voided_a_round_never_gives_its_key(
    made: Consortium, mix: str, listed: bool
) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played, batch = await collected(made)
            joined = batch.chain[-1].output
            if listed:
                await commit_at(played, mix, joined)
            ending = await void_at(made, played.descriptor, mix)
            assert ending.voided.reason == "voided by the coordinator"
            everybody = confirmations(played, joined)
            assert await refusal(commit_at(played, mix, joined)) is OVER
            assert await refusal(release_at(played, mix, joined, everybody)) is OVER
            assert await refusal(abandon(made, played.descriptor, mix)) is OVER
            assert await void_at(made, played.descriptor, mix) == ending
            assert await refusal(opened_round(made, attempt=2)) is OVER

    run(scene())


def test_no_byte_of_the_key_is_left(made: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(made, 1), mix_serving(made, 2), mix_serving(made, 0) as rounds:
            played, _ = await collected(made)
            key = rounds.rounds.named(played.descriptor.digest).release_key
            assert key is not None
            await void_at(made, played.descriptor, "mix-1")
            assert rounds.rounds.named(played.descriptor.digest).release_key is None
            for path in state_of(made, 0).glob("mix.sqlite*"):
                assert key.raw[:32] not in path.read_bytes(), path.name

    run(scene())


def test_a_key_that_was_given_is_not_said_to_be_destroyed(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played, batch = await collected(made)
            joined = batch.chain[-1].output
            await commit_at(played, "mix-1", joined)
            await release_at(played, "mix-1", joined, confirmations(played, joined))
            assert await refusal(void_at(made, played.descriptor, "mix-1")) is OVER

    run(scene())


def test_what_was_never_forwarded_is_abandoned_instead(made: Consortium) -> None:
    """And the next attempt may follow."""

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            for mix in MIXES:
                ending = await void_at(made, played.descriptor, mix)
                assert ending.abandoned == await abandon(made, played.descriptor, mix)
            await opened_round(made, attempt=2)

    run(scene())


@pytest.mark.parametrize("caller", ["silo-1", "mix-2"])
def test_only_the_coordinator_makes_a_round_void(made: Consortium, caller: str) -> None:
    async def scene() -> grpc.StatusCode:
        async with chain_serving(made):
            played, _ = await collected(made)
            return await refusal(void_at(made, played.descriptor, "mix-1", caller=caller))

    assert run(scene()) is DENIED


# After a restart, and long afterwards -------------------------------------------------------------


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Cuts the power of the mixes' machines, when they are down; SQLite's files stay whole."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("1")
    monkeypatch.setattr("silomix_shuffler.storage.store._BOOT_ID", boot_id)
    return lambda: write_text(boot_id, boot_id.read_text() + "1")


def write_text(path: Path, text: str) -> None:
    path.write_text(text)


@asynccontextmanager
async def restarted(
    made: Consortium, *, listed: bool, cut: Callable[[], None] = lambda: None
) -> AsyncIterator[PlayedRound]:
    """A round whose first mix was stopped and started behind its batch, or behind its list."""
    async with mix_serving(made, 1), mix_serving(made, 2):
        async with mix_serving(made, 0):
            played, batch = await collected(made)
            if listed:
                await commit_at(played, "mix-1", batch.chain[-1].output)
        cut()
        async with mix_serving(made, 0):
            yield played


@pytest.mark.parametrize("listed", [False, True])
def test_a_restarted_mix_discloses_what_it_forwarded(
    made: Consortium, listed: bool, power: Callable[[], None]
) -> None:
    """It noted before it gave its key that it would: without a power cut it knows that it did not.
    And after one behind its batch, where it had signed no list."""

    async def scene() -> round_pb2.Ending:
        cut = (lambda: None) if listed else power
        async with restarted(made, listed=listed, cut=cut) as played:
            return await void_at(made, played.descriptor, "mix-1")

    ending = run(scene())
    assert ending.disclosure
    assert not ending.voided.uncertain


def test_a_mix_that_dies_when_it_gives_its_key_knows_that_it_did(
    made: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that comes behind the note is lost with it."""

    async def scene() -> grpc.StatusCode:
        async with mix_serving(made, 1), mix_serving(made, 2):
            async with mix_serving(made, 0):
                played, batch = await collected(made)
                joined = batch.chain[-1].output
                await commit_at(played, "mix-1", joined)
                with monkeypatch.context() as dying:
                    dying.setattr(Store, "released", lambda *_, **__: None)
                    await release_at(played, "mix-1", joined, confirmations(played, joined))
            async with mix_serving(made, 0):
                return await refusal(void_at(made, played.descriptor, "mix-1"))

    assert run(scene()) is OVER


def test_after_a_power_cut_behind_its_list_a_mix_is_not_certain_and_discloses_nothing(
    made: Consortium, power: Callable[[], None]
) -> None:
    """It may have given its key away just before: then a report could be opened and linked."""

    async def scene() -> round_pb2.Ending:
        async with restarted(made, listed=True, cut=power) as played:
            pass
        async with mix_serving(made, 0):  # started once more: the doubt stays
            return await void_at(made, played.descriptor, "mix-1")

    ending = run(scene())
    assert ending.voided.uncertain
    assert ending.disclosure == ending.voided.disclosed == b""


def test_a_mix_stays_as_certain_as_it_was_when_it_voided_the_round(made: Consortium) -> None:
    """Over restarts and a purge: what it signs is the same."""

    async def scene() -> list[bool]:
        said = []
        async with mix_serving(made, 1), mix_serving(made, 2):
            async with mix_serving(made, 0):
                played, batch = await collected(made)
                await commit_at(played, "mix-1", batch.chain[-1].output)
                said.append(await void_at(made, played.descriptor, "mix-1"))
            for _ in range(2):
                async with mix_serving(made, 0):
                    said.append(await void_at(made, played.descriptor, "mix-1"))
        return [each.voided.uncertain for each in said]

    assert run(scene()) == [False] * 3


def test_a_mix_that_purges_a_round_behind_its_list_after_a_power_cut_is_not_certain(
    made: Consortium, power: Callable[[], None]
) -> None:
    async def scene() -> round_pb2.Ending:
        async with restarted(made, listed=True, cut=power) as played:
            pass
        async with mix_serving(made, 0) as rounds:
            rounds.rounds.forget(rounds.rounds.named(played.descriptor.digest))
            await rounds.retention.purge()
            return await void_at(made, played.descriptor, "mix-1")

    assert run(scene()).voided.uncertain


def test_a_void_round_stays_void_when_it_is_purged(made: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(made, 1), mix_serving(made, 2), mix_serving(made, 0) as rounds:
            played, _ = await collected(made)
            await void_at(made, played.descriptor, "mix-1")
            rounds.rounds.forget(rounds.rounds.named(played.descriptor.digest))
            await rounds.retention.purge()
            ending = await void_at(made, played.descriptor, "mix-1")
            assert (ending.voided.reason, ending.disclosure) == ("voided by the coordinator", b"")
            assert await refusal(opened_round(made, attempt=2)) is OVER

    run(scene())


def test_a_round_that_nobody_asked_to_open_is_void(made: Consortium) -> None:
    async def scene() -> round_pb2.Ending:
        async with mix_serving(made, 1), mix_serving(made, 2), mix_serving(made, 0) as rounds:
            played, _ = await collected(made)
            rounds.rounds.forget(rounds.rounds.named(played.descriptor.digest))
            await rounds.retention.purge()
            return await void_at(made, played.descriptor, "mix-1")

    assert run(scene()).voided.reason == "nobody asked to open it"


# Who is to blame ----------------------------------------------------------------------------------


def sealed_wrongly(played: PlayedRound, hop: int) -> Onion:
    """A report whose layer for the mix at `hop` is sealed to nobody."""
    keys = list(played.mix_keys)
    keys[hop] = round_pb2.RoundKeys(seal=SealKey.generate().public, release=keys[hop].release)
    payload = bytes(payload_length(played.made))
    return seal(payload, played.server_key.public, keys, played.descriptor.digest)


@pytest.mark.parametrize("hop", [1, 2])
def test_a_report_that_a_mix_could_not_open_is_traced_to_its_silo(
    made: Consortium, hop: int
) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            reports["silo-3"] = sealed_wrongly(played, hop)
            await submit_all(played, reports)
            batch = await collect(played)
            assert [each.dropped for each in batch.chain] == [int(at == hop) for at in range(3)]
            assert await refusal(commit_at(played, "mix-1", batch.chain[-1].output)) is OVER
            endings = await voided(played)
        study, descriptor = made.study, played.descriptor
        assert trace(batch.chain, endings, descriptor, study) == [Drop(hop, silo=2)]
        bad = reports["silo-3"].sealed
        assert at_fault(bad, 2, batch.chain, endings, descriptor, study) is None, "its own fault"

    run(scene())


def test_nobody_is_named_if_nothing_was_dropped(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played, batch = await collected(made)
            endings = await voided(played)
        assert trace(batch.chain, endings, played.descriptor, made.study) == []

    run(scene())


def test_what_is_disclosed_is_where_every_report_came_from(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            await submit_all(played, reports)
            batch = await collect(played)
            endings = await voided(played)
        told = [round_pb2.Disclosure.FromString(each.disclosure) for each in endings]
        names = [silo.name for silo in made.study.silos]
        for place, report in enumerate(batch.reports):
            for each in reversed(told):
                place = each.origins[place]
            sender = told[0].senders[place]
            onion = reports[names[sender.silo]]
            assert onion.trail[-1] == sha256(report).digest()
            assert sha256(onion.sealed).digest() == sender.report

    run(scene())


def test_without_a_gate_nothing_is_disclosed(tmp_path: Path) -> None:
    """The server could open every report: who sent which must never be said."""
    made = make_consortium(
        tmp_path / "c", records=(40,) * 3, mixes=3, minimum_batch=2, deadline_s=20.0, gate=False
    )

    async def scene() -> list[round_pb2.Ending]:
        async with chain_serving(made):
            played, _ = await collected(made)
            return await voided(played)

    for ending in run(scene()):
        assert ending.HasField("voided")
        assert ending.disclosure == b""
