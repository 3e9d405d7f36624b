"""When a silo stops: rounds in which nothing came of its reports, counted over restarts.

Two reports missing in a row, or half of the last rounds missing or void: then somebody loses what
this silo sends, and answering on would only spend.  The count is on disk, since a server could
make the process end, and a service manager starts it again: only the operator makes it forget
(`silomix silo resume`).  Nothing is written while rounds go as they should.
"""

import json
from collections import deque
from contextlib import suppress
from pathlib import Path

from silomix_core.study import StudyId
from silomix_protocol.descriptor import RoundDigest
from silomix_protocol.durable import write_whole

FOLDER = "neglect"
_MISSING_BEFORE_STOP = 2
_UNHEARD_BEFORE_STOP, _WINDOW = 8, 16


class Neglect:
    """What became of the last rounds of one study."""

    def __init__(self, state: Path, study: StudyId) -> None:
        self._path = _file(state, study)
        self._missing = 0  # rounds in a row that were closed, or never listed, without our report
        self._counted: RoundDigest | None = None  # the last of them
        self._unheard: deque[bool] = deque(maxlen=_WINDOW)  # of the last rounds: void or missing
        self._judged: RoundDigest | None = None  # the last of those, however often it is asked
        self._stored = False  # whether there is a file
        self.load()

    @property
    def stops(self) -> bool:
        """Whether our reports go nowhere: time for the operator to ask why."""
        return self._missing >= _MISSING_BEFORE_STOP or sum(self._unheard) >= _UNHEARD_BEFORE_STOP

    @property
    def missing(self) -> int:
        return self._missing

    def load(self) -> None:
        """As it stands on disk; nothing, if the operator said to go on."""
        try:
            kept = json.loads(self._path.read_bytes())
            missing, unheard = int(kept["missing"]), [bool(each) for each in kept["unheard"]]
            self._stored = True
        except FileNotFoundError:
            if not self._stored:
                return  # a count that needs no file
            missing, unheard, self._stored = 0, [], False
        except (OSError, ValueError, KeyError, TypeError):  # somebody changed it: the safe side
            missing, unheard, self._stored = _MISSING_BEFORE_STOP, [], True
        self._missing, self._unheard = missing, deque(unheard, maxlen=_WINDOW)

    def judge(self, digest: RoundDigest, *, unheard: bool) -> None:
        """What became of a round, once for each D."""
        if self._judged != digest:
            self._judged = digest
            self._unheard.append(unheard)
            self._store()

    def miss(self, digest: RoundDigest) -> bool:
        """One more report is missing; False if it was counted already."""
        if self._counted == digest:
            return False
        self._counted = digest
        self._missing += 1
        self._store()
        return True

    def found(self) -> None:
        """A report was in its list, and the round is closed."""
        if self._missing:
            self._missing = 0
            self._store()

    def _store(self) -> None:
        if not self._missing and not any(self._unheard):
            if self._stored:
                self._path.unlink(missing_ok=True)
                self._stored = False
            return
        content = {"missing": self._missing, "unheard": list(self._unheard)}
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(OSError):  # a full disk: then it counts for this process
            write_whole(self._path, json.dumps(content).encode())
            self._stored = True


def forget(state: Path, study: StudyId) -> bool:
    """The operator says to go on; False if nothing was counted."""
    path = _file(state, study)
    known = path.exists()
    path.unlink(missing_ok=True)
    return known


def _file(state: Path, study: StudyId) -> Path:
    return state / FOLDER / f"{study.hex()}.json"
