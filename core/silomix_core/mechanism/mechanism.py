"""The one description of what a silo does to its records; everything else is derived from it.

A silo's answer to a query is

    weighted mean of its batch's clipped per-record gradients  →  rounded to the grid
                                                               →  + discrete Gaussian noise

An answer may be the sum of several of these (`Phase.steps`), each with noise of its own, each at a
point that follows from the ones before: every one of them is a privacy event.

A silo's records are split into phases once; a round belongs to one phase and uses a minibatch of
that phase's records.  (In the phase that evaluates, the mean is of what held-out records say of the
model: `evaluation.private`.)  From clip, batch, phases, dimension and every silo's (records,
weight, ε, δ) follow sensitivity, grid, noise and the events that a ledger charges.  Nobody can type
a σ or a sensitivity next to a clip.

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
from silomix_core.discrete_gaussian import FINENESS, SIGMA_UNITS, largest_noise

# Rounding the mean to the grid moves every coordinate by at most ½, on either side of a
# neighbouring pair; 2⁻⁸ covers the float64 product before it (see `clipped_sum.to_grid`).
_ROUNDING = 1 + 2.0**-8
_LARGEST_ROUNDING = 0.01  # share of the sensitivity that sets a grid; above, a finer one is taken
_LARGEST_SIGNAL = 2**43  # grid units; beyond it the float64 product above would lose bits
_LARGEST_VALUE = 2**48  # so that 10,000 silos' reports sum up in 64 bits
MOST_STEPS = 1000
# What a held-out record says of a model is a vector of norm at most 1 without negative entries.
_LARGEST_SAYING, _SAYINGS_APART = 1.0, sqrt(2)


class TooManyBits(CalibrationImpossible):
    """The integers of a report would be larger than its arithmetic carries."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Which of a phase's records a round uses: a scheme, and the share that it draws.

    With `count`, the round draws this many records of every silo instead of a share.
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
        """The number that the sum is divided by: the batch's size, for Poisson its expectation.

        Fixed and public; dividing by a batch's actual size would let one record change it.
        """
        if self.count is not None:
            return float(self.count)
        if self.scheme is Scheme.WITHOUT_REPLACEMENT:
            return float(floor(self.ratio * records * (1 + 1e-12)))
        return self.ratio * records

    def share(self, records: int) -> float:
        """The fraction of the records drawn."""
        return self.ratio if self.count is None else min(1.0, self.count / max(records, 1))


@dataclass(frozen=True, slots=True)
class CheckIn:
    """The rule by which a silo takes part in at most one round of a phase, known to it alone.

    With `probability` the silo picks a slot of its window, uniformly, else none.  The window is the
    whole phase; with `sliding`, the silo at place j (from 0) of the roster has that many slots, and
    in round r of the phase the silos at places r − 1, …, r + sliding − 2 may take part.  `lone`:
    the server uses one of a round's reports, chosen at random, or noise alone if there is none.
    """

    probability: float = 1.0
    sliding: int | None = None
    lone: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ValueError(f"a check-in's probability must be above 0, got {self.probability}")
        if self.sliding is not None and self.sliding < 1:
            raise ValueError(f"a sliding window has at least one slot, got {self.sliding}")


class PhaseKind(Enum):
    """The kind of a phase: what its reports hold."""

    TRAINING = "training"  # a mean of clipped gradients
    EVALUATION = "evaluation"  # a mean of what held-out records say of the model, never a batch


