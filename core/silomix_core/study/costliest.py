"""The silo whose promise asks for the most noise, and how much of it everybody has for its sake.

One noise scale serves all silos: that of the silo whose weight over records, over what its (ε, δ)
allow, is largest.  Without it, the others' largest would do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from silomix_core.accounting.gaussian import gaussian_mu
from silomix_core.mechanism.mechanism import Participant

_WORTH_SAYING = 1.25


@dataclass(frozen=True, slots=True)
class Costliest:
    """The silo at this place of the roster: how many times as much noise the average of all reports
    has as it would have without it, and whether that is for its (ε, δ), not for its size."""

    place: int
    times: float
    for_its_target: bool

    def in_words(self, name: str, silo: Participant) -> str:
        """What the silo of that name costs the others, and what would help."""
        if self.for_its_target:
            whose, advice = f"epsilon {silo.target.epsilon:g}", "agree on a larger one"
        else:
            whose, advice = f"{silo.records} records", "weight by records"
        costs = f"{name}'s {whose} cost everybody {self.times:.2g} times the noise"
        return f"{costs}: {advice}, or leave it out"


def costliest(silos: Sequence[Participant]) -> Costliest | None:
    """The silo that costs the others a quarter more noise or more; None if there is none.

    Sizes of batches and phases are taken as they are before rounding to whole records.
    """
    if len(silos) < 2:
        return None
    needs = [each.weight / each.records / _allowed(each) for each in silos]
    place = max(range(len(silos)), key=needs.__getitem__)
    if needs[place] < _WORTH_SAYING * sorted(needs)[-2]:
        return None
    rest = [each for index, each in enumerate(silos) if index != place]
    average = sum(each.weight for each in rest) / len(rest)
    without = max(each.weight / each.records / _allowed(each) for each in rest) / average
    times = needs[place] / without * sqrt(len(rest) / len(silos))
    if times < _WORTH_SAYING:
        return None
    strict = _allowed(silos[place]) * _WORTH_SAYING < min(map(_allowed, rest))
    return Costliest(place, times, strict)


def _allowed(silo: Participant) -> float:
    """The μ that the silo's (ε, δ) allow in all."""
    return gaussian_mu(silo.target.epsilon, silo.target.delta)
