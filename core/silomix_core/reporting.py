"""A silo's answer to one query: its batch, the clipped sum, the grid, the noise.

Stands between the frozen snapshot and the bytes of a report; the silo's process and a simulation
in one process use the same.  Which records belong to which phase is drawn once, from the secret of
the approval; which of them take part in a round, and the noise, from the random bytes of the round.
Whether the silo itself takes part in a round changes nothing about how its values are made.
"""

import numpy as np
from numpy.typing import NDArray

from silomix_core.attendance import Attendance
from silomix_core.evaluation import ConfusionSum
from silomix_core.losses import LossName, loss
from silomix_core.mechanism import Kind, Mechanism, Participant
from silomix_core.minibatches import draw, partition
from silomix_core.noise import RandomBytes, discrete_gaussian
from silomix_core.update import ClippedSum, Records, to_grid

Floats = NDArray[np.float64]


class Reporter:
    """Answers queries about one silo's records, each time with fresh noise."""

    def __init__(
        self,
        mechanism: Mechanism,
        participant: Participant,
        records: Records,
        loss_name: LossName,
        phase_bytes: RandomBytes,
        attendance: Attendance | None = None,
    ) -> None:
        """Without an attendance the silo takes part in every round, which check-ins forbid."""
        if attendance is None and any(phase.check_in for phase in mechanism.phases):
            raise ValueError("a study with check-ins needs to know when this silo takes part")
        self._mechanism, self._participant = mechanism, participant
        self._attendance = attendance or Attendance(mechanism, {})
        self._sums = [
            ConfusionSum(each)
            if phase.kind is Kind.EVALUATION
            else ClippedSum(each, loss(loss_name), mechanism.clip)
            for phase, each in zip(
                mechanism.phases, _by_phase(mechanism, records, phase_bytes), strict=True
            )
        ]

    @property
    def largest_phase(self) -> int:
        return max(range(len(self._sums)), key=lambda phase: len(self._sums[phase]))

    def takes_part(self, round_number: int) -> bool:
        return self._attendance.takes_part(round_number)

    def values(self, point: Floats, phase: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
        """The integers of a report about this point."""
        mechanism, clipped_sum = self._mechanism, self._sums[phase]
        batch = draw(mechanism.batch(phase), len(clipped_sum), random_bytes)
        mean = to_grid(
            clipped_sum.at(point, batch), mechanism.units_per_sum(self._participant, phase)
        )
        mean += discrete_gaussian(mechanism.dimension, random_bytes)
        return mean


def _by_phase(mechanism: Mechanism, records: Records, phase_bytes: RandomBytes) -> list[Records]:
    phases = mechanism.phases
    if len(phases) == 1 and phases[0].share == 1:
        return [records]
    return [
        Records(records.features[rows], records.labels[rows])
        for rows in partition(len(records), phases, phase_bytes)
    ]
