"""Every kind of bad input that a mix may get (docs/protocol.md, what is checked), against a real
mix process: what is refused, with which code, under which counter, and that nothing of it is
stored.  Rows about values inside a report, servers and data files are the coordinator's and the
silo's.
"""

import os
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from mixnet.real_mix import HostileRound, RealMix, hostile_round, prepared, real_mix, refusal
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.certificates.certificates import Authority, dialled_name
from silomix_protocol.connections.version import user_agent
from silomix_protocol.rounds.batches import frames
from silomix_protocol.rounds.statements import check_receipt, input_of
from support.consortia import make_consortium
from support.heights import some_height
from support.mixes import (
    RPC_S,
    PlayedRound,
    asked,
    calling,
    collect,
    described,
    forward,
    identity,
    invented_keys,
    open_at,
    opened_round,
    refused_submission,
    run,
    sealed_reports,
    signer,
    silo_stream,
    submission,
    submit,
    submit_all,
    wide_task,
)

ACCEPTED, REFUSED = mix_pb2.Receipt.ACCEPTED, mix_pb2.Receipt.REFUSED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
DENIED = grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

COLUMNS = 600_000  # a report of 2.4 MB: cut into chunks, kept in a file while it comes
REPORT_S = 0.6
MEMORY_MB = 60.0  # how much a mix may grow while it is sent 100 MB that it refuses


@dataclass(frozen=True, slots=True)
class Scene:
    """A mix that is first and last, and numbers for rounds that nobody used yet."""

    mix: RealMix
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def made(self) -> Consortium:
        return self.mix.made

    async def round(self) -> PlayedRound:
        return await opened_round(self.made, next(self.numbers))

    def stored(self, played: PlayedRound) -> int:
        """Reports of the round in the mix's database, and bytes of their bodies."""
        digest = played.descriptor.digest
        database = sqlite3.connect(f"file:{self.mix.state}/mix.sqlite?mode=ro", uri=True)
        try:
            found = database.execute("SELECT COUNT(*) FROM reports WHERE digest = ?", (digest,))
            (rows,) = found.fetchone()
        finally:
            database.close()
        body = self.mix.state / "batches" / digest.hex()
        return int(rows) + (body.stat().st_size if body.exists() else 0)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = make_consortium(
        tmp_path_factory.mktemp("small") / "c", mixes=1, rounds=100, deadline_s=20.0
    )
    with real_mix(made, open_rounds=100, report_s=REPORT_S) as mix:
        yield Scene(mix)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = make_consortium(
        tmp_path_factory.mktemp("wide") / "c",
        mixes=1,
        rounds=100,
        deadline_s=20.0,
        task=wide_task(COLUMNS),
    )
    with real_mix(made, open_rounds=100) as mix:
        yield Scene(mix)


def announced(
    made: Consortium, played: PlayedRound, first: bytes, size: int
) -> mix_pb2.SubmitFrame:
    """The first message of a report that says it has `size` bytes."""
    header = mix_pb2.SubmitHeader(
        digest=played.descriptor.digest,
        bytes=size,
        signature=signer(made, "silo-1").sign("report", played.descriptor.digest, bytes(32)),
        height=some_height(made, "silo-1").to_wire(),
    )
    return mix_pb2.SubmitFrame(header=header, chunk=first)


async def answered(
    call: "grpc.aio.StreamStreamCall[Any, Any]", frames_: Iterable[mix_pb2.SubmitFrame]
) -> object:
    """What comes back when these messages were sent."""
    for frame in frames_:
        await call.write(frame)
    return await call.read()


def length_of(played: PlayedRound) -> int:
    """Of an onion when it arrives."""
    return len(next(iter(sealed_reports(played).values())).sealed)


# Oversized, truncated, wrong length -------------------------------------------------------------


