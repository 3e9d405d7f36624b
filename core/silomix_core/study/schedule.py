"""Which silos a round asks: all, or some of them in turns that follow from the study's hash.

Nobody chooses: whoever could name a silo in one round and leave it out of the next would learn
from the difference what that silo said.  So every party computes the schedule for itself.  The
rounds are cut into blocks, the fewest rounds in which everybody is asked equally often.  In a block
the silos stand in one order, drawn by hashes, and every round asks the next so many of them, going
round: nobody twice in a round, and in the first R rounds nobody more than ⌈R·asked/silos⌉ times.
"""

from functools import lru_cache
from hashlib import sha256
from math import gcd

_LABEL = b"silomix/v1/asked\0"
_BLOCKS_KEPT = 16


def asked_places(seed: bytes, round_number: int, silos: int, asked: int) -> frozenset[int]:
    """The roster places (from 0) of the silos that a round (from 1) asks; `seed`: study's hash."""
    if not 1 <= asked <= silos:
        raise ValueError(f"a round asks 1 to {silos} silos, not {asked}")
    if asked == silos:
        return frozenset(range(silos))
    block, place = divmod(round_number - 1, silos // gcd(silos, asked))
    order, start = _order(seed, block, silos), place * asked
    return frozenset(order[each % silos] for each in range(start, start + asked))


@lru_cache(maxsize=_BLOCKS_KEPT)
def _order(seed: bytes, block: int, silos: int) -> tuple[int, ...]:
    """All places, sorted by SHA-256(label ‖ seed ‖ block ‖ place); numbers: 4 bytes, big-endian."""
    start = sha256(_LABEL + seed + block.to_bytes(4, "big"))

    def drawn(place: int) -> bytes:
        each = start.copy()
        each.update(place.to_bytes(4, "big"))
        return each.digest()

    return tuple(sorted(range(silos), key=drawn))
