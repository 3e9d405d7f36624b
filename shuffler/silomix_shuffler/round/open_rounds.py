"""The rounds that a mix has in memory, and those that it forgot there but not yet on its disk."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from silomix_core.study.study import Study
from silomix_protocol.host import logs
from silomix_protocol.rounds.descriptor import RoundDigest

from silomix_shuffler.batch import State
from silomix_shuffler.config import Limits
from silomix_shuffler.errors import NoRoom, TooMuch, WrongRound
from silomix_shuffler.round.round import Round
from silomix_shuffler.storage.store import Over

_ROUNDS_KEPT = 2  # finished ones of a study, for questions that come again


class OpenRounds:
    def __init__(self, limits: Limits, bodies: Path) -> None:
        self._limits, self._bodies = limits, bodies
        self._rounds: dict[RoundDigest, Round] = {}
        self._unpurged: dict[RoundDigest, Round] = {}  # forgotten in memory, still on disk

    def __iter__(self) -> Iterator[Round]:
        return iter(list(self._rounds.values()))  # also for other threads

    def find(self, digest: RoundDigest) -> Round | None:
        return self._rounds.get(digest)

    def named(self, digest: bytes) -> Round:
        current = self._rounds.get(RoundDigest(digest))
        if current is None:
            raise WrongRound("no such round is open here")
        return current

    def add(self, current: Round) -> None:
        self._rounds[current.batch.descriptor.digest] = current

    # Room -----------------------------------------------------------------------------------------

    def unfinished(self) -> int:
        return sum(not each.finished for each in self)

    def body_bytes(self) -> int:
        return sum(each.body_bytes for each in self if each.has_bodies)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._bodies).free

    def check_number(self, study: Study) -> None:
        busy = [each for each in self if each.study is study and not each.finished]
        if len(busy) >= self._limits.open_rounds:
            raise TooMuch("too many rounds of this study are open")

    def check_room(self, wanted: int) -> None:
        limits, taken, free = self._limits, self.body_bytes(), self.free_bytes()
        if taken + wanted > limits.disk_bytes or free - wanted < limits.free_disk_bytes:
            logs.warning("no_room", free_mb=free // 10**6, taken_mb=taken // 10**6)
            raise NoRoom("this mix has no room on its disk for another batch")

    # Forgetting -----------------------------------------------------------------------------------

    def forget(self, current: Round) -> None:
        """Forget a round before anything is awaited: nobody finds it, nothing brings it back."""
        digest = current.batch.descriptor.digest
        self._rounds.pop(digest, None)
        self._unpurged[digest] = current
        current.forget()

    def forget_old(self, study: Study) -> list[Round]:
        """Forget finished rounds but the last few; return all that are to be purged on disk."""
        finished = [each for each in self if each.study is study and each.finished]
        for old in finished[:-_ROUNDS_KEPT]:
            self.forget(old)
        return self.unpurged()

    def unpurged(self) -> list[Round]:
        return list(self._unpurged.values())

    def purged(self, rounds: Iterable[Round]) -> None:
        """Note that rounds are gone on disk too; after a failed step, the next one purges them."""
        for each in rounds:
            each.delete_bodies()
            self._unpurged.pop(each.batch.descriptor.digest, None)


def purging(rounds: Iterable[Round]) -> list[Over]:
    """The rounds that were forgotten, as the store purges them."""
    return [
        Over(each.batch.descriptor, each.batch.state is State.VOIDED, each.batch.doubtful)
        for each in rounds
    ]
