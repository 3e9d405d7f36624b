"""What we rely on of Flower 1.41 and 1.42, held against a real SuperLink with TLS and node keys."""

import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from unittest.mock import patch
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from silomix_client.network.bounded_http import BoundedHttp
from silomix_client.network.fleet import FleetNode, join_fleet
from silomix_client.network.fleet_calls import FleetRefused, FleetUnreachable
from silomix_client.network.fleet_objects import FleetMessage
from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import Process
from silomix_protocol.certificates.certificates import key_pem
from silomix_protocol.host.file_descriptors import allow_many
from silomix_protocol.keys import generate_node_key, load_node_key, write_secret
from silomix_server.config import load
from silomix_server.flower import flower_run
from silomix_server.flower.child_processes import end, spawn
from silomix_server.flower.flower_run import FlowerRuns
from silomix_server.flower.superlink import _FROM_ONE, _UNEARNED_S
from silomix_server.process import make_secrets
from support.consortia import make_consortium
from support.processes import (
    approve_all,
    progress,
    running,
    server_logs,
    silomix,
    spending,
    wait_until,
)
from support.silos import approved_silo, copied


@contextmanager
def superlink(made: Consortium) -> Iterator[FlowerRuns]:
    """A real SuperLink of this consortium, with its silos registered, and its Control API."""
    state = made.server.parent / "state"
    make_secrets(load(made.server))
    command = [sys.executable, "-m", "silomix_server.flower.superlink", str(made.server)]
    child = spawn(command, state / "superlink.log", {"FLWR_HOME": str(state / "flwr")})
    try:
        runs = control(made)
        wait_until(runs.ready, f"SuperLink ready, see {state / 'superlink.log'}")
        runs.register(made.study)
        yield runs
        runs.close()
    finally:
        end(child)


def control(made: Consortium) -> FlowerRuns:
    config = load(made.server)
    return FlowerRuns(config.control_listen, config.folder / "ca.crt", config.control_secret)


def _authority(made: Consortium) -> bytes:
    return (made.server.parent / "ca.crt").read_bytes()


@dataclass(frozen=True, slots=True)
class Shared:
    """A SuperLink that several tests knock at, and the consortium that it is of."""

    made: Consortium
    runs: FlowerRuns

    @property
    def address(self) -> str:
        return self.made.study.server.fleet_address

    @property
    def authority(self) -> bytes:
        return _authority(self.made)

    def key(self, silo: int) -> ec.EllipticCurvePrivateKey:
        return load_node_key(self.made.silos[silo].parent / "node.key")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    allow_many()
    made = make_consortium(tmp_path_factory.mktemp("superlink") / "c")
    with superlink(made) as runs:
        yield Shared(made, runs)


def test_a_registered_key_joins_and_an_unknown_one_is_refused(
    shared: Shared, tmp_path: Path
) -> None:
    shared.runs.register(shared.made.study)  # twice: the known ones stay
    memory = tmp_path / "node"
    with join_fleet(shared.address, shared.authority, shared.key(0), memory) as node:
        assert node.receive() is None
        node.heartbeat()
    with (
        pytest.raises(FleetRefused, match="the server answered 4"),
        join_fleet(shared.address, shared.authority, generate_node_key(), memory),
    ):
        raise AssertionError("an unknown key was let in")


def test_a_key_that_left_the_study_is_no_longer_accepted(shared: Shared, tmp_path: Path) -> None:
    key = generate_node_key()
    register_too(shared.runs, key)
    way_in = shared.address, shared.authority, key, tmp_path / "node"
    with join_fleet(*way_in):
        pass
    shared.runs.register(shared.made.study)
    with pytest.raises(FleetRefused), join_fleet(*way_in):
        raise AssertionError("a key that left the study was let in")


def test_a_node_that_was_killed_can_join_again_at_once(shared: Shared, tmp_path: Path) -> None:
    memory, way_in = tmp_path / "node", (shared.address, shared.authority, shared.key(0))
    with join_fleet(*way_in, memory):
        with join_fleet(*way_in, memory) as successor:
            assert successor.receive() is None
        memory.write_text("")  # a crash while it was written: refused, not a traceback
        with (
            join_fleet(*way_in, tmp_path / "another"),
            pytest.raises(FleetRefused),
            join_fleet(*way_in, memory),
        ):
            raise AssertionError("joined twice")


