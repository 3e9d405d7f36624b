"""A silo's answer to one query: its batch, the clipped sum, the grid, the noise.

Stands between the frozen snapshot and the bytes of a report; the silo's process and a simulation
in one process use the same.  Which records belong to which phase is drawn once, from the secret of
the approval; which of them take part in a round, and the noise, from the random bytes of the round.
The noise of a gradient has a stream of its own, named after the very integers that it hides: should
one query ever give two sums (another release, another processor), their noises are independent.
Whether the silo itself takes part in a round changes nothing about how its values are made.

Where an algorithm has local steps, an answer is the sum of several noised gradients.  The step
from one to the next uses nothing but noised gradients and public numbers, and so do control
variates: both are post-processing, and a point may be anywhere, since gradients are clipped.
"""

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from silomix_core.algorithms.base import LocalSteps
from silomix_core.discrete_gaussian import RandomBytes, Streams, discrete_gaussian
from silomix_core.evaluation.private import HeldOutSum, Measure
from silomix_core.mechanism.attendance import Attendance
from silomix_core.mechanism.mechanism import Mechanism, Participant, PhaseKind
from silomix_core.mechanism.minibatches import draw, partition
from silomix_core.model.clipped_sum import Records, to_grid
from silomix_core.model.models import Model

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoundQuery:
    """The query of a round to a silo: the gradient at a point; with control variates, `control` is
    their mean over all silos."""

    round: int
    point: Floats
    control: Floats | None = None


class Reporter:
    """Answers queries about one silo's records, with the noise of the streams that it is given.

    `local`: the silo's local steps, where an answer has several gradients; `measure`: what held-out
    records say of a model, where there are any.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        participant: Participant,
        records: Records,
        model: Model,
        phase_bytes: RandomBytes,
        local: LocalSteps | None = None,
        attendance: Attendance | None = None,
        measure: Measure | None = None,
        *,
        open_batches: bool = False,
    ) -> None:
        """Without an `attendance` the silo takes part in every round, which check-ins forbid.

        `open_batches` are for a simulation: the same integers, sooner, in a time that tells which
        records are in a batch.
        """
        if local is None and any(phase.steps > 1 or phase.control for phase in mechanism.phases):
            raise ValueError("a silo that walks must know how")
        if attendance is None and any(phase.check_in for phase in mechanism.phases):
            raise ValueError("a study with check-ins needs to know when this silo takes part")
        if measure is None and any(each.kind is PhaseKind.EVALUATION for each in mechanism.phases):
            raise ValueError("a study that evaluates its model needs to know by what measure")
        self._mechanism, self._participant = mechanism, participant
        self._local = local or LocalSteps(0.0)
        self._attendance = attendance or Attendance(mechanism, {})
        self._sums = [
            HeldOutSum(each, model, measure)
            if phase.kind is PhaseKind.EVALUATION and measure is not None
            else model.gradients(each, mechanism.clip, open_batches=open_batches)
            for phase, each in zip(
                mechanism.phases, _by_phase(mechanism, records, phase_bytes), strict=True
            )
        ]

    @property
    def longest_round(self) -> int:
        """The round (the first of its phase) whose answer takes the most work."""
        phases = self._mechanism.phases
        work = [each.steps * len(records) for each, records in zip(phases, self._sums, strict=True)]
        phase = work.index(max(work))
        return 1 + sum(each.rounds for each in phases[:phase])

    def takes_part(self, round_number: int) -> bool:
        return self._attendance.takes_part(round_number)

    def values(self, query: RoundQuery, streams: Streams, kept: Integers | None = None) -> Integers:
        """The integers of a report: the sum S of the noised gradients along the local steps

            y ← y − η(gradient at y + ridge·x + c − cᵢ), from the point x that is asked about;

        with control variates S − Sᵢ, where Sᵢ are the integers `kept` of the last answer that was
        used (0 before), cᵢ = Sᵢ/steps its mean gradient, and c the mean of all silos' cᵢ.
        """
        phase = self._mechanism.phase_of(query.round)
        if not self._mechanism.phases[phase].control:
            return self._walk(query, phase, self._local.ridge * query.point, streams)
        if query.control is None or kept is None:
            raise ValueError("control variates need the mean of all silos', and one's own")
        own = kept * (self._mechanism.grids[phase] / self._mechanism.phases[phase].steps)
        drift = self._local.ridge * query.point + query.control - own
        return self._walk(query, phase, drift, streams) - kept

    def _walk(self, query: RoundQuery, phase: int, drift: Floats, streams: Streams) -> Integers:
        size, grid = self._local.size_in(query.round), self._mechanism.grids[phase]
        point = query.point
        total = noised = self._noised(point, phase, 0, streams)
        for step in range(1, self._mechanism.phases[phase].steps):
            point = point - size * (grid * noised + drift)
            noised = self._noised(point, phase, step, streams)
            total = total + noised
        return total

    def _noised(self, point: Floats, phase: int, step: int, streams: Streams) -> Integers:
        """One noised gradient: one privacy event."""
        mechanism, clipped_sum = self._mechanism, self._sums[phase]
        place = b"%d " % step
        if step:  # the first gradient is at the point of the query
            place += sha256(point.astype("<f8", copy=False).data).digest()
        coins = streams(b"batch " + place)
        batch = draw(mechanism.batch(phase), len(clipped_sum), coins)
        total = clipped_sum.at(point, batch, coins)
        mean = to_grid(total, mechanism.units_per_sum(self._participant, phase))
        hidden = sha256(mean.astype("<i8", copy=False).data).digest()
        noise = streams(b"noise " + place + hidden)
        mean += discrete_gaussian(mechanism.dimension, noise, mechanism.fineness)
        return mean


def _by_phase(mechanism: Mechanism, records: Records, phase_bytes: RandomBytes) -> list[Records]:
    phases = mechanism.phases
    if len(phases) == 1 and phases[0].share == 1:
        return [records]
    return [
        Records(records.features[rows], records.labels[rows])
        for rows in partition(len(records), phases, phase_bytes)
    ]
