"""The worlds that are searched to their end whenever the tests run, and the great ones."""

from dataclasses import dataclass

from exploration.lab import Lab
from exploration.search import Found, search
from exploration.vocabulary import Evil, Vocabulary


@dataclass(frozen=True, slots=True)
class Description:
    """Who is not honest, what may happen, and how many states there are at least."""

    evil: Evil
    may: Vocabulary
    fewest: int = 1

    @property
    def kinds(self) -> set[tuple[str, str]]:
        """The kinds of steps that must have been taken."""
        honest, may = self.evil.honest, self.may
        silo = ["ask", "receipt", "list", "crash"]
        silo += ["power"] * may.power + ["closed"] * may.closings
        mix = ["open", "forward", "commit", "release", "abandon", "void", "crash"]
        mix += ["power"] * may.power + ["expire"] * may.expiry
        mix += ["admit", "seal"] * (0 in honest) + ["take"] * (1 in honest)
        return {("silo", each) for each in silo} | {("mix", each) for each in mix if honest}


THREE_SILOS = {
    "an honest first mix": Description(Evil.LAST, Vocabulary(expiry=True), 3000),
    "an honest last mix": Description(Evil.FIRST, Vocabulary(expiry=True), 6000),
    "two honest mixes": Description(Evil.NONE, Vocabulary(expiry=True), 7000),
    "the end of a round": Description(Evil.LAST, Vocabulary(colluding=1, closings=True), 20_000),
}
ATTEMPTS_AND_ROUNDS = {
    "two attempts, an honest first mix": Description(
        Evil.LAST, Vocabulary(colluding=2, attempts=2), 5000
    ),
    "two attempts, an honest last mix": Description(
        Evil.FIRST, Vocabulary(colluding=2, attempts=2), 1500
    ),
    "two questions, an honest first mix": Description(
        Evil.LAST, Vocabulary(colluding=2, variants=2), 700
    ),
    "two questions, an honest last mix": Description(
        Evil.FIRST, Vocabulary(colluding=2, variants=2), 300
    ),
    "two rounds, an honest first mix": Description(
        Evil.LAST, Vocabulary(colluding=2, rounds=2), 100_000
    ),
    "two rounds, an honest last mix": Description(
        Evil.FIRST, Vocabulary(colluding=2, rounds=2), 50_000
    ),
    "attempts and questions, no honest mix": Description(
        Evil.BOTH, Vocabulary(colluding=2, attempts=2, variants=2, power=False), 100
    ),
}
GREAT = {  # in the order of their size
    "attempts and questions": Description(
        Evil.LAST, Vocabulary(colluding=2, attempts=2, variants=2)
    ),
    "two rounds and their ends": Description(
        Evil.LAST, Vocabulary(colluding=2, rounds=2, closings=True)
    ),
    "three rounds, no honest mix": Description(
        Evil.BOTH, Vocabulary(colluding=2, rounds=3, power=False, few_lists=True)
    ),
    "three silos, two attempts": Description(Evil.LAST, Vocabulary(attempts=2)),
    "three silos, two rounds": Description(Evil.LAST, Vocabulary(rounds=2)),
}
EVERYTHING = Vocabulary(rounds=2, attempts=2, variants=2, closings=True, expiry=True)


def check_world(lab: Lab, name: str, described: Description) -> Found:
    """Search the world to its end; AssertionError if a promise is broken or it is not all there."""
    world = lab.world(described.evil, described.may)
    found = search(world)
    visited = lab.visited(described.evil, described.may)
    print(f"{name}: {found}; the code of silo and mixes was in {visited} states")
    assert found.broken is None, str(found)
    assert found.complete
    assert found.states >= described.fewest
    assert world.taken() >= described.kinds
    return found
