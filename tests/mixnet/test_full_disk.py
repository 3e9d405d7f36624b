"""A mix whose disk is full, small or limited opens no round and gives no receipt."""

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import grpc
import grpc.aio
import pytest
from mixnet.real_mix import RealMix, real_mix, refusal
from mixnet.scene import ACCEPTED, COLUMNS, EXHAUSTED, REFUSED, answered
from silomix_proto import mix_pb2
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    PlayedRound,
    calling,
    collect,
    opened_round,
    run,
    sealed_reports,
    submission,
    submit,
    wide_task,
)


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
