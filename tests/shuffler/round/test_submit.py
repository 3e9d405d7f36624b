"""Reports from silos to the first mix: what is accepted, what is refused and how.

Real services on real mutual-TLS servers in this process.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.grpc_calls.call_limits import CHUNK_BYTES
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.onion import Onion
from silomix_protocol.rounds.statements import check_receipt
from silomix_shuffler.config import Limits
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round import intake, upload
from silomix_shuffler.storage.store import Store
from silomix_shuffler.storage.writing_thread import WritingThread
from support.consortia import make_consortium
from support.mixes import (
    PlayedRound,
    calling,
    chain_serving,
    collect,
    described,
    invented_keys,
    mix_serving,
    opened_payloads,
    opened_round,
    refused_submission,
    run,
    sealed_reports,
    silo_stream,
    state_of,
    submission,
    submit,
    submit_all,
    wide_task,
)

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
Frames = list[mix_pb2.SubmitFrame]
Counts = tuple[int, int, int]


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=20.0)


@pytest.fixture
def pair(tmp_path: Path) -> Consortium:
    """With two mixes."""
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=20.0)


def gated(*onions: Onion) -> set[bytes]:
    """Digests of what must be left of these onions after the last mix."""
    return {onion.trail[-1] for onion in onions}


def digests(reports: tuple[bytes, ...]) -> set[bytes]:
    assert len(set(reports)) == len(reports)
    return {sha256(report).digest() for report in reports}


def counts(statement: round_pb2.HopStatement) -> Counts:
    return statement.received, statement.forwarded, statement.dropped


def bodies(made: Consortium, index: int = 0) -> dict[str, int]:
    """Files in the mix's folder of batches, and their lengths."""
    folder = state_of(made, index) / "batches"
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def of_silo_1(played: PlayedRound, chunk_bytes: int | None = None) -> Frames:
    onion = sealed_reports(played)["silo-1"].sealed
    return submission(played.made, "silo-1", played.descriptor, onion, chunk_bytes=chunk_bytes)


# What is accepted -------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("mixes", [1, 3])
def test_the_server_opens_exactly_what_the_silos_sealed(
    tmp_path: Path, mixes: int, gate: bool
) -> None:
    made = make_consortium(tmp_path / "c", mixes=mixes, deadline_s=20.0, gate=gate)

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            receipts = await submit_all(played, reports)
            batch = await collect(played)
            payloads = await opened_payloads(played, batch)
        assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
        assert digests(batch.reports) == gated(*reports.values())
        assert [counts(each) for each in batch.chain] == [(3, 3, 0)] * mixes
        assert len(set(payloads)) == 3

    run(scene())


def test_the_order_of_arrival_is_gone(tmp_path: Path) -> None:
    """Ten reports leave in the order they came in with probability 1/10! = 3e-7."""
    made = make_consortium(tmp_path / "c", records=(40,) * 10, deadline_s=20.0)

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            await submit_all(played, reports)
            batch = await collect(played)
        assert digests(batch.reports) == gated(*reports.values())
        for hop, statement in enumerate(batch.chain):
            came = [onion.trail[hop + 1] for onion in reports.values()]
            assert statement.output != b"".join(came)

    run(scene())