@dataclass(frozen=True, slots=True)
class Phase:
    """`rounds` consecutive rounds on the same share of the records, which no other phase uses.

    steps: how many noised gradients a silo's answer to one round sums up; control: whether the silo
    sends how that sum differs from the one of its last answer that was used (a control variate);
    turns: the most of its rounds that ask one silo, where a schedule sees to that (None: all).
    """

    rounds: int
    share: float = 1.0
    steps: int = 1
    control: bool = False
    check_in: CheckIn | None = None
    kind: PhaseKind = PhaseKind.TRAINING
    turns: int | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"a phase has at least one round, got {self.rounds}")
        if self.turns is not None and not 1 <= self.turns <= self.rounds:
            raise ValueError(f"a silo has 1 to {self.rounds} turns in a phase, not {self.turns}")
        if not 0 < self.share <= 1:
            raise ValueError(f"a phase's share must be above 0 and at most 1, got {self.share}")
        if not 1 <= self.steps <= MOST_STEPS:
            raise ValueError(f"a round has 1 to {MOST_STEPS} local steps, not {self.steps}")

    @property
    def events(self) -> int:
        """The number of noised gradients that a silo sends in all rounds of the phase."""
        return self.answers * self.steps

    @property
    def answers(self) -> int:
        """The most rounds in which a silo sends something about its records."""
        return (self.turns or self.rounds) if self.check_in is None else 1

    def records(self, all_records: int) -> int:
        return floor(self.share * all_records * (1 + 1e-12))