def test_a_report_that_announces_another_length_is_refused_at_once(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        length = length_of(played)
        for size in (0, 1, length - 1, length + 1, 2**40, 2**64 - 1):
            frame = announced(small.made, played, b"x", size)
            assert await refused_submission(small.made, "silo-1", [frame]) is INVALID
        assert small.stored(played) == 0

    before = small.mix.refused("wrong_length")
    run(scene())
    assert small.mix.refused("wrong_length") == before + 6


def test_a_report_longer_than_announced_is_cut_while_it_streams(wide: Scene) -> None:
    """40 streams that would go on for ever: each is ended with the first byte too many."""

    async def scene() -> None:
        played = await wide.round()
        length, chunk = length_of(played), bytes(2**20)
        for _ in range(40):
            endless = [announced(wide.made, played, chunk, length)]
            endless += [mix_pb2.SubmitFrame(chunk=chunk)] * (length // len(chunk))
            assert await refused_submission(wide.made, "silo-1", endless) is INVALID
        assert wide.stored(played) == 0

    before, memory = wide.mix.refused("wrong_length"), wide.mix.memory_mb
    run(scene())
    assert wide.mix.refused("wrong_length") == before + 40
    assert wide.mix.memory_mb - memory < MEMORY_MB
    assert list((wide.mix.state / "batches").iterdir()) == [], "nothing of it is left"


def test_one_message_larger_than_a_chunk_is_refused_unread(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        huge = announced(small.made, played, bytes(3 * 2**20), length_of(played))
        own = identity(small.made, "silo-1")
        credentials = grpc.ssl_channel_credentials(own.authority, own._key, own.certificate)
        options = [  # and no limit of our own
            ("grpc.ssl_target_name_override", dialled_name("mix-1")),
            ("grpc.primary_user_agent", user_agent()),
        ]
        address = small.made.study.mixes[0].address
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            call = mix_pb2_grpc.MixStub(channel).Submit(timeout=RPC_S, wait_for_ready=True)
            code, _ = await refusal(answered(call, [huge]))
        assert code is EXHAUSTED
        assert small.stored(played) == 0

    run(scene())


@pytest.mark.parametrize("how", ["the stream ends", "another report begins", "an empty chunk"])
def test_a_truncated_report_is_refused(small: Scene, how: str) -> None:
    async def scene() -> None:
        played = await small.round()
        sealed = sealed_reports(played)["silo-1"].sealed
        start = submission(small.made, "silo-1", played.descriptor, sealed, chunk_bytes=500)[:2]
        if how == "another report begins":
            start.append(start[0])
        elif how == "an empty chunk":
            start.append(mix_pb2.SubmitFrame())
        code = await refused_submission(small.made, "silo-1", start, ends=how == "the stream ends")
        assert code is INVALID
        assert small.stored(played) == 0

    run(scene())


# Compression --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_not_read(small: Scene, method: grpc.Compression) -> None:
    async def scene() -> None:
        played = await small.round()
        frame = announced(small.made, played, bytes(1000), length_of(played))
        async with calling(small.made, "silo-1", "mix-1") as stub:
            call = stub.Submit(
                iter([frame]), timeout=RPC_S, wait_for_ready=True, compression=method
            )
            code, _ = await refusal(call.read())
        assert code is grpc.StatusCode.UNIMPLEMENTED

    run(scene())


# Slow senders -------------------------------------------------------------------------------------


def test_a_slow_report_runs_out_of_time_and_blocks_nobody(small: Scene) -> None:
    """Every silo holds one stream that says nothing; one more dribbles; the round goes on."""

    async def scene() -> None:
        played = await small.round()
        reports = sealed_reports(played)
        slow = submission(
            small.made, "silo-1", played.descriptor, reports["silo-1"].sealed, chunk_bytes=1
        )
        async with AsyncExitStack() as stack:
            for silo in reports:
                await stack.enter_async_context(silo_stream(small.made, silo))
            async with calling(small.made, "silo-1", "mix-1") as stub:
                call = stub.Submit(timeout=RPC_S, wait_for_ready=True)
                await call.write(slow[0])
                await call.write(slow[1])
                for silo in ("silo-2", "silo-3"):
                    frames_ = submission(small.made, silo, played.descriptor, reports[silo].sealed)
                    (receipt,) = await submit(small.made, silo, frames_)
                    assert receipt.status == ACCEPTED
                code, _ = await refusal(call.read())
                assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            whole = submission(small.made, "silo-1", played.descriptor, reports["silo-1"].sealed)
            (receipt,) = await submit(small.made, "silo-1", whole)
            assert receipt.status == ACCEPTED, "nothing of the slow one was kept"
        assert len((await collect(played)).reports) == 3

    before = small.mix.refused("too_slow")
    run(scene())
    assert small.mix.refused("too_slow") == before + 1


# Wrong round, key, study, version -----------------------------------------------------------------


def test_what_belongs_to_no_open_round_is_refused_and_counted(small: Scene) -> None:
    async def scene() -> None:
        made, number = small.made, next(small.numbers)
        keys = (await prepared(made, 0, number)).keys
        unopened = described(made, keys, number)
        onion = bytes(length_of(unopened))
        frames_ = submission(made, "silo-1", unopened.descriptor, onion)
        assert await refused_submission(made, "silo-1", frames_) is PRECONDITION
        for digest in (b"", b"short", bytes(32), bytes(1000)):
            frame = mix_pb2.SubmitFrame(header=mix_pb2.SubmitHeader(digest=digest, bytes=10))
            assert await refused_submission(made, "silo-1", [frame]) is PRECONDITION
        assert await refused_submission(made, "silo-1", [mix_pb2.SubmitFrame()]) is PRECONDITION

    before = small.mix.refused("wrong_round")
    run(scene())
    assert small.mix.refused("wrong_round") == before + 6


def resigned(
    made: Consortium, played: PlayedRound, **changes: object
) -> round_pb2.SignedDescriptor:
    """The descriptor with other fields, truly signed by the coordinator."""
    message = round_pb2.RoundDescriptor.FromString(played.descriptor.encoded)
    for name, value in changes.items():
        setattr(message, name, value)
    encoded = message.SerializeToString(deterministic=True)
    signature = signer(made, "server").sign("descriptor", encoded)
    return round_pb2.SignedDescriptor(descriptor=encoded, signature=signature)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "refused_descriptor"),
        ({"suite": "X25519/HKDF-SHA256/AES-128-GCM"}, "refused_descriptor"),
        ({"round": 0}, "refused_descriptor"),
        ({"round": 101}, "refused_descriptor"),
        ({"attempt": 9}, "refused_descriptor"),
        ({"minimum_batch": 1}, "refused_descriptor"),
        ({"deadline_ms": 1}, "refused_descriptor"),
        ({"dimension": 1}, "refused_descriptor"),
        ({"silos": b"\x01"}, "refused_descriptor"),
        ({"silos": b"\xff"}, "refused_descriptor"),
        ({"study": bytes(32)}, "wrong_round"),
    ],
    ids=str,
)
def test_a_descriptor_of_another_version_study_or_size_is_refused(
    small: Scene, changes: dict[str, object], reason: str
) -> None:
    async def scene() -> None:
        made, number = small.made, next(small.numbers)
        played = described(made, (await prepared(made, 0, number)).keys, number)
        async with calling(made, "server", "mix-1") as stub:
            call = asked(stub.Open, resigned(made, played, **changes))
            assert (await refusal(call))[0] is PRECONDITION

    before = small.mix.refused(reason)
    run(scene())
    assert small.mix.refused(reason) == before + 1


