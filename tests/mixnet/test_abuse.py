"""Under attack: while somebody does its worst, the honest silos' round completes.

The mix is a real process.  Attackers hold enrolled certificates (silos, a coordinator, the mix
before), or none.  For each: an honest round runs from beginning to end meanwhile, the attacker is
refused for the reason that the counters state, and the process's resident memory grows by less
than `GROWTH_MB` from the start of the module to the end of the test: generous next to the 20 MB
that honest work takes, little next to what the attackers send.
"""

import asyncio
import os
import socket
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import tomli_w
from mixnet.real_mix import HostileRound, RealMix, feed, hostile_round, prepared, real_mix, refusal
from silomix_core.study.reader import parse_study
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.round_keys import LONGEST_STRETCH
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    PlayedRound,
    calling,
    collect,
    described,
    invented_keys,
    open_at,
    opened_round,
    run,
    sealed_reports,
    silo_stream,
    submission,
    submit_all,
)

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
HONEST = ("silo-1", "silo-2", "silo-3", "silo-4")
ATTACKERS = ("silo-5", "silo-6")
CUT_OFF = grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INVALID_ARGUMENT
DEADLINE_S = 3.0  # how long a round may wait for attackers that are asked too
HONEST_ROUND_S = 8.0  # it takes 0.1 s on an idle machine, and a deadline if it waits for them
REPORT_S = 1.0
GROWTH_MB = 80.0
IDLE_CONNECTIONS = 400
HANDSHAKE_S = 10.0  # the server's patience with a connection that does not prove who it is


Attack = Callable[[asyncio.Event], Coroutine[Any, Any, None]]  # until the event is set


@dataclass(frozen=True, slots=True)
class Scene:
    """The mix, its memory before any attack, connections that never say a word, round numbers."""

    mix: RealMix
    memory_mb: float
    idle: list[socket.socket]
    since: float
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def made(self) -> Consortium:
        return self.mix.made

    def assert_memory(self) -> None:
        grown = self.mix.memory_mb - self.memory_mb
        assert grown < GROWTH_MB, f"{grown:.0f} MB more than at the start"


def make(folder: Path, mixes: int, deadline_s: float = DEADLINE_S) -> Consortium:
    return make_consortium(
        folder,
        records=(40,) * (len(HONEST) + len(ATTACKERS)),
        mixes=mixes,
        rounds=200,
        minimum_batch=3,
        deadline_s=deadline_s,
    )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A mix that is first and last; for the whole module hundreds of connections hang on it."""
    made = make(tmp_path_factory.mktemp("abuse") / "c", 1)
    with ExitStack() as stack:
        mix = stack.enter_context(real_mix(made, open_rounds=4, report_s=REPORT_S))
        run(honest_round(made, 1))
        memory_mb = mix.memory_mb
        host, _, port = made.study.mixes[0].address.rpartition(":")
        since = time.monotonic()
        idle = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            for _ in range(IDLE_CONNECTIONS)
        ]
        yield Scene(mix, memory_mb, idle, since, count(2))


async def honest_round(
    made: Consortium, number: int, played: PlayedRound | None = None
) -> PlayedRound:
    """A round of the honest silos from key to batch, on new connections, in time."""
    async with asyncio.timeout(HONEST_ROUND_S):
        played = played or await opened_round(made, number)
        reports = {silo: onion for silo, onion in sealed_reports(played).items() if silo in HONEST}
        receipts = await submit_all(played, reports)
        assert [receipt.status for receipt in receipts] == [ACCEPTED] * len(HONEST)
        batch = await collect(played)
    assert len(batch.reports) >= len(HONEST)
    return played


@asynccontextmanager
async def meanwhile(*attacks: Attack) -> AsyncIterator[None]:
    """These run until the body is done; an attack that fails fails the test."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(attack(stop)) for attack in attacks]
    try:
        await asyncio.sleep(0.1)  # they are under way
        yield
    finally:
        stop.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [each for each in results if isinstance(each, BaseException)]
    assert not failed, failed


# Silos --------------------------------------------------------------------------------------------


