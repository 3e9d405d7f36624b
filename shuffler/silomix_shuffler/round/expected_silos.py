"""Whom the first mix waits for: a silo that is gone must not hold up every later round.

A silo whose stream broke, or that never had one, is not waited for until it connects.  One that
let a deadline pass is not waited for in the next 2, 4, 8, … rounds (at most 64), whether it
reconnects or not: an enrolled silo that wants to stall a study can do so ever more rarely.  Per
study; no I/O.
"""

from collections.abc import Iterable

from silomix_core.study.study import StudyId

_LONGEST_PAUSE = 64


class ExpectedSilos:
    def __init__(self) -> None:
        self._streams: dict[str, int] = {}
        self._broken: set[str] = set()
        self._misses: dict[tuple[StudyId, str], int] = {}
        self._waits_again: dict[tuple[StudyId, str], int] = {}  # first round to wait for it again

    def streams(self, silo: str) -> int:
        return self._streams.get(silo, 0)

    def absent(self, silos: Iterable[str]) -> list[str]:
        """The silos without a stream that are not given up yet."""
        return [each for each in silos if not self.streams(each) and each not in self._broken]

    def connected(self, silo: str) -> None:
        self._streams[silo] = self.streams(silo) + 1
        self._broken.discard(silo)

    def disconnected(self, silo: str) -> bool:
        """Take note that a stream ended; return whether it was the silo's last."""
        self._streams[silo] = self.streams(silo) - 1
        return self._streams[silo] == 0

    def gave_up(self, silo: str) -> None:
        """Give up a silo that did not come back in time; nothing if it did."""
        if not self.streams(silo):
            self._broken.add(silo)

    def missed(self, study: StudyId, silo: str, round_number: int) -> None:
        """Take note that a silo was waited for until the deadline of a round, in vain."""
        key = (study, silo)
        self._misses[key] = self._misses.get(key, 0) + 1
        pause = min(2 ** self._misses[key], _LONGEST_PAUSE)
        self._waits_again[key] = round_number + pause

    def answered(self, study: StudyId, silo: str) -> None:
        """Forget one miss of a silo, as a new report of it was admitted."""
        key = (study, silo)
        if self._misses.get(key):
            self._misses[key] -= 1

    def gone(self, study: StudyId, round_number: int) -> frozenset[str]:
        """The silos that this round does not wait for."""
        silent = {
            silo
            for (known, silo), again in self._waits_again.items()
            if known == study and round_number < again
        }
        return frozenset(self._broken | silent)
