"""`silomix server`: what the server's operator types."""

from silomix_protocol.host.failure import failures

from silomix.commands.health import server_health
from silomix.commands.options import Config
from silomix.text.literal_help import Commands

server = Commands(help="The server: runs a study on Flower.")


@server.command("run")
def server_run(config: Config) -> None:
    """Run the configured study: SuperLink, coordinator, leases, until the model is there.

    CONFIG is its server.toml.  Run it again after an interruption and it goes on with the next
    round.
    """
    with failures():
        from silomix_server.config import load
        from silomix_server.process import run as run_server

        run_server(load(config))


server.command("health")(server_health)