def test_dribbling_streams_of_every_silo_block_nobody(scene: Scene) -> None:
    """Each silo's second stream sends a byte now and then, and is cut after `report_s`."""

    async def main() -> None:
        number = next(scene.numbers)
        played = await opened_round(scene.made, number)
        whole = sealed_reports(played)[HONEST[0]].sealed

        async def dribble(silo: str) -> None:
            pieces = submission(scene.made, silo, played.descriptor, whole, chunk_bytes=1)
            async with calling(scene.made, silo, "mix-1") as stub:
                call = stub.Submit(timeout=RPC_S, wait_for_ready=True)
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    for piece in pieces:
                        await call.write(piece)
                        await asyncio.sleep(0.02)
                assert await call.code() in CUT_OFF

        slow = [asyncio.create_task(dribble(silo)) for silo in (*HONEST, *ATTACKERS)]
        await asyncio.sleep(0.2)
        await honest_round(scene.made, number, played)
        await asyncio.gather(*slow)

    before = scene.mix.refused("too_slow")
    run(main())
    assert scene.mix.refused("too_slow") == before + len(HONEST) + len(ATTACKERS)
    scene.assert_memory()


def flood(made: Consortium, silo: str, some: Callable[[], list[mix_pb2.SubmitFrame]]) -> Attack:
    """Streams of these messages, a new one as soon as the last is refused."""

    async def attack(stop: asyncio.Event) -> None:
        async with calling(made, silo, "mix-1") as stub:
            while not stop.is_set():
                call = stub.Submit(timeout=RPC_S, wait_for_ready=True)
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    for frame in some():
                        await call.write(frame)
                    await call.read()

    return attack


def test_a_flood_of_garbage_frames_changes_nothing(scene: Scene) -> None:
    def garbage() -> list[mix_pb2.SubmitFrame]:
        header = mix_pb2.SubmitHeader(digest=os.urandom(32), bytes=10, signature=b"x" * 64)
        return [mix_pb2.SubmitFrame(header=header, chunk=b"x")]

    async def main() -> None:
        async with meanwhile(*(flood(scene.made, silo, garbage) for silo in ATTACKERS * 2)):
            for _ in range(3):
                await honest_round(scene.made, next(scene.numbers))

    before = scene.mix.refused("wrong_round")
    run(main())
    assert scene.mix.refused("wrong_round") > before + 10
    scene.assert_memory()


def test_oversized_reports_are_cut_and_change_nothing(scene: Scene) -> None:
    async def main() -> None:
        number = next(scene.numbers)
        played = await opened_round(scene.made, number)
        whole = sealed_reports(played)[HONEST[0]].sealed

        def oversized() -> list[mix_pb2.SubmitFrame]:
            (frame,) = submission(scene.made, ATTACKERS[0], played.descriptor, whole)
            frame.chunk = bytes(2**20)
            return [frame]

        async with meanwhile(*(flood(scene.made, silo, oversized) for silo in ATTACKERS)):
            await honest_round(scene.made, number, played)
            await honest_round(scene.made, next(scene.numbers))

    before = scene.mix.refused("wrong_length")
    run(main())
    assert scene.mix.refused("wrong_length") > before + 5
    scene.assert_memory()


def test_a_stream_with_too_many_refusals_is_cut(scene: Scene) -> None:
    """A silo of the round that sends one report and then others in its place, on and on."""

    async def main() -> None:
        number, attacker = next(scene.numbers), ATTACKERS[0]
        played = await opened_round(scene.made, number)
        real = sealed_reports(played)[attacker].sealed
        statuses = []
        async with calling(scene.made, attacker, "mix-1") as stub:
            call = stub.Submit(timeout=RPC_S, wait_for_ready=True)
            try:
                for _ in range(100):
                    for frame in submission(scene.made, attacker, played.descriptor, real):
                        await call.write(frame)
                    receipt = await call.read()
                    assert isinstance(receipt, mix_pb2.Receipt)
                    statuses.append(receipt.status)
                    real = os.urandom(len(real))
            except grpc.aio.AioRpcError:
                pass
            assert await call.code() in (EXHAUSTED, *CUT_OFF)
        assert statuses[0] == ACCEPTED
        assert set(statuses[1:]) == {REFUSED}
        assert len(statuses) < 30
        await honest_round(scene.made, number, played)

    before, cut = scene.mix.refused("replayed_report"), scene.mix.refused("too_much")
    run(main())
    assert scene.mix.refused("replayed_report") > before + 10
    assert scene.mix.refused("too_much") == cut + 1
    scene.assert_memory()


