"""`silomix mix run` as real processes: a round through the chain, stopping, refusing to start."""

import json
import sqlite3
from contextlib import AsyncExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest
import tomli_w
from silomix_lab.consortium.create import Consortium
from silomix_lab.demo.run_demo import free_ports
from silomix_proto import mix_pb2, round_pb2
from silomix_protocol.grpc_calls.question_stream import Asking
from support.consortia import make_consortium
from support.mixes import (
    RPC_S,
    MixProcess,
    calling,
    collect,
    described,
    mix_process,
    opened_payloads,
    opened_round,
    prepared_at,
    refusal,
    run,
    sealed_reports,
    silo_stream,
    state_of,
    submission,
    submit,
    submit_all,
)
from support.processes import silomix

pytestmark = pytest.mark.slow

ACCEPTED = mix_pb2.Receipt.ACCEPTED


@pytest.fixture
def made(tmp_path: Path) -> Consortium:
    return make_consortium(tmp_path / "c", mixes=2, minimum_batch=2, deadline_s=60.0)


def configured(made: Consortium, index: int, **keys: object) -> Path:
    """The mix's configuration with these keys added."""
    path = made.mixes[index]
    basis = {
        "name": made.study.mixes[index].name,
        "listen": made.study.mixes[index].address,
        "studies": ["../study.toml"],
    }
    path.write_text(tomli_w.dumps({**basis, **keys}))
    return path


def test_reports_pass_a_chain_of_processes_and_their_logs_name_no_silo(made: Consortium) -> None:
    async def scene() -> list[MixProcess]:
        async with AsyncExitStack() as stack:
            mixes = [await stack.enter_async_context(mix_process(config)) for config in made.mixes]
            played = await opened_round(made)
            reports = sealed_reports(played)
            reports["silo-2"] = reports["silo-1"]  # a copy: dropped and counted
            receipts = await submit_all(played, reports)
            assert [receipt.status for receipt in receipts] == [ACCEPTED] * 3
            batch = await collect(played)
            assert len(await opened_payloads(played, batch)) == 2
            for mix in mixes:
                assert await mix.terminate() == 0
        return mixes

    first, second = run(scene(), timeout_s=60.0)
    assert any("batch_sealed round=1 received=3 forwarded=2 dropped=1" in x for x in first.log)
    assert any("batch_sealed round=1 received=2 forwarded=2 dropped=0" in x for x in second.log)
    for mix in (first, second):
        assert mix.log[-1].endswith("mix_stopped")
        assert not any("silo-" in line for line in mix.log)
    for index in (0, 1):
        assert list((state_of(made, index) / "batches").iterdir()) == [], "nothing is left of it"


def test_stopped_with_an_open_batch_a_mix_goes_on_with_it(made: Consortium) -> None:
    """A silo's stream is still open when it is told to stop."""

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(mix_process(made.mixes[1]))
            async with mix_process(made.mixes[0]) as first:
                played = await opened_round(made)
                reports = sealed_reports(played)
                frames = submission(made, "silo-1", played.descriptor, reports["silo-1"].sealed)
                async with silo_stream(made, "silo-1") as stream:
                    receipt = await stream.send(frames)
                    assert await first.terminate() == 0
                assert first.log[-1].endswith("mix_stopped")
            await stack.enter_async_context(mix_process(made.mixes[0]))
            assert await submit(made, "silo-1", frames) == [receipt]
            await submit_all(played, reports)
            assert len((await collect(played)).reports) == 3

    run(scene(), timeout_s=60.0)


