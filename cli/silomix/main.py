"""`silomix`: every command, registered; each is a few lines over the package that does the work.

Imports wait until a command runs: a silo never loads the server, and `--help` is quick.
"""

import sys
from collections.abc import Callable
from typing import Any

from silomix_protocol.host.failure import Failure
from silomix_protocol.host.terminal import show
from silomix_server.flower.child_processes import end_with_parent

from silomix.commands import backup
from silomix.commands.authority import authority, join, renew
from silomix.commands.consortium import consortium
from silomix.commands.demo import demo
from silomix.commands.doctor import doctor, status
from silomix.commands.health import authority_health
from silomix.commands.mix import mix
from silomix.commands.research import algorithms, audit, plan_study, reproduce, simulate
from silomix.commands.server import server
from silomix.commands.silo import silo
from silomix.commands.silo_check import silo_check
from silomix.commands.study import study
from silomix.text.literal_help import Commands

app = Commands(
    help="One model from everybody's records, trusting nobody with them.\n\n"
    "Start with: silomix demo.  By hand: consortium init, study show, silo approve, mix run, "
    "silo run, server run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # tracebacks with local variables would show secrets
    add_completion=False,
)
GROUPS = {
    "silo": silo,
    "mix": mix,
    "server": server,
    "study": study,
    "authority": authority,
    "consortium": consortium,
}
COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": demo,
    "algorithms": algorithms,
    "plan": plan_study,
    "simulate": simulate,
    "reproduce": reproduce,
    "audit": audit,
    "join": join,
    "renew": renew,
}
for name, group in GROUPS.items():
    app.add_typer(group, name=name, no_args_is_help=True)
for name, command in COMMANDS.items():
    app.command(name)(command)
backup.register(silo)
silo.command("check")(silo_check)
silo.command("doctor")(doctor)
silo.command("status")(status)
authority.command("health")(authority_health)


def run() -> None:
    """Run the console script: errors that a user can act on become one line and exit status 1."""
    end_with_parent()
    try:
        app()
    except Failure as failure:
        show(f"silomix: {failure}", error=True)
        sys.exit(1)