def test_the_same_report_on_and_on_is_answered_and_holds_nobody_up(scene: Scene) -> None:
    async def main() -> None:
        number, attacker = next(scene.numbers), ATTACKERS[0]
        played = await opened_round(scene.made, number)
        sealed = sealed_reports(played)[attacker].sealed
        receipts = set()

        async def again(stop: asyncio.Event) -> None:
            async with silo_stream(scene.made, attacker) as stream:
                while not stop.is_set():
                    message = submission(scene.made, attacker, played.descriptor, sealed)
                    receipts.add((await stream.send(message)).SerializeToString())

        async with meanwhile(again):
            await honest_round(scene.made, number, played)
        assert len(receipts) == 1

    run(main())
    scene.assert_memory()


def test_a_silo_has_two_streams_and_no_more(scene: Scene) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(silo_stream(scene.made, ATTACKERS[0]))
            for _ in range(20):
                async with calling(scene.made, ATTACKERS[0], "mix-1") as stub:
                    call = stub.Submit(timeout=RPC_S, wait_for_ready=True)
                    assert (await refusal(call.read()))[0] is EXHAUSTED
            await honest_round(scene.made, next(scene.numbers))

    before = scene.mix.refused("too_much")
    run(main())
    assert scene.mix.refused("too_much") == before + 20


# A coordinator ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_studies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealMix, Consortium]]:
    """A mix that serves two studies; the coordinator of the second one has gone bad."""
    made = make(tmp_path_factory.mktemp("studies") / "c", 1)
    text = (made.folder / "study.toml").read_text(encoding="utf-8")
    other = text.replace('name = "test"', 'name = "other"', 1)
    assert other != text
    (made.folder / "other.toml").write_text(other, encoding="utf-8")
    tree = tomllib.loads(made.mixes[0].read_text(encoding="utf-8"))
    tree["studies"] = ["../study.toml", "../other.toml"]
    made.mixes[0].write_text(tomli_w.dumps(tree), encoding="utf-8")
    with real_mix(made, open_rounds=4) as mix:
        yield mix, replace(made, study=parse_study(other.encode()))


def test_a_coordinator_opens_its_share_of_rounds_and_no_more(
    two_studies: tuple[RealMix, Consortium],
) -> None:
    mix, bad = two_studies

    async def main() -> None:
        for number in range(1, 5):
            await opened_round(bad, number)
        for number in range(5, 15):
            assert (await refusal(opened_round(bad, number)))[0] is EXHAUSTED
        await honest_round(mix.made, 1)

    run(main())
    assert mix.refused("too_much") == 10


def test_a_coordinator_that_prepares_without_end_gets_the_same_keys(
    two_studies: tuple[RealMix, Consortium],
) -> None:
    """Keys are made once for a round and attempt: the database grows to rounds × 8 and stops."""
    mix, bad = two_studies

    async def prepare(stop: asyncio.Event) -> None:
        known: dict[int, mix_pb2.PreparedRounds] = {}
        async with calling(bad, "server", "mix-1") as stub:
            while not stop.is_set():
                for attempt in (2, 3):
                    request = mix_pb2.PrepareRequest(
                        study=bad.study.identity,
                        attempt=attempt,
                        first_round=100,
                        rounds=LONGEST_STRETCH,
                    )
                    answer = await stub.Prepare(request, timeout=RPC_S, wait_for_ready=True)
                    assert known.setdefault(attempt, answer) == answer

    async def main() -> None:
        async with meanwhile(prepare):
            for number in range(2, 5):
                await honest_round(mix.made, number)
        refused = (
            prepared(bad, 0, 1, rounds=LONGEST_STRETCH + 1),
            prepared(bad, 0, 1, attempt=9),
            prepared(bad, 0, 200, rounds=2),
            prepared(bad, 0, 0),
        )
        for call in refused:
            assert (await refusal(call))[0] in (EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION)

    run(main())
    assert (mix.state / "mix.sqlite").stat().st_size < 5e6


