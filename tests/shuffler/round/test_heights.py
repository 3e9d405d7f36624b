"""The first mix as a witness of silos' ledgers: what it keeps with a report, shows and refuses."""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import introduction_pb2, mix_pb2
from silomix_protocol.rounds.heights import Height, check_height
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.storage.store import Store
from silomix_shuffler.storage.writing_thread import WritingThread
from support.consortia import make_consortium
from support.heights import some_height
from support.mixes import (
    RPC_S,
    PlayedRound,
    calling,
    mix_serving,
    opened_round,
    refused_submission,
    run,
    sealed_reports,
    signer,
    state_of,
    submission,
    submit,
)

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


async def sent(played: PlayedRound, height: Height, silo: str = "silo-1") -> mix_pb2.Receipt:
    onion = sealed_reports(played)[silo].sealed
    frames = submission(played.made, silo, played.descriptor, onion, height=height)
    (receipt,) = await submit(played.made, silo, frames)
    return receipt


async def shown(made: Consortium, silo: str = "silo-1") -> Height | None:
    """What a silo that greets is shown, as it reads it."""
    async with calling(made, silo, "mix-1") as stub:
        greeting = introduction_pb2.Greeting(study=made.study.identity)
        welcome = await stub.Greet(greeting, timeout=RPC_S, wait_for_ready=True)
    if not welcome.HasField("height"):
        return None
    return check_height(welcome.height, silo, signer(made, silo).public)


def test_a_silo_is_shown_the_height_of_its_last_report_and_of_no_other_silo(
    made: Consortium,
) -> None:
    async def scene() -> None:
        async with mix_serving(made, 0):
            assert await shown(made) is None
            played = await opened_round(made)
            height = some_height(made, "silo-1", 5)
            assert (await sent(played, height)).status == ACCEPTED
            assert await shown(made) == height
            assert await shown(made, "silo-2") is None
            following = await opened_round(made, 2)
            higher = some_height(made, "silo-1", 6)
            assert (await sent(following, higher)).status == ACCEPTED
            assert await shown(made) == higher

    run(scene())


def heights(made: Consortium) -> dict[str, Height]:
    return {
        "lower": some_height(made, "silo-1", 4),
        "a fork": some_height(made, "silo-1", 5, story="of a copy"),
        "the same": some_height(made, "silo-1", 5),
        "higher": some_height(made, "silo-1", 9),
        "restored, with fewer entries": some_height(made, "silo-1", 2, restored_ms=10),
    }


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("lower", REFUSED),
        ("a fork", REFUSED),
        ("the same", ACCEPTED),  # another attempt: the ledger has no entry for it
        ("higher", ACCEPTED),
        ("restored, with fewer entries", ACCEPTED),
    ],
)
def test_a_report_of_a_ledger_that_does_not_follow_is_refused_and_shown_why(
    made: Consortium, name: str, status: mix_pb2.Receipt.Status
) -> None:
    metrics, first, second = Metrics(), some_height(made, "silo-1", 5), heights(made)[name]

    async def scene() -> None:
        async with mix_serving(made, 0, metrics=metrics) as mix:
            assert (await sent(await opened_round(made), first)).status == ACCEPTED
            played = await opened_round(made, 2)
            receipt = await sent(played, second)
            assert receipt.status == status
            taken = mix.rounds.named(played.descriptor.digest).batch.admitted
            if status == ACCEPTED:
                assert await shown(made) == second
                assert list(taken) == ["silo-1"]
                assert not receipt.HasField("height")
                return
            assert (receipt.signature, taken) == (b"", {})
            assert check_height(receipt.height, "silo-1", signer(made, "silo-1").public) == first
            refused = {"reason": "behind_ledger"}
            assert metrics.registry.get_sample_value("silomix_mix_refused_total", refused) == 1
            assert await shown(made) == first
            assert (await sent(played, first, "silo-1")).status == ACCEPTED, "of the right ledger"

    run(scene())


def test_a_mix_that_takes_any_height_is_caught(
    made: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim: Callable[..., None] = (
        test_a_report_of_a_ledger_that_does_not_follow_is_refused_and_shown_why
    )
    monkeypatch.setattr("silomix_protocol.rounds.heights.HeightBook.take", lambda *_: None)
    with pytest.raises(AssertionError):
        claim(made, "lower", REFUSED)


def without(header: mix_pb2.SubmitHeader, made: Consortium) -> None:
    header.ClearField("height")


def of_another_silo(header: mix_pb2.SubmitHeader, made: Consortium) -> None:
    header.height.CopyFrom(some_height(made, "silo-2", 5).to_wire())


def changed(header: mix_pb2.SubmitHeader, made: Consortium) -> None:
    header.height.entries += 1


@pytest.mark.parametrize("edit", [without, of_another_silo, changed])
def test_a_report_needs_a_height_that_its_silo_signed(
    made: Consortium, edit: Callable[[mix_pb2.SubmitHeader, Consortium], None]
) -> None:
    async def scene() -> None:
        async with mix_serving(made, 0):
            played = await opened_round(made)
            onion = sealed_reports(played)["silo-1"].sealed
            frames = submission(made, "silo-1", played.descriptor, onion)
            edit(frames[0].header, made)
            refused = await refused_submission(made, "silo-1", frames)
            assert refused is grpc.StatusCode.PERMISSION_DENIED
            assert await shown(made) is None

    run(scene())


def test_a_mix_that_starts_again_shows_what_came_with_reports(made: Consortium) -> None:
    height = some_height(made, "silo-1", 5)

    async def first() -> None:
        async with mix_serving(made, 0):
            await sent(await opened_round(made), height)

    async def second() -> None:
        async with mix_serving(made, 0):
            assert await shown(made) == height

    run(first())
    run(second())


def test_height_and_report_are_on_disk_together_or_not_at_all(made: Consortium) -> None:
    """A report that could not be kept leaves no height there, and its silo sends both again."""
    store, height = Store(state_of(made, 0)), some_height(made, "silo-1", 5)

    async def scene() -> None:
        async with mix_serving(made, 0, disk=WritingThread(store)):
            played = await opened_round(made)
            store._database.execute(
                "CREATE TEMP TRIGGER full BEFORE INSERT ON main.heights BEGIN "
                "SELECT RAISE(ABORT, 'disk full'); END"
            )
            assert (await sent(played, height)).status == REFUSED
            rows = store._database.execute(
                "SELECT (SELECT COUNT(*) FROM reports), COUNT(*) FROM heights"
            ).fetchone()
            assert rows == (0, 0)
            store._database.execute("DROP TRIGGER full")
            assert (await sent(played, height)).status == ACCEPTED
            assert store.heights() == {signer(made, "silo-1").public: height}

    run(scene())
