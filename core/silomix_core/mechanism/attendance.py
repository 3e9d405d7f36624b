"""The rounds in which a silo takes part: all, or with check-ins at most one a phase, its secret.

As the split into phases, they are drawn once, from a secret of the approval and public numbers
alone, never from a record's value.  A silo that abstains answers too, with a report that looks the
same to everybody but the server, who cannot tell whose it is.

Balle, Kairouz, McMahan, Thakkar, Thakurta 2020, "Privacy amplification via random check-ins": the
(R_j, p_j)-check-in of Section 3.1, and the sliding window of Section 4.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.mechanism.mechanism import CheckIn, Mechanism


@dataclass(frozen=True, slots=True)
class Attendance:
    """The rounds of one silo: `chosen` has its round in each phase with check-ins, or None."""

    mechanism: Mechanism
    chosen: Mapping[int, int | None]

    def has(self, round_number: int, phase: int) -> bool:
        """Return whether the study has this round, and in this phase."""
        known = 1 <= round_number <= self.mechanism.rounds
        return known and self.mechanism.phase_of(round_number) == phase

    def takes_part(self, round_number: int) -> bool:
        phase = self.mechanism.phase_of(round_number)
        return self.chosen.get(phase, round_number) == round_number


def attend(mechanism: Mechanism, place: int, random_bytes: RandomBytes) -> Attendance:
    """Draw the rounds in which the silo at this place (from 0) of the roster takes part."""
    chosen: dict[int, int | None] = {}
    for index, phase in enumerate(mechanism.phases):
        if phase.check_in is not None:
            slot = _slot(phase.check_in, phase.rounds, place, random_bytes)
            chosen[index] = None if slot is None else mechanism.first_round(index) + slot
    return Attendance(mechanism, chosen)


def _slot(check_in: CheckIn, rounds: int, place: int, random_bytes: RandomBytes) -> int | None:
    """Draw a silo's slot, from 0 in the phase; None if it stays away or no round is in its slot.

    In the paper's sliding window the silo at place j (from 0) has the slots j, …, j + m − 1, and
    the first round is asked in slot m − 1.
    """
    comes = _number(random_bytes) < floor(check_in.probability * 2**64)
    if check_in.sliding is None:
        slot = _below(rounds, random_bytes)
    else:
        slot = place + _below(check_in.sliding, random_bytes) - (check_in.sliding - 1)
    return slot if comes and 0 <= slot < rounds else None


def _below(count: int, random_bytes: RandomBytes) -> int:
    """Draw one of 0, …, count − 1 uniformly: numbers of an incomplete last run are drawn again."""
    whole_runs = 2**64 - 2**64 % count
    while (number := _number(random_bytes)) >= whole_runs:
        pass
    return number % count


def _number(random_bytes: RandomBytes) -> int:
    return int.from_bytes(random_bytes(8), "little")
