"""`silomix silo doctor` and `silomix silo status`: what is wrong, and how the silo stands."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.logs import printable
from silomix_protocol.host.state_folder import state_of
from silomix_protocol.host.terminal import show

if TYPE_CHECKING:
    from silomix_client.doctor.finding import Finding
    from silomix_client.network.connection_status import Link, Standing

_SUBJECT = 22


def doctor(
    config: Annotated[Path, typer.Argument(help="This silo's silo.toml.")],
    study_file: Annotated[
        Path | None, typer.Argument(help="A study that is not approved yet.")
    ] = None,
) -> None:
    """Check clock, names, proxy, ports, TLS, versions, keys, enrolment, disk, data, budget.

    CONFIG is this silo's silo.toml.  Changes nothing; may be run beside a running silo.  Every
    line says ok, warning or failed, and what to do; exit status 1 if something failed.
    """
    from silomix_client.config.silo_config import load
    from silomix_client.doctor.checks import examine
    from silomix_client.doctor.finding import Severity
    from silomix_client.errors import SiloError

    with failures():
        content = None
        if study_file is not None:
            try:
                content = study_file.read_bytes()
            except OSError as error:
                raise Failure(f"{study_file}: {error.strerror}") from error
        try:
            settings = load(config)
        except SiloError as error:
            show(_line("failed", "configuration", str(error), "correct it; then ask again"))
            raise typer.Exit(1) from None
        whose = "nobody else can change it, your policy or state/"
        show(_line("ok", "configuration", f"{config} is complete; {whose}"))
        failed = 0
        for finding in examine(settings, content):
            show(_finding(finding))
            failed += finding.severity is Severity.FAILED
        if failed:
            raise typer.Exit(1)


def status(config: Annotated[Path, typer.Argument(help="This silo's silo.toml.")]) -> None:
    """Whether the silo runs, with whom it is connected, what it waits for and since when.

    CONFIG is this silo's silo.toml.  Exit status 1 if it does not run or is refused or waiting
    for somebody.
    """
    from silomix_client.config.silo_config import load
    from silomix_client.network.connection_status import LinkCondition, standing

    with failures():
        settings = load(config)
        found = standing(state_of(settings.folder))
        if found is None:
            show(f"{settings.name} is not running (silomix silo run {config})")
            raise typer.Exit(1)
        show(_head(settings.name, found))
        now = time.time()
        for link in found.links:
            show(_link(link, now))
        well = {LinkCondition.IDLE.value, LinkCondition.CONNECTED.value}
        if not found.links or any(link.condition not in well for link in found.links):
            raise typer.Exit(1)


def _finding(finding: "Finding") -> str:
    return _line(finding.severity.value, finding.subject, finding.seen, finding.advice)


def _line(severity: str, subject: str, seen: str, advice: str = "") -> str:
    line = f"{severity:<8} {subject:<{_SUBJECT}} {printable(seen)}"
    return f"{line}\n{'':<9}{'':<{_SUBJECT}} → {printable(advice)}" if advice else line


def _head(name: str, found: "Standing") -> str:
    if not found.process:
        return f"{name} is starting"
    return f"{name} runs as process {found.process} since {_time(found.started)}"


def _link(link: "Link", now: float) -> str:
    line = f"{link.purpose:<8} {link.party} {link.address}: {link.condition}"
    line += f" since {_time(link.since)}"
    if link.reason:
        line += f" ({printable(link.reason)})"
    if link.next_try is not None:
        tries = "1 try" if link.tries == 1 else f"{link.tries} tries"
        line += f"; {tries}, the next in {max(0.0, link.next_try - now):.0f} s"
    return line


def _time(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"
