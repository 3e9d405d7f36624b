"""Small worlds, built: a consortium, its parties as machines, and what is known of them already."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from exploration.mix import MixMachine
from exploration.players import MixPlayer, SiloPlayer, SmallMix, SmallSilo
from exploration.questions import Questions
from exploration.silo import SiloMachine
from exploration.vocabulary import Evil, Vocabulary
from exploration.world import SmallWorld
from silomix_protocol.host import logs
from support.consortia import make_consortium


@contextmanager
def quiet() -> Iterator[None]:
    """Without log lines, and without waiting for a disk: power cuts are played, not suffered."""
    real = logs.warning, logs.event, os.fsync
    logs.warning = logs.event = _nothing
    os.fsync = _nothing
    try:
        yield
    finally:
        logs.warning, logs.event, os.fsync = real


def _nothing(*_: object, **__: object) -> None: ...


class Lab:
    """Machines of one consortium; what was found out about them is kept for the next world."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self._folder, self._numbers = folder, count()
        self.questions = Questions(make_consortium(folder / "consortium", rounds=rounds))
        self._silo = SiloMachine(self.questions)
        self._small_silos: dict[tuple[Vocabulary, Evil], SmallSilo] = {}
        self._small_mixes: dict[tuple[Vocabulary, int, int], SmallMix] = {}
        self._machines: list[MixMachine] = []

    def close(self) -> None:
        self._silo.close()
        for each in self._machines:
            each.close()

    def world(self, evil: Evil, may: Vocabulary, kind: type[SmallWorld] = SmallWorld) -> SmallWorld:
        """The world without what nobody could notice."""
        rounds = range(1, may.rounds + 1)
        mixes = [[self._small_mix(may, hop, each) for each in rounds] for hop in evil.honest]
        return kind(self._small_silo(may, evil), mixes, evil, may)

    def raw_world(self, evil: Evil, may: Vocabulary) -> SmallWorld:
        """The world as it is, with every step taken anew."""
        self._silo.forget_steps()
        self._silo.rounds = may.rounds
        mixes: list[list[MixPlayer]] = [
            [self._mix(may, hop, each) for each in range(1, may.rounds + 1)] for hop in evil.honest
        ]
        silo: SiloPlayer = self._silo
        return SmallWorld(silo, mixes, evil, may)

    def visited(self, evil: Evil, may: Vocabulary) -> tuple[int, int]:
        """How many states of a silo, and of honest mixes, the real code was put into."""
        rounds = range(1, may.rounds + 1)
        silos = self._small_silos[may, evil].visited
        return silos, sum(
            self._small_mixes[may, hop, each].visited for hop in evil.honest for each in rounds
        )

    def _small_silo(self, may: Vocabulary, evil: Evil) -> SmallSilo:
        if (may, evil) not in self._small_silos:
            self._silo.rounds = may.rounds
            self._small_silos[may, evil] = SmallSilo(self._silo, may, evil)
        return self._small_silos[may, evil]

    def _small_mix(self, may: Vocabulary, hop: int, number: int) -> SmallMix:
        key = may, hop, number
        if key not in self._small_mixes:
            self._small_mixes[key] = SmallMix(self._mix(may, hop, number), may, number)
        return self._small_mixes[key]

    def _mix(self, may: Vocabulary, hop: int, number: int) -> MixMachine:
        folder = self._folder / f"mix-{next(self._numbers)}"
        made = MixMachine(self.questions, folder, hop, may.names[number - 1])
        self._machines.append(made)
        return made
