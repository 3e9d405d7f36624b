"""Reports larger than a message: they pass the chain, break off, and hold up nobody."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_protocol.rounds.onion import Onion
from silomix_shuffler.round import intake, upload
from support.consortia import make_consortium
from support.mixes import (
    PlayedRound,
    calling,
    chain_serving,
    collect,
    mix_serving,
    opened_round,
    refused_submission,
    run,
    sealed_reports,
    state_of,
    submission,
    submit,
    wide_task,
)
from support.submissions import ACCEPTED, Frames, bodies, digests, gated


@pytest.fixture
def wide(tmp_path: Path) -> Consortium:
    """With reports longer than a message."""
    return make_consortium(
        tmp_path / "c", records=(1, 1), mixes=2, deadline_s=20.0, task=wide_task(300_000)
    )


@pytest.fixture
def places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of them may be in memory at the same time; the others are in files."""
    number: int = request.param
    monkeypatch.setattr(upload, "_LARGE_AT_ONCE", number)
    monkeypatch.setattr(upload, "_PATIENCE_S", 0.1)
    return number


def cut(played: PlayedRound, silo: str, onion: Onion) -> Frames:
    assert len(onion.sealed) > CHUNK_BYTES
    return submission(played.made, silo, played.descriptor, onion.sealed, chunk_bytes=CHUNK_BYTES)


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("places", [0, 1, 4], indirect=True)
def test_reports_larger_than_a_message_pass_the_whole_chain(wide: Consortium) -> None:
    """Sent twice, too: the copy is read, compared and forgotten."""

    async def scene() -> None:
        async with chain_serving(wide):
            played = await opened_round(wide)
            reports = sealed_reports(played)
            for silo, onion in reports.items():
                frames = cut(played, silo, onion)
                first, second = await submit(wide, silo, [*frames, *frames])
                assert first.status == ACCEPTED
                assert second == first
            assert digests((await collect(played)).reports) == gated(*reports.values())

    run(scene())


def test_a_large_report_is_kept_though_its_silo_hung_up(
    wide: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs up while the mix opens the layer, in a thread: the round is still complete."""
    opening, may_go = threading.Event(), threading.Event()
    really = intake._open_upload

    def slowly(*args: object) -> bytes | None:
        opening.set()
        assert may_go.wait(10.0)
        return really(*args)  # type: ignore[arg-type]

    async def scene() -> None:
        async with chain_serving(wide):
            played = await opened_round(wide)
            reports = sealed_reports(played)
            monkeypatch.setattr(intake, "_open_upload", slowly)
            async with calling(wide, "silo-1", "mix-1") as stub:
                call = stub.Submit(timeout=20.0)
                for frame in cut(played, "silo-1", reports["silo-1"]):
                    await call.write(frame)
                assert await asyncio.to_thread(opening.wait, 10.0)
                call.cancel()
            may_go.set()
            (receipt,) = await submit(wide, "silo-2", cut(played, "silo-2", reports["silo-2"]))
            assert receipt.status == ACCEPTED
            assert digests((await collect(played)).reports) == gated(*reports.values())

    run(scene())


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("places", [1], indirect=True)
def test_who_stops_in_the_middle_of_a_large_report_holds_up_nobody(wide: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(wide):
            played = await opened_round(wide)
            reports = sealed_reports(played)
            async with calling(wide, "silo-1", "mix-1") as stub:
                call = stub.Submit(timeout=30.0)
                begun, *rest = cut(played, "silo-1", reports["silo-1"])
                await call.write(begun)
                (receipt,) = await submit(wide, "silo-2", cut(played, "silo-2", reports["silo-2"]))
                assert receipt.status == ACCEPTED
                for frame in rest:
                    await call.write(frame)
                assert (await call.read()).status == ACCEPTED
            assert digests((await collect(played)).reports) == gated(*reports.values())

    run(scene())


def test_a_large_report_that_is_refused_leaves_its_place_to_the_next_one(
    wide: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one place, and who waits for it would wait for longer than the test lasts."""
    monkeypatch.setattr(upload, "_LARGE_AT_ONCE", 1)
    monkeypatch.setattr(upload, "_PATIENCE_S", 600.0)

    async def scene() -> None:
        async with chain_serving(wide):
            played = await opened_round(wide)
            reports = sealed_reports(played)
            good = {silo: cut(played, silo, onion) for silo, onion in reports.items()}
            forged = submission(
                wide,
                "silo-1",
                played.descriptor,
                reports["silo-1"].sealed,
                signed_by="silo-2",
                chunk_bytes=CHUNK_BYTES,
            )
            await refused_submission(wide, "silo-1", good["silo-1"][:1], ends=True)
            await refused_submission(wide, "silo-1", forged)
            (receipt,) = await submit(wide, "silo-1", good["silo-1"])
            assert receipt.status == ACCEPTED
            other = Onion(bytes(len(reports["silo-1"].sealed)), ())
            (receipt,) = await submit(wide, "silo-1", cut(played, "silo-1", other))
            assert receipt.status == mix_pb2.Receipt.REFUSED
            (receipt,) = await submit(wide, "silo-2", good["silo-2"])
            assert receipt.status == ACCEPTED
            assert digests((await collect(played)).reports) == gated(*reports.values())

    run(scene())


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("places", [0], indirect=True)
def test_a_large_report_that_breaks_off_leaves_nothing_behind(wide: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(wide, 0), mix_serving(wide, 1):
            played = await opened_round(wide)
            frames = cut(played, "silo-1", sealed_reports(played)["silo-1"])
            code = await refused_submission(wide, "silo-1", frames[:1], ends=True)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            async with calling(wide, "silo-1", "mix-1") as stub:
                call = stub.Submit(timeout=10.0)
                await call.write(frames[0])
                while not nameless_files(wide):  # noqa: ASYNC110 it is just arriving
                    await asyncio.sleep(0.01)
                call.cancel()
            assert bodies(wide) == {}
            while nameless_files(wide):  # noqa: ASYNC110 the mix has not seen the end yet
                await asyncio.sleep(0.01)

    run(scene())


def nameless_files(made: Consortium) -> list[str]:
    """Files that were deleted in the mix's folder of batches and are still open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(each.readlink()))
    folder = str(state_of(made, 0) / "batches")
    return [name for name in found if name.startswith(folder) and name.endswith("(deleted)")]
