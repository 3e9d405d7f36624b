"""The ServerApp that a silomix run names: Flower's side of the coordinator."""

from pathlib import Path

import uvloop
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from silomix_server.config import load
from silomix_server.flower.inside_flower import wait_seconds_for_half_a_reply
from silomix_server.rounds.coordinator import run_study

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = load(Path(str(context.run_config["server-config"])))
    wait_seconds_for_half_a_reply()
    uvloop.run(run_study(config, grid))


def no_client_app() -> None:
    """Refuse to run: Flower wants a ClientApp named, but silos run their own, never this."""
    raise RuntimeError("silos run the silomix that their own operator installed")
