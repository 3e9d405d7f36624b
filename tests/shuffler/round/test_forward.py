"""Batches from mix to mix: one per round, from the pinned predecessor, opened and permuted again.

The later mixes are real; the test plays the first.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.keys import SealKey, sealing_public_key
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.onion import _SUITE, _info, open_layer
from silomix_protocol.rounds.statements import sign_hop
from silomix_shuffler.metrics import Metrics
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    Collected,
    PlayedRound,
    abandon,
    calling,
    collect,
    forward,
    mix_serving,
    opened_at,
    refusal,
    run,
    sealed_reports,
    signer,
    state_of,
    wide_task,
)

Frames = list[mix_pb2.BatchFrame]
Counts = tuple[int, int, int]


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=20.0)


@dataclass(frozen=True, slots=True)
class FirstMix:
    """The first mix of a round, played by the test: it holds that mix's key."""

    played: PlayedRound
    key: SealKey

    def peeled(self) -> list[bytes]:
        """What an honest first mix has of fresh reports, one of each silo."""
        digest = self.played.descriptor.digest
        onions = sealed_reports(self.played).values()
        return [open_layer(onion.sealed, self.key, 0, digest) for onion in onions]

    def batch(self, layers: Sequence[bytes], *, by: str = "mix-1", aborted: str = "") -> Frames:
        """These layers as the messages of a batch that `by` states."""
        count = len(layers)
        statement = round_pb2.HopStatement(
            hop=0,
            received=count,
            forwarded=count,
            input=bytes(32),
            output=b"".join(sha256(layer).digest() for layer in layers),
            aborted=aborted,
        )
        digest = self.played.descriptor.digest
        return list(
            frames(digest, [sign_hop(digest, statement, signer(self.played.made, by))], layers)
        )

    async def forward(self, messages: Frames, *, caller: str = "mix-1") -> None:
        await forward(self.played.made, caller, messages, mix="mix-2")


async def first_mix(made: Consortium, number: int = 1, *, attempt: int = 1) -> FirstMix:
    """A round that every later mix has opened."""
    later = range(1, len(made.study.mixes))
    played, keys = await opened_at(made, later, number, attempt=attempt)
    return FirstMix(played, keys[0])


def counts(statement: round_pb2.HopStatement) -> Counts:
    return statement.received, statement.forwarded, statement.dropped


def digests(reports: Sequence[bytes]) -> list[bytes]:
    return [sha256(report).digest() for report in reports]


def stated(messages: Frames) -> bytes:
    return messages[0].header.chain[0].output