def test_silos_reach_the_fleet_api_and_nothing_else_of_flower(shared: Shared) -> None:
    fleet, loopback = shared.address, load(shared.made.server).control_listen
    paths = [
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "//v1/control/list-runs",
        "/docs",
        "/openapi.json",
    ]
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    trusted = ssl.create_default_context(cadata=shared.authority.decode())
    with httpx.Client(verify=trusted) as client:
        for path in paths:
            answer = client.post(f"https://{fleet}{path}", headers=headers, content=b"")
            assert answer.status_code == 404, path
        for path in paths[:2]:  # they exist on the loopback door, for who shows the secret
            answer = client.post(f"https://{loopback}{path}", headers=headers, content=b"")
            assert answer.status_code == 403
        reached = Counter[str]()
        for method, path in _flower_calls():  # as any user of the server's machine
            answer = client.request(method, f"https://{loopback}{path}", headers=headers)
            _, _, api, _ = path.split("/")
            assert answer.status_code == (403 if api == "control" else 401), path
            reached[api] += 1
        assert min(reached[api] for api in ("control", "fleet", "runtime")) > 10
        for path in ("/health", "/docs", "/openapi.json"):
            assert client.get(f"https://{loopback}{path}").status_code == 200, path
        body = bytes(2**20 + 1)
        too_large = client.post(f"https://{fleet}/v1/fleet/pull-messages", content=body)
        assert too_large.status_code == 413


def held(address: str, trusted: ssl.SSLContext | None) -> socket.socket:
    """A stranger's connection: silent, or with TLS and a request that never ends."""
    stream = undialled(address, trusted)
    with suppress(OSError):  # it may have made room for another already
        dial(stream, address)
        if trusted is not None:
            stream.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nContent-Length: 9\r\n\r\nx")
    return stream


def undialled(
    address: str, trusted: ssl.SSLContext | None, source: str = "127.0.0.1"
) -> socket.socket:
    """A socket of this address of the machine, with TLS before it has a peer.

    Of one whose peer has hung up already, Python 3.11 and 3.12 leave the TLS socket open.
    """
    host, _, _ = address.rpartition(":")
    stream = socket.socket()
    if trusted is not None:
        stream = trusted.wrap_socket(stream, server_hostname=host)
    stream.settimeout(20.0)
    stream.bind((source, 0))
    return stream


def dial(stream: socket.socket, address: str) -> None:
    host, _, port = address.rpartition(":")
    stream.connect((host, int(port)))


def test_a_thousand_connections_of_a_stranger_stop_no_silo(shared: Shared, tmp_path: Path) -> None:
    """From the silos' own address, as many as a process usually has descriptors."""
    address, authority = shared.address, shared.authority
    trusted = ssl.create_default_context(cadata=authority.decode())
    log = shared.made.server.parent / "state" / "superlink.log"
    with ExitStack() as stack:
        node = stack.enter_context(join_fleet(address, authority, shared.key(0), tmp_path / "1"))
        before = log.stat().st_size
        for number in range(1100):
            stranger = held(address, trusted if number % 4 == 0 else None)
            stack.callback(stranger.close)
            if number % 100 == 0:
                node.heartbeat()
        began = time.monotonic()
        assert node.receive() is None
        newcomer = stack.enter_context(
            join_fleet(address, authority, shared.key(1), tmp_path / "2")
        )
        assert newcomer.receive() is None
        assert time.monotonic() - began < _UNEARNED_S  # the strangers are still there
        assert log.stat().st_size - before < 10_000


class Drip(threading.Thread):
    """A request whose body comes byte by byte, well before any single read would time out."""

    def __init__(self, address: str, trusted: ssl.SSLContext, source: str) -> None:
        super().__init__(daemon=True)
        self._way, self._trusted, self.lasted_s = (address, source), trusted, 0.0

    def run(self) -> None:
        address, source = self._way
        began = time.monotonic()
        with undialled(address, self._trusted, source) as stream, suppress(OSError):
            dial(stream, address)
            stream.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nContent-Length: 999\r\n\r\n")
            stream.settimeout(0.2)
            while time.monotonic() - began < 3 * _UNEARNED_S:
                stream.sendall(b"x")
                with suppress(TimeoutError):
                    if not stream.recv(1):
                        break
        self.lasted_s = time.monotonic() - began


def earned(streams: list[socket.socket], request: bytes) -> int:
    """How many of these connections have a successful answer to this request."""
    for stream in streams:
        stream.sendall(request)
    count = 0
    for stream in streams:
        with HTTPResponse(stream) as answer:
            answer.begin()
            answer.read()
            count += answer.status == 200
    return count


