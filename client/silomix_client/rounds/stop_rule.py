"""When a silo stops: the tally of what became of its reports, kept over restarts.

The count is on disk, since a server could make the process end, and a service manager starts it
again: only the operator makes it forget (`silomix silo resume`).  Nothing is written while rounds
go as they should.
"""

import json
from contextlib import suppress
from pathlib import Path

from silomix_core.study.study import StudyId
from silomix_protocol.host.durable import make_folder, write_durably
from silomix_protocol.rounds.descriptor import RoundDigest

from silomix_client.ledger.outcome_rules import MISSING_BEFORE_STOP, Fate, Tally

FOLDER = "neglect"


class StopRule:
    """The tally of what became of one study's reports, and whether it stops the silo."""

    def __init__(self, state: Path, study: StudyId) -> None:
        self._path = _file(state, study)
        self._tally = Tally()
        self._stored = False  # whether there is a file
        self.load()

    @property
    def stops(self) -> bool:
        return self._tally.stops

    @property
    def missing(self) -> int:
        return self._tally.missing

    def load(self) -> None:
        """Read the tally from disk; begin an empty one if the operator said to go on."""
        try:
            self._tally = _decoded(self._path.read_bytes())
            self._stored = True
        except FileNotFoundError:
            if self._stored:  # else it is a tally that needs no file
                self._tally, self._stored = Tally(), False
        except (OSError, ValueError, KeyError, TypeError):  # a changed file: the safe side
            self._tally, self._stored = Tally(missing=MISSING_BEFORE_STOP), True

    def judge(self, digest: RoundDigest, fate: Fate) -> bool:
        """Count what became of a report; False if that was counted already."""
        tally = self._tally.judged(digest, fate)
        if tally == self._tally:
            return False
        self._tally = tally
        self._store()
        return True

    def left_out(self, *, listening: bool) -> None:
        """Count prescribed rounds that this silo was not told of."""
        self._tally = self._tally.left_out(listening=listening)
        self._store()

    def _store(self) -> None:
        tally = self._tally
        if not tally.missing and not any(tally.unheard):
            if self._stored:
                self._path.unlink(missing_ok=True)
                self._stored = False
            return
        with suppress(OSError):  # a full disk: then it counts for this process
            make_folder(self._path.parent)
            write_durably(self._path, _encoded(tally))
            self._stored = True


def forget(state: Path, study: StudyId) -> bool:
    """Delete the tally, as the operator says to go on; False if nothing was counted."""
    path = _file(state, study)
    known = path.exists()
    path.unlink(missing_ok=True)
    return known


def _file(state: Path, study: StudyId) -> Path:
    return state / FOLDER / f"{study.hex()}.json"


def _encoded(tally: Tally) -> bytes:
    content = {"missing": tally.missing, "unheard": list(tally.unheard)}
    if tally.last is not None and tally.fate is not None:
        content |= {"last": tally.last.hex(), "fate": tally.fate.value}
    return json.dumps(content).encode()


def _decoded(content: bytes) -> Tally:
    kept = json.loads(content)
    last = RoundDigest(bytes.fromhex(kept["last"])) if "last" in kept else None
    return Tally(
        missing=int(kept["missing"]),
        unheard=tuple(bool(each) for each in kept["unheard"]),
        last=last,
        fate=None if last is None else Fate(kept["fate"]),
    )
