"""A coordinator with a played Flower, played mixes and plain silos, through a whole study."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
from silomix_lab.consortium.create import Consortium
from silomix_protocol.rounds.tokens import Token
from silomix_server.config import load
from silomix_server.rounds.coordinator import run_study
from silomix_server.study.results import progress

from support.coordinators import FakeChain, PlainSilo
from support.mixes import run

ROUNDS = 4
FAILED = grpc.StatusCode.FAILED_PRECONDITION


@dataclass
class FakeGrid:
    """Flower as the coordinator sees it: nodes that are online, and leases that reach them."""

    silos: list[PlainSilo]
    loop: asyncio.AbstractEventLoop
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def get_nodes(self) -> list[SimpleNamespace]:
        names = [silo.name for silo in self.silos]
        return [SimpleNamespace(name=name, node_id=at) for at, name in enumerate(names, start=1)]

    def push_messages(self, messages: list[Any]) -> list[str]:
        for message in messages:
            lease = str(message.content["lease"]["lease"])
            silo = self.silos[message.metadata.dst_node_id - 1]
            self.loop.call_soon_threadsafe(self._start, silo, lease)
        return [str(at) for at in range(len(messages))]

    def pull_messages(self, _ids: list[str]) -> list[Any]:
        return []

    def _start(self, silo: PlainSilo, lease: str) -> None:
        self.tasks.append(self.loop.create_task(silo.follow(lease)))


@dataclass
class Scene:
    """What a test may change before the study starts."""

    made: Consortium
    chain: FakeChain
    silos: list[PlainSilo]
    running: "asyncio.Task[None] | None" = None

    def stop(self) -> None:
        """End the coordinator, as a signal does."""
        assert self.running is not None
        self.running.cancel()

    def opened(self) -> list[tuple[int, int]]:
        """Rounds and attempts that the first mix opened, in order."""
        return [(each.round, each.attempt) for each in self.chain.mixes[0].told.opened]


@dataclass
class Outlives:
    """What is still there when a coordinator is gone: the silos' tokens, and the mixes."""

    chain: FakeChain
    wallets: dict[str, dict[int, Token]] = field(default_factory=dict)


def study(
    made: Consortium,
    change: Callable[[Scene], None] = lambda _: None,
    earlier: Outlives | None = None,
) -> Scene:
    """Run the study to its end, or to its failure, which is raised."""
    others = earlier or Outlives(FakeChain(made))

    async def scenario() -> Scene:
        silos = [
            PlainSilo(
                made, silo.name, 1 + at, others.chain, others.wallets.setdefault(silo.name, {})
            )
            for at, silo in enumerate(made.study.silos)
        ]
        scene = Scene(made, others.chain, silos)
        change(scene)
        grid = FakeGrid(silos, asyncio.get_running_loop())
        async with others.chain.serving():
            study_run = run_study(load(made.server), grid)  # type: ignore[arg-type]
            scene.running = asyncio.create_task(study_run)
            try:
                await scene.running
            finally:
                for task in grid.tasks:
                    task.cancel()
                    with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                        await task
        return scene

    return run(scenario(), timeout_s=60.0)


def lines(made: Consortium) -> list[dict[str, float]]:
    return progress(made.server.parent / "state")


def voids(made: Consortium) -> list[bool]:
    return [bool(line["void"]) for line in lines(made)]


def once(answer: Any, times: int = 1) -> Callable[[Any], Any]:
    """A fault that happens that often."""
    left = [answer] * times
    return lambda honest: left.pop() if left else honest
