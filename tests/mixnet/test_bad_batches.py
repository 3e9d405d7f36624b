"""Bad batches for a real mix from the one before it: what is refused, and with which code."""

from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from mixnet.real_mix import HostileRound, hostile_round, real_mix, refusal
from mixnet.scene import DENIED, INVALID, PRECONDITION, REPORT_S, Scene
from silomix_proto import mix_pb2
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.statements import input_of
from support.consortia import make_consortium
from support.mixes import RPC_S, calling, collect, forward, run


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A mix behind another one, which the test plays."""
    made = make_consortium(
        tmp_path_factory.mktemp("second") / "c", mixes=2, rounds=100, deadline_s=20.0
    )
    with real_mix(made, 1, open_rounds=100, report_s=REPORT_S) as mix:
        yield Scene(mix)


async def hostile(second: Scene) -> tuple[HostileRound, list[mix_pb2.BatchFrame], list[bytes]]:
    """A round, an honest batch of its reports as messages (header, body), and the reports."""
    round_ = await hostile_round(second.made, 1, next(second.numbers))
    onions = [round_.onion(silo.encode()).sealed for silo in round_.played.descriptor.silos]
    chain, reports = round_.before(onions)
    return round_, list(frames(round_.played.descriptor.digest, chain, reports)), reports


@pytest.mark.parametrize("how", ["short", "long", "much too long", "empty", "other", "two headers"])
def test_a_batch_of_the_wrong_length_is_refused_and_the_right_one_still_taken(
    second: Scene, how: str
) -> None:
    async def scene() -> None:
        round_, (header, body), _ = await hostile(second)
        bad = {
            "short": [header, mix_pb2.BatchFrame(chunk=body.chunk[:-1])],
            "long": [header, body, mix_pb2.BatchFrame(chunk=b"x")],
            "much too long": [header, mix_pb2.BatchFrame(chunk=body.chunk * 50)],
            "empty": [header],
            "other": [header, mix_pb2.BatchFrame(chunk=bytes(len(body.chunk)))],
            "two headers": [header, header],
        }[how]
        code, _ = await refusal(forward(second.made, "mix-1", bad, mix="mix-2"))
        assert code is INVALID
        assert second.stored(round_.played) == 0
        await forward(second.made, "mix-1", [header, body], mix="mix-2")
        assert len((await collect(round_.played)).reports) == 3

    before = second.mix.refused("broken_batch")
    run(scene())
    assert second.mix.refused("broken_batch") == before + 1


def test_a_slow_batch_runs_out_of_time(second: Scene) -> None:
    async def scene() -> None:
        _, (header, body), _ = await hostile(second)
        async with calling(second.made, "mix-1", "mix-2") as stub:
            idle = stub.Forward(timeout=RPC_S, wait_for_ready=True)
            slow = stub.Forward(timeout=RPC_S, wait_for_ready=True)
            await slow.write(header)
            await slow.write(mix_pb2.BatchFrame(chunk=body.chunk[:10]))
            for call in (idle, slow):
                assert (await refusal(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        await forward(second.made, "mix-1", [header, body], mix="mix-2")

    before = second.mix.refused("too_slow")
    run(scene())
    assert second.mix.refused("too_slow") == before + 2


def test_a_second_batch_is_refused_with_an_alarm(second: Scene) -> None:
    async def scene() -> None:
        round_, first, reports = await hostile(second)
        await forward(second.made, "mix-1", first, mix="mix-2")
        other = [*reports[1:], round_.fake_at(1)]
        came = input_of([bytes(32)])
        chain = [round_.statement(0, came, other)]
        again = frames(round_.played.descriptor.digest, chain, other)
        code, _ = await refusal(forward(second.made, "mix-1", again, mix="mix-2"))
        assert code is PRECONDITION
        await forward(second.made, "mix-1", first, mix="mix-2")

    run(scene())
    assert second.mix.refused("second_batch") == 1
    assert " second_batch round=" in second.mix.log


@pytest.mark.parametrize("caller", ["silo-1", "server", "mix-2"])
def test_only_the_previous_mix_forwards(second: Scene, caller: str) -> None:
    async def scene() -> None:
        _, batch, _ = await hostile(second)
        code, _ = await refusal(forward(second.made, caller, batch, mix="mix-2"))
        assert code is DENIED

    run(scene())
