"""`silomix silo audit-log …`: is the log whole, and what does it say?"""

from collections import deque
from contextlib import ExitStack, closing
from pathlib import Path
from string import hexdigits
from typing import Annotated

import typer
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.state_folder import state_of
from silomix_protocol.host.terminal import show

from silomix.text.literal_help import Commands

audit_log = Commands(help="What this silo did, line by line, and whether lines are missing.")

_HASH_DIGITS = 64
_LEAST_HEAD = 16

Config = Annotated[Path, typer.Argument(help="This silo's silo.toml.")]


@audit_log.command("verify")
def audit_log_verify(
    config: Config,
    head: Annotated[
        str | None,
        typer.Option(
            help="The hash of a line that you noted, or that your syslog has, 16 hex digits of it "
            "or more: check that it is still in the log."
        ),
    ] = None,
) -> None:
    """Check that no line of the audit log was changed, removed, added or moved.

    Every line is checked against the one before it, and the ledger's entries against the lines
    that name them.  The last line shows the head: keep it somewhere else and give it as --head
    later, and a log that was cut off or replaced is found.
    """
    from silomix_client.audit_log.verify_log import verify
    from silomix_client.config.silo_config import load
    from silomix_client.ledger.database import has_ledger
    from silomix_client.ledger.ledger import Ledger

    from silomix.text.study_and_ledger import counted

    with failures():
        if head is not None and not _is_head(head):
            raise Failure(
                f"--head {head!r}: give at least the first {_LEAST_HEAD} hex digits of a line's "
                "hash, as this command, the log and your syslog show it"
            )
        settings = load(config)
        state = state_of(settings.folder)
        with ExitStack() as stack:
            ledger = None
            if has_ledger(state):
                ledger = stack.enter_context(closing(Ledger(state, settings.policy)))
            checked = verify(state, ledger, head)
        for note in checked.notes:
            show(f"note: {note}")
        if checked.torn:
            show(f"note: {checked.torn} bytes after the last line: a line that was not finished")
        if head is not None:
            show(f"head {head.lower()[:_LEAST_HEAD]}… found: line {checked.earlier}")
        lines = counted(checked.lines, "line", "lines")
        show(f"verified {lines}, head {checked.head if checked.lines else '-'}")


@audit_log.command("show")
def audit_log_show(
    config: Config,
    last: Annotated[int, typer.Option(min=0, help="So many of the last lines (0: all).")] = 40,
) -> None:
    """The last lines of the audit log, for people; programs read state/audit.jsonl itself."""
    from silomix_client.audit_log.verify_log import lines
    from silomix_client.config.silo_config import load
    from silomix_protocol.host import logs

    with failures():
        settings = load(config)
        found = deque(lines(state_of(settings.folder)), maxlen=last or None)
        for line in found:
            mark = "!" if line.level == "warning" else " "
            show(f"{line.number:>6} {line.at} {mark} {logs.shown(line.event, line.fields)}")
        if not found:
            show("the audit log is empty")


def _is_head(text: str) -> bool:
    return _LEAST_HEAD <= len(text) <= _HASH_DIGITS and set(text) <= set(hexdigits)
