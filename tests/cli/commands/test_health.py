"""`silomix server health` and `authority health` against real doors: the right one, or nobody."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from silomix_authority.config import load as load_authority
from silomix_lab.consortium.create import Consortium
from silomix_protocol.connections.tls import Identity
from silomix_server.config import ServerConfig, load
from support.authorities import authority_process
from support.operator_commands import silomix


@contextmanager
def doors(party: str, folder: Path, addresses: tuple[str, ...]) -> Iterator[None]:
    """TLS servers with this party's certificate at these addresses."""
    opened, closing = Event(), Event()

    async def serve() -> None:
        servers = [Identity.load(party, folder).server(address) for address in addresses]
        for server in servers:
            await server.start()
        opened.set()
        await asyncio.to_thread(closing.wait)
        for server in servers:
            await server.stop(None)

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert opened.wait(30)
        yield
    finally:
        closing.set()
        thread.join()


def asked(made: Consortium) -> tuple[int, str]:
    done = silomix("server", "health", str(made.server), cwd=made.folder)
    return done.returncode, (done.stdout + done.stderr).strip()


def listening(made: Consortium) -> ServerConfig:
    """The server's configuration, changed to listen everywhere, as on a machine of its own."""
    text = made.server.read_text()
    made.server.write_text(
        text.replace('_listen = "127.0.0.1:', '_listen = "0.0.0.0:').replace(
            'control_listen = "0.0.0.0', 'control_listen = "127.0.0.1'
        )
    )
    return load(made.server)


def test_a_server_is_well_when_both_doors_show_its_certificate(consortium: Consortium) -> None:
    config = listening(consortium)
    both = (config.fleet_listen, config.channel_listen)
    assert asked(consortium) == (
        1,
        f"silomix: no server answers at {config.fleet_listen}: [Errno 111] Connection refused",
    )
    with doors("server", config.folder, both):
        assert asked(consortium) == (0, f"ok: server answers at {both[0]}, {both[1]}")
    with doors("server", config.folder, both[:1]):
        status, said = asked(consortium)
        assert (status, config.channel_listen in said) == (1, True)
    with doors("mix-1", consortium.mixes[0].parent, both):
        status, said = asked(consortium)
        assert status == 1
        assert "certificate verify failed" in said


def test_an_authority_is_well_when_its_door_shows_its_certificate(consortium: Consortium) -> None:
    def well() -> tuple[int, str]:
        words = "authority", "health", str(consortium.authority)
        done = silomix(*words, cwd=consortium.folder)
        return done.returncode, (done.stdout + done.stderr).strip()

    listen = load_authority(consortium.authority).listen
    status, said = well()
    assert (status, "Connection refused" in said) == (1, True)
    with authority_process(consortium.authority):
        assert well() == (0, f"ok: the authority answers at {listen}")
    with doors("server", consortium.server.parent, (listen,)):
        assert well()[0] == 1, "somebody else took its place"
