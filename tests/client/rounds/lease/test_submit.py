"""The first mix breaks off, refuses, or signs something else: what a silo sends again."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2
from support.leases import asking
from support.scripted_lease import ENDED, Event, PlayedMix, Stage, follow, gated_digest, round_with
from support.silos import open_ledger, round_of


def test_a_report_is_sent_again_with_the_same_bytes_when_the_mix_breaks_off(
    made: Consortium, config: SiloConfig
) -> None:
    taken: list[bytes] = []

    async def script(stage: Stage) -> AsyncIterator[Event]:
        descriptor, events = stage.opened(1)
        for event in events:
            yield event
        taken.extend([await stage.mix.onions.get() for _ in range(2)])
        yield stage.committed(descriptor, [gated_digest(made, taken[1], descriptor)])
        yield stage.closed(descriptor)
        async for event in round_with(stage, 2):
            yield event
        yield ENDED

    def break_once(mix: PlayedMix) -> None:
        mix.breaks = 1

    followed = follow(made, config, script, prepare=break_once)
    assert followed.outcome == (Ending.DONE, 2)
    assert taken[0] == taken[1]
    assert followed.mix.left_over() == []


def test_a_mix_that_always_breaks_off_costs_a_few_tries_and_the_lease_goes_on(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        yield ENDED

    def break_always(mix: PlayedMix) -> None:
        mix.breaks = 1000

    followed = follow(made, config, script, prepare=break_always)
    assert followed.outcome == (Ending.DONE, 1)
    onions = followed.mix.left_over()
    assert len(onions) == 4
    assert len(set(onions)) == 1


def test_a_mix_that_says_the_round_is_over_is_not_asked_again(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in asking(stage, 1):
            yield event
        yield ENDED

    def over(mix: PlayedMix) -> None:
        mix.breaks, mix.code = 1000, grpc.StatusCode.FAILED_PRECONDITION

    followed = follow(made, config, script, prepare=over)
    assert followed.outcome == (Ending.DONE, 1)
    assert len(followed.mix.left_over()) == 1


def test_a_refusing_mix_does_not_end_the_lease(made: Consortium, config: SiloConfig) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        yield ENDED

    def refuse(mix: PlayedMix) -> None:
        receipt = mix_pb2.Receipt(status=mix_pb2.Receipt.REFUSED, reason="this round is over")
        mix.reply = lambda digest, report: receipt

    followed = follow(made, config, script, prepare=refuse)
    assert followed.outcome == (Ending.DONE, 1)
    assert len(followed.mix.left_over()) == 1


def test_a_receipt_that_the_mix_did_not_sign_ends_the_lease(
    made: Consortium, config: SiloConfig
) -> None:
    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in stage.opened(1)[1]:
            yield event
        await asyncio.Event().wait()

    def forge(mix: PlayedMix) -> None:
        mix.reply = lambda digest, report: mix.accept(digest, bytes(32))

    followed = follow(made, config, script, prepare=forge)
    assert followed.outcome == (Ending.REFUSED, 1)


def test_a_receipt_for_another_silo_ends_the_lease_and_is_not_kept(
    made: Consortium, config: SiloConfig
) -> None:
    """With it the silo could not complain: the receipt says whose report it is for."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in asking(stage):
            yield event
        await asyncio.Event().wait()

    def another_s(mix: PlayedMix) -> None:
        mix.reply = lambda digest, report: mix.accept(digest, report, place=1)

    followed = follow(made, config, script, prepare=another_s)
    assert followed.outcome == (Ending.REFUSED, 1)
    ledger = open_ledger(config)
    known = ledger.account(made.study).outcome(round_of(made, 1).digest)
    ledger.close()
    assert known.receipt is None
