"""What a server or a mix can cost a hospital: a real silo process, and everybody else hostile.

Memory, disk and time stay small whatever is sent, and afterwards the silo answers as before.
"""

import asyncio
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from silomix_client.audit_log.verify_log import check_chain
from silomix_client.network.bounded_http import LARGEST_ANSWER, LONGEST_ANSWER_S
from silomix_lab.audit.played_fleet import Receive, Scope, Send, serving
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, mix_pb2
from support.consortia import make_consortium
from support.hostile import (
    Event,
    HostileServer,
    ListeningFleet,
    Script,
    Siege,
    lease_of,
    saying,
    whole_round,
)
from support.played_disk import played_disk
from support.processes import silomix
from support.silos import approved_silo, asked, open_ledger, round_opened, stretch_of

MB = 2**20
LONG = "\U0001f4a3" * 200_000  # 800 kB, as much as a message holds


class BombFleet(ListeningFleet):
    """Answers some requests with what becomes half a gigabyte, if anybody unpacks it."""

    def __init__(self, bombs: int) -> None:
        super().__init__()
        self.left, self.accepted = bombs, set[bytes]()
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        parts = [packer.compress(bytes(MB)) for _ in range(512)]
        self._bomb = b"".join([*parts, packer.flush()])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.accepted |= {value for key, value in scope["headers"] if key == b"accept-encoding"}
        if not self.left or not str(scope.get("path", "")).endswith("pull-messages"):
            await super().__call__(scope, receive, send)
            return
        self.left -= 1
        headers = [(b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._bomb})


class EndlessFleet(ListeningFleet):
    """Answers some requests with parts that follow each other for ever, none of it compressed."""

    def __init__(self, answers: int, part: bytes, pause_s: float) -> None:
        super().__init__()
        self.left, self._part, self._pause_s = answers, part, pause_s
        self.ended: asyncio.Queue[tuple[int, float]] = asyncio.Queue()  # bytes and seconds of each

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.left or not str(scope.get("path", "")).endswith("pull-messages"):
            await super().__call__(scope, receive, send)
            return
        self.left -= 1
        sent, began = 0, time.monotonic()
        hung_up = asyncio.create_task(_hung_up(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not hung_up.done():
            await send({"type": "http.response.body", "body": self._part, "more_body": True})
            sent += len(self._part)
            await asyncio.sleep(self._pause_s)
        self.ended.put_nowait((sent, time.monotonic() - began))


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class RefusingMix(HostileServer):
    """A first mix that refuses every report, each time in other words, and many."""

    def _receive(self, silo: str, header: mix_pb2.SubmitHeader, onion: bytes) -> mix_pb2.Receipt:
        self.onions.append(onion)
        self.arrivals.put_nowait(onion)
        reason = f"{len(self.onions)} {LONG}"
        refused = mix_pb2.Receipt.REFUSED
        return mix_pb2.Receipt(digest=header.digest, status=refused, reason=reason)


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    made = make_consortium(tmp_path / "c", minimum_batch=1)
    approved_silo(made)
    return made


@asynccontextmanager
async def besieged(
    made: Consortium, fleet: ListeningFleet | None = None, server: HostileServer | None = None
) -> AsyncIterator[Siege]:
    fleet, server = fleet or ListeningFleet(), server or HostileServer(made)
    address = made.study.server.fleet_address
    async with serving(fleet, address, made.server.parent), server.serving():
        siege = Siege(made, fleet, server)
        try:
            await siege.start()
            yield siege
        finally:
            await siege.stop()


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 150.0))