def test_a_mix_that_is_being_stopped_begins_no_round_on_a_stream_that_was_open(
    made: Consortium,
) -> None:
    """Silos would be asked, and charged, for a round that goes nowhere."""

    async def scene() -> None:
        async with mix_process(made.mixes[0]) as first, mix_process(made.mixes[1]):
            async with calling(made, "server", "mix-1") as stub:
                opening: Asking[object, object] = Asking(stub.Open)
                await opening.ask(await descriptor_of(made, 1), RPC_S)
                later = await descriptor_of(made, 2)
                first.process.terminate()
                while await answers(made, "mix-1"):  # until it takes no new calls
                    pass
                gone = grpc.StatusCode.UNAVAILABLE
                assert await refusal(opening.ask(later, RPC_S)) is gone
            assert await first.process.wait() == 0
            assert not any("round=2" in line for line in first.log)

    run(scene(), timeout_s=60.0)


async def descriptor_of(made: Consortium, number: int) -> round_pb2.SignedDescriptor:
    keys = [await prepared_at(made, mix.name, number) for mix in made.study.mixes]
    return described(made, keys, number).descriptor.to_wire()


async def answers(made: Consortium, mix: str) -> bool:
    async with calling(made, "server", mix) as stub:
        try:
            await stub.Prepare(mix_pb2.PrepareRequest(study=bytes(32)), timeout=RPC_S)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
    return True


def test_metrics_and_health_are_served_where_the_operator_says(made: Consortium) -> None:
    (port,) = free_ports(1)
    limits = {"free_disk_mb": 2**40}
    config = configured(made, 0, metrics_listen=f"127.0.0.1:{port}", limits=limits)

    def get(path: str) -> tuple[int, str]:
        with closing(HTTPConnection("127.0.0.1", port, timeout=5.0)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    async def scene() -> None:
        async with mix_process(config):
            status, text = get("/metrics")
            assert status == 200
            assert "silomix_mix_rounds_open 0.0" in text
            status, text = get("/health")
            assert status == 503
            assert "of disk are free" in json.loads(text)["problems"][0]
            told = silomix("mix", "health", str(config), cwd=made.folder)
            assert told.returncode == 1
            assert "of disk are free" in told.stderr

    run(scene(), timeout_s=60.0)


# What does not start ------------------------------------------------------------------------------


def refusing(made: Consortium) -> str:
    """What the first mix says when it does not start: one line, no traceback."""
    ended = silomix("mix", "run", str(made.mixes[0]), cwd=made.folder, limit_s=30.0)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("silomix: ")]
    return line


def test_a_second_process_on_the_same_folder_does_not_start(made: Consortium) -> None:
    """And does no harm to the first."""

    async def scene() -> str:
        async with AsyncExitStack() as stack:
            for config in made.mixes:
                await stack.enter_async_context(mix_process(config))
            for silo in made.study.silos:  # who is connected is waited for
                await stack.enter_async_context(silo_stream(made, silo.name))
            played = await opened_round(made)
            line = refusing(made)
            await submit_all(played, sealed_reports(played))
            assert len((await collect(played)).reports) == 3
            return line

    assert run(scene(), timeout_s=60.0).endswith(
        f"mix-1 is already running from {made.mixes[0].parent}"
    )


def test_a_mix_whose_key_others_can_read_does_not_start(made: Consortium) -> None:
    path = made.mixes[0].parent / "sign.key"
    path.chmod(0o640)
    assert f"chmod 600 {path}" in refusing(made)


def test_a_state_folder_of_another_release_is_named(made: Consortium) -> None:
    state_of(made, 0).mkdir()
    path = state_of(made, 0) / "mix.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE rounds (study BLOB)")
        database.execute("PRAGMA user_version = 99")
    line = refusing(made)
    assert f"{path} was made by another release (format 99)" in line
    assert "move the folder away" in line


def test_a_state_file_that_is_no_database_is_named(made: Consortium) -> None:
    state_of(made, 0).mkdir()
    path = state_of(made, 0) / "mix.sqlite"
    path.write_bytes(b"this is not a database file, whatever it is called\n" * 100)
    assert str(path) in refusing(made)


def test_a_metrics_port_that_is_taken_is_named(made: Consortium) -> None:
    address = made.study.mixes[0].address
    configured(made, 0, metrics_listen=address)
    assert f"metrics_listen: cannot listen on {address}" in refusing(made)
