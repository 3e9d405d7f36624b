"""The machines themselves: hospitals are reached by nobody, links are as bad as they were made."""

import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.children import child
from support.machines import Hospital, Host, Network, Weather, internet
from support.processes import wait_until

PORT = 5000
LIMIT_S = 10.0


@pytest.fixture
def network() -> Iterator[Network]:
    with internet() as made:
        made.add_host("server", "203.0.113.10")
        made.add_hospital("silo-1", "203.0.113.31")
        yield made


@pytest.fixture
def server(network: Network) -> Host:
    return network.hosts["server"]


@pytest.fixture
def silo(network: Network) -> Hospital:
    hospital = network.hosts["silo-1"]
    assert isinstance(hospital, Hospital)
    return hospital


def test_a_silo_calls_out_behind_its_routers_address_and_nobody_calls_in(
    server: Host, silo: Hospital
) -> None:
    calling = silo.namespace.socket(socket.SOCK_STREAM)
    with listening(server, "203.0.113.10") as there, calling:
        calling.settimeout(LIMIT_S)
        calling.connect(("203.0.113.10", PORT))
        answered, (seen_as, _) = there.accept()
        answered.close()
    assert seen_as == "203.0.113.31"
    with listening(silo, "192.168.1.10"):
        assert reaches(silo.router.socket(socket.SOCK_STREAM), "192.168.1.10")
        assert not reaches(server.namespace.socket(socket.SOCK_STREAM), "192.168.1.10")
        assert not reaches(server.namespace.socket(socket.SOCK_STREAM), "203.0.113.31")
        server.namespace.ip("route add 192.168.1.0/24 via 203.0.113.31")  # one who knows the way
        assert not reaches(server.namespace.socket(socket.SOCK_STREAM), "192.168.1.10")


def test_frames_are_as_late_and_as_often_lost_as_the_weather_says(
    network: Network, server: Host, silo: Hospital
) -> None:
    """4000 datagrams, a tenth of them lost, delays uniform from 20 to 40 ms.

    5.2 standard deviations of the number lost and 6 of the median: false alarm below 10⁻⁶.  A busy
    computer makes frames later than they should be, never earlier.
    """
    sent, loss = 4000, 0.1
    network.set_weather(Weather(latency_ms=30, jitter_ms=10, loss=loss))
    delays_ms = one_way_delays_ms(silo, server, sent)
    assert abs((sent - len(delays_ms)) - sent * loss) < 100
    assert 20 <= min(delays_ms) < 25
    assert 28.5 <= statistics.median(delays_ms) < 60


def test_what_tcp_carries_over_a_bad_link_arrives_whole(
    network: Network, server: Host, silo: Hospital
) -> None:
    network.set_weather(Weather(latency_ms=10, jitter_ms=2, loss=0.02))
    content = secrets.token_bytes(300_000)
    received = bytearray()

    def receive(there: socket.socket) -> None:
        connection, _ = there.accept()
        with connection:
            connection.settimeout(60)
            while chunk := connection.recv(65536):
                received.extend(chunk)

    with listening(server, "203.0.113.10") as there:
        receiving = threading.Thread(target=receive, args=(there,))
        receiving.start()
        with silo.namespace.socket(socket.SOCK_STREAM) as sending:
            sending.settimeout(60)
            sending.connect(("203.0.113.10", PORT))
            sending.sendall(content)
        receiving.join()
    assert bytes(received) == content


def test_a_cut_link_says_nothing_and_carries_again_when_it_is_back(
    network: Network, server: Host, silo: Hospital
) -> None:
    with (
        server.namespace.socket(socket.SOCK_DGRAM) as there,
        silo.namespace.socket(socket.SOCK_DGRAM) as here,
        network.tapped("silo-1") as link,
    ):
        there.bind(("203.0.113.10", PORT))
        there.settimeout(LIMIT_S)
        link.settimeout(LIMIT_S)
        here.connect(("203.0.113.10", PORT))
        here.send(b"before")
        assert there.recv(100) == b"before"
        network.cut("silo-1")
        here.send(b"during")
        while b"during" not in link.recv(2000):  # else it would only be late
            pass
        network.join("silo-1")
        here.send(b"after")
        assert there.recv(100) == b"after"


def test_a_killed_test_leaves_no_machine_and_no_process(tmp_path: Path) -> None:
    test = child("machines.spread", "wait_to_be_killed", str(tmp_path))
    try:
        assert test.stdout is not None
        machine = int(test.stdout.readline())
        wait_until(lambda: "mix_ready" in read(tmp_path / "c/logs/mix-1.log"), "the mix listens")
        assert processes_on(machine)
    finally:
        os.kill(test.pid, signal.SIGKILL)
        test.communicate()
    wait_until(lambda: not processes_on(machine), "the mix has ended with the test")


def test_without_rights_the_reason_is_one_line() -> None:
    ask = "from support.machines import why_not; print(why_not())"
    asked = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (line,) = asked.stdout.splitlines()
    assert "Operation not permitted" in line
    assert "run as root" in line


# Helpers ------------------------------------------------------------------------------------------


def listening(host: Host, address: str) -> socket.socket:
    there = host.namespace.socket(socket.SOCK_STREAM)
    there.bind((address, PORT))
    there.listen()
    there.settimeout(LIMIT_S)
    return there


def reaches(caller: socket.socket, address: str) -> bool:
    with caller:
        caller.settimeout(1.0)
        try:
            caller.connect((address, PORT))
        except OSError:
            return False
    return True


def one_way_delays_ms(source: Host, target: Host, count: int) -> list[float]:
    """Of each datagram that arrived, between two sockets of this process."""
    with (
        target.namespace.socket(socket.SOCK_DGRAM) as there,
        source.namespace.socket(socket.SOCK_DGRAM) as here,
    ):
        there.bind((target.address, PORT))
        here.connect((target.address, PORT))
        sent: list[float] = []
        delays: list[float] = []

        def receive(timeout_s: float) -> bool:
            """Take what arrives; False if nothing did in time."""
            there.settimeout(timeout_s)
            try:
                number = int(there.recv(100))
            except (TimeoutError, BlockingIOError):
                return False
            delays.append(1000 * (time.perf_counter() - sent[number]))
            return True

        for number in range(count):
            sent.append(time.perf_counter())
            here.send(b"%d" % number)
            receive(0.0005)
        while receive(2.0):  # much later than any frame may be
            pass
        return delays


def processes_on(machine: int) -> list[str]:
    """Ids of the processes in the namespace with this number."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "ns/net").stat().st_ino == machine:
                    found.append(process.name)
            except OSError:  # it has ended
                continue
    return found


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