def heartbeat_of(node: FleetNode, address: str) -> bytes:
    """The bytes of a signed request that Flower answers, good for as many as are sent soon."""
    with patch.object(BoundedHttp, "post", autospec=True, side_effect=BoundedHttp.post) as post:
        node.heartbeat()
    (call,) = post.call_args_list
    _, url, headers, content, _ = call.args
    lines = [f"POST {urlsplit(url).path} HTTP/1.1", f"Host: {address}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def test_one_address_gets_so_many_connections_and_others_go_on_with_their_leases(
    tmp_path: Path,
) -> None:
    """Somebody with a key of its own, which Flower answers; beside it a request that drips."""
    allow_many()
    made = make_consortium(tmp_path / "c", records=(40, 50), mixes=1, rounds=3, lease_rounds=1)
    approve_all(made)
    address, authority = made.study.server.fleet_address, _authority(made)
    trusted = ssl.create_default_context(cadata=authority.decode())
    state, guest = made.server.parent / "state", generate_node_key()
    app = [sys.executable, "-m", "silomix_server.flower.serverapp", str(made.server)]
    with superlink(made) as runs, running(made, server=False) as system, ExitStack() as stack:
        drip = Drip(address, trusted, "127.0.0.3")
        drip.start()
        register_too(runs, guest)
        node = stack.enter_context(join_fleet(address, authority, guest, tmp_path / "guest"))
        stack.callback(end, spawn(app, state / "serverapp.log", {"FLWR_HOME": str(state / "flwr")}))
        for silo in system.silos:
            wait_until(lambda silo=silo: "silo_ready" in silo.log.read_text(), silo.name)
        crowd = [
            stack.enter_context(undialled(address, trusted, "127.0.0.2")) for _ in range(_FROM_ONE)
        ]
        for stream in crowd:
            dial(stream, address)
        assert earned(crowd, heartbeat_of(node, address)) == _FROM_ONE
        with (
            undialled(address, trusted, "127.0.0.2") as one_more,
            pytest.raises(OSError, match=r"reset|EOF|Broken pipe"),
        ):
            dial(one_more, address)
        run_id = runs.start(state / "app", made.server)
        for silo in system.silos:
            wait_until(lambda silo=silo: "lease_started" in silo.log.read_text(), silo.name)
        assert earned(crowd[-1:], heartbeat_of(node, address)) == 1  # they are still there
        wait_until(lambda: runs.status(run_id).finished, "the run is finished")
        assert runs.status(run_id).completed, system.all_logs()
        drip.join(3 * _UNEARNED_S)
    assert _UNEARNED_S - 1 < drip.lasted_s < 2 * _UNEARNED_S
    assert [entry.rounds for entry in spending(made)] == [3, 3]
    log = _serverapp_log(made)
    assert log.count("lease_offered") == 3  # Flower dispatches every round
    assert log.count("ending=done answered=1") == 6


def register_too(runs: FlowerRuns, key: ec.EllipticCurvePrivateKey) -> None:
    """A node beside the silos."""
    runs._client.RegisterNode(
        RegisterNodeRequest(public_key=public_key_to_bytes(key.public_key()), name="guest")
    )


