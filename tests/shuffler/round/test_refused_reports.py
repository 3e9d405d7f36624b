"""What a mix refuses of a report, how it counts it, and that nothing of it stays."""

from collections.abc import Callable

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.rounds.onion import Onion
from silomix_shuffler.config import Limits
from silomix_shuffler.metrics import Metrics
from support.mixes import (
    PlayedRound,
    chain_serving,
    collect,
    described,
    invented_keys,
    mix_serving,
    opened_round,
    refused_submission,
    run,
    sealed_reports,
    submission,
    submit,
    submit_all,
)
from support.submissions import (
    ACCEPTED,
    Frames,
    bodies,
    counts,
    digests,
    gated,
    of_silo_1,
    signed_by_another_silo,
)


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
