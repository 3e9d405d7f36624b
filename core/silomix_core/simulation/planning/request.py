"""A request for a plan: the shape of a study and the grids to choose from, all of it public."""

from dataclasses import dataclass
from math import isfinite

from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.base import Setting
from silomix_core.algorithms.catalogue import algorithm
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant
from silomix_core.reports.aggregation import Aggregation, Circumstances, unusable, usual
from silomix_core.simulation.planning.simulated_studies import (
    LARGEST_DIMENSION,
    Shape,
    simulated_task,
)
from silomix_core.study.defaults import usual_minimum
from silomix_core.study.derive import participants_of, setting_of
from silomix_core.study.specification import Specification
from silomix_core.study.weighting import Weighting

DEFAULT_ROUNDS = (10, 20, 40, 60, 100, 200)
# The clips that did best without tuning: unit-norm features 0.5, features in the unit ball 0.25
# (docs/decisions/0006-demo-defaults.md).
GOOD_CLIPS = (0.25, 0.5)
_MOST_CELLS = 200


class InvalidPlan(ValueError):
    """The numbers do not describe a study; the message says which one and what to do."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """`silos` silos of `records` records each, and the values of ε and rounds to choose from.

    sizes: the records of each, if they differ, `records` being the average; weighting: what silos
    count by, if they differ; dimension: coordinates of the model, its bias included; minimum_batch:
    the fewest reports of a batch, by default 80 % of the silos; seeds: runs of the simulation, 0
    for none; named_rule: how reports become one, by default as in a study that names no rule.
    """

    silos: int
    records: int
    dimension: int
    delta: float
    epsilons: tuple[float, ...]
    rounds: tuple[int, ...] = DEFAULT_ROUNDS
    clip: float = GOOD_CLIPS[-1]
    algorithm: str = "noisy-mb-sgd"
    minibatch: Minibatch = Minibatch()  # noqa: RUF009  # it is frozen
    minimum_batch: int | None = None
    radius: float = 50.0
    seeds: int = 5
    named_rule: Aggregation | None = None
    sizes: tuple[int, ...] = ()
    weighting: Weighting = Weighting.RECORDS

    def __post_init__(self) -> None:
        _whole("silos", self.silos, 1, 100_000)
        _whole("records", self.records, 1, 100_000_000)
        if self.sizes and len(self.sizes) != self.silos:
            raise InvalidPlan(f"silos {self.silos}: there are {len(self.sizes)} numbers of records")
        _whole("dimension", self.dimension, 2, 2**21)  # a bias and at least one feature
        _whole("seeds", self.seeds, 0, 1000)
        _whole("minimum-batch", self.fewest_reports, 1, self.silos)
        _positive("clip", self.clip)
        _positive("radius", self.radius)
        for rounds in self.rounds:
            _whole("rounds", rounds, 1, 1_000_000)
        if not 1 <= len(self.epsilons) * len(self.rounds) <= _MOST_CELLS:
            raise InvalidPlan(
                f"epsilon, rounds: {len(self.epsilons)} and {len(self.rounds)} values; give at "
                f"least one of each and at most {_MOST_CELLS} pairs"
            )
        try:
            for epsilon in self.epsilons:
                PrivacyTarget(epsilon, self.delta)
            algorithm(self.algorithm)
        except ValueError as error:
            raise InvalidPlan(str(error)) from error

    @property
    def each_has(self) -> str:
        """How many records a silo has, in words."""
        sizes = self.sizes
        return f"{min(sizes)} to {max(sizes)}" if sizes else str(self.records)

    @property
    def fewest_reports(self) -> int:
        if self.minimum_batch is None:
            return usual_minimum(self.silos)
        return self.minimum_batch

    @property
    def shape(self) -> Shape:
        return Shape(self.silos, self.records, self.dimension)

    @property
    def simulates(self) -> bool:
        small = self.dimension <= LARGEST_DIMENSION
        return self.seeds > 0 and small and algorithm(self.algorithm).local is None

    def participants(self, epsilon: float) -> list[Participant]:
        """The silos, all with this ε."""
        named = self._specification(epsilon, max(self.rounds))
        return participants_of(named, self.sizes or (self.records,) * self.silos)

    def smallest(self, epsilon: float) -> Participant:
        return min(self.participants(epsilon), key=lambda each: each.records)

    def setting(self, epsilon: float, rounds: int) -> Setting:
        """The setting that an algorithm is given in the study of one cell."""
        return setting_of(
            simulated_task(self.dimension),
            self._specification(epsilon, rounds),
            self.participants(epsilon),
        )

    def _specification(self, epsilon: float, rounds: int) -> Specification:
        return Specification(
            algorithm=self.algorithm,
            most_rounds=rounds,
            radius=self.radius,
            clip=self.clip,
            target=PrivacyTarget(epsilon, self.delta),
            minibatch=self.minibatch,
            named_weighting=self.weighting,
        )

    def mechanism(self, epsilon: float, rounds: int) -> Mechanism:
        """The mechanism of one cell, or CalibrationImpossible."""
        return Mechanism.calibrate(
            list(dict.fromkeys(self.participants(epsilon))),
            clip=self.clip,
            dimension=self.dimension,
            phases=algorithm(self.algorithm).phases(self.setting(epsilon, rounds)),
            minibatch=algorithm(self.algorithm).minibatch or self.minibatch,
        )

    def aggregation(self, mechanism: Mechanism) -> Aggregation:
        """The rule that turns a round's reports into one in a study of one cell, or InvalidPlan."""
        given = Circumstances(
            mechanism.phases,
            mechanism.minibatch,
            fewest=self.fewest_reports,
            asked=self.silos,
            dimension=self.dimension,
        )
        if self.named_rule is None:
            return usual(given, [each.weight for each in self.participants(self.epsilons[0])])
        if (reason := unusable(self.named_rule, given)) is not None:
            raise InvalidPlan(f"aggregation {reason}")
        return self.named_rule


def _whole(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidPlan(f"{name} {value}: use a whole number from {least} to {most}")


def _positive(name: str, value: float) -> None:
    if not (isfinite(value) and 0 < value <= 1e9):
        raise InvalidPlan(f"{name} {value}: use a number above 0 and at most 1e9")
