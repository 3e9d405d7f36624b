"""Rounds that a lease brings, and leases that a silo refuses."""

import asyncio
from collections.abc import AsyncIterator

from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium

from support.scripted_lease import Event, Stage, follow
from support.silos import give_tokens, open_ledger, written

TRIES = 3


async def asking(stage: Stage, number: int = 1) -> AsyncIterator[Event]:
    """A round is opened, and that is all."""
    for event in stage.opened(number)[1]:
        yield event


def refused(
    made: Consortium, config: SiloConfig, events: list[Event], *, kind: bool = True
) -> None:
    """These events end the lease as refused; nothing is charged, nothing is sent."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for event in events:
            yield event
        await asyncio.Event().wait()

    ledger = open_ledger(config)
    give_tokens(ledger, made.study)
    ledger.close()
    before = written(config)
    followed = follow(made, config, script, kind=kind)
    assert followed.outcome == (Ending.REFUSED, 0)
    assert followed.mix.left_over() == []
    assert written(config) == before