def test_a_round_with_keys_that_this_mix_did_not_make_is_refused(small: Scene) -> None:
    async def scene() -> None:
        made, number = small.made, next(small.numbers)
        await prepared(made, 0, number)
        foreign = described(made, invented_keys(made), number)
        code, _ = await refusal(open_at(made, foreign.descriptor, "mix-1"))
        assert code is PRECONDITION
        unprepared = described(made, invented_keys(made), next(small.numbers))
        code, _ = await refusal(open_at(made, unprepared.descriptor, "mix-1"))
        assert code is PRECONDITION

    before = small.mix.refused("wrong_round")
    run(scene())
    assert small.mix.refused("wrong_round") == before + 2


def test_a_report_signed_with_another_key_is_refused(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        sealed = sealed_reports(played)["silo-1"].sealed
        frames_ = submission(small.made, "silo-1", played.descriptor, sealed, signed_by="silo-2")
        assert await refused_submission(small.made, "silo-1", frames_) is DENIED
        assert small.stored(played) == 0

    before = small.mix.refused("forged_signature")
    run(scene())
    assert small.mix.refused("forged_signature") == before + 1


# Garbage: no oracle -------------------------------------------------------------------------------


def test_garbage_gets_the_same_receipt_as_a_good_report(small: Scene) -> None:
    """What does not open is dropped and counted; its sender, and who listens, learn nothing."""

    async def scene() -> None:
        played = await small.round()
        reports = {silo: onion.sealed for silo, onion in sealed_reports(played).items()}
        reports["silo-1"] = os.urandom(len(reports["silo-1"]))
        receipts = {}
        for silo, sealed in reports.items():
            frames_ = submission(small.made, silo, played.descriptor, sealed)
            (receipts[silo],) = await submit(small.made, silo, frames_)
        for place, (silo, receipt) in enumerate(receipts.items()):
            report, study = sha256(reports[silo]).digest(), small.made.study
            check_receipt(receipt, played.descriptor.digest, place, report, study)
        garbage, good = receipts["silo-1"], receipts["silo-2"]
        assert [name.name for name, _ in garbage.ListFields()] == [
            name.name for name, _ in good.ListFields()
        ]
        assert (garbage.status, garbage.reason) == (good.status, good.reason)
        assert garbage.ByteSize() == good.ByteSize()
        batch = await collect(played)
        assert (batch.chain[0].received, batch.chain[0].dropped, len(batch.reports)) == (3, 1, 2)

    before = small.mix.count("reports", "dropped")
    run(scene())
    assert small.mix.count("reports", "dropped") == before + 1


# Duplicates and replays ---------------------------------------------------------------------------


def test_the_same_bytes_get_the_same_receipt_and_others_are_refused(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        reports, others = sealed_reports(played), sealed_reports(played, seed=1)

        async def send(sealed: bytes) -> mix_pb2.Receipt:
            frames_ = submission(small.made, "silo-1", played.descriptor, sealed)
            (receipt,) = await submit(small.made, "silo-1", frames_)
            return receipt

        first = await send(reports["silo-1"].sealed)
        assert await send(reports["silo-1"].sealed) == first
        second = await send(others["silo-1"].sealed)
        assert (second.status, second.signature) == (REFUSED, b"")
        del reports["silo-1"]
        await submit_all(played, reports)
        assert len((await collect(played)).reports) == 3
        late = await send(others["silo-1"].sealed)
        assert late.status == REFUSED, "and after the batch left"
        assert (await send_again(played)).status == REFUSED

    async def send_again(played: PlayedRound) -> mix_pb2.Receipt:
        later = await small.round()
        frames_ = submission(
            small.made, "silo-2", played.descriptor, sealed_reports(later)["silo-2"].sealed
        )
        (receipt,) = await submit(small.made, "silo-2", frames_)
        return receipt

    before = small.mix.refused("replayed_report")
    run(scene())
    assert small.mix.refused("replayed_report") >= before + 2


# Batches ------------------------------------------------------------------------------------------


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


# Certificates -------------------------------------------------------------------------------------


def test_an_unknown_certificate_fails_in_tls(small: Scene) -> None:
    """Another authority's certificate with an enrolled name, and none at all: no call arrives."""
    own = identity(small.made, "silo-1")
    address = small.made.study.mixes[0].address
    stranger = Authority.create("another", datetime.now(UTC)).issue(
        "silo-1", (), datetime.now(UTC), serves=False
    )

    async def fails(credentials: grpc.ChannelCredentials) -> grpc.StatusCode:
        options = [("grpc.ssl_target_name_override", dialled_name("mix-1"))]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            stub = mix_pb2_grpc.MixStub(channel)
            call = stub.Collect(mix_pb2.CollectRequest(digest=bytes(32)), timeout=RPC_S)
            return (await refusal(call.read()))[0]

    async def scene() -> None:
        for credentials in (
            grpc.ssl_channel_credentials(own.authority),
            grpc.ssl_channel_credentials(own.authority, stranger.key, stranger.certificate),
        ):
            assert await fails(credentials) is grpc.StatusCode.UNAVAILABLE

    before = small.mix.metrics
    run(scene())
    assert small.mix.metrics == before, "nothing was counted: nobody called"


def test_an_enrolled_party_calls_only_what_is_its_to_call(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        sealed = sealed_reports(played)["silo-1"].sealed
        frames_ = submission(small.made, "silo-1", played.descriptor, sealed)
        assert await refused_submission(small.made, "server", frames_) is DENIED
        for code, _ in (
            await refusal(open_at(small.made, played.descriptor, "mix-1", caller="silo-1")),
            await refusal(collect(played, caller="silo-1")),
        ):
            assert code is DENIED

    run(scene())


# Disk full ----------------------------------------------------------------------------------------


def test_without_the_room_that_the_operator_reserved_no_round_opens(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1)

    async def scene() -> None:
        code, _ = await refusal(opened_round(made))
        assert code is EXHAUSTED

    with real_mix(made, free_disk_mb=10**9) as mix:
        run(scene())
        assert mix.refused("no_room") == 1
    with real_mix(made, disk_mb=1):
        run(opened_round(made))


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 8 MB at `folder`; skips the test where we may not mount one."""
    folder.mkdir(mode=0o700)
    arguments = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "silomix-test", str(folder)]
    mounted = subprocess.run(arguments, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("may not mount a small disk: only the way with a limited file size is taken")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full_disk(mix: RealMix) -> Iterator[None]:
    """The small disk, filled up to the last byte."""
    filler = mix.state / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def limited_files(mix: RealMix) -> Iterator[None]:
    """No file of the process may grow beyond a page: to the mix, a disk without room."""
    before = resource.prlimit(mix.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(mix.process.pid, resource.RLIMIT_FSIZE, before)


Way = Callable[[RealMix], AbstractContextManager[None]]


@pytest.mark.parametrize("columns", [2000, COLUMNS // 2], ids=["in memory", "in a file"])
@pytest.mark.parametrize("way", [full_disk, limited_files])
def test_a_report_that_cannot_be_stored_gets_no_receipt_and_may_come_again(
    tmp_path: Path, way: Way, columns: int
) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, deadline_s=30.0, task=wide_task(columns))

    async def refused(played: PlayedRound, sealed: bytes) -> bool:
        frames_ = submission(made, "silo-1", played.descriptor, sealed, chunk_bytes=2**20)
        async with calling(made, "silo-1", "mix-1") as stub:
            try:
                receipt = await answered(stub.Submit(timeout=RPC_S, wait_for_ready=True), frames_)
            except grpc.aio.AioRpcError as error:
                return error.code() is EXHAUSTED
        assert isinstance(receipt, mix_pb2.Receipt)
        return (receipt.status, receipt.signature) == (REFUSED, b"")

    async def scene(mix: RealMix) -> None:
        played = await opened_round(made)
        reports = sealed_reports(played)
        with way(mix):
            assert await refused(played, reports["silo-1"].sealed)
            code, _ = await refusal(opened_round(made, 2))
            assert code is EXHAUSTED
        for silo, onion in reports.items():
            frames_ = submission(made, silo, played.descriptor, onion.sealed, chunk_bytes=2**20)
            (receipt,) = await submit(made, silo, frames_)
            assert receipt.status == ACCEPTED
        assert len((await collect(played)).reports) == 3

    disk = small_disk(made.mixes[0].parent / "state") if way is full_disk else nullcontext()
    with disk, real_mix(made, free_disk_mb=0) as mix:
        run(scene(mix))
        assert mix.refused("no_room") >= 2
