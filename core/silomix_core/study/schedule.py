"""Which silos a round asks: all, or some of them, as follows from the study's hash.

Nobody chooses: whoever could name a silo in one round and leave it out of the next would learn
from the difference what that silo said.  So every party computes the schedule for itself.

*In turns*: a phase's rounds are cut into blocks, the fewest rounds in which everybody is asked
equally often.  In a block the silos stand in one order, drawn by hashes, and every round asks the
next so many of them, going round: nobody twice in a round, and in R rounds of a phase nobody more
than ⌈R·asked/silos⌉ times.  A silo's report is noised for these turns, not for R rounds.

*Independently*, as in the papers: every round draws by hashes of its own.  Then a silo may be asked
in all rounds, and pays for all.
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from math import ceil, gcd

from silomix_core.mechanism.mechanism import Phase

_LABEL = b"silomix/v1/asked\0"
_BLOCKS_KEPT = 16


class Draw(Enum):
    """How the silos of a round are drawn where it asks some of them."""

    TURNS = "turns"
    INDEPENDENT = "independent"


def turns_of(draw: Draw, rounds: int, silos: int, asked: int) -> int | None:
    """The most rounds of a phase that ask one silo; None if that may be all of them."""
    if draw is Draw.INDEPENDENT or asked == silos:
        return None
    return ceil(rounds * asked / silos)


def asked_in(
    seed: bytes, round_number: int, phases: Sequence[Phase], silos: int, asked: int
) -> frozenset[int]:
    """The places that a round of a study with these phases asks; see `asked_places`.

    A round beyond them, which everybody refuses, would go on with the turns of the last.
    """
    first = 1
    for phase in phases[:-1]:
        if round_number < first + phase.rounds:
            break
        first += phase.rounds
    else:
        phase = phases[-1]
    return asked_places(seed, round_number, silos, asked, first if phase.turns else None)


def asked_places(
    seed: bytes, round_number: int, silos: int, asked: int, first: int | None
) -> frozenset[int]:
    """The roster places (from 0) of the silos that a round (from 1) asks.

    seed: the study's hash; first: the first round of the phase, if it asks in turns.
    """
    if not 1 <= asked <= silos:
        raise ValueError(f"a round asks 1 to {silos} silos, not {asked}")
    if asked == silos:
        return frozenset(range(silos))
    place = 0 if first is None else (round_number - first) % (silos // gcd(silos, asked))
    order, start = _order(seed, round_number - place, silos), place * asked
    return frozenset(order[each % silos] for each in range(start, start + asked))


@lru_cache(maxsize=_BLOCKS_KEPT)
def _order(seed: bytes, begins: int, silos: int) -> tuple[int, ...]:
    """All places, sorted by SHA-256(label ‖ seed ‖ the block's first round ‖ place); numbers: 4
    bytes, big-endian."""
    start = sha256(_LABEL + seed + begins.to_bytes(4, "big"))

    def drawn(place: int) -> bytes:
        each = start.copy()
        each.update(place.to_bytes(4, "big"))
        return each.digest()

    return tuple(sorted(range(silos), key=drawn))
