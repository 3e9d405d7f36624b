"""The check of the audit log: its chain from the first line on, and the ledger's entries in it.

Lines name entries of the ledger (`entry`, and the beginning of its hash, `head`): every entry has
to be named, and whatever is named has to be there.  So a log that lost its end is found by the
ledger, and a ledger that was rolled back by the log.  Somebody who can write both and computes all
hashes anew is found only by a hash that was noted elsewhere: a syslog has one with every line.

A silo may be answering meanwhile: ledger and log are compared as they were at one moment, at which
nobody was between an entry and its line (`at_one_moment`).  No alarm is ever about timing.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from silomix_protocol.host.durable import one_moment

from silomix_client.audit_log.log import FILE, LONGEST_LINE, START, AuditLog, LogLine, read_line
from silomix_client.errors import AuditLogBroken
from silomix_client.ledger import hash_chain
from silomix_client.ledger.database import lock_in_time, nobody_telling
from silomix_client.ledger.hash_chain import ChainEntry
from silomix_client.ledger.ledger import Ledger

_OWN_EVENTS = {
    "audit_line_torn": "a line was cut off by a crash or a full disk",
    "audit_log_changed": "the log was shorter, or another one, than the running silo knew",
    "ledger_entries_unlogged": "entries of the ledger had no line: the silo was killed, lost its "
    "power or had no room before it wrote one, or lines were removed",
    "syslog_lost": "lines did not reach the syslog",
}


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the log's last whole line ends, and the bytes behind it: part of a line, from a crash.

    What is before that place never changes: lines are only added, and only what is behind it is
    ever cut off.
    """

    whole: int = 0
    torn: int = 0


@dataclass(slots=True)
class Checked:
    """A log whose chain is whole: how long it is, where it ends, and what its reader should see."""

    lines: int = 0
    head: str = ""
    torn: int = 0  # bytes behind the last line
    earlier: int | None = None  # the line whose hash was noted before, if one was given
    notes: list[str] = field(default_factory=list)
    named: dict[tuple[int, str], int] = field(default_factory=dict)  # (entry, head): line
    runs: list[tuple[int, int]] = field(default_factory=list)  # entries that were named together

    def unnamed(self, entries: Iterable[int]) -> list[int]:
        """The entries of the ledger that no line names."""
        single = {entry for entry, _ in self.named}
        return [
            entry
            for entry in sorted(entries)
            if entry not in single and not any(first <= entry <= last for first, last in self.runs)
        ]


def verify(state: Path, ledger: Ledger | None, earlier_head: str | None = None) -> Checked:
    """Check every line; AuditLogBroken says which does not fit."""
    with at_one_moment(state, ledger) as end:
        entries = _hashes(ledger)
        checked = check_chain(state, earlier_head, end)
        check_named(ledger, checked)
    if missing := checked.unnamed(entries):
        raise AuditLogBroken(
            f"entry {missing[0]} of the ledger has no line ({len(missing)} in all): lines were "
            "removed, or the silo was killed, lost its power or had no room before it wrote one "
            "(its next start writes it)"
        )
    if earlier_head is not None and checked.earlier is None:
        raise AuditLogBroken(
            f"no line has the hash {earlier_head}: the log was rolled back or replaced"
        )
    return checked


@contextmanager
def at_one_moment(state: Path, ledger: Ledger | None) -> Iterator[LogEnd]:
    """Hold the ledger, as it is read inside, and the log up to the given end at one moment.

    The silo goes on at once: it waits for nothing that is done inside.
    """
    if ledger is None:
        yield end_of_log(state)
        return
    with ExitStack() as stack:
        with nobody_telling(state):
            stack.enter_context(one_moment(ledger.database))
            end = end_of_log(state)
        yield end


def end_of_log(state: Path) -> LogEnd:
    """Where the log ends now, at a moment at which nobody appends to it."""
    try:
        with (state / FILE).open("rb") as file:
            lock_in_time(file.fileno(), fcntl.LOCK_SH)
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - 2 * LONGEST_LINE)
            tail = os.pread(file.fileno(), size - start, start)
    except FileNotFoundError:
        return LogEnd()
    last = tail.rfind(b"\n")
    if last < 0 and start:
        return LogEnd(size)  # no line is so long: whoever reads it will say so
    whole = start + last + 1
    return LogEnd(whole, size - whole)


def check_named(ledger: Ledger | None, checked: Checked) -> None:
    """Check that the ledger, read after the log, has every entry that the log names."""
    found = _hashes(ledger)
    for (number, head), line in checked.named.items():
        if not found.get(number, "").startswith(head):
            raise AuditLogBroken(
                f"line {line} names entry {number} of the ledger as {head}, and the ledger has "
                f"{found.get(number, 'none')[:16]}: the ledger was rolled back or replaced"
            )


def check_chain(state: Path, earlier_head: str | None = None, end: LogEnd | None = None) -> Checked:
    """Check each line against the one before it, up to `end` or to where the log ends now."""
    end = end or end_of_log(state)
    checked = Checked(head=START, torn=end.torn)
    for line in lines(state, end):
        if line.number != checked.lines + 1 or line.previous != checked.head:
            raise AuditLogBroken(
                f"line {checked.lines + 1} does not follow the one before it: lines were removed, "
                "added or put in another order"
            )
        checked.lines, checked.head = line.number, line.hash
        if earlier_head is not None and line.hash.startswith(earlier_head.lower()):
            checked.earlier = line.number
        if line.event in _OWN_EVENTS:
            checked.notes.append(f"line {line.number}: {_OWN_EVENTS[line.event]}")
        _note_entry(line, checked)
    return checked


def lines(state: Path, end: LogEnd | None = None) -> Iterator[LogLine]:
    """All whole lines in order; AuditLogBroken at the first that was changed."""
    path, end = state / FILE, end or end_of_log(state)
    if not end.whole:
        return
    with path.open("rb") as file:
        number, left = 0, end.whole
        while left > 0:
            number, text = number + 1, file.readline(min(left, 2 * LONGEST_LINE))
            left -= len(text)
            try:
                if not text.endswith(b"\n"):
                    raise ValueError("no line")
                yield read_line(text[:-1])
            except ValueError as error:
                raise AuditLogBroken(f"{path}: line {number} was changed") from error


def note_unlogged(ledger: Ledger, log: AuditLog, checked: Checked) -> None:
    """Write down which entries of the ledger have no line, before anything else is done."""
    entries = {entry.number: entry for entry in hash_chain.checked(ledger.database)}
    for first, last in _runs(checked.unnamed(entries)):
        log.append(
            "ledger_entries_unlogged",
            warning=True,
            first_entry=first,
            entry=last,
            head=entries[last].short,
        )


def _note_entry(line: LogLine, checked: Checked) -> None:
    entry, head = line.fields.get("entry"), line.fields.get("head")
    first = line.fields.get("first_entry", entry)
    if not (isinstance(entry, int) and isinstance(head, str) and isinstance(first, int)):
        return
    checked.named[entry, head] = line.number
    if first < entry:
        checked.runs.append((first, entry))


def _hashes(ledger: Ledger | None) -> dict[int, str]:
    if ledger is None:
        return {}
    entries: Iterator[ChainEntry] = hash_chain.checked(ledger.database)
    return {entry.number: entry.hash.hex() for entry in entries}


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of successive numbers."""
    for index, number in enumerate(numbers):
        if index == 0 or numbers[index - 1] != number - 1:
            first = number
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield first, number