@dataclass(frozen=True, slots=True)
class Participant:
    """A silo as the mechanism sees it, all of it public: its size, promised (ε, δ) and weight.

    The weight multiplies the silo's mean; 1 for everybody gives the plain average over silos.
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
    """The noisy clipped means that all silos of a study send.

    `grids` holds, for each phase, the size of one integer step on the wire; the noise has standard
    deviation `sigma_units` steps at every silo, so reports look alike whoever sent them: 2²⁰, or
    `fineness` times as many where rounding to so coarse a grid would cost noise.
    `heaviest` is the largest weight of a silo.
    """

    clip: float
    dimension: int
    minibatch: Minibatch
    phases: tuple[Phase, ...]
    grids: tuple[float, ...]
    heaviest: float = 1.0
    fineness: int = 1

    def __post_init__(self) -> None:
        if self.fineness not in FINENESS:
            raise ValueError(f"the fineness of a grid is one of {FINENESS}, not {self.fineness}")
        if not (isfinite(self.clip) and self.clip > 0 and self.dimension > 0):
            raise ValueError("clip and dimension must be positive")
        if not self.phases or len(self.grids) != len(self.phases):
            raise ValueError("a mechanism needs at least one phase, and one grid for each")
        if sum(phase.share for phase in self.phases) > 1 + 1e-9:
            raise ValueError("the phases' shares of the records sum to more than 1")
        if any(phase.control for phase in self.phases) and not self._can_control():
            raise ValueError("control variates belong to one phase, without check-ins")
        if any(phase.kind is PhaseKind.EVALUATION for phase in self.phases[:-1]):
            raise ValueError("only the last phase can evaluate")
        if not self._fits_floats():
            raise CalibrationImpossible(
                f"a clip of {self.clip:.3g} and batches of {self.minibatch.ratio:.3g} need steps "
                "that no float can hold; use values closer to 1"
            )
        if self.largest_signal > _LARGEST_SIGNAL:
            raise TooManyBits(
                "so many records need so little noise for so large an epsilon that a value would "
                "take more than 43 bits; use a smaller epsilon, more rounds or fewer records"
            )
        if self.largest_value > _LARGEST_VALUE:
            raise TooManyBits(
                "so many local steps with so little noise for so large an epsilon need more than "
                "48 bits per value; use a smaller epsilon, fewer local steps or fewer records"
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
        """Return whether all training rounds have one grid and steps, without abstentions, as
        control variates need."""
        training = [each for each in self.phases if each.kind is PhaseKind.TRAINING]
        return len(training) == 1 and training[0].check_in is None

    def _fits_floats(self) -> bool:
        fullest = self.clip * self.heaviest * (1 / self.minibatch.ratio)  # as in `largest_signal`
        return all(isfinite(grid) and grid > 0 and isfinite(fullest / grid) for grid in self.grids)

    # What the wire needs ------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    def phase_of(self, round_number: int) -> int:
        """The index of the phase that a round (counted from 1) belongs to."""
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
        """The minibatch of a round of this phase: the study's, or all records to evaluate."""
        return _batch(self.phases[phase], self.minibatch)

    @property
    def sigma_units(self) -> float:
        """Standard deviation of the noise in grid units."""
        return self.fineness * SIGMA_UNITS

    @property
    def largest_noise(self) -> int:
        """Bound on the noise of a coordinate in grid units."""
        return largest_noise(self.fineness)

    def sigma(self, phase: int = 0) -> float:
        """Standard deviation of the noise on each coordinate of a noised gradient."""
        return self.grids[phase] * self.sigma_units

    @cached_property
    def largest_signal(self) -> int:
        """Bound on a coordinate of the mean, in grid units, before noise."""
        fullest = 1 / self.minibatch.ratio if self.minibatch.scheme is Scheme.POISSON else 1.0
        longest = self.clip * self.heaviest * fullest
        if self.phases[-1].kind is not PhaseKind.EVALUATION:
            return ceil(longest / min(self.grids)) + 1
        *training, last = self.grids
        said = ceil(_LARGEST_SAYING * self.heaviest / last) + 1
        return max(said, ceil(longest / min(training)) + 1) if training else said

    @cached_property
    def largest_value(self) -> int:
        """Bound on an integer of a report; anything beyond was not made by this mechanism."""
        summed = max((2 if each.control else 1) * each.steps for each in self.phases)
        return summed * (self.largest_signal + self.largest_noise)

    def largest_gradient(self, phase: int = 0) -> float:
        """Bound on a coordinate of a noised gradient."""
        return self.grids[phase] * (self.largest_signal + self.largest_noise)

    @cached_property
    def width(self) -> int:
        """Bytes of one integer on the wire."""
        return 4 if self.largest_value < 2**31 else 8

    # What a silo does ---------------------------------------------------------------------------

    def units_per_sum(self, participant: Participant, phase: int = 0) -> float:
        """The factor that makes a sum of clipped gradients a mean in grid units."""
        size = self.batch(phase).size(self.phases[phase].records(participant.records))
        return participant.weight / (size * self.grids[phase])

    def sensitivity_units(self, participant: Participant, phase: int = 0) -> float:
        """L2 distance, in grid units, by which replacing one drawn record can move a mean.

        For Poisson batches, twice the distance by which adding one record can: there a batch with
        the record is compared with the batch without it.
        """
        apart = _apart(self.phases[phase], self.clip)
        moved = apart * self.units_per_sum(participant, phase)
        return moved + _rounding(self.batch(phase), self.dimension)

    def longest_mean_units(
        self, participant: Participant, phase: int = 0, fullest: float = 1.0
    ) -> float:
        """Bound on the norm of a mean in grid units, before noise.

        `fullest`: how many times its expected size a batch can be.
        """
        evaluates = self.phases[phase].kind is PhaseKind.EVALUATION
        longest = _LARGEST_SAYING if evaluates else self.clip
        rounding = sqrt(self.dimension) * _ROUNDING / 2
        return longest * fullest * participant.weight / self.grids[phase] + rounding

    def whole_silo_units(self, participant: Participant, phase: int = 0) -> float:
        """L2 distance, in grid units, by which replacing *all* of a silo's records can move its
        report."""
        fullest = 1 / self.minibatch.ratio if self.minibatch.scheme is Scheme.POISSON else 1.0
        moved = 2 * self.clip * fullest * participant.weight / self.grids[phase]
        return moved + _rounding(self.minibatch, self.dimension)

    def event(self, participant: Participant, phase: int = 0) -> PrivacyEvent:
        """The privacy event of one noised gradient; an answered round has `Phase.steps` of them."""
        return PrivacyEvent(
            scheme=self.batch(phase).scheme,
            ratio=self.batch(phase).share(self.phases[phase].records(participant.records)),
            sensitivity=self.sensitivity_units(participant, phase),
            noise=self.sigma_units,
            samples=self.dimension,
        )

    def transcripts(self, participant: Participant) -> tuple[Transcript, ...]:
        """The transcript of each phase: the events of a whole study that touch its records."""
        return tuple(
            ((self.event(participant, index), phase.events),)
            for index, phase in enumerate(self.phases)
        )

    def epsilon(self, participant: Participant, delta: float | None = None) -> float:
        """ε of the whole study for this silo, at its own δ or another one.

        Phases use disjoint records, so the worst of them counts (parallel composition).
        """
        delta = participant.target.delta if delta is None else delta
        return max(epsilon_of(each, delta) for each in self.different_transcripts(participant))

    def different_transcripts(self, participant: Participant) -> set[Transcript]:
        """The transcripts that a record's may be; most phases are alike."""
        return {
            ((self.event(participant, index), self.phases[index].events),)
            for index in self.different_phases
        }

    @cached_property
    def different_phases(self) -> list[int]:
        """The index of one phase of each kind; a one-pass algorithm has hundreds that are alike."""
        kinds = zip(self.phases, self.grids, strict=True)
        return list({kind: index for index, kind in enumerate(kinds)}.values())


