"""How a silo stands with every party that it talks to: in its log, and in a file for its operator.

One link per purpose: *leases* (Flower's Fleet API), *rounds* (the round channel) and *reports*
(the first mix).  The file changes only when a link does, never in a round that goes as it should;
it says with whom, since when, why and when the next try is: nothing about records or reports.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from silomix_protocol.host import logs

FILE = "links.json"
_REMIND_S = 600.0  # between two lines of the log about the same trouble


class Purpose(Enum):
    LEASES = "leases"
    ROUNDS = "rounds"
    REPORTS = "reports"


class LinkCondition(Enum):
    IDLE = "idle"  # not needed now
    CONNECTED = "connected"
    WAITING = "waiting"  # trying again
    REFUSED = "refused"  # the other side says no


@dataclass(frozen=True, slots=True)
class Link:
    purpose: str
    party: str
    address: str
    condition: str
    since: float
    reason: str = ""
    tries: int = 0
    next_try: float | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What the file says: the silo's process, and its links."""

    process: int
    started: float
    links: tuple[Link, ...]


class Links:
    """The silo's links and the file about them, written by the silo's process only."""

    def __init__(self, state: Path | None = None, now: Callable[[], float] = time.time) -> None:
        self._file = state / FILE if state is not None else None
        self._now, self._started = now, now()
        self._links: dict[tuple[Purpose, str], Link] = {}
        self._told: dict[tuple[Purpose, str], float] = {}
        self._write()

    def to(self, purpose: Purpose, party: str, address: str) -> "LinkTo":
        return LinkTo(self, purpose, party, address)

    def close(self) -> None:
        """Delete the file: the process ends in an orderly way, and nobody waits any more."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def set(
        self,
        purpose: Purpose,
        party: str,
        address: str,
        condition: LinkCondition,
        reason: str = "",
        next_try_s: float | None = None,
    ) -> None:
        """Set a link's condition; cheap if nothing changed, as in every round that goes well."""
        key = purpose, address
        before = self._links.get(key)
        same = before is not None and before.condition == condition.value
        if same and next_try_s is None and before is not None and before.reason == reason:
            return
        now = self._now()
        link = Link(
            purpose.value,
            party,
            address,
            condition.value,
            before.since if before is not None and same else now,
            reason,
            (before.tries if before is not None and same else 0) + (next_try_s is not None),
            None if next_try_s is None else now + next_try_s,
        )
        self._links[key] = link
        self._tell(key, link, before, now)
        self._write()

    def _tell(self, key: tuple[Purpose, str], link: Link, before: Link | None, now: float) -> None:
        """Log a line when something changed, and a reminder now and then while it does not."""
        news = before is None or (before.condition, before.reason) != (link.condition, link.reason)
        if link.condition == LinkCondition.IDLE.value or not (
            news or now - self._told.get(key, 0.0) > _REMIND_S
        ):
            return
        self._told[key] = now
        fields = {"party": link.party, "address": link.address}
        if link.condition == LinkCondition.CONNECTED.value:
            logs.paced(f"{link.purpose}_connected", **fields)
            return
        trouble: dict[str, object] = {**fields, "reason": link.reason}
        if link.next_try is not None:
            trouble |= {"tries": link.tries, "next_try_s": round(link.next_try - now, 1)}
        logs.warning(f"{link.purpose}_{link.condition}", **trouble)

    def _write(self) -> None:
        """Write the file whole or not at all, but without waiting for the disk."""
        if self._file is None:
            return
        content = {
            "process": os.getpid(),
            "started": self._started,
            "links": [asdict(link) for link in self._links.values()],
        }
        part = self._file.with_suffix(".part")
        with suppress(OSError):  # a full disk must not end a round
            part.write_text(json.dumps(content), encoding="utf-8")
            part.chmod(0o600)
            part.replace(self._file)


@dataclass(frozen=True, slots=True)
class LinkTo:
    """A handle on one link, for whoever keeps up that connection."""

    _links: Links
    _purpose: Purpose
    _party: str
    _address: str

    def idle(self) -> None:
        self._set(LinkCondition.IDLE)

    def connected(self) -> None:
        self._set(LinkCondition.CONNECTED)

    def refused(self, reason: object) -> None:
        self._set(LinkCondition.REFUSED, reason)

    def waiting(self, reason: object, next_try_s: float) -> None:
        """Note that one more try failed, and that the next comes after so many seconds."""
        self._set(LinkCondition.WAITING, reason, next_try_s)

    def _set(
        self, condition: LinkCondition, reason: object = "", next_try_s: float | None = None
    ) -> None:
        where = self._purpose, self._party, self._address
        self._links.set(*where, condition, str(reason), next_try_s)


def standing(state: Path) -> Standing | None:
    """How the running silo stands; None if none runs from this folder."""
    if not _is_held(state):
        return None
    try:
        content = json.loads((state / FILE).read_text(encoding="utf-8"))
        links = tuple(Link(**each) for each in content["links"])
        return Standing(int(content["process"]), float(content["started"]), links)
    except (OSError, ValueError, KeyError, TypeError):
        return Standing(0, 0.0, ())  # it has just started


def _is_held(state: Path) -> bool:
    """Whether a process has the lock that `silomix silo run` holds as long as it lives."""
    try:
        descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
