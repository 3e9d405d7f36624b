"""Is the audit log whole?  Its chain from the first line on, and the ledger's entries against it.

Lines name entries of the ledger (`entry`, and the beginning of its hash, `head`): every entry has
to be named, and whatever is named has to be there.  So a log that lost its end is found by the
ledger, and a ledger that was rolled back by the log.  Somebody who can write both and computes all
hashes anew is found only by a hash that was noted elsewhere: a syslog has one with every line.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from silomix_client import chain
from silomix_client.audit_log import FILE, START, AuditLog, Line, read_line
from silomix_client.chain import Entry
from silomix_client.errors import AuditLogBroken
from silomix_client.ledger import Ledger

_SETTLE_S = 0.5  # between a ledger's entry and its line: far more than a silo takes
_OWN_EVENTS = {
    "audit_line_torn": "a line was cut off by a crash or a full disk",
    "audit_log_changed": "the log was shorter, or another one, than the running silo knew",
    "ledger_entries_unlogged": "entries of the ledger had no line: the silo was killed before it "
    "wrote one, or lines were removed",
    "syslog_lost": "lines did not reach the syslog",
}


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
        """Those of the ledger's entries that no line names."""
        single = {entry for entry, _ in self.named}
        return [
            entry
            for entry in sorted(entries)
            if entry not in single and not any(first <= entry <= last for first, last in self.runs)
        ]


def verify(state: Path, ledger: Ledger | None, earlier_head: str | None = None) -> Checked:
    """Check every line; AuditLogBroken says which does not fit.

    The ledger is read before and after the log: a silo may be answering meanwhile.
    """
    before = _hashes(ledger)
    checked = check_chain(state, earlier_head)
    if checked.unnamed(before):
        time.sleep(_SETTLE_S)
        checked = check_chain(state, earlier_head)
    check_named(ledger, checked)
    if missing := checked.unnamed(before):
        raise AuditLogBroken(
            f"entry {missing[0]} of the ledger has no line ({len(missing)} in all): lines were "
            "removed, or the silo was killed before it wrote one (its next start writes it)"
        )
    if earlier_head is not None and checked.earlier is None:
        raise AuditLogBroken(
            f"no line has the hash {earlier_head}: the log was rolled back or replaced"
        )
    return checked


def check_named(ledger: Ledger | None, checked: Checked) -> None:
    """Every entry that the log names stands in the ledger, which must be read after the log."""
    found = _hashes(ledger)
    for (number, head), line in checked.named.items():
        if not found.get(number, "").startswith(head):
            raise AuditLogBroken(
                f"line {line} names entry {number} of the ledger as {head}, and the ledger has "
                f"{found.get(number, 'none')[:16]}: the ledger was rolled back or replaced"
            )


def check_chain(state: Path, earlier_head: str | None = None) -> Checked:
    """The lines alone, each against the one before it."""
    checked = Checked(head=START)
    for line in lines(state, checked):
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


def lines(state: Path, checked: Checked | None = None) -> Iterator[Line]:
    """All whole lines in order; AuditLogBroken at the first that was changed."""
    path = state / FILE
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith(b"\n"):
                    if checked is not None:
                        checked.torn = len(text)
                    return
                try:
                    yield read_line(text[:-1])
                except ValueError as error:
                    raise AuditLogBroken(f"{path}: line {number} was changed") from error
    except FileNotFoundError:
        return


def note_unlogged(ledger: Ledger, log: AuditLog, checked: Checked) -> None:
    """Write down which entries of the ledger have no line, before anything else is done."""
    entries = {entry.number: entry for entry in chain.checked(ledger.database)}
    for first, last in _runs(checked.unnamed(entries)):
        log.append(
            "ledger_entries_unlogged",
            warning=True,
            first_entry=first,
            entry=last,
            head=entries[last].short,
        )


def _note_entry(line: Line, checked: Checked) -> None:
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
    entries: Iterator[Entry] = chain.checked(ledger.database)
    return {entry.number: entry.hash.hex() for entry in entries}


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of successive numbers."""
    for index, number in enumerate(numbers):
        if index == 0 or numbers[index - 1] != number - 1:
            first = number
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield first, number
