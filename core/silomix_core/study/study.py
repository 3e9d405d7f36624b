"""A study: what the hospitals agreed on, in one TOML file whose SHA-256 is its identity.

Everything that a party must know about the others stands here (roster, mix chain, keys), and
everything that decides what is computed and what it costs.  Nothing else in a message is trusted
to say otherwise.  `reader` reads it, `writer` writes it; `mechanism` and `setting` follow from it.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import isfinite
from typing import NewType

from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.base import AlgorithmPlan, LocalSteps, Setting
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.evaluation.private import not_measurable
from silomix_core.mechanism.mechanism import MOST_STEPS, Mechanism, Participant, Phase
from silomix_core.model.models import Model, model_of
from silomix_core.reports.aggregation import Aggregation, Circumstances, unusable, usual
from silomix_core.reports.reception import Reception
from silomix_core.study.derive import phases_of, plan_of, setting_of, unfit, weighting_of
from silomix_core.study.schedule import asked_places
from silomix_core.study.specification import Specification
from silomix_core.study.weighting import Weighting, weights
from silomix_core.task.task import Task

StudyId = NewType("StudyId", bytes)  # SHA-256 of the study file
# Far beyond any use; what lies further makes grids vanish and calibrations take hours, which
# the author of a study file could inflict on everybody who looks at it.
_LEAST, _MOST = 1e-9, 1e9  # radius and clip; the ratio of a batch
_LEAST_HELD_OUT = 0.01  # and the least share that is left for training
_MOST_DRAWN_SIZES = 64  # calibrated one by one, each in a tenth of a second
_MOST_SAMPLED_TARGETS = 8  # with drawn batches, each of them is a calibration of seconds
_MOST_SAMPLED_ROUNDS = 10_000  # so that everybody can calibrate within a minute
_MOST_MIXES, _MOST_DIGESTS = 64, 10_000  # silos times mixes: all mixes' statements are one message


class InvalidStudy(ValueError):
    """The file is not a study that we can run; the message says which key and why."""


@dataclass(frozen=True, slots=True)
class Silo:
    """One hospital: its public number of records and the keys it enrolled with.

    `weight` counts relative to the other silos', if the study names weights; `target` is its own
    (ε, δ) where it has one.
    """

    name: str
    records: int
    sign_key: bytes  # Ed25519, raw
    node_key: bytes  # EC P-384 for Flower's node authentication, DER
    weight: float = 1.0
    target: PrivacyTarget | None = None


@dataclass(frozen=True, slots=True)
class Mix:
    name: str
    address: str
    sign_key: bytes  # Ed25519, raw; vouches for the mix's sealing keys, which live for one round


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    fleet_address: str  # Flower's Fleet API
    channel_address: str  # the round channel
    sign_key: bytes


@dataclass(frozen=True, kw_only=True)
class Study(Specification):
    """What the hospitals agreed on: a specification, with its identity, task and parties."""

    identity: StudyId
    task: Task
    participants: int  # how many silos a round asks; `asked` says which
    silos: tuple[Silo, ...]
    mixes: tuple[Mix, ...]
    server: Server

    def __post_init__(self) -> None:
        if not self.silos:
            raise ValueError("a study needs at least one silo")
        if not self.mixes:
            raise ValueError("a study needs at least one mix")
        if len(self.mixes) > _MOST_MIXES or len(self.silos) * len(self.mixes) > _MOST_DIGESTS:
            raise ValueError(
                f"at most {_MOST_MIXES} mixes, and silos times mixes at most {_MOST_DIGESTS}"
            )
        names = [silo.name for silo in self.silos] + [mix.name for mix in self.mixes]
        names.append(self.server.name)
        if len(set(names)) != len(names):
            raise ValueError("the parties of a study need different names")
        if self._has_repeated_keys():
            raise ValueError("two parties of a study share a key; each needs its own")
        if not 1 <= self.batching.minimum <= len(self.silos):
            raise ValueError("batch.minimum must lie between 1 and the number of silos")
        if not self.batching.minimum <= self.participants <= len(self.silos):
            raise ValueError(
                "algorithm.participants must lie between batch.minimum and the number of silos"
            )
        if not 1 <= self.most_rounds <= 1_000_000:
            raise ValueError("algorithm.rounds must lie between 1 and 1000000")
        if self.local_steps is not None and not 1 <= self.local_steps <= MOST_STEPS:
            raise ValueError(f"algorithm.local_steps must lie between 1 and {MOST_STEPS}")
        if not (self.ridge == 0 or _LEAST <= self.ridge <= _MOST):
            raise ValueError("algorithm.ridge must be 0 or lie between 1e-9 and 1e9")
        if self.weighting is not Weighting.NAMED:
            for silo in self.silos:
                if silo.weight != 1:
                    raise ValueError(
                        f"silo {silo.name!r}: weight goes with algorithm.weights = "
                        f'"{Weighting.NAMED.value}", not "{self.weighting.value}"'
                    )
        if (reason := unfit(ALGORITHMS[self.algorithm], self.task)) is not None:
            raise ValueError(f"algorithm.name: {reason}")
        if self.held_out and not _LEAST_HELD_OUT <= self.held_out <= 1 - _LEAST_HELD_OUT:
            raise ValueError("evaluation.share must lie between 0.01 and 0.99")
        if self.held_out and (reason := not_measurable(self.task)) is not None:
            raise ValueError(reason)
        if not (_LEAST <= self.radius <= _MOST and _LEAST <= self.clip <= _MOST):
            raise ValueError("algorithm.radius and privacy.clip must lie between 1e-9 and 1e9")
        if self.minibatch.ratio < _LEAST:
            raise ValueError(f"privacy.ratio must be at least 1e-9, got {self.minibatch.ratio}")
        if self.minibatch.count is not None and self._needs() > _MOST_DRAWN_SIZES:
            raise ValueError(
                "where each silo draws so many records, at most "
                f"{_MOST_DRAWN_SIZES} different weights and (epsilon, delta), these have "
                f'{self._needs()}; use algorithm.weights = "equal"'
            )
        if self.minibatch.scheme is not Scheme.FULL and self._targets() > _MOST_SAMPLED_TARGETS:
            raise ValueError(
                f"with {self.minibatch.scheme.value} batches the silos of a study can have at most "
                f"{_MOST_SAMPLED_TARGETS} different (epsilon, delta), these have {self._targets()}"
            )
        if self.minibatch.scheme is not Scheme.FULL and self._most_events() > _MOST_SAMPLED_ROUNDS:
            kind = self.minibatch.scheme.value
            raise ValueError(
                f"algorithm.rounds: at most {_MOST_SAMPLED_ROUNDS} with {kind} batches, "
                "local steps counted"
            )
        named = self.named_aggregation
        if named is not None and (reason := unusable(named, self._circumstances)) is not None:
            raise ValueError(f"aggregation.rule: {reason}")
        if not (isfinite(self.batching.deadline_s) and 0 < self.batching.deadline_s <= 86_400):
            raise ValueError("batch.deadline_s must be above 0 and at most a day")

    def _has_repeated_keys(self) -> bool:
        sign = [silo.sign_key for silo in self.silos] + [mix.sign_key for mix in self.mixes]
        sign.append(self.server.sign_key)
        node = [silo.node_key for silo in self.silos]
        return any(len(set(keys)) < len(keys) for keys in (sign, node))

    def _most_events(self) -> int:
        return max(phase.events for phase in self.phases)

    def _needs(self) -> int:
        """The number of kinds of silo of which each may need a calibration of its own."""
        return len({(each.weight, each.target) for each in map(self.participant, self.silos)})

    def _targets(self) -> int:
        return len({silo.target or self.target for silo in self.silos})

    @property
    def short_id(self) -> str:
        return self.identity.hex()[:12]

    def silo(self, name: str) -> Silo | None:
        place = self.places.get(name)
        return None if place is None else self.silos[place]

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place (from 0) of each silo in the roster."""
        return {silo.name: place for place, silo in enumerate(self.silos)}

    def asked(self, round_number: int) -> tuple[str, ...]:
        """The silos that a round asks, in the roster's order: nobody's choice, see `schedule`."""
        if self.participants == len(self.silos):
            return tuple(self.places)
        first = self._first_rounds[bisect_right(self._first_rounds, round_number) - 1]
        places = asked_places(
            self.identity, round_number, len(self.silos), self.participants, self.draw, first
        )
        return tuple(silo.name for place, silo in enumerate(self.silos) if place in places)

    @cached_property
    def _first_rounds(self) -> list[int]:
        """The first round of each phase."""
        return list(accumulate((phase.rounds for phase in self.phases[:-1]), initial=1))

    def participant(self, silo: Silo) -> Participant:
        """A silo as the mechanism sees it."""
        weight = self._weights[self.places[silo.name]]
        return Participant(silo.records, silo.target or self.target, weight)

    @cached_property
    def weighting(self) -> Weighting:
        """What silos count by: named by the study, or as usual."""
        return weighting_of(self)

    @cached_property
    def _weights(self) -> list[float]:
        records = [silo.records for silo in self.silos]
        return weights(self.weighting, records, [silo.weight for silo in self.silos])

    @cached_property
    def setting(self) -> Setting:
        """The public numbers from which algorithms derive their parameters."""
        return setting_of(self.task, self, [self.participant(silo) for silo in self.silos])

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the study: which share of the records each round uses, and how."""
        return phases_of(self.setting, self)

    @cached_property
    def rounds(self) -> int:
        """The number of rounds: what the algorithm asks for, at most what the file allows, and one
        more if the study evaluates its model."""
        return sum(phase.rounds for phase in self.phases)

    @property
    def model(self) -> Model:
        """The model that silos differentiate: the task's, smoothed if the algorithm says so."""
        return model_of(self.task, ALGORITHMS[self.algorithm].smoothing(self.setting))

    def mechanism(self) -> Mechanism:
        """The mechanism, with one noise scale for all: the largest that any silo needs.

        CalibrationImpossible says which table of the file asks for what no noise can give.  Whoever
        writes, shows or runs a study calls this first; parsing does not, since the calibration of
        drawn batches takes seconds.
        """
        try:
            return self._calibrated(self.silos)
        except CalibrationImpossible as error:
            raise CalibrationImpossible(f"{self._refused_table()}: {error}") from error

    def _calibrated(self, silos: Sequence[Silo]) -> Mechanism:
        return Mechanism.calibrate(
            [self.participant(silo) for silo in silos],
            clip=self.clip,
            dimension=self.task.dimension,
            phases=self.phases,
            minibatch=self.minibatch,
        )

    def _refused_table(self) -> str:
        """The table that asks for too much: that of a silo with its own (ε, δ), or everybody's."""
        for silo in self.silos:
            if silo.target is not None:
                try:
                    self._calibrated([silo])
                except CalibrationImpossible:
                    return f"silo {silo.name!r} with [algorithm]"
        return "[privacy] with [algorithm]"

    @cached_property
    def aggregation(self) -> Aggregation:
        """The rule that turns a round's reports into one: named by the study, or the default."""
        return self.named_aggregation or usual(self._circumstances, self._weights)

    @property
    def _circumstances(self) -> Circumstances:
        return Circumstances(
            self.phases,
            self.minibatch,
            fewest=self.batching.minimum,
            asked=self.participants,
            dimension=self.task.dimension,
        )

    def reception(self) -> Reception:
        """The server's side of all rounds: which reports it accepts, and how they become one."""
        participants = [self.participant(silo) for silo in self.silos]
        return Reception(self.mechanism(), participants, self.aggregation)

    def algorithm_plan(self, mechanism: Mechanism) -> AlgorithmPlan:
        return plan_of(self.setting, mechanism)

    def local(self, mechanism: Mechanism) -> LocalSteps | None:
        """The local steps that silos take, if the algorithm has any."""
        local = ALGORITHMS[self.algorithm].local
        return local(self.algorithm_plan(mechanism)) if local else None

    @cached_property
    def has_control(self) -> bool:
        """Return whether silos keep control variates."""
        return any(phase.control for phase in self.phases)
