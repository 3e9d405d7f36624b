"""The one description of what a silo does to its records; everything else is derived from it.

A silo's answer to a query is

    weighted mean of its batch's clipped per-record gradients  →  rounded to the grid
                                                               →  + discrete Gaussian noise

An answer may be the sum of several of these (`Phase.steps`), each with noise of its own, each at a
point that follows from the ones before: every one of them is a privacy event.

Its records are split into phases once; a round belongs to one phase and uses a batch of that
phase's records.  (In the phase that evaluates, the mean is of what its records say of a model.)
From clip, batch, phases, dimension and every silo's (records, weight, ε, δ) follow sensitivity,
grid, noise and the events that a ledger charges.  Nobody can type a σ or a sensitivity next to a
clip.

Neighbouring data sets: one record replaced by another, the number of records being public.
Guarantee: inter-silo record-level DP (Gao, Lowy, Zhou, Wright 2024, Def. 1.2): it holds for the
whole transcript of a silo, against the server, all mixes and all other silos together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from math import ceil, floor, isfinite, sqrt

from silomix_core.accounting.composition import (
    CalibrationImpossible,
    Transcript,
    epsilon_of,
    largest_mu,
)
from silomix_core.accounting.events import PrivacyEvent, PrivacyTarget, Scheme
from silomix_core.noise import LARGEST_NOISE, SIGMA_UNITS

# Rounding the mean to the grid moves every coordinate by at most ½, on either side of a
# neighbouring pair; 2⁻⁸ covers the float64 product before it (see `update.to_grid`).
_ROUNDING = 1 + 2.0**-8
_LARGEST_SIGNAL = 2**43  # grid units; beyond it that product would lose bits
_LARGEST_VALUE = 2**48  # so that 10,000 silos' reports sum up in 64 bits
MOST_STEPS = 1000
# A held-out record says a vector of entries that are not negative and of norm at most 1.
_LARGEST_SAYING, _SAYINGS_APART = 1.0, sqrt(2)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Which of a phase's records a round uses: a scheme, and the share that it draws.

    With `count`, so many records of every silo instead of a share.
    """

    scheme: Scheme = Scheme.FULL
    ratio: float = 1.0
    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and (
            self.count < 1 or self.ratio != 1 or self.scheme is not Scheme.WITHOUT_REPLACEMENT
        ):
            raise ValueError("a count of at least 1 goes with batches without replacement, alone")
        if self.scheme is Scheme.FULL and self.ratio != 1:
            raise ValueError("a full batch has the ratio 1")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"the batch ratio must be above 0 and at most 1, got {self.ratio}")

    def size(self, records: int) -> float:
        """What the sum is divided by: the batch's size, for Poisson its expectation.

        Fixed and public; dividing by a batch's actual size would let one record change it.
        """
        if self.count is not None:
            return float(self.count)
        if self.scheme is Scheme.WITHOUT_REPLACEMENT:
            return float(floor(self.ratio * records * (1 + 1e-12)))
        return self.ratio * records

    def share(self, records: int) -> float:
        """Of so many records, the share that is drawn."""
        return self.ratio if self.count is None else min(1.0, self.count / max(records, 1))


@dataclass(frozen=True, slots=True)
class CheckIn:
    """A silo takes part in at most one round of a phase, and only it knows in which.

    With `probability` it picks a slot of its window, all alike, else none.  The window is the whole
    phase; with `sliding`, the silo at place j (from 0) of the roster has that many slots, and in
    round r of the phase those at places r − 1, …, r + sliding − 2 may be there.  `lone`: of the
    reports of a round the server uses one, chosen at random, or noise alone if there is none.
    """

    probability: float = 1.0
    sliding: int | None = None
    lone: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ValueError(f"a check-in's probability must be above 0, got {self.probability}")
        if self.sliding is not None and self.sliding < 1:
            raise ValueError(f"a sliding window has at least one slot, got {self.sliding}")


class Kind(Enum):
    """What the reports of a phase hold."""

    TRAINING = "training"  # a mean of clipped gradients
    EVALUATION = "evaluation"  # a mean of what held-out records say of the model, never a batch


