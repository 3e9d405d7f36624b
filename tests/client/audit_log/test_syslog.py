"""Lines of the audit log go to a syslog, whole, and hold nobody up."""

import json
import os
import socket
import time
from pathlib import Path

import pytest
from silomix_client.audit_log.log import AuditLog
from silomix_client.audit_log.verify_log import check_chain
from silomix_client.config.silo_config import load
from silomix_client.network.syslog import Syslog, SyslogAddress
from silomix_lab.consortium.create import Consortium
from support.audit_logs import events, texts


def parsed(message: bytes) -> tuple[str, str, bytes]:
    """Priority and version, message id, and the line of an RFC 5424 message."""
    head, at, _host, app, process, name, structured, line = message.split(b" ", 7)
    assert (app, structured, int(process)) == (b"silomix", b"-", os.getpid())
    assert json.loads(line)["at"] == at.decode()
    return head.decode(), name.decode(), line


def sent(tmp_path: Path, address: str) -> list[bytes]:
    """Write two lines to the file and to a syslog there; the file's."""
    syslog = Syslog(SyslogAddress.parse(address))
    log = AuditLog(tmp_path, "silo-1", syslog)
    log.append("silo_started")
    log.append("lease_refused", warning=True, reason="é" * 30)
    assert log.close() == 0
    return [text.rstrip(b"\n") for text in texts(tmp_path)]


def check_messages(found: list[bytes], wanted: list[bytes]) -> None:
    """Facility 13, severity notice and warning, and the file's very lines, hashes included."""
    assert [parsed(each) for each in found] == [
        ("<109>1", "silo_started", wanted[0]),
        ("<108>1", "lease_refused", wanted[1]),
    ]


@pytest.mark.parametrize("kind", ["unix", "udp"])
def test_lines_go_to_a_syslog_as_datagrams(tmp_path: Path, kind: str) -> None:
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as collector:
        collector.settimeout(30.0)
        if kind == "unix":
            collector.bind(str(tmp_path / "log"))
            address = f"unix:{tmp_path / 'log'}"
        else:
            collector.bind(("127.0.0.1", 0))
            address = f"udp://127.0.0.1:{collector.getsockname()[1]}"
        wanted = sent(tmp_path, address)
        check_messages([collector.recv(65_536) for _ in wanted], wanted)


def test_lines_go_to_a_syslog_over_tcp_in_counted_frames(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as collector:
        wanted = sent(tmp_path, f"tcp://127.0.0.1:{collector.getsockname()[1]}")
        connection, _ = collector.accept()
        with connection, connection.makefile("rb") as stream:
            content = stream.read()
    found = []
    while content:
        length, _, rest = content.partition(b" ")
        found.append(rest[: int(length)])
        content = rest[int(length) :]
    check_messages(found, wanted)


def test_a_syslog_that_does_not_answer_holds_nobody_up_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix_client.network.syslog._MOST_WAITING", 5)
    monkeypatch.setattr("silomix_client.audit_log.log._SYSLOG_S", 0.1)
    with socket.socket() as nobody:  # bound, but not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        syslog = Syslog(SyslogAddress.parse(f"tcp://127.0.0.1:{nobody.getsockname()[1]}"))
        log = AuditLog(tmp_path, "silo-1", syslog)
        started = time.monotonic()
        for _ in range(50):
            log.append("round_charged")
        assert time.monotonic() - started < 2
        assert log.close() >= 50
    assert "syslog_lost" in events(tmp_path)
    assert events(tmp_path).count("round_charged") == 50  # the file has them all
    check_chain(tmp_path)


def test_lines_that_wait_for_a_syslog_take_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix_client.network.syslog._MOST_BYTES", 5_000)
    monkeypatch.setattr("silomix_client.audit_log.log._SYSLOG_S", 0.1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        syslog = Syslog(SyslogAddress.parse(f"tcp://127.0.0.1:{nobody.getsockname()[1]}"))
        log = AuditLog(tmp_path, "silo-1", syslog)
        for _ in range(10):
            log.append("policy_read", text="x" * 1000)
        assert 5 <= syslog.lost <= 9
        log.close()


@pytest.mark.parametrize(
    "address", ["", "/dev/log", "unix:dev/log", "udp:host:514", "udp://host", "tls://host:6514"]
)
def test_an_address_that_is_none_is_refused(consortium: Consortium, address: str) -> None:
    path = consortium.silos[0]
    path.write_text(path.read_text() + f'[audit_log]\nsyslog = "{address}"\n')
    with pytest.raises(Exception, match=r"silo.toml: .*syslog"):
        load(path)