def _flower_calls() -> list[tuple[str, str]]:
    """Method and path of every call that Flower's server application knows."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    return [(str(method), str(path)) for method, path in PROTOBUF_REQUEST_TYPES]


def test_an_unregistered_silo_ends_with_a_clear_message(shared: Shared, tmp_path: Path) -> None:
    stranger = copied(shared.made, tmp_path / "c")
    approved_silo(stranger)
    key = stranger.silos[0].parent / "node.key"
    key.unlink()
    write_secret(key, key_pem(generate_node_key()))
    ended = silomix("silo", "run", str(stranger.silos[0]), cwd=tmp_path)
    assert ended.returncode == 1
    assert "refuses this silo" in ended.stderr
    assert "ask its operator" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_lease_is_renewed_before_its_deadline_and_a_stopped_run_frees_the_silos(
    tmp_path: Path,
) -> None:
    made = make_consortium(
        tmp_path / "c",
        records=(40, 50),
        mixes=1,
        rounds=5000,
        epsilon=5.0,
        lease_rounds=5000,
        lease_deadline_s=2.0,
    )
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(1)
        wait_until(
            lambda: _serverapp_log(made).count("lease_offered") >= 2, "every silo's second lease"
        )
        system.wait_for_more_rounds(5)
        for silo in system.silos:
            assert "ending=done" in silo.log.read_text()
            assert "ending=deadline" not in silo.log.read_text()
        runs = control(made)
        run_id = _run_id(system.server.log)
        runs.stop(run_id)
        wait_until(lambda: runs.status(run_id).finished, "the run is finished")
        assert not runs.status(run_id).completed
        runs.close()
        assert system.server_status() == 1
        for silo in system.silos:
            wait_until(lambda silo=silo: _holds_no_lease(silo), f"{silo.name} is free")
            assert silo.state == "running"


def _holds_no_lease(silo: Process) -> bool:
    said = silo.log.read_text()
    return said.count("lease_started") == said.count("lease_ended") > 0


def test_a_silo_leaves_a_lease_at_its_deadline_and_tells_flower(tmp_path: Path) -> None:
    made = make_consortium(
        tmp_path / "c", records=(40, 50), mixes=1, rounds=5000, epsilon=5.0, lease_deadline_s=8.0
    )
    approve_all(made)
    with running(made) as system:
        system.wait_for_round(3)
        with system.standing_still():  # a server that holds a lease and says nothing
            for silo in system.silos:
                wait_until(
                    lambda silo=silo: "ending=deadline" in silo.log.read_text(), f"{silo.name}"
                )
                assert silo.state == "running"
            replies = made.server.parent / "state" / "superlink.log"
            wait_until(lambda: replies.read_text().count("Push replies") >= 2, "Flower has them")


def test_a_reply_that_was_sent_by_half_holds_nobody_up(tmp_path: Path) -> None:
    """A node that breaks off, or does so on purpose, between its message and what is in it."""
    made = make_consortium(tmp_path / "c", mixes=1, rounds=3, minimum_batch=2)
    approve_all(made)
    with running(made, silos=2) as system:
        key = load_node_key(made.silos[2].parent / "node.key")
        address = made.study.server.fleet_address
        wait_until(lambda: "run_started" in system.server.log.read_text(), "silos are registered")
        with join_fleet(address, _authority(made), key, tmp_path / "node") as node:
            lease = _first_message(node)
            with (
                patch.object(node, "_push", _broken_off),
                pytest.raises(FleetUnreachable, match="broken off"),
            ):
                node.reply(lease, {"silo": "silo-3", "ending": "done"})
            assert system.server_status() == 0, system.all_logs()
    assert len(progress(made)) == 3


def _broken_off(*_: object, **__: object) -> None:
    raise FleetUnreachable("broken off")


def _first_message(node: FleetNode) -> FleetMessage:
    found: list[FleetMessage] = []

    def there() -> bool:
        message = node.receive()
        found.extend([message] if message else [])
        return bool(found)

    wait_until(there, "a lease")
    return found[0]


def test_a_study_runs_on_one_lease_and_code_in_the_app_bundle_never_runs_at_a_silo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_consortium(tmp_path / "c", records=(40, 50), mixes=1, rounds=6)
    approve_all(made)
    marker = tmp_path / "marker"
    bundle = made.server.parent / "state" / "bundle"
    bundle.mkdir(parents=True)
    (bundle / "hostile_client.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\napp = None\n"
    )
    subprocess.run([sys.executable, "hostile_client.py"], cwd=bundle, check=True)
    assert marker.exists()  # the trap works
    marker.unlink()
    hostile = flower_run._APP.replace(
        "silomix_server.flower.app:no_client_app", "hostile_client:app"
    )
    assert hostile != flower_run._APP
    monkeypatch.setattr(flower_run, "_APP", hostile)
    state = made.server.parent / "state"
    with superlink(made) as runs, running(made, server=False):
        app = spawn(
            [sys.executable, "-m", "silomix_server.flower.serverapp", str(made.server)],
            state / "serverapp.log",
            {"FLWR_HOME": str(state / "flwr")},
        )
        try:
            run_id = runs.start(bundle, made.server)
            wait_until(lambda: runs.status(run_id).finished, "the run is finished")
            assert runs.status(run_id).completed
        finally:
            end(app)
    assert not marker.exists()
    log = _serverapp_log(made)
    assert log.count("lease_offered") == 1
    assert log.count("lease_reply") == 2
    assert log.count("ending=done answered=6") == 2
    assert (state / "model.npz").exists()
    assert [line["accepted"] for line in progress(made)] == [2] * 6
    assert [entry.rounds for entry in spending(made)] == [6, 6]


def test_a_server_without_silos_says_how_many_are_missing(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", mixes=1, wait_for_silos_s=1.0)
    shutil.rmtree(made.silos[0].parent)
    ended = silomix("server", "run", str(made.server), cwd=tmp_path)
    assert ended.returncode == 1
    assert "only 0 of 3 silos are online after 1 s and a batch needs 2" in ended.stderr


def _run_id(log: Path) -> int:
    line = next(line for line in log.read_text().splitlines() if "run_started" in line)
    (run,) = (word for word in line.split() if word.startswith("run="))
    return int(run.removeprefix("run="))


def _serverapp_log(made: Consortium) -> str:
    return next(path for path in server_logs(made) if path.name == "serverapp.log").read_text()