@dataclass(frozen=True, slots=True)
class Phase:
    """`rounds` consecutive rounds that use the same share of the records, and no other phase's.

    steps: noised gradients that a silo's answer to one round sums up; control: whether it sends
    how that sum differs from the one of its last answer that was used (a control variate).
    """

    rounds: int
    share: float = 1.0
    steps: int = 1
    control: bool = False
    check_in: CheckIn | None = None
    kind: Kind = Kind.TRAINING

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"a phase has at least one round, got {self.rounds}")
        if not 0 < self.share <= 1:
            raise ValueError(f"a phase's share must be above 0 and at most 1, got {self.share}")
        if not 1 <= self.steps <= MOST_STEPS:
            raise ValueError(f"a round has 1 to {MOST_STEPS} local steps, not {self.steps}")

    @property
    def events(self) -> int:
        """Noised gradients that a silo gives away in all rounds of the phase."""
        return self.answers * self.steps

    @property
    def answers(self) -> int:
        """Rounds in which a silo sends something about its records."""
        return self.rounds if self.check_in is None else 1

    def records(self, all_records: int) -> int:
        return floor(self.share * all_records * (1 + 1e-12))


@dataclass(frozen=True, slots=True)
class Participant:
    """What of a silo matters here, all of it public: its size, its weight and what it was promised.

    The weight multiplies its mean; 1 for everybody gives the plain average over silos.
    """

    records: int
    target: PrivacyTarget
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.records < 1:
            raise ValueError("a silo needs at least one record")
        if not (isfinite(self.weight) and 0 < self.weight <= 1e6):
            raise ValueError(f"a weight must be above 0 and at most 1e6, got {self.weight}")