def _batch(phase: Phase, minibatch: Minibatch) -> Minibatch:
    return Minibatch() if phase.kind is PhaseKind.EVALUATION else minibatch


def _apart(phase: Phase, clip: float) -> float:
    """The largest distance between the contributions of two records."""
    return _SAYINGS_APART if phase.kind is PhaseKind.EVALUATION else 2 * clip


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
    """Calibrate on the coarsest grid to which rounding costs little, else on the finest possible.

    A grid may be too coarse (rounding, or integer noise, takes all of the promised ε) or too fine
    (its values need more bits than a report has).
    """
    heaviest = max(participant.weight for participant in participants)
    made, failed = list[Mechanism](), list[CalibrationImpossible]()
    for fineness in FINENESS:
        try:
            needed = _grids(participants, clip, dimension, phases, batch, fineness)
            sizes = tuple(needed[phase].size for phase in phases)
            made.append(Mechanism(clip, dimension, batch, phases, sizes, heaviest, fineness))
        except CalibrationImpossible as error:
            failed.append(error)
            if isinstance(error, TooManyBits):
                break
        else:
            if max(each.rounding for each in needed.values()) <= _LARGEST_ROUNDING:
                break
    if not made:
        raise failed[-1]
    return made[-1]


@dataclass(frozen=True, slots=True, order=True)
class _Grid:
    """The size of an integer step, and the share of the sensitivity that is rounding to it."""

    size: float
    rounding: float


def _grids(
    participants: tuple[Participant, ...],
    clip: float,
    dimension: int,
    phases: tuple[Phase, ...],
    batch: Minibatch,
    fineness: int,
) -> dict[Phase, _Grid]:
    """The grid of each phase: that of the participant who needs the largest."""
    most = max(phase.events for phase in phases)
    return {
        phase: max(
            _grid(each, clip, dimension, phase, batch, most, fineness * SIGMA_UNITS)
            for each in _neediest(participants, _batch(phase, batch))
        )
        for phase in set(phases)
    }


def _neediest(participants: tuple[Participant, ...], batch: Minibatch) -> list[Participant]:
    """The participants who may need the most noise.

    The fewer records a silo has, the likelier each is drawn into a batch of fixed count, and such a
    calibration takes a second for each size: so of silos with the same target only those count that
    are heavier than all smaller ones.
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
    sigma: float,
) -> _Grid:
    """The grid that this participant needs: `sensitivity_units` solved for it.

    most_events: the most that any phase has.  A ledger knows of a record only that it is in some
    phase, and adds up the largest loss and the most integers: so each phase leaves room for these.
    """
    batch = _batch(phase, batch)
    target, records = participant.target, phase.records(participant.records)
    size = batch.size(records)
    if records < 1 or not 0 < size <= records:
        raise CalibrationImpossible(
            f"a silo of {participant.records} records has none left for a phase of "
            f"{phase.share:.3g} of them and batches of {batch.ratio:.3g}; use fewer rounds or "
            "larger batches"
        )
    share, events = batch.share(records), phase.events
    mu = largest_mu(target, batch.scheme, share, events, dimension, most_events, sigma)
    rounding = _rounding(batch, dimension)
    allowed = mu * sigma - rounding
    if allowed <= 0:
        raise CalibrationImpossible(
            f"epsilon={target.epsilon:g} over {_counted(phase)} leaves no room for "
            f"{dimension} coordinates; use a larger epsilon or fewer rounds"
        )
    moved = _apart(phase, clip) * participant.weight / size
    return _Grid(moved / allowed, rounding / (mu * sigma))