def test_a_batch_of_the_predecessor_is_opened_and_kept_for_the_server(made: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(made, 1):
            first = await first_mix(made)
            messages = first.batch(first.peeled())
            await first.forward(messages)
            collected = await collect(first.played)
        assert [counts(each) for each in collected.chain] == [(3, 3, 0)] * 2
        assert collected.chain[0].output == stated(messages)
        assert collected.chain[1].input == sha256(stated(messages)).digest()
        assert digests(collected.reports) == [
            collected.chain[1].output[at : at + 32] for at in (0, 32, 64)
        ]

    run(scene())


def test_the_second_mix_permutes_too(tmp_path: Path) -> None:
    """Ten reports keep their order with probability 1/10! = 3e-7."""
    made = make_consortium(tmp_path / "c", records=(40,) * 10, deadline_s=20.0)

    async def scene() -> None:
        async with mix_serving(made, 1):
            first = await first_mix(made)
            onions = sealed_reports(first.played).values()
            digest = first.played.descriptor.digest
            layers = [open_layer(onion.sealed, first.key, 0, digest) for onion in onions]
            await first.forward(first.batch(layers))
            collected = await collect(first.played)
        in_order = [onion.trail[-1] for onion in onions]
        assert sorted(digests(collected.reports)) == sorted(in_order)
        assert digests(collected.reports) != in_order

    run(scene())


@pytest.mark.parametrize("caller", ["silo-1", "server", "mix-2"])
def test_only_the_predecessor_forwards(made: Consortium, caller: str) -> None:
    """Whatever it holds: the batch is genuine and signed by the first mix."""

    async def scene() -> None:
        async with mix_serving(made, 1):
            first = await first_mix(made)
            messages = first.batch(first.peeled())
            code = await refusal(first.forward(messages, caller=caller))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            await first.forward(messages)
            assert len((await collect(first.played)).reports) == 3

    run(scene())


def test_in_a_longer_chain_a_mix_takes_batches_of_its_own_predecessor_only(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=3, deadline_s=20.0)

    async def scene() -> grpc.StatusCode:
        async with mix_serving(made, 1), mix_serving(made, 2):
            first = await first_mix(made)
            messages = first.batch(first.peeled())
            return await refusal(forward(made, "mix-1", messages, mix="mix-3"))

    assert run(scene()) is grpc.StatusCode.PERMISSION_DENIED


# The same again, and something else ---------------------------------------------------------------


def test_the_same_batch_again_changes_nothing_also_after_a_restart(made: Consortium) -> None:
    """A predecessor that did not hear the answer sends it again."""

    async def scene() -> None:
        async with mix_serving(made, 1):
            first = await first_mix(made)
            messages = first.batch(first.peeled())
            await first.forward(messages)
            await first.forward(messages)
            collected = await collect(first.played)
            await first.forward(messages)
        async with mix_serving(made, 1):
            await first.forward(messages)
            assert await collect(first.played) == collected, "the same bytes in the same order"

    run(scene())


@pytest.mark.parametrize("second", ["other reports", "another order", "an abort"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_second_batch_is_refused_and_counted(
    made: Consortium, second: str, restart: bool
) -> None:
    metrics = Metrics()

    async def take_second(first: FirstMix, layers: list[bytes]) -> None:
        other = {
            "other reports": first.batch(first.peeled()),
            "another order": first.batch(layers[::-1]),
            "an abort": first.batch((), aborted="1 valid reports, 2 needed"),
        }[second]
        code = await refusal(first.forward(other))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        counted = {"reason": "second_batch"}
        assert metrics.registry.get_sample_value("silomix_mix_refused_total", counted) == 1

    async def scene() -> None:
        async with mix_serving(made, 1, metrics=None if restart else metrics):
            first = await first_mix(made)
            layers = first.peeled()
            await first.forward(first.batch(layers))
            if not restart:
                await take_second(first, layers)
            collected = await collect(first.played)
        async with mix_serving(made, 1, metrics=metrics if restart else None):
            if restart:
                await take_second(first, layers)
            assert await collect(first.played) == collected, "the first one stands"

    run(scene())


def test_of_two_batches_that_arrive_together_one_is_taken(tmp_path: Path) -> None:
    """Large layers are opened in threads: the second batch arrives meanwhile."""
    made = make_consortium(
        tmp_path / "c", records=(1,) * 5, deadline_s=20.0, task=wide_task(20_000)
    )

    async def scene() -> None:
        async with mix_serving(made, 1), calling(made, "mix-1", "mix-2") as stub:
            first = await first_mix(made)
            batches = [first.batch(first.peeled()) for _ in range(2)]
            calls = [stub.Forward(timeout=RPC_S, wait_for_ready=True) for _ in batches]

            async def send(call: Any, sent: list[mix_pb2.BatchFrame]) -> None:
                for message in sent:
                    await call.write(message)
                await call.done_writing()

            pairs = zip(calls, batches, strict=True)
            await asyncio.gather(*(send(call, sent) for call, sent in pairs))
            codes = [await call.code() for call in calls]
            assert sorted(codes, key=str) == [
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.OK,
            ]
            collected = await collect(first.played)
        assert collected.chain[0].output == stated(batches[codes.index(grpc.StatusCode.OK)])

    run(scene())


# Batches that are not what they should be -------------------------------------------------------


def signed_by_another_mix(first: FirstMix, layers: list[bytes]) -> Frames:
    return first.batch(layers, by="mix-2")


def with_a_count_changed(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    messages[0].header.chain[0].received = 2
    return messages


def with_a_report_changed(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    messages[1].chunk = messages[1].chunk[:-1] + bytes([messages[1].chunk[-1] ^ 1])
    return messages


def with_reports_in_another_order(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    messages[1].chunk = b"".join(layers[::-1])
    return messages


def with_a_report_missing(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    messages[1].chunk = b"".join(layers[:-1])
    return messages


def with_a_report_more(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    messages[1].chunk += layers[0]
    return messages


def with_a_few_bytes_more(first: FirstMix, layers: list[bytes]) -> Frames:
    return [*first.batch(layers), mix_pb2.BatchFrame(chunk=b"more")]


def without_reports(first: FirstMix, layers: list[bytes]) -> Frames:
    return first.batch(layers)[:1]


def with_a_second_header(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    return [messages[0], messages[0]]


def without_a_header(first: FirstMix, layers: list[bytes]) -> Frames:
    return first.batch(layers)[1:2]


def without_anything(_: FirstMix, __: list[bytes]) -> Frames:
    return []


def without_statements(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    del messages[0].header.chain[:]
    return messages


def with_a_statement_too_many(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    messages[0].header.chain.append(messages[0].header.chain[0])
    return messages


def of_more_reports_than_silos(first: FirstMix, layers: list[bytes]) -> Frames:
    return first.batch([*layers, *first.peeled()])


def with_a_report_twice(first: FirstMix, layers: list[bytes]) -> Frames:
    return first.batch([*layers[:2], layers[0]])


def below_the_minimum(first: FirstMix, layers: list[bytes]) -> Frames:
    return first.batch(layers[:1])


def with_reports_of_another_length(first: FirstMix, layers: list[bytes]) -> Frames:
    return first.batch([layer[:-1] for layer in layers])


def with_layers_still_on(first: FirstMix, _: list[bytes]) -> Frames:
    return first.batch([onion.sealed for onion in sealed_reports(first.played).values()])


def of_a_round_that_is_not_open(first: FirstMix, layers: list[bytes]) -> Frames:
    messages = first.batch(layers)
    messages[0].header.digest = bytes(32)
    return messages


DENIED, WRONG, OVER = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
)


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (signed_by_another_mix, DENIED),
        (with_a_count_changed, DENIED),
        (with_a_report_changed, WRONG),
        (with_reports_in_another_order, WRONG),
        (with_a_report_missing, WRONG),
        (with_a_report_more, WRONG),
        (with_a_few_bytes_more, WRONG),
        (without_reports, WRONG),
        (with_a_second_header, WRONG),
        (without_a_header, WRONG),
        (without_anything, WRONG),
        (without_statements, WRONG),
        (with_a_statement_too_many, WRONG),
        (of_more_reports_than_silos, WRONG),
        (with_a_report_twice, WRONG),
        (below_the_minimum, WRONG),
        (with_reports_of_another_length, WRONG),
        (with_layers_still_on, WRONG),
        (of_a_round_that_is_not_open, OVER),
    ],
)
def test_a_bad_batch_is_refused_and_does_not_use_up_the_round(
    made: Consortium,
    broken: Callable[[FirstMix, list[bytes]], Frames],
    code: grpc.StatusCode,
) -> None:
    async def scene() -> None:
        async with mix_serving(made, 1):
            first = await first_mix(made)
            layers = first.peeled()
            assert await refusal(first.forward(broken(first, layers))) is code
            folder = state_of(made, 1) / "batches"
            assert list(folder.iterdir()) == [], "nothing of it is left"
            await first.forward(first.batch(layers))
            collected = await collect(first.played)
        assert collected.chain[0].output == b"".join(digests(layers))
        assert len(collected.reports) == 3

    run(scene())


# Garbage, copies, too few -------------------------------------------------------------------------


def sealed_again(first: FirstMix, inner: bytes) -> bytes:
    """What is inside the second mix's layer, in another layer for it: other bytes, same report."""
    key = sealing_public_key(first.played.mix_keys[1].seal)
    return _SUITE.encrypt(inner, key, _info(b"mix", 1, first.played.descriptor.digest))


async def collected_after(
    made: Consortium, spoil: Callable[[FirstMix, list[bytes]], Frames]
) -> tuple[Collected, FirstMix]:
    async with mix_serving(made, 1):
        first = await first_mix(made)
        await first.forward(spoil(first, first.peeled()))
        return await collect(first.played), first


def test_garbage_and_copies_in_a_batch_are_dropped_and_counted(tmp_path: Path) -> None:
    """The copy is in a layer of its own: only opened it is seen to be one."""
    made = make_consortium(tmp_path / "c", records=(40,) * 4, minimum_batch=2, deadline_s=20.0)
    metrics = Metrics()

    async def scene() -> None:
        async with mix_serving(made, 1, metrics=metrics):
            first = await first_mix(made)
            one = first.peeled()[0]
            inner = bytes(first.played.length)
            copies = [sealed_again(first, inner), sealed_again(first, inner)]
            await first.forward(first.batch([one, bytes(len(one)), *copies]))
            collected = await collect(first.played)
            assert counts(collected.chain[1]) == (4, 2, 2)
            assert inner in collected.reports, "of copies, one stands"
        for outcome, expected in (("accepted", 2), ("dropped", 2)):
            labels = {"outcome": outcome}
            value = metrics.registry.get_sample_value("silomix_mix_reports_total", labels)
            assert value == expected

    run(scene())


def test_a_predecessor_cannot_fill_up_a_batch_with_garbage(made: Consortium) -> None:
    """The second mix checks the minimum again, on what it could open."""

    async def scene() -> None:
        collected, _ = await collected_after(
            made, lambda first, layers: first.batch([layers[0], *map(bytes, [len(layers[0])])])
        )
        assert collected.reports == ()
        assert collected.aborted == "1 valid reports, 2 needed"
        assert counts(collected.chain[1]) == (2, 0, 2)

    run(scene())


def test_an_abort_is_signed_by_every_mix_on_its_way_to_the_coordinator(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=3, deadline_s=20.0)

    async def scene() -> None:
        async with mix_serving(made, 1), mix_serving(made, 2):
            first = await first_mix(made)
            await first.forward(first.batch((), aborted="1 valid reports, 2 needed"))
            collected = await collect(first.played)
        assert collected.reports == ()
        assert [each.aborted for each in collected.chain] == ["1 valid reports, 2 needed"] * 3

    run(scene())


# Broken connections -------------------------------------------------------------------------------


def test_a_batch_that_breaks_off_can_be_sent_again(made: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(made, 1) as rounds, calling(made, "mix-1", "mix-2") as stub:
            first = await first_mix(made)
            messages = first.batch(first.peeled())
            current = rounds.rounds.named(first.played.descriptor.digest)
            call = stub.Forward(timeout=RPC_S, wait_for_ready=True)
            await call.write(messages[0])
            while not current.taking.locked():  # noqa: ASYNC110 it is just coming
                await asyncio.sleep(0.01)
            call.cancel()
            await first.forward(messages)
            assert len((await collect(first.played)).reports) == 3

    run(scene())


def test_a_round_abandoned_while_its_batch_comes_leaves_nothing_on_disk(made: Consortium) -> None:
    async def scene() -> None:
        async with mix_serving(made, 1) as rounds, calling(made, "mix-1", "mix-2") as stub:
            first = await first_mix(made)
            messages = first.batch(first.peeled())
            current = rounds.rounds.named(first.played.descriptor.digest)
            call = stub.Forward(timeout=RPC_S, wait_for_ready=True)
            await call.write(messages[0])
            while not current.taking.locked():  # noqa: ASYNC110 it is just coming
                await asyncio.sleep(0.01)
            await abandon(made, first.played.descriptor, "mix-2")
            await call.write(messages[1])
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert list((state_of(made, 1) / "batches").iterdir()) == []
            assert await refusal(collect(first.played)) is grpc.StatusCode.FAILED_PRECONDITION

    run(scene())


def test_a_batch_goes_on_when_the_mix_that_sent_it_hangs_up(tmp_path: Path) -> None:
    """The third mix is still down when the first one's patience with the second ends."""
    made = make_consortium(tmp_path / "c", mixes=3, minimum_batch=2, deadline_s=20.0)

    async def scene() -> None:
        async with mix_serving(made, 1):
            async with mix_serving(made, 2):
                first = await first_mix(made)
            async with calling(made, "mix-1", "mix-2") as stub:
                messages = iter(first.batch(first.peeled()))
                call = stub.Forward(messages, timeout=RPC_S, wait_for_ready=True)
                with suppress(grpc.aio.AioRpcError):
                    await call
            async with mix_serving(made, 2):
                collected = await collect(first.played)
        assert [counts(each) for each in collected.chain] == [(3, 3, 0)] * 3

    run(scene())
