"""`silomix mix …`: what a mix's operator types."""

import json

from silomix_core.toml_table import split_address
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.terminal import show

from silomix.commands.options import Config
from silomix.text.literal_help import Commands

mix = Commands(help="A mix: permutes encrypted reports, sees neither sender nor content.")

_HEALTH_S = 5.0


@mix.command("run")
def mix_run(config: Config) -> None:
    """Serve as a mix until stopped (Ctrl-C or SIGTERM).  CONFIG is this mix's mix.toml."""
    with failures():
        from silomix_shuffler.config import load
        from silomix_shuffler.process import run as run_mix

        run_mix(load(config))


@mix.command("rotate")
def mix_rotate(config: Config) -> None:
    """Throw away every round key that was announced and not used yet.

    CONFIG is this mix's mix.toml.  Keys of rounds to come lie in the mix's state for as long as
    64 rounds take; do this when somebody may have read them.  The server asks for fresh ones.
    """
    with failures():
        from silomix_shuffler.config import load
        from silomix_shuffler.process import rotate

        thrown = rotate(load(config))
        rounds = "1 round" if thrown == 1 else f"{thrown} rounds"
        show(f"keys of {rounds} thrown away; the server will ask for fresh ones")


@mix.command("health")
def mix_health(config: Config) -> None:
    """Ask the running mix whether all is well; exit status 1 if it is not.

    CONFIG is this mix's mix.toml; the mix answers at its metrics_listen address.
    """
    with failures():
        from silomix_shuffler.config import load

        address = load(config).metrics_listen
        if address is None:
            raise Failure(
                f"{config}: metrics_listen is not set; set it (say, to 127.0.0.1:9201), start the "
                "mix again, and ask again"
            )
        problems = _problems(address)
        if problems:
            raise Failure(f"the mix at {address} is not well: {'; '.join(problems)}")
        show(f"ok: the mix at {address} is well")


def _problems(address: str) -> list[str]:
    """The problems that the mix says it has."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(*split_address(address), timeout=_HEALTH_S)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        answer = json.loads(response.read())
        problems = [str(problem) for problem in answer["problems"]]
    except OSError as error:
        raise Failure(f"no mix answers at {address}: {error}") from error
    except (HTTPException, ValueError, KeyError, TypeError) as error:
        raise Failure(f"what answers at {address} is not a mix") from error
    finally:
        connection.close()
    return problems or ([] if response.status == 200 else [f"status {response.status}"])
