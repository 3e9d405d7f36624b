"""Mixes that die: killed in every state, and before and after every step that they write down.

Nothing acknowledged is lost, nothing goes out twice in two ways, every word given stands.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, mix_pb2_grpc
from silomix_protocol.rounds.onion import Onion
from silomix_protocol.rounds.statements import check_receipt
from silomix_shuffler.batch import State
from silomix_shuffler.config import Limits, load
from silomix_shuffler.metrics import Metrics
from silomix_shuffler.round.rounds import MixRounds
from silomix_shuffler.service import MixService
from silomix_shuffler.storage.store import Store
from silomix_shuffler.storage.writing_thread import WritingThread
from support.consortia import make_consortium
from support.mixes import (
    PATIENT_S,
    MixProcess,
    PlayedRound,
    abandon,
    collect,
    commit_at,
    confirmations,
    described,
    identity,
    invented_keys,
    mix_played,
    mix_process,
    mix_serving,
    open_at,
    opened_payloads,
    opened_round,
    prepared_at,
    refusal,
    release_at,
    run,
    sealed_reports,
    signer,
    state_of,
    submission,
    submit,
    submit_all,
    void_at,
)

pytestmark = pytest.mark.slow

ACCEPTED = mix_pb2.Receipt.ACCEPTED
OVER = grpc.StatusCode.FAILED_PRECONDITION
Result = TypeVar("Result")


def digests(reports: tuple[bytes, ...]) -> list[bytes]:
    return sorted(sha256(report).digest() for report in reports)


def left_of(reports: dict[str, Onion]) -> list[bytes]:
    """Digests of what must come out of the last mix."""
    return sorted(onion.trail[-1] for onion in reports.values())


# Killed in every state ----------------------------------------------------------------------------


class Chain:
    """One mix as a process that is killed again and again, the others served by the test."""

    def __init__(self, made: Consortium, index: int, stack: AsyncExitStack) -> None:
        self.made, self.index, self._stack = made, index, stack
        self._process = AsyncExitStack()
        self._others: dict[int, AsyncExitStack] = {}
        self.mix: MixProcess | None = None

    @property
    def mixes(self) -> list[str]:
        return [mix.name for mix in self.made.study.mixes]

    @property
    def last(self) -> bool:
        return self.index == len(self.mixes) - 1

    async def start(self) -> None:
        """The process, and every other mix."""
        await self._restart()
        self._stack.push_async_callback(self._stop)
        for other in range(len(self.mixes)):
            if other != self.index:
                await self.serve(other)

    async def serve(self, other: int) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(mix_serving(self.made, other))
        self._others[other] = stack

    async def stop(self, other: int) -> None:
        await self._others.pop(other).aclose()

    async def kill(self, state: str) -> None:
        """SIGKILL in this state, and a new process that finds the round in it."""
        assert self.mix is not None
        await self.mix.kill()
        await self._restart()
        found = f"round_restored round=1 state={state}"
        assert any(found in line for line in self.mix.log), (found, self.mix.log)

    async def logged(self, event: str) -> None:
        assert self.mix is not None
        while not any(event in line for line in self.mix.log):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def on_disk(self, state: str) -> None:
        path = load(self.made.mixes[self.index]).state / "mix.sqlite"
        with closing(sqlite3.connect(path)) as database:
            while database.execute("SELECT state FROM rounds").fetchone() != (state,):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _restart(self) -> None:
        await self._process.aclose()
        config = self.made.mixes[self.index]
        self.mix = await self._process.enter_async_context(mix_process(config))

    async def _stop(self) -> None:
        await self._process.aclose()
        for stack in self._others.values():
            await stack.aclose()


@pytest.mark.parametrize("index", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_mix_killed_in_every_state_goes_on_with_the_same_bytes(
    tmp_path: Path, index: int
) -> None:
    made = make_consortium(tmp_path / "c", mixes=3, minimum_batch=2, deadline_s=60.0)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            chain = Chain(made, index, stack)
            await chain.start()
            played = await opened_round(made)
            if not chain.last:
                await chain.stop(index + 1)
            reports = sealed_reports(played)
            early = {silo: reports[silo] for silo in ("silo-1", "silo-2")} if index == 0 else {}
            receipts = await submit_all(played, early)
            await chain.kill("open")

            assert await submit_all(played, early) == receipts
            receipts = await submit_all(played, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            await chain.logged("batch_sealed round=1 received=3 forwarded=3 dropped=0")
            await chain.kill("sealed")

            await leaves_once(chain, played)
            collected = await collect(played)
            assert digests(collected.reports) == left_of(reports)
            joined = collected.chain[-1].output
            words = [await commit_at(played, mix, joined) for mix in chain.mixes]
            await chain.kill("forwarded")

            assert await submit_all(played, reports) == receipts
            assert await collect(played) == collected
            assert await refusal(abandon(made, played.descriptor, chain.mixes[index])) is OVER
            assert [await commit_at(played, mix, joined) for mix in chain.mixes] == words
            assert len(await opened_payloads(played, collected)) == 3
            key = await released(played, chain.mixes[index], joined)
            await chain.on_disk("released")  # the key does not wait for it
            await chain.kill("released")

            other = refusal(commit_at(played, chain.mixes[index], b"another list"))
            assert await other is OVER
            assert await refusal(void_at(made, played.descriptor, chain.mixes[index])) is OVER
            assert await released(played, chain.mixes[index], joined) == key
            if index == 0:
                assert await submit_all(played, reports) == receipts
            assert await refusal(abandon(made, played.descriptor, chain.mixes[index])) is OVER

    run(scene(), timeout_s=60.0)


@pytest.mark.parametrize("index", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_mix_killed_once_its_key_is_destroyed_says_the_same_and_never_gives_it(
    tmp_path: Path, index: int
) -> None:
    made = make_consortium(tmp_path / "c", mixes=3, minimum_batch=2, deadline_s=60.0)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            chain = Chain(made, index, stack)
            await chain.start()
            played = await opened_round(made)
            await submit_all(played, sealed_reports(played))
            joined = (await collect(played)).chain[-1].output
            mix = chain.mixes[index]
            voiding = asyncio.create_task(void_at(made, played.descriptor, mix))
            await chain.on_disk("voided")
            await chain.kill("voided")
            (said,) = await asyncio.gather(voiding, return_exceptions=True)

            again = await void_at(made, played.descriptor, mix)
            assert again.HasField("voided")
            assert isinstance(said, grpc.aio.AioRpcError) or said == again
            assert await refusal(commit_at(played, mix, joined)) is OVER
            assert await refusal(released(played, mix, joined)) is OVER
            assert await refusal(abandon(made, played.descriptor, mix)) is OVER

    run(scene(), timeout_s=60.0)


async def released(played: PlayedRound, mix: str, joined: bytes) -> bytes:
    return (await release_at(played, mix, joined, confirmations(played, joined))).raw


async def leaves_once(chain: Chain, played: PlayedRound) -> None:
    """The next one gets the very same bytes before and after a kill; the last says that it got
    them."""
    if chain.last:
        first = await collect(played)
        await chain.kill("forwarded")
        assert await collect(played) == first
        return
    async with mix_played(chain.made, chain.index + 1, answers=False) as deaf:
        first_batch = await deaf.next_batch()
        await chain.kill("forwarded")
        assert await deaf.next_batch() == first_batch
        assert len(deaf.batches) == 2
    await chain.serve(chain.index + 1)


@pytest.mark.parametrize("index", [0, 1, 2], ids=["first", "middle", "last"])
def test_an_abandoned_round_stays_abandoned_when_the_mix_is_killed(
    tmp_path: Path, index: int
) -> None:
    made = make_consortium(tmp_path / "c", mixes=3, minimum_batch=2, deadline_s=60.0)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            chain = Chain(made, index, stack)
            await chain.start()
            played = await opened_round(made)
            reports = sealed_reports(played)
            await submit_all(played, {"silo-1": reports["silo-1"]})
            said = [await abandon(made, played.descriptor, mix) for mix in chain.mixes]
            await chain.kill("aborted")

            assert [await abandon(made, played.descriptor, mix) for mix in chain.mixes] == said
            mix = chain.mixes[index]
            assert await refusal(open_at(made, played.descriptor, mix)) is OVER
            assert list((state_of(made, index) / "batches").iterdir()) == []
            second = await opened_round(made, attempt=2)
            again = sealed_reports(second)
            await submit_all(second, again)
            assert digests((await collect(second)).reports) == left_of(again)

    run(scene(), timeout_s=60.0)


def test_why_there_is_no_batch_is_told_after_a_kill_too(tmp_path: Path) -> None:
    """The next mix is down when the first finds two pieces of garbage in three reports."""
    made = make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=60.0)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            chain = Chain(made, 0, stack)
            await chain.start()
            played = await opened_round(made)
            await chain.stop(1)
            await chain.kill("open")
            reports = sealed_reports(played)
            garbage = Onion(bytes(len(reports["silo-1"].sealed)), ())
            other = Onion(garbage.sealed[:-1] + b"x", ())
            await submit_all(played, {**reports, "silo-2": garbage, "silo-3": other})
            await chain.logged("batch_aborted round=1 received=3")
            await chain.kill("aborted")
            await chain.serve(1)
            assert (await collect(played)).aborted == "1 valid reports, 2 needed"

    run(scene(), timeout_s=60.0)


# Dead before and after every step -----------------------------------------------------------------


class MortalDisk(WritingThread):
    """The disk of a process that stops at its n-th step: nothing is heard or written after it."""

    def __init__(self, store: Store, last_step: int, *, taken: bool) -> None:
        super().__init__(store)
        self.dead = asyncio.Event()
        self._left, self._taken = last_step, taken

    async def do(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.dead.is_set():
            self._left -= 1
            dies = self._left == 0
            if not dies or self._taken:
                result = await super().do(step, *args, **kwargs)
                if not dies and not self.dead.is_set():
                    return result
            self.dead.set()
        return await asyncio.Event().wait()

    def bury(self) -> None:
        self.end()
        self.store._database.close()


@asynccontextmanager
async def mortal_mix(made: Consortium, index: int, disk: MortalDisk) -> AsyncIterator[None]:
    """A mix that ends as a killed process does: without a word, a step or a farewell."""
    place = made.study.mixes[index]
    own, key = identity(made, place.name), signer(made, place.name)
    metrics = Metrics()
    rounds = MixRounds(own, (made.study,), key, disk, metrics, Limits(), PATIENT_S)
    restoring = asyncio.create_task(rounds.restore())
    dying = asyncio.create_task(disk.dead.wait())
    async with AsyncExitStack() as stack:
        stack.callback(disk.bury)
        stack.push_async_callback(_end, rounds, restoring, dying)
        await asyncio.wait([restoring, dying], return_when=asyncio.FIRST_COMPLETED)
        if restoring.done():
            server = own.server(place.address)
            mix_pb2_grpc.add_MixServicer_to_server(MixService(rounds, key, metrics), server)
            await server.start()
            stack.push_async_callback(server.stop, None)
        yield


async def _end(rounds: MixRounds, *waiting: asyncio.Task[Any]) -> None:
    for task in waiting:
        task.cancel()
    rounds.retention.stop()
    await rounds._tasks.cancel()
    for current in rounds.rounds:
        current.disarm()
        current.spool.close()
    await rounds.delivery.close()


@asynccontextmanager
async def living(made: Consortium, index: int, disk: MortalDisk) -> AsyncIterator[None]:
    """`dies_and_comes_back` in the background; what goes wrong in it is not hidden."""
    async with asyncio.TaskGroup() as group:
        life = group.create_task(dies_and_comes_back(made, index, disk))
        yield
        life.cancel()


async def dies_and_comes_back(made: Consortium, index: int, disk: MortalDisk) -> None:
    """Serve until the disk is dead, then as a new process until cancelled."""
    async with mortal_mix(made, index, disk):
        await disk.dead.wait()
    async with mix_serving(made, index):
        await asyncio.Event().wait()


async def insist(call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """What the call answers in the end; a mix that goes away meanwhile is asked again."""
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            gone = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            if not gone:
                raise


async def patiently_opened(made: Consortium, served: list[int], number: int = 1) -> PlayedRound:
    """A round that the mixes at these places have opened in the end."""
    keys = list(invented_keys(made))
    for place in served:
        keys[place] = await insist(partial(prepared_at, made, f"mix-{place + 1}", number))
    played = described(made, keys, number)
    for place in served:
        await insist(partial(open_at, made, played.descriptor, f"mix-{place + 1}"))
    return played


async def all_submitted(played: PlayedRound, reports: dict[str, Onion]) -> None:
    """Every silo has a receipt in the end."""
    made, descriptor = played.made, played.descriptor
    for place, (silo, onion) in enumerate(reports.items()):
        frames = submission(made, silo, descriptor, onion.sealed)
        (receipt,) = await insist(partial(submit, made, silo, frames))
        assert receipt.status == ACCEPTED, receipt.reason
        check_receipt(receipt, descriptor.digest, place, receipt.report, made.study)


async def whole_round(made: Consortium) -> None:
    """Keys, opening, reports, batch, word and release, as patient parties go through them."""
    played = await patiently_opened(made, [0, 1])
    reports = sealed_reports(played)
    await all_submitted(played, reports)
    collected = await insist(partial(collect, played))
    assert digests(collected.reports) == left_of(reports), "all of them, each once"
    joined = collected.chain[-1].output
    mixes = [mix.name for mix in made.study.mixes]
    words = [await insist(partial(commit_at, played, mix, joined)) for mix in mixes]
    payloads = await insist(partial(opened_payloads, played, collected))
    assert len(set(payloads)) == 3
    assert [await insist(partial(commit_at, played, mix, joined)) for mix in mixes] == words
    for mix in mixes:
        assert await refusal(abandon(made, played.descriptor, mix)) is OVER


@pytest.mark.parametrize("taken", [False, True], ids=["before the step", "after the step"])
@pytest.mark.parametrize("index", [0, 1], ids=["first", "last"])
def test_a_mix_that_dies_at_any_step_loses_nothing(tmp_path: Path, index: int, taken: bool) -> None:
    async def survives(last_step: int) -> bool:
        """Whether the mix got through the round without dying."""
        made = make_consortium(tmp_path / f"{last_step}", mixes=2, deadline_s=60.0)
        disk = MortalDisk(Store(state_of(made, index)), last_step, taken=taken)
        async with mix_serving(made, 1 - index), living(made, index, disk):
            await whole_round(made)
        return not disk.dead.is_set()

    async def scene() -> int:
        last_step = 1
        while not await survives(last_step):
            last_step += 1
        return last_step - 1

    steps = run(scene(), timeout_s=60.0)
    assert steps >= 8, "it died at every step of a round, not just at a few"


def test_an_attempt_interrupted_at_any_step_of_its_abandoning_is_abandoned(
    tmp_path: Path,
) -> None:
    """Sealed, not forwarded: the next mix is down.  Once said, it is said again, and holds."""

    async def survives(last_step: int, *, taken: bool) -> bool:
        made = make_consortium(tmp_path / f"{last_step}-{taken}", mixes=2, deadline_s=60.0)
        disk = MortalDisk(Store(state_of(made, 0)), last_step, taken=taken)
        async with living(made, 0, disk):
            played = await patiently_opened(made, [0])
            await all_submitted(played, sealed_reports(played))
            said = await insist(partial(abandon, made, played.descriptor, "mix-1"))
            again = await insist(partial(abandon, made, played.descriptor, "mix-1"))
            assert said == again
        with closing(Store(state_of(made, 0))) as store:
            state, reason = store.known(played.descriptor.digest) or (None, "")
            assert state in (State.ABORTED, State.PURGED)
            assert reason == said.reason
            assert list(store.bodies.iterdir()) == []
        return not disk.dead.is_set()

    async def scene() -> None:
        for taken in (False, True):
            last_step = 1
            while not await survives(last_step, taken=taken):
                last_step += 1

    run(scene(), timeout_s=60.0)