def test_a_receipt_is_signed_by_the_mix_over_round_silo_and_report(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            onion = sealed_reports(played)["silo-2"].sealed
            frames = submission(made, "silo-2", played.descriptor, onion)
            (receipt,) = await submit(made, "silo-2", frames)
        digest, report = played.descriptor.digest, sha256(onion).digest()
        assert (receipt.digest, receipt.report) == (digest, report)
        check_receipt(receipt, digest, 1, report, made.study)
        for place in (0, 2):
            with pytest.raises(ForgedSignature):
                check_receipt(receipt, digest, place, report, made.study)

    run(scene())


@pytest.mark.parametrize("chunk_bytes", [7, 1136])
def test_a_report_may_come_in_pieces(made: Consortium, chunk_bytes: int) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            for silo, onion in reports.items():
                cut = submission(
                    made, silo, played.descriptor, onion.sealed, chunk_bytes=chunk_bytes
                )
                assert len(cut) > 1
                (receipt,) = await submit(made, silo, cut)
                assert receipt.status == ACCEPTED
            assert digests((await collect(played)).reports) == gated(*reports.values())

    run(scene())


def test_one_stream_carries_the_reports_of_many_rounds(made: Consortium) -> None:
    async def scene() -> None:
        async with (
            chain_serving(made),
            silo_stream(made, "silo-1") as one,
            silo_stream(made, "silo-2") as two,
            silo_stream(made, "silo-3") as three,
        ):
            for number in (1, 2, 3):
                played = await opened_round(made, number)
                reports = sealed_reports(played)
                for stream, (silo, onion) in zip((one, two, three), reports.items(), strict=True):
                    frames = submission(made, silo, played.descriptor, onion.sealed)
                    assert (await stream.send(frames)).status == ACCEPTED
                assert digests((await collect(played)).reports) == gated(*reports.values())

    run(scene())


# Large reports ------------------------------------------------------------------------------------


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


# The same again, and something else -------------------------------------------------------------


def test_the_same_bytes_get_the_same_receipt_whatever_happened_since(pair: Consortium) -> None:
    """At once, after a restart, when the batch has left, and after a restart then."""

    async def scene() -> None:
        async with mix_serving(pair, 1):
            async with mix_serving(pair, 0):
                played = await opened_round(pair)
                reports = sealed_reports(played)
                frames = submission(pair, "silo-1", played.descriptor, reports["silo-1"].sealed)
                first, again = await submit(pair, "silo-1", [*frames, *frames])
                assert first.status == ACCEPTED
                assert again == first
            async with mix_serving(pair, 0):
                assert await submit(pair, "silo-1", frames) == [first]
                await submit_all(played, reports)
                batch = await collect(played)
                assert counts(batch.chain[0]) == (3, 3, 0), "it counts once"
                assert await submit(pair, "silo-1", frames) == [first]
            async with mix_serving(pair, 0):
                assert await submit(pair, "silo-1", frames) == [first]

    run(scene())


def test_other_bytes_for_the_same_round_are_refused_and_the_first_stand(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports, others = sealed_reports(played), sealed_reports(played)
            first, second = (
                submission(made, "silo-1", played.descriptor, each["silo-1"].sealed)
                for each in (reports, others)
            )
            accepted, refused, again = await submit(made, "silo-1", [*first, *second, *first])
            assert (accepted.status, again) == (ACCEPTED, accepted)
            assert refused.status == REFUSED
            assert "another report" in refused.reason
            assert refused.signature == b"", "a refusal is no receipt"
            await submit_all(played, reports)
            batch = await collect(played)
            assert digests(batch.reports) == gated(*reports.values())
            (late,) = await submit(made, "silo-1", second)
            assert late.status == REFUSED

    run(scene())


def test_a_report_after_the_batch_was_sealed_is_refused(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=1.0)

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            late = reports.pop("silo-3")
            await submit_all(played, reports)
            assert len((await collect(played)).reports) == 2
            frames = submission(made, "silo-3", played.descriptor, late.sealed)
            (receipt,) = await submit(made, "silo-3", frames)
            assert (receipt.status, receipt.signature) == (REFUSED, b"")
            assert "closed" in receipt.reason

    run(scene())


# What is refused --------------------------------------------------------------------------------


def too_short(played: PlayedRound) -> Frames:
    onion = sealed_reports(played)["silo-1"].sealed
    return submission(played.made, "silo-1", played.descriptor, onion[:-1])


def too_long(played: PlayedRound) -> Frames:
    onion = sealed_reports(played)["silo-1"].sealed
    return submission(played.made, "silo-1", played.descriptor, onion + b"x")


def announced_huge(played: PlayedRound) -> Frames:
    frames = of_silo_1(played)
    frames[0].header.bytes = 2**40
    return frames


def longer_than_announced(played: PlayedRound) -> Frames:
    frames = of_silo_1(played)
    frames[0].chunk += bytes(1000)
    return frames


def overflowing_in_the_second_piece(played: PlayedRound) -> Frames:
    frames = of_silo_1(played, 3000)
    frames[1].chunk += bytes(3000)
    return frames[:2]


def truncated(played: PlayedRound) -> Frames:
    return of_silo_1(played, 1000)[:-1]


def interrupted_by_another(played: PlayedRound) -> Frames:
    frames = of_silo_1(played, 1000)
    return [frames[0], frames[0]]


def with_an_empty_piece(played: PlayedRound) -> Frames:
    return [of_silo_1(played, 1000)[0], mix_pb2.SubmitFrame()]


def with_nothing_in_it(played: PlayedRound) -> Frames:
    frames = of_silo_1(played)
    frames[0].chunk = b""
    return frames


def signed_by_another_silo(played: PlayedRound) -> Frames:
    onion = sealed_reports(played)["silo-1"].sealed
    return submission(played.made, "silo-1", played.descriptor, onion, signed_by="silo-2")


def sent_for_another_silo(played: PlayedRound) -> Frames:
    onion = sealed_reports(played)["silo-2"].sealed
    return submission(played.made, "silo-2", played.descriptor, onion)


def not_signed(played: PlayedRound) -> Frames:
    frames = of_silo_1(played)
    frames[0].header.signature = b""
    return frames


def changed_after_signing(played: PlayedRound) -> Frames:
    frames = of_silo_1(played)
    frames[0].chunk = frames[0].chunk[:-1] + bytes([frames[0].chunk[-1] ^ 1])
    return frames


def signed_for_another_round(played: PlayedRound) -> Frames:
    made = played.made
    frames = of_silo_1(played)
    other = described(made, invented_keys(made), 2).descriptor
    signature = submission(made, "silo-1", other, frames[0].chunk)[0].header.signature
    frames[0].header.signature = signature
    return frames


def without_a_header(played: PlayedRound) -> Frames:
    return [mix_pb2.SubmitFrame(chunk=of_silo_1(played)[0].chunk)]


def for_a_round_that_was_not_opened(played: PlayedRound) -> Frames:
    made = played.made
    return of_silo_1(described(made, invented_keys(made), 1, query=b"another"))


@pytest.mark.parametrize(
    ("frames", "code", "reason"),
    [
        (too_short, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (too_long, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (announced_huge, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (longer_than_announced, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (overflowing_in_the_second_piece, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (truncated, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (interrupted_by_another, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (with_an_empty_piece, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (with_nothing_in_it, grpc.StatusCode.INVALID_ARGUMENT, "wrong_length"),
        (signed_by_another_silo, grpc.StatusCode.PERMISSION_DENIED, "forged_signature"),
        (sent_for_another_silo, grpc.StatusCode.PERMISSION_DENIED, "forged_signature"),
        (not_signed, grpc.StatusCode.PERMISSION_DENIED, "forged_signature"),
        (changed_after_signing, grpc.StatusCode.PERMISSION_DENIED, "forged_signature"),
        (signed_for_another_round, grpc.StatusCode.PERMISSION_DENIED, "forged_signature"),
        (without_a_header, grpc.StatusCode.FAILED_PRECONDITION, "wrong_round"),
        (for_a_round_that_was_not_opened, grpc.StatusCode.FAILED_PRECONDITION, "wrong_round"),
    ],
)
def test_a_bad_report_is_refused_counted_and_leaves_nothing_behind(
    made: Consortium,
    frames: Callable[[PlayedRound], Frames],
    code: grpc.StatusCode,
    reason: str,
) -> None:
    """Afterwards the same silo sends a good one, and all three count."""
    metrics = Metrics()

    async def scene() -> None:
        async with mix_serving(made, 0, metrics=metrics):
            played = await opened_round(made)
            reports = sealed_reports(played)
            bad, ends = frames(played), frames is truncated
            assert await refused_submission(made, "silo-1", bad, ends=ends) is code
            assert bodies(made) == {}
            refused = {"reason": reason}
            assert metrics.registry.get_sample_value("silomix_mix_refused_total", refused) == 1
            receipts = await submit_all(played, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(played)
            assert digests(batch.reports) == gated(*reports.values())
            assert counts(batch.chain[0]) == (3, 3, 0)

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


def test_a_report_that_takes_too_long_is_refused(made: Consortium) -> None:
    async def scene() -> grpc.StatusCode:
        async with mix_serving(made, 0, limits=Limits(report_s=0.05)):
            played = await opened_round(made)
            return await refused_submission(made, "silo-1", of_silo_1(played, 1000)[:2])

    assert run(scene()) is grpc.StatusCode.DEADLINE_EXCEEDED


def test_what_follows_a_report_on_the_stream_is_not_part_of_it(made: Consortium) -> None:
    trailing = mix_pb2.SubmitFrame(chunk=b"more")

    async def scene() -> grpc.StatusCode:
        async with chain_serving(made):
            played = await opened_round(made)
            return await refused_submission(made, "silo-1", [*of_silo_1(played), trailing])

    assert run(scene()) is grpc.StatusCode.FAILED_PRECONDITION


def test_a_silo_that_keeps_sending_what_is_refused_is_cut_off(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            await submit(made, "silo-1", of_silo_1(played))
            others = [frame for _ in range(17) for frame in of_silo_1(played)]
            code = await refused_submission(made, "silo-1", others)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(scene())


def test_garbage_of_the_right_length_is_dropped_and_counted_and_nothing_else(
    made: Consortium,
) -> None:
    """The sender gets a receipt like any other: what is inside answers no questions."""

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            garbage = Onion(bytes(len(reports["silo-3"].sealed)), ())
            receipts = await submit_all(played, {**reports, "silo-3": garbage})
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(played)
        assert digests(batch.reports) == gated(reports["silo-1"], reports["silo-2"])
        assert counts(batch.chain[0]) == (3, 2, 1)
        assert not batch.aborted

    run(scene())


@pytest.mark.parametrize("made_for", ["another descriptor", "another mix's keys"])
def test_an_onion_made_for_elsewhere_is_dropped(made: Consortium, made_for: str) -> None:
    """A descriptor is bound into every layer: an onion cannot be moved to another attempt."""

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            if made_for == "another descriptor":
                elsewhere = described(made, played.mix_keys, query=b"another")
            else:
                invented = described(made, invented_keys(made))
                elsewhere = PlayedRound(
                    made, played.descriptor, played.server_key, invented.mix_keys
                )
            foreign = sealed_reports(elsewhere)["silo-3"]
            await submit_all(played, {**sealed_reports(played), "silo-3": foreign})
            batch = await collect(played)
        assert foreign.trail[-1] not in digests(batch.reports)
        assert counts(batch.chain[0]) == (3, 2, 1)

    run(scene())


def test_a_copy_of_another_silos_onion_counts_once(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            reports = sealed_reports(played)
            reports["silo-3"] = reports["silo-1"]
            receipts = await submit_all(played, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(played)
        assert digests(batch.reports) == gated(reports["silo-1"], reports["silo-2"])
        assert counts(batch.chain[0]) == (3, 2, 1)

    run(scene())


# Who may submit, and where ----------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["server", "mix-1", "mix-2"])
def test_only_silos_submit(pair: Consortium, caller: str) -> None:
    async def scene() -> grpc.StatusCode:
        async with chain_serving(pair):
            played = await opened_round(pair)
            return await refused_submission(pair, caller, of_silo_1(played))

    assert run(scene()) is grpc.StatusCode.PERMISSION_DENIED


def test_reports_go_to_the_first_mix_only(pair: Consortium) -> None:
    """A report put in behind the first mix would miss its shuffle."""

    async def scene() -> grpc.StatusCode:
        async with chain_serving(pair):
            played = await opened_round(pair)
            return await refused_submission(pair, "silo-1", of_silo_1(played), mix="mix-2")

    assert run(scene()) is grpc.StatusCode.PERMISSION_DENIED


def test_a_silo_that_the_round_does_not_ask_is_refused(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, participants=2)
    asked = made.study.asked(1)
    (other,) = {silo.name for silo in made.study.silos} - set(asked)

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            onion = sealed_reports(played)[asked[0]].sealed
            frames = submission(made, other, played.descriptor, onion)
            (receipt,) = await submit(made, other, frames)
            assert (receipt.status, receipt.signature) == (REFUSED, b"")
            assert "does not expect" in receipt.reason

    run(scene())


def test_a_silo_of_another_consortium_cannot_even_connect(made: Consortium, tmp_path: Path) -> None:
    other = make_consortium(tmp_path / "other", mixes=1)

    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            stranger = Consortium(other.folder, made.study, other.server, other.mixes, other.silos)
            async with calling(stranger, "silo-1", "mix-1") as stub:
                call = stub.Submit(iter(of_silo_1(played)), timeout=5.0)
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call.read()
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    run(scene())


def test_a_silo_holds_only_so_many_streams(made: Consortium) -> None:
    async def scene() -> None:
        async with chain_serving(made):
            played = await opened_round(made)
            frames = of_silo_1(played)
            async with silo_stream(made, "silo-1") as one, silo_stream(made, "silo-1") as two:
                assert await one.send(frames) == await two.send(frames)
                code = await refused_submission(made, "silo-1", frames)
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(scene())


def test_a_refusal_tells_nothing_about_the_sender_or_the_report(made: Consortium) -> None:
    async def scene() -> str:
        async with chain_serving(made):
            played = await opened_round(made)
            async with calling(made, "silo-1", "mix-1") as stub:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await stub.Submit(iter(signed_by_another_silo(played)), timeout=5.0).read()
                return str(raised.value.details())

    assert run(scene()) == "the signature on this report is not valid"


# A disk that fails --------------------------------------------------------------------------------


def test_on_a_full_disk_a_report_is_refused_and_later_accepted(made: Consortium) -> None:
    """The page limit stands for a full disk: SQLite answers both in the same way."""
    store = Store(state_of(made, 0))

    async def scene() -> None:
        async with mix_serving(made, 0, disk=WritingThread(store)):
            played = await opened_round(made)
            reports = sealed_reports(played)
            full, room = fill(store)
            frames = submission(made, "silo-1", played.descriptor, reports["silo-1"].sealed)
            full()
            (receipt,) = await submit(made, "silo-1", frames)
            assert (receipt.status, receipt.signature) == (REFUSED, b"")
            assert receipt.reason == "this mix cannot store your report"
            room()
            receipts = await submit_all(played, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(played)
            assert digests(batch.reports) == gated(*reports.values())
            assert counts(batch.chain[0]) == (3, 3, 0)

    run(scene())


def fill(store: Store) -> tuple[Callable[[], object], Callable[[], object]]:
    """Two switches: no room for another page, and room again."""
    database = store._database
    database.execute("CREATE TABLE filler (x BLOB)")

    def full() -> None:
        database.execute("PRAGMA max_page_count = 1")  # SQLite makes that what there is
        database.execute(
            "CREATE TEMP TRIGGER no_room BEFORE INSERT ON main.reports BEGIN "
            "INSERT INTO filler VALUES (zeroblob(100000)); END"
        )

    def room() -> None:
        database.execute("DROP TRIGGER no_room")
        database.execute("PRAGMA max_page_count = 1000000")

    return full, room


def test_a_deadline_that_finds_only_a_report_that_failed_still_ends_the_round(
    tmp_path: Path,
) -> None:
    """The report is being written when the deadline passes, and then cannot be kept."""
    made = make_consortium(tmp_path / "c", mixes=1, minimum_batch=2, deadline_s=0.3)
    store = HeldStore(state_of(made, 0))

    async def scene() -> None:
        async with mix_serving(made, 0, disk=WritingThread(store)) as rounds:
            played = await opened_round(made)
            frames = of_silo_1(played)
            sending = asyncio.create_task(submit(made, "silo-1", frames))
            assert await asyncio.to_thread(store.reached.wait, 10.0)
            current = rounds.rounds.named(played.descriptor.digest)
            while not current.batch._closing:  # noqa: ASYNC110 the deadline
                await asyncio.sleep(0.01)
            store.fails.set()
            (receipt,) = await sending
            assert receipt.status == REFUSED
            batch = await collect(played)
            assert batch.aborted == "0 valid reports, 2 needed"

    run(scene())


class HeldStore(Store):
    """Its first report waits until it may fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reached, self.fails = threading.Event(), threading.Event()

    def add(self, entries: object) -> None:
        self.reached.set()
        self.fails.wait(10.0)
        raise OSError(28, "No space left on device")
