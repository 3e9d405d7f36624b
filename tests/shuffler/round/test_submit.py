"""Reports from silos to the first mix: what is accepted, also again, and from whom.

Real services on real mutual-TLS servers in this process.
"""

from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.statements import check_receipt
from support.consortia import make_consortium
from support.mixes import (
    calling,
    chain_serving,
    collect,
    mix_serving,
    opened_payloads,
    opened_round,
    refused_submission,
    run,
    sealed_reports,
    silo_stream,
    submission,
    submit,
    submit_all,
)
from support.submissions import (
    ACCEPTED,
    REFUSED,
    counts,
    digests,
    gated,
    of_silo_1,
    signed_by_another_silo,
)


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