@dataclass(frozen=True)  # without slots: what follows from the fields is computed once
class Mechanism:
    """Noisy clipped means, for all silos of a study.

    `grids` holds, for each phase, the size of one integer step on the wire; the noise has standard
    deviation `SIGMA_UNITS` steps at every silo, so reports look alike whoever sent them.
    `heaviest` is the largest weight of a silo.
    """

    clip: float
    dimension: int
    minibatch: Minibatch
    phases: tuple[Phase, ...]
    grids: tuple[float, ...]
    heaviest: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.clip) and self.clip > 0 and self.dimension > 0):
            raise ValueError("clip and dimension must be positive")
        if not self.phases or len(self.grids) != len(self.phases):
            raise ValueError("a mechanism needs at least one phase, and one grid for each")
        if sum(phase.share for phase in self.phases) > 1 + 1e-9:
            raise ValueError("the phases' shares of the records sum to more than 1")
        if any(phase.control for phase in self.phases) and not self._can_control():
            raise ValueError("control variates belong to one phase, without check-ins")
        if any(phase.kind is Kind.EVALUATION for phase in self.phases[:-1]):
            raise ValueError("only the last phase can evaluate")
        if not self._fits_floats():
            raise CalibrationImpossible(
                f"a clip of {self.clip:.3g} and batches of {self.minibatch.ratio:.3g} need steps "
                "that no float can hold; use values closer to 1"
            )
        if self.largest_signal > _LARGEST_SIGNAL:
            raise CalibrationImpossible(
                "so many records at so small an epsilon need more than 43 bits per value"
            )
        if self.largest_value > _LARGEST_VALUE:
            raise CalibrationImpossible(
                "so many local steps at so small an epsilon need more than 48 bits per value"
            )

    @classmethod
    def calibrate(
        cls,
        participants: Sequence[Participant],
        *,
        clip: float,
        dimension: int,
        phases: Sequence[Phase],
        minibatch: Minibatch | None = None,
    ) -> "Mechanism":
        """The mechanism with the least noise that keeps every participant's promise."""
        if not (isfinite(clip) and clip > 0 and dimension > 0 and phases and participants):
            raise ValueError("clip, dimension, phases and participants must all be there")
        return _calibrate(
            tuple(participants), clip, dimension, tuple(phases), minibatch or Minibatch()
        )

    def _can_control(self) -> bool:
        """A control variate is a sum of one phase's grid and steps, and no abstention."""
        training = [each for each in self.phases if each.kind is Kind.TRAINING]
        return len(training) == 1 and training[0].check_in is None

    def _fits_floats(self) -> bool:
        fullest = self.clip * self.heaviest * (1 / self.minibatch.ratio)  # as in `largest_signal`
        return all(isfinite(grid) and grid > 0 and isfinite(fullest / grid) for grid in self.grids)

    # What the wire needs ------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    def phase_of(self, round_number: int) -> int:
        """The phase that a round (counted from 1) belongs to."""
        last = 0
        for index, phase in enumerate(self.phases):
            last += phase.rounds
            if 1 <= round_number <= last:
                return index
        raise ValueError(f"round {round_number} is beyond the {last} rounds of the study")

    def first_round(self, phase: int) -> int:
        """The first round (counted from 1) of a phase."""
        return 1 + sum(each.rounds for each in self.phases[:phase])

    def batch(self, phase: int = 0) -> Minibatch:
        """What a round of this phase uses of its records."""
        return _batch(self.phases[phase], self.minibatch)

    def sigma(self, phase: int = 0) -> float:
        """Standard deviation of the noise on each coordinate of a noised gradient."""
        return self.grids[phase] * SIGMA_UNITS

    @cached_property
    def largest_signal(self) -> int:
        """Bound on a coordinate of the mean, in grid units, before noise."""
        fullest = 1 / self.minibatch.ratio if self.minibatch.scheme is Scheme.POISSON else 1.0
        longest = self.clip * self.heaviest * fullest
        if self.phases[-1].kind is not Kind.EVALUATION:
            return ceil(longest / min(self.grids)) + 1
        *training, last = self.grids
        said = ceil(_LARGEST_SAYING * self.heaviest / last) + 1
        return max(said, ceil(longest / min(training)) + 1) if training else said

    @cached_property
    def largest_value(self) -> int:
        """Bound on an integer of a report; anything beyond was not made by this mechanism."""
        summed = max((2 if each.control else 1) * each.steps for each in self.phases)
        return summed * (self.largest_signal + LARGEST_NOISE)

    def largest_gradient(self, phase: int = 0) -> float:
        """Bound on a coordinate of a noised gradient."""
        return self.grids[phase] * (self.largest_signal + LARGEST_NOISE)

    @cached_property
    def width(self) -> int:
        """Bytes of one integer on the wire."""
        return 4 if self.largest_value < 2**31 else 8

    # What a silo does ---------------------------------------------------------------------------

    def units_per_sum(self, participant: Participant, phase: int = 0) -> float:
        """What the sum of clipped gradients is multiplied by to become a mean in grid units."""
        size = self.batch(phase).size(self.phases[phase].records(participant.records))
        return participant.weight / (size * self.grids[phase])

    def sensitivity_units(self, participant: Participant, phase: int = 0) -> float:
        """L2 distance, in grid units, by which replacing one drawn record can move a mean.

        For Poisson batches, twice what adding one record can: there the other end is the batch
        without it.
        """
        apart = _apart(self.phases[phase], self.clip)
        moved = apart * self.units_per_sum(participant, phase)
        return moved + _rounding(self.batch(phase), self.dimension)

    def whole_silo_units(self, participant: Participant, phase: int = 0) -> float:
        """L2 distance, in grid units, by which replacing *all* its records can move the report."""
        fullest = 1 / self.minibatch.ratio if self.minibatch.scheme is Scheme.POISSON else 1.0
        moved = 2 * self.clip * fullest * participant.weight / self.grids[phase]
        return moved + _rounding(self.minibatch, self.dimension)

    def event(self, participant: Participant, phase: int = 0) -> PrivacyEvent:
        """What one noised gradient costs this silo; an answered round has `Phase.steps` of them."""
        return PrivacyEvent(
            scheme=self.batch(phase).scheme,
            ratio=self.batch(phase).share(self.phases[phase].records(participant.records)),
            sensitivity=self.sensitivity_units(participant, phase),
            noise=SIGMA_UNITS,
            samples=self.dimension,
        )

    def transcripts(self, participant: Participant) -> tuple[Transcript, ...]:
        """What a record of each phase goes through in a whole study."""
        return tuple(
            ((self.event(participant, index), phase.events),)
            for index, phase in enumerate(self.phases)
        )

    def epsilon(self, participant: Participant, delta: float | None = None) -> float:
        """ε of the whole study for this silo, at its own δ or another one.

        Phases use disjoint records, so the worst of them counts (parallel composition).
        """
        delta = participant.target.delta if delta is None else delta
        transcripts = set(self.transcripts(participant))  # most phases are alike
        return max(epsilon_of(transcript, delta) for transcript in transcripts)


