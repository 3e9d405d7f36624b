"""Lines of the audit log on their way to a hospital's syslog (RFC 5424), beside the file.

A thread of its own sends them, so that no round ever waits for a log server: what cannot be sent
waits, up to a bound, and is counted when it is lost.  Whoever collects the lines can tell, since
they are numbered and each names the hash of the one before it.
"""

import os
import queue
import re
import socket
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from silomix_core.toml_table import InvalidField, TomlTable, split_address

_FACILITY = 13  # "log audit" of RFC 5424, table 1
_WARNING, _NOTICE = 4, 5
_MOST_WAITING, _MOST_BYTES = 10_000, 8 * 2**20
_CALL_S = 5.0
_PAUSE_S = (0.5, 30.0)  # first and longest, between two tries
_NOT_IN_A_NAME = re.compile(r"[^\x21-\x7e]")


class Transport(Enum):
    UNIX = "unix"  # datagrams to a local socket
    UDP = "udp"
    TCP = "tcp"  # octet-counted frames, RFC 6587


@dataclass(frozen=True, slots=True)
class SyslogAddress:
    """Where lines go: unix:/dev/log, udp://host:514 or tcp://host:601."""

    transport: Transport
    host: str  # of a local socket: its path
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "SyslogAddress":
        kind, _, rest = text.partition(":")
        if kind == "unix" and rest.startswith("/"):
            return cls(Transport.UNIX, rest)
        if kind in ("udp", "tcp") and rest.startswith("//"):
            address = TomlTable({"syslog": rest[2:]}).address("syslog")
            return cls(Transport(kind), *split_address(address))
        raise InvalidField(
            f"syslog: {text!r:.80} is not like unix:/dev/log, udp://host:514 or tcp://host:601"
        )

    def __str__(self) -> str:
        if self.transport is Transport.UNIX:
            return f"unix:{self.host}"
        return f"{self.transport.value}://{self.host}:{self.port}"


def packed(line: str, event: str, at: datetime, *, warning: bool) -> bytes:
    """One message of RFC 5424 around a line of ASCII."""
    priority = 8 * _FACILITY + (_WARNING if warning else _NOTICE)
    host = _NOT_IN_A_NAME.sub("-", socket.gethostname())[:255] or "-"
    name = _NOT_IN_A_NAME.sub("-", event)[:32] or "-"
    moment = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"<{priority}>1 {moment} {host} silomix {os.getpid()} {name} - {line}".encode("ascii")


class Syslog:
    """Sends what it is given, in order, from a thread of its own."""

    def __init__(self, address: SyslogAddress) -> None:
        self._address = address
        self._waiting: queue.Queue[bytes] = queue.Queue(_MOST_WAITING)
        self._stop = threading.Event()
        self._socket: socket.socket | None = None
        self._bytes, self._count = 0, threading.Lock()  # of the messages that wait
        self.lost = 0  # messages that were given up
        self._thread = threading.Thread(target=self._work, name="syslog", daemon=True)
        self._thread.start()

    def send(self, message: bytes) -> None:
        """Queue a message without waiting; one that finds no room is counted as lost."""
        if self._bytes + len(message) > _MOST_BYTES:
            self.lost += 1
            return
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self.lost += 1
        else:
            with self._count:
                self._bytes += len(message)

    def close(self, limit_s: float) -> int:
        """Wait so long for what is on its way; returns how many messages were not sent in all."""
        end = time.monotonic() + limit_s
        while self._waiting.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)
        self._stop.set()
        self._thread.join(timeout=limit_s)
        return self.lost + self._waiting.unfinished_tasks

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._waiting.get(timeout=0.2)
            except queue.Empty:
                continue
            if self._delivered(message):
                with self._count:
                    self._bytes -= len(message)
                self._waiting.task_done()
        self._disconnect()

    def _delivered(self, message: bytes) -> bool:
        pause = _PAUSE_S[0]
        while not self._stop.is_set():
            try:
                self._deliver(message)
                return True
            except OSError:
                self._disconnect()
                self._stop.wait(pause)
                pause = min(2 * pause, _PAUSE_S[1])
        return False

    def _deliver(self, message: bytes) -> None:
        if self._socket is None:
            self._socket = self._connected()
        if self._address.transport is Transport.TCP:
            message = b"%d %s" % (len(message), message)
        self._socket.sendall(message)

    def _connected(self) -> socket.socket:
        address = self._address
        if address.transport is Transport.TCP:
            return socket.create_connection((address.host, address.port), _CALL_S)
        family, target = _datagram_target(address)
        made = socket.socket(family, socket.SOCK_DGRAM)
        try:
            made.settimeout(_CALL_S)
            made.connect(target)
        except OSError:
            made.close()
            raise
        return made

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _datagram_target(address: SyslogAddress) -> tuple[int, Any]:
    """The family and the address, as sockets take them."""
    if address.transport is Transport.UNIX:
        return socket.AF_UNIX, address.host
    family, _, _, _, target = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_DGRAM
    )[0]
    return family, target
