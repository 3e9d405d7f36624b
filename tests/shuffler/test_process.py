"""`silomix mix run` as real processes: a round through the chain, a kill, a restart, its logs."""

import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from silomix.consortium import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.batches import Counts
from support.consortia import make_consortium
from support.mixes import (
    MixProcess,
    collect,
    described,
    mix_process,
    run,
    sealed_reports,
    submission,
    submit,
    submit_all,
)

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=20.0)


async def status(made: Consortium, silo: str, query: bytes) -> mix_pb2.Receipt:
    """The receipt for a silo's report in round 1, asked with this query."""
    descriptor = described(made, query=query)
    onion = sealed_reports(made, descriptor)[silo].onion
    (receipt,) = await submit(made, silo, submission(made, silo, descriptor, onion))
    return receipt


def test_reports_pass_a_chain_of_processes_and_their_logs_name_no_silo(made: Consortium) -> None:
    descriptor = described(made)
    reports = sealed_reports(made, descriptor)
    reports["silo-2"] = reports["silo-1"]  # a copy: dropped and counted

    async def scene() -> list[MixProcess]:
        async with AsyncExitStack() as stack:
            mixes = [await stack.enter_async_context(mix_process(config)) for config in made.mixes]
            receipts = await submit_all(made, descriptor, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(made, descriptor)
            assert sorted(batch.reports) == sorted(
                [reports["silo-1"].inner, reports["silo-3"].inner]
            )
            assert batch.counts == Counts(2, 2, 0), "the second mix received what the first let by"
            for mix in mixes:
                assert await mix.terminate() == 0
        return mixes

    first, second = run(scene(), timeout_s=60.0)
    assert any("batch_released round=1 received=3 forwarded=2 dropped=1" in x for x in first.log)
    assert any("batch_released round=1 received=2 forwarded=2 dropped=0" in x for x in second.log)
    for mix in (first, second):
        assert mix.log[-1].endswith("mix_stopped")
        assert not any("silo-" in line for line in mix.log)


def test_a_round_stays_bound_to_its_descriptor_when_the_mix_is_killed(made: Consortium) -> None:
    async def scene() -> None:
        async with mix_process(made.mixes[0]) as mix:
            assert (await status(made, "silo-1", b"one")).status == ACCEPTED
            refused = await status(made, "silo-2", b"two")
            assert (refused.status, refused.signature) == (REFUSED, b"")
            await mix.kill()
            assert mix.process.returncode == -signal.SIGKILL
        async with mix_process(made.mixes[0]):
            refused = await status(made, "silo-2", b"two")
            assert (refused.status, refused.signature) == (REFUSED, b"")
            assert "another descriptor" in refused.reason
            over = await status(made, "silo-2", b"one")
            assert (over.status, over.signature) == (REFUSED, b""), "the batch died with the mix"

    run(scene(), timeout_s=60.0)


def test_a_mix_whose_key_others_can_read_does_not_start(made: Consortium) -> None:
    path = made.mixes[0].parent / "seal.key"
    path.chmod(0o640)

    async def scene() -> None:
        async with mix_process(made.mixes[0]):
            pass

    with pytest.raises(AssertionError, match=f"chmod 600 {path}"):
        run(scene(), timeout_s=60.0)
