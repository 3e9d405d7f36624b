"""Which silos a round asks: all, or some of them, as follows from the study's hash.

Nobody chooses: whoever could name a silo in one round and leave it out of the next would learn
from the difference what that silo said.  So every party computes the schedule for itself.

*In turns*: a phase's rounds are cut into blocks, the fewest rounds in which everybody is asked
equally often.  In a block the silos stand in one order, drawn by hashes, and every round asks the
next so many of them, going round: nobody twice in a round, and in R rounds of a phase nobody more
than ⌈R·asked/silos⌉ times.  A silo's report is noised for these turns, not for R rounds.

*Independently*, as in the papers: every round draws by hashes of its own.  Then a silo may be asked
in all rounds, and pays for all.

*In blocks*, as files say that are older than these words: turns that go on through all phases, and
a silo pays for all rounds.
"""

from enum import Enum
from functools import lru_cache
from hashlib import sha256
from math import ceil, gcd

_LABEL = b"silomix/v1/asked\0"
_BLOCKS_KEPT = 16


class Draw(Enum):
    """How the silos of a round are drawn where it asks some of them."""

    TURNS = "turns"
    INDEPENDENT = "independent"
    BLOCKS = "blocks"


def turns_of(draw: Draw, rounds: int, silos: int, asked: int) -> int | None:
    """The most rounds of a phase that ask one silo; None if that may be all of them."""
    if draw is not Draw.TURNS or asked == silos:
        return None
    return ceil(rounds * asked / silos)


def asked_places(
    seed: bytes, round_number: int, silos: int, asked: int, draw: Draw, first: int = 1
) -> frozenset[int]:
    """The roster places (from 0) of the silos that a round (from 1) asks.

    seed: the study's hash; first: the first round of the phase that it belongs to.
    """
    if not 1 <= asked <= silos:
        raise ValueError(f"a round asks 1 to {silos} silos, not {asked}")
    if asked == silos:
        return frozenset(range(silos))
    begins, place = round_number, 0
    if draw is Draw.TURNS:
        place = (round_number - first) % (silos // gcd(silos, asked))
        begins -= place
    elif draw is Draw.BLOCKS:
        begins, place = divmod(round_number - 1, silos // gcd(silos, asked))
    order, start = _order(seed, begins, silos), place * asked
    return frozenset(order[each % silos] for each in range(start, start + asked))


@lru_cache(maxsize=_BLOCKS_KEPT)
def _order(seed: bytes, begins: int, silos: int) -> tuple[int, ...]:
    """All places, sorted by SHA-256(label ‖ seed ‖ where the block begins ‖ place); numbers: 4
    bytes, big-endian.  A block begins with its first round; in `BLOCKS` it has its number."""
    start = sha256(_LABEL + seed + begins.to_bytes(4, "big"))

    def drawn(place: int) -> bytes:
        each = start.copy()
        each.update(place.to_bytes(4, "big"))
        return each.digest()

    return tuple(sorted(range(silos), key=drawn))