def _batch(phase: Phase, minibatch: Minibatch) -> Minibatch:
    return Minibatch() if phase.kind is Kind.EVALUATION else minibatch


def _apart(phase: Phase, clip: float) -> float:
    """How far apart what two records contribute can be."""
    return _SAYINGS_APART if phase.kind is Kind.EVALUATION else 2 * clip


def _rounding(batch: Minibatch, dimension: int) -> float:
    rounding = sqrt(dimension) * _ROUNDING
    return 2 * rounding if batch.scheme is Scheme.POISSON else rounding


def _counted(phase: Phase) -> str:
    steps = f" of {phase.steps} local steps" if phase.steps > 1 else ""
    return f"{phase.rounds} rounds{steps}"


@lru_cache(maxsize=32)
def _calibrate(
    participants: tuple[Participant, ...],
    clip: float,
    dimension: int,
    phases: tuple[Phase, ...],
    batch: Minibatch,
) -> Mechanism:
    most = max(phase.events for phase in phases)
    grids = {
        phase: max(
            _grid(each, clip, dimension, phase, batch, most)
            for each in _neediest(participants, _batch(phase, batch))
        )
        for phase in set(phases)
    }
    heaviest = max(participant.weight for participant in participants)
    return Mechanism(
        clip, dimension, batch, phases, tuple(grids[phase] for phase in phases), heaviest
    )


def _neediest(participants: tuple[Participant, ...], batch: Minibatch) -> list[Participant]:
    """Those who may need the most noise.

    The fewer records, the likelier one of a counted batch is drawn, and such a calibration takes a
    second for each size: so of silos with one target only those count that are heavier than all
    smaller ones.
    """
    if batch.count is None:
        return list(participants)
    found, heaviest = [], dict[PrivacyTarget, float]()
    for each in sorted(set(participants), key=lambda each: (each.records, -each.weight)):
        if each.weight > heaviest.get(each.target, 0.0):
            heaviest[each.target] = each.weight
            found.append(each)
    return found


def _grid(
    participant: Participant,
    clip: float,
    dimension: int,
    phase: Phase,
    batch: Minibatch,
    most_events: int,
) -> float:
    """The grid that this participant needs: `sensitivity_units` solved for it.

    most_events: of any phase.  A ledger knows of a record only that it is in some phase, and adds
    up the largest loss and the most integers: so each phase leaves room for these.
    """
    batch = _batch(phase, batch)
    target, records = participant.target, phase.records(participant.records)
    size = batch.size(records)
    if records < 1 or not 0 < size <= records:
        raise CalibrationImpossible(
            f"a silo of {participant.records} records has none left for a phase of "
            f"{phase.share:.3g} of them and batches of {batch.ratio:.3g}; use fewer phases"
        )
    share, events = batch.share(records), phase.events
    mu = largest_mu(target, batch.scheme, share, events, dimension, most_events)
    allowed = mu * SIGMA_UNITS - _rounding(batch, dimension)
    if allowed <= 0:
        raise CalibrationImpossible(
            f"epsilon={target.epsilon} over {_counted(phase)} leaves no room for "
            f"{dimension} coordinates; use a larger epsilon or fewer rounds"
        )
    return _apart(phase, clip) * participant.weight / size / allowed
