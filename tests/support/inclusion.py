"""Rounds that a silo answered, and lists with its report and without it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from silomix_client.config.silo_config import SiloConfig
from silomix_client.rounds.lease import Ending
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.rounds.descriptor import Descriptor

from support.scripted_lease import (
    ENDED,
    Event,
    Followed,
    Script,
    Stage,
    follow,
    gated_digest,
    round_with,
)

OTHERS = [bytes(32), b"\1" * 32]


def there(gated: bytes) -> list[bytes]:
    return [OTHERS[0], gated, OTHERS[1]]


def dropped(gated: bytes) -> list[bytes]:
    return list(OTHERS)


@dataclass
class Seen:
    """What a script saw of a round."""

    descriptor: list[Descriptor] = field(default_factory=list)
    onions: list[bytes] = field(default_factory=list)
    frames: list[channel_pb2.SiloFrame] = field(default_factory=list)


async def answered(stage: Stage, seen: Seen, number: int = 1) -> AsyncIterator[Event]:
    """A round is opened, and its report awaited."""
    descriptor, events = stage.opened(number)
    seen.descriptor.append(descriptor)
    for event in events:
        yield event
    seen.onions.append(await stage.mix.onions.get())


def gated_of(made: Consortium, seen: Seen) -> bytes:
    return gated_digest(made, seen.onions[-1], seen.descriptor[-1])


def said_nothing(followed: Followed) -> bool:
    return all(stage.frames.empty() for stage in followed.coordinator.stages)


def refused_list(
    made: Consortium, config: SiloConfig, committed: Callable[[Stage, Seen], Event]
) -> None:
    """This list ends the lease, and nothing is said to it."""
    seen = Seen()

    async def script(stage: Stage) -> AsyncIterator[Event]:
        async for event in answered(stage, seen):
            yield event
        yield committed(stage, seen)
        await asyncio.Event().wait()

    followed = follow(made, config, script)
    assert followed.outcome == (Ending.REFUSED, 1)
    assert said_nothing(followed)


def lists_of(*published: Callable[[bytes], list[bytes]], first: int = 1) -> Script:
    """A lease whose rounds close with these lists, made from the silo's own digest."""

    async def script(stage: Stage) -> AsyncIterator[Event]:
        for number, make in enumerate(published, start=first):
            async for event in round_with(stage, number, make):
                yield event
        yield ENDED

    return script
