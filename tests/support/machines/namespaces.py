"""A network namespace without a name: it lives as long as somebody holds its file descriptor.

Nothing is mounted and nothing written, so nothing is left behind: when the test process ends,
also by SIGKILL, the kernel takes the namespace and all its interfaces away with the last process
in it (which are children that end with their parent).
"""

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_THIS_THREAD = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """Interfaces, addresses, routes and sockets of their own; `lo` is up, IPv6 is off."""

    def __init__(self) -> None:
        home = os.open(_THIS_THREAD, os.O_RDONLY)
        try:
            _call("unshare", _CLONE_NEWNET)
            try:
                self._descriptor = os.open(_THIS_THREAD, os.O_RDONLY)
            finally:
                _call("setns", home, _CLONE_NEWNET)
        finally:
            os.close(home)
        self.identity = os.fstat(self._descriptor).st_ino
        self.set("net/ipv6/conf/all/disable_ipv6", "1")
        self.ip("link set lo up")

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def path(self) -> str:
        """Where this process and its children find it; other namespaces' commands may name it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is in the namespace; what it opens there stays there."""
        home = os.open(_THIS_THREAD, os.O_RDONLY)
        try:
            _call("setns", self._descriptor, _CLONE_NEWNET)
            try:
                yield
            finally:
                _call("setns", home, _CLONE_NEWNET)
        finally:
            os.close(home)

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs `arguments` here, as the process that starts it."""
        return ["nsenter", f"--net={self.path}", "--", *arguments]

    def ip(self, *commands: str) -> None:
        """Commands of `ip`, without the word."""
        self._run("ip", "-batch", "-", text="\n".join(commands))

    def tc(self, command: str) -> None:
        self._run("tc", *command.split())

    def set(self, key: str, value: str) -> None:
        """A sysctl of the namespace."""
        with self.entered():
            Path("/proc/sys", key).write_text(value, encoding="ascii")

    def socket(self, kind: socket.SocketKind) -> socket.socket:
        """A socket here that this process may use from wherever it is."""
        with self.entered():
            return socket.socket(socket.AF_INET, kind)

    def _run(self, *arguments: str, text: str = "") -> None:
        done = subprocess.run(
            self.command(*arguments),
            input=text,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode:
            asked = text or " ".join(arguments)
            raise OSError(f"{arguments[0]}: {done.stderr.strip()} (in: {asked})")


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