def test_a_coordinator_that_opens_what_is_refused_leaves_nothing_behind(
    two_studies: tuple[RealMix, Consortium],
) -> None:
    mix, bad = two_studies

    async def main() -> None:
        for number in range(20, 60):
            played = described(bad, invented_keys(bad), number)
            await refusal(open_at(bad, played.descriptor, "mix-1"))
        await honest_round(mix.made, 5)

    before = len(list((mix.state / "batches").iterdir()))
    run(main())
    assert len(list((mix.state / "batches").iterdir())) <= before + 1


# The mix before -----------------------------------------------------------------------------------


def test_an_endless_batch_is_cut_and_other_rounds_go_on(tmp_path: Path) -> None:
    """Endless in bytes: refused with the first report too many.  Endless in time: refused after
    `report_s` for every silo of the round.  The rounds beside it pass."""
    made = make(tmp_path / "c", 2, deadline_s=20.0)

    async def batch(round_: HostileRound) -> list[mix_pb2.BatchFrame]:
        onions = [round_.onion(silo.encode()).sealed for silo in round_.played.descriptor.silos]
        chain, reports = round_.before(onions)
        return list(frames(round_.played.descriptor.digest, chain, reports))

    async def endless(header: mix_pb2.BatchFrame, chunk: bytes, pause_s: float) -> None:
        async with calling(made, "mix-1", "mix-2") as stub:
            call = stub.Forward(timeout=RPC_S, wait_for_ready=True)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(header)
                while not call.done():
                    await call.write(mix_pb2.BatchFrame(chunk=chunk))
                    await asyncio.sleep(pause_s)
            assert await call.code() in CUT_OFF

    async def main() -> None:
        stuck = await hostile_round(made, 1, 1)
        header, body = await batch(stuck)
        slow = asyncio.create_task(endless(header, b"x", 0.05))
        for number in (2, 3):
            beside = await hostile_round(made, 1, number)
            onions = [beside.onion(silo.encode()).sealed for silo in HONEST]
            async with asyncio.timeout(HONEST_ROUND_S):
                await feed(beside, *beside.before(onions))
                assert len((await collect(beside.played)).reports) == len(HONEST)
        loud = await hostile_round(made, 1, 4)
        first, _ = await batch(loud)
        for _ in range(20):
            await endless(first, bytes(2**20), 0.0)
        await slow
        async with calling(made, "mix-1", "mix-2") as stub:
            await stub.Forward(iter([header, body]), timeout=RPC_S, wait_for_ready=True)
        whole = len(stuck.played.descriptor.silos)
        assert len((await collect(stuck.played)).reports) == whole, "it may still be honest"

    with real_mix(made, 1, report_s=REPORT_S) as mix:
        memory_mb = mix.memory_mb
        run(main())
        assert mix.refused("too_slow") == 1
        assert mix.refused("broken_batch") == 20
        assert mix.memory_mb - memory_mb < GROWTH_MB


# Strangers ----------------------------------------------------------------------------------------


def test_connections_that_never_prove_who_they_are_are_closed(scene: Scene) -> None:
    """They hung on the mix through all the rounds above; by now it has closed them."""

    async def main() -> None:
        await honest_round(scene.made, next(scene.numbers))
        await asyncio.sleep(max(0.0, scene.since + HANDSHAKE_S + 1 - time.monotonic()))
        assert scene.mix.process.poll() is None, "the mix died of handshakes that nobody finished"
        await honest_round(scene.made, next(scene.numbers))

    run(main())
    assert sum(map(closed, scene.idle)) == IDLE_CONNECTIONS
    handles = len(list(Path(f"/proc/{scene.mix.process.pid}/fd").iterdir()))
    assert handles < IDLE_CONNECTIONS / 2
    scene.assert_memory()


def closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True
