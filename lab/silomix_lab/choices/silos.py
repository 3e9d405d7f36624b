"""Silos as the command line says them: records of each, what they count by, who is asked."""

from silomix_core.study.schedule import Draw
from silomix_core.study.weighting import Weighting
from silomix_protocol.host.failure import Failure

_WEIGHTINGS = (Weighting.RECORDS.value, Weighting.EQUAL.value)  # named ones are for a study file
_DRAWS = (Draw.TURNS.value, Draw.INDEPENDENT.value)  # blocks are for files of before
_MOST_SILOS, _MOST_RECORDS = 10_000, 100_000_000


def weighting_of(name: str | None) -> Weighting | None:
    """The weighting that was typed; None leaves it as usual."""
    if name is not None and name not in _WEIGHTINGS:
        raise Failure(f"--weights {name!r}: use one of {', '.join(_WEIGHTINGS)}")
    return None if name is None else Weighting(name)


def draw_of(name: str) -> Draw:
    """The way of drawing silos that was typed."""
    if name not in _DRAWS:
        raise Failure(f"--draw {name!r}: use one of {', '.join(_DRAWS)}")
    return Draw(name)


def records_of(text: str) -> tuple[int, ...]:
    """The records of each silo, typed as 300,4000*9: one of 300 and nine of 4000."""
    found: list[int] = []
    for part in text.split(","):
        size, _, times = part.partition("*")
        try:
            count, silos = int(size), int(times or 1)
        except ValueError as bad:
            raise Failure(f"--records {text!r}: use numbers such as 300,4000*9") from bad
        if not (1 <= count <= _MOST_RECORDS and 1 <= silos <= _MOST_SILOS - len(found)):
            raise Failure(
                f"--records {part}: use 1 to {_MOST_RECORDS} records, and {_MOST_SILOS} silos in "
                "all at most"
            )
        found += [count] * silos
    return tuple(found)