def memory(siege: Siege) -> int:
    """Bytes that the silo's process ever had at once."""
    status = Path(f"/proc/{siege._child.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def written(siege: Siege) -> int:
    """Bytes of all that the silo has on disk, and of its log."""
    files = [each for each in siege.config.state.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in [*files, siege.log])


async def answers(siege: Siege, number: int) -> None:
    """An honest round is answered as if nothing had been."""
    made = siege.made
    outcome = await siege.lease(lease_of(made), whole_round(made, asked(made, number)))
    assert outcome.reply["ending"] == "done", outcome.log
    assert outcome.reply["answered"] == "1"


def test_a_compressed_answer_is_not_unpacked(made: Consortium) -> None:
    fleet = BombFleet(bombs=3)

    async def scene() -> None:
        async with besieged(made, fleet) as siege:
            for _ in range(3):  # each makes it leave and join again
                siege._node = await asyncio.wait_for(fleet.expect(), 60.0)
            assert fleet.left == 0
            assert memory(siege) < 600 * MB
            assert "a compressed answer" in siege.log.read_text()
            await answers(siege, 1)
            assert fleet.accepted == {b"identity"}

    run(scene())


def test_an_answer_without_end_is_hung_up_on_and_takes_no_memory(made: Consortium) -> None:
    """What is under way when the silo hangs up fills the buffers of a connection, no more."""
    fleet = EndlessFleet(3, bytes(64 * 1024), pause_s=0.0)

    async def scene() -> None:
        async with besieged(made, fleet) as siege:
            before = memory(siege)
            for _ in range(3):
                siege._node = await asyncio.wait_for(fleet.expect(), 60.0)
                sent, lasted_s = await asyncio.wait_for(fleet.ended.get(), LONGEST_ANSWER_S)
                assert sent < 16 * MB
                assert lasted_s < LONGEST_ANSWER_S  # it is for its size
            assert f"an answer of more than {LARGEST_ANSWER} bytes" in siege.log.read_text()
            assert memory(siege) - before < 50 * MB
            await answers(siege, 1)

    run(scene())


def test_an_answer_that_drips_is_hung_up_on_at_its_deadline(made: Consortium) -> None:
    fleet = EndlessFleet(1, b"x", pause_s=0.2)

    async def scene() -> None:
        async with besieged(made, fleet) as siege:
            before = memory(siege)
            siege._node = await asyncio.wait_for(fleet.expect(), LONGEST_ANSWER_S + 60.0)
            _, lasted_s = await asyncio.wait_for(fleet.ended.get(), LONGEST_ANSWER_S)
            assert LONGEST_ANSWER_S - 1 < lasted_s < 2 * LONGEST_ANSWER_S
            assert 'reason="no answer in time"' in siege.log.read_text()
            assert memory(siege) - before < 50 * MB
            await answers(siege, 1)

    run(scene())


def test_a_round_that_is_asked_for_ever_and_a_mix_that_refuses_at_length_fill_no_disk(
    made: Consortium,
) -> None:
    server, question = RefusingMix(made), asked(made, 1)

    async def again(_server: HostileServer) -> AsyncIterator[Event]:
        for _ in range(50):
            opened = round_opened(made, question.descriptor.to_wire(), question.query)
            yield Event(opened=opened)
            yield Event(query_chunk=question.query)

    async def scene() -> None:
        async with besieged(made, server=server) as siege:
            before = written(siege)
            first = await siege.lease(lease_of(made), again)
            assert (first.reply["ending"], len(first.onions)) == ("refused", 16), first.log
            for _ in range(3):
                more = await siege.lease(lease_of(made), again)
                assert (more.reply["ending"], more.onions) == ("refused", [])
            assert "without another attempt" in more.log
            assert written(siege) - before < 200_000
            assert max(map(len, siege.log.read_text().splitlines())) < 1500
            ledger = open_ledger(siege.config)
            assert ledger.total().rounds == 1
            ledger.close()

    run(scene())


def test_leases_that_come_to_nothing_are_taken_one_in_six_seconds_after_a_while(
    made: Consortium,
) -> None:
    async def scene() -> None:
        async with besieged(made) as siege:
            before, leases, began = written(siege), 0, time.monotonic()
            while b"leases_come_to_nothing" not in siege.log.read_bytes():
                await siege.lease(lease_of(made, study=secrets.token_hex(32)), saying())
                leases += 1
            rested = (time.monotonic() - began) / 6.0
            assert 59 <= leases <= 62 + rested
            began = time.monotonic()
            for _ in range(2):
                await siege.lease(lease_of(made, study=secrets.token_hex(32)), saying())
            assert time.monotonic() - began > 5.0
            assert written(siege) - before < 1000 * leases
            check_chain(siege.config.state)
            await answers(siege, 1)

    run(scene())


def test_stretches_and_events_without_end_take_no_memory(made: Consortium) -> None:
    async def stretches(server: HostileServer) -> AsyncIterator[Event]:
        for _ in range(3000):
            yield Event(stretch=stretch_of(made))

    lists = channel_pb2.StretchOpened(first_round=1)
    lists.lists.extend([lists.lists.add()] * 100_000)
    crowded = Event(closed=channel_pb2.RoundClosed(), more=[Event()] * 100_000)

    async def scene() -> None:
        async with besieged(made) as siege:
            before = memory(siege)
            for script in (stretches, saying(Event(stretch=lists)), saying(crowded)):
                outcome = await siege.lease(lease_of(made), script)
                assert outcome.reply["ending"] == "refused", outcome.log
            assert memory(siege) - before < 100 * MB
            await answers(siege, 1)

    run(scene())


def test_a_server_that_only_talks_is_not_listened_to_for_long(made: Consortium) -> None:
    """Each of these costs signatures, lists or megabytes; a lease may last a week."""
    stretch = Event(stretch=stretch_of(made))
    over = Event(closed=channel_pb2.RoundClosed(digest=bytes(32)), more=[Event(echo=b"x")] * 255)

    def endless(event: Event) -> Script:
        async def script(_server: HostileServer) -> AsyncIterator[Event]:
            for _ in range(20_000):
                yield event

        return script

    async def scene() -> None:
        async with besieged(made) as siege:
            for event in (over, Event(echo=bytes(MB)), stretch):
                outcome = await siege.lease(lease_of(made, deadline_s="86400"), endless(event))
                assert outcome.reply["ending"] == "refused", outcome.log
                assert "talks more than its rounds need" in outcome.log or event is stretch
                assert outcome.frames == 0

    run(scene())


def test_on_a_disk_that_is_almost_full_nothing_is_answered_and_nothing_charged(
    made: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = played_disk(tmp_path, monkeypatch)

    async def scene() -> None:
        async with besieged(made) as siege:
            (rows, _), _ = siege.on_disk()
            outcome = await siege.lease(lease_of(made), whole_round(made, asked(made, 1)))
            assert (outcome.reply["ending"], outcome.frames) == ("refused", 0), outcome.log
            assert "only 30 MB are free in" in outcome.log
            assert siege.on_disk()[0][0] == rows
            told = await asyncio.to_thread(
                silomix, "silo", "doctor", str(made.silos[0]), cwd=made.folder
            )
            assert told.returncode == 1
            assert "below, no round is answered" in told.stdout
            free.write_text("300000000")
            await answers(siege, 1)

    run(scene())
