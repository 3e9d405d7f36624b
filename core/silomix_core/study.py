"""A study: what the hospitals agreed on, in one TOML file whose SHA-256 is its identity.

Everything that a party must know about the others stands here (roster, mix chain, keys), and
everything that decides what is computed and what it costs.  Nothing else in a message is trusted
to say otherwise.  `plan()` derives the frozen parameters.
"""

import tomllib
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import isfinite
from typing import NewType, TypeVar

from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.algorithms.seam import (
    LOCAL_STEPS,
    USUAL_DESCENT,
    AlgorithmPlan,
    Averaging,
    Descent,
    LocalSteps,
    Setting,
)
from silomix_core.feature import Combine, Kind, category, flag
from silomix_core.fields import InvalidField, Table
from silomix_core.interaction import Interaction
from silomix_core.losses import LossName
from silomix_core.mechanism import MOST_STEPS, Mechanism, Minibatch, Participant, Phase
from silomix_core.models import Model, model_of
from silomix_core.private_evaluation import not_measurable
from silomix_core.setting import phases_of, plan_of, setting_of, unfit
from silomix_core.task import Feature, Scaling, Task

StudyId = NewType("StudyId", bytes)  # SHA-256 of the study file
Read = TypeVar("Read")
VERSION = 1
_MOST_RECORDS = 100_000_000  # 2²⁷ integer gradients of 2³⁶ would overflow int64
# Far beyond any use; what lies further makes grids vanish and calibrations take hours, which
# the author of a study file could inflict on everybody who looks at it.
_LEAST, _MOST = 1e-9, 1e9  # radius and clip; the ratio of a batch
_LEAST_HELD_OUT = 0.01  # or left for training
_MOST_SAMPLED_TARGETS = 8  # with drawn batches, each of them is a calibration of seconds
_MOST_SAMPLED_ROUNDS = 10_000  # so that everybody can calibrate within a minute
_MOST_MIXES, _MOST_DIGESTS = 64, 10_000  # silos times mixes: what all state is one message
_LARGEST_FILE, _LONGEST_LINE = 16 * 2**20, 8192


class InvalidStudy(ValueError):
    """The file is not a study that we can run; the message says which key and why."""


@dataclass(frozen=True, slots=True)
class Silo:
    """One hospital: its public number of records and the keys it enrolled with.

    `weight` counts relative to the other silos'; `target` is its own (ε, δ) where it has one.
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


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch may be released: at least `minimum` reports, at most `deadline_s` of waiting.

    With a gate nobody can open it before `minimum` silos confirmed that their reports are in it;
    with tokens the server counts distinct enrolled senders without learning who they are.
    """

    minimum: int
    deadline_s: float
    gate: bool = True
    tokens: bool = True


@dataclass(frozen=True)
class Study:
    identity: StudyId
    name: str
    task: Task
    algorithm: str
    most_rounds: int
    radius: float
    ridge: float
    local_steps: int  # of algorithms in which silos walk and the study says how far
    participants: int  # silos that a round asks, drawn anew for each
    clip: float
    target: PrivacyTarget  # of every silo that has none of its own
    minibatch: Minibatch
    batching: Batching
    silos: tuple[Silo, ...]
    mixes: tuple[Mix, ...]
    server: Server
    held_out: float = 0.0  # share of every silo's records that only evaluates the final model
    descent: Descent = USUAL_DESCENT  # of algorithms that leave it to the study

    @classmethod
    def parse(cls, content: bytes) -> "Study":
        """The study in these bytes, or InvalidStudy."""
        return _parsed(content, lambda top: _study(top, StudyId(sha256(content).digest())))

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
        if not 1 <= self.local_steps <= MOST_STEPS:
            raise ValueError(f"algorithm.local_steps must lie between 1 and {MOST_STEPS}")
        if not (self.ridge == 0 or _LEAST <= self.ridge <= _MOST):
            raise ValueError("algorithm.ridge must be 0 or lie between 1e-9 and 1e9")
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
        if not (isfinite(self.batching.deadline_s) and 0 < self.batching.deadline_s <= 86_400):
            raise ValueError("batch.deadline_s must be above 0 and at most a day")

    def _has_repeated_keys(self) -> bool:
        sign = [silo.sign_key for silo in self.silos] + [mix.sign_key for mix in self.mixes]
        sign.append(self.server.sign_key)
        node = [silo.node_key for silo in self.silos]
        return any(len(set(keys)) < len(keys) for keys in (sign, node))

    def _most_events(self) -> int:
        return max(phase.events for phase in self.phases)

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
        """Where each silo stands in the roster."""
        return {silo.name: place for place, silo in enumerate(self.silos)}

    def participant(self, silo: Silo) -> Participant:
        """What the mechanism has to know of a silo; weights are scaled to average 1."""
        average = sum(each.weight for each in self.silos) / len(self.silos)
        return Participant(silo.records, silo.target or self.target, silo.weight / average)

    @cached_property
    def setting(self) -> Setting:
        """What algorithms derive their parameters from."""
        return setting_of(
            self.task,
            [self.participant(silo) for silo in self.silos],
            rounds=self.most_rounds,
            radius=self.radius,
            clip=self.clip,
            ridge=self.ridge,
            asked=self.participants,
            local_steps=self.local_steps,
            ratio=self.minibatch.ratio,
            held_out=self.held_out,
            descent=self.descent,
        )

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """How the rounds use the records."""
        return phases_of(ALGORITHMS[self.algorithm], self.setting, self.held_out)

    @cached_property
    def rounds(self) -> int:
        """As many as the algorithm asks for, at most as many as the file allows; and the one that
        evaluates, if there is one."""
        return sum(phase.rounds for phase in self.phases)

    @property
    def model(self) -> Model:
        """What a silo differentiates: the task's model, smoothed if the algorithm says so."""
        return model_of(self.task, ALGORITHMS[self.algorithm].smoothing(self.setting))

    def mechanism(self) -> Mechanism:
        """One noise scale for all: the largest that any silo needs."""
        return Mechanism.calibrate(
            [self.participant(silo) for silo in self.silos],
            clip=self.clip,
            dimension=self.task.dimension,
            phases=self.phases,
            minibatch=self.minibatch,
        )

    def algorithm_plan(self, mechanism: Mechanism) -> AlgorithmPlan:
        return plan_of(self.setting, mechanism)

    def local(self, mechanism: Mechanism) -> LocalSteps | None:
        """How silos walk, if the algorithm makes them."""
        local = ALGORITHMS[self.algorithm].local
        return local(self.algorithm_plan(mechanism)) if local else None

    @cached_property
    def has_control(self) -> bool:
        """Whether silos keep control variates."""
        return any(phase.control for phase in self.phases)


@dataclass(frozen=True, slots=True)
class Outline:
    """What a study file asks of records: of a study, or of one whose parties' keys are missing."""

    task: Task
    records: dict[str, int]  # of the silos for which the file states them

    @classmethod
    def parse(cls, content: bytes) -> "Outline":
        """The task in these bytes, or InvalidStudy."""
        return _parsed(content, _outline)


def _parsed(content: bytes, read: Callable[[Table], Read]) -> Read:
    if len(content) > _LARGEST_FILE or max(map(len, content.split(b"\n"))) > _LONGEST_LINE:
        raise InvalidStudy(  # reading long dotted keys takes a time quadratic in their length
            f"not a study: larger than {_LARGEST_FILE} bytes, or a line longer than {_LONGEST_LINE}"
        )
    try:
        return read(Table(tomllib.loads(content.decode("utf-8"))))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidStudy(f"not a TOML file: {error}") from error
    except RecursionError as error:  # tomllib's, or that of showing what it read
        raise InvalidStudy("not a study: lists or tables are nested too deeply") from error
    except (InvalidField, ValueError) as error:
        raise InvalidStudy(str(error)) from error


def _outline(top: Table) -> Outline:
    _check_version(top)
    task = _task(top.table("task"))
    rows = top.tables("silos") if top.has("silos") else []
    return Outline(task, {_name(row): row.whole("records") for row in rows if row.has("records")})


def _check_version(top: Table) -> None:
    if (version := top.whole("version")) != VERSION:
        raise InvalidField(f"version {version} is not supported; this release reads {VERSION}")


def _study(top: Table, identity: StudyId) -> Study:
    _check_version(top)
    name = top.short_text("name")
    task = _task(top.table("task"))
    algorithm = top.table("algorithm")
    algorithm_name = algorithm.choice("name", ALGORITHMS)
    rounds, radius = algorithm.whole("rounds"), algorithm.number("radius")
    ridge = algorithm.number("ridge", 0.0)
    takes_steps = ALGORITHMS[algorithm_name].takes_local_steps
    local_steps = algorithm.whole("local_steps", LOCAL_STEPS) if takes_steps else LOCAL_STEPS
    descent = _descent(algorithm, algorithm_name)
    silos = tuple(_silo(row) for row in top.tables("silos"))
    participants = algorithm.whole("participants", len(silos))
    algorithm.finish()
    privacy = top.table("privacy")
    clip = privacy.number("clip")
    target, minibatch = _target(privacy), _minibatch(privacy, algorithm_name)
    privacy.finish()
    batch = top.table("batch")
    batching = Batching(
        minimum=batch.whole("minimum"),
        deadline_s=batch.number("deadline_s"),
        gate=batch.flag("gate", default=True),
        tokens=batch.flag("tokens", default=True),
    )
    batch.finish()
    mixes = tuple(_mix(row) for row in top.tables("mixes"))
    server = _server(top.table("server"))
    held_out = _held_out(top.table("evaluation")) if top.has("evaluation") else 0.0
    top.finish()
    return Study(
        identity=identity,
        name=name,
        task=task,
        algorithm=algorithm_name,
        most_rounds=rounds,
        radius=radius,
        ridge=ridge,
        local_steps=local_steps,
        participants=participants,
        clip=clip,
        target=target,
        minibatch=minibatch,
        batching=batching,
        silos=silos,
        mixes=mixes,
        server=server,
        held_out=held_out,
        descent=descent,
    )


def _descent(table: Table, algorithm: str) -> Descent:
    if not ALGORITHMS[algorithm].takes_descent:
        for key in ("momentum", "averaging"):
            if table.has(key):
                raise InvalidField(f"algorithm.{key}: {algorithm} has none to choose; leave it out")
        return USUAL_DESCENT
    momentum = table.number("momentum", USUAL_DESCENT.momentum)
    known = [each.value for each in Averaging]
    averaging = Averaging(table.choice("averaging", known, USUAL_DESCENT.averaging.value))
    return table.build(lambda: Descent(momentum, averaging))


def _held_out(table: Table) -> float:
    share = table.number("share")
    table.finish()
    if share == 0:
        raise InvalidField("evaluation.share must not be 0; leave [evaluation] out")
    return share


def _target(table: Table) -> PrivacyTarget:
    epsilon, delta = table.number("epsilon"), table.number("delta")
    return table.build(lambda: PrivacyTarget(epsilon, delta))


def _minibatch(table: Table, algorithm: str) -> Minibatch:
    if (own := ALGORITHMS[algorithm].minibatch) is not None:
        if table.has("sampling"):
            raise InvalidField(f"privacy.sampling: {algorithm} draws its own batches; leave it out")
        return own
    scheme = Scheme(table.choice("sampling", [entry.value for entry in Scheme], Scheme.FULL.value))
    ratio = 1.0 if scheme is Scheme.FULL else table.number("ratio")
    return table.build(lambda: Minibatch(scheme, ratio))


def _task(table: Table) -> Task:
    loss = LossName(table.choice("loss", [name.value for name in LossName]))
    label = table.short_text("label")
    scaling = Scaling(table.choice("scaling", [entry.value for entry in Scaling]))
    bias = table.number("bias")
    features = tuple(_feature(row) for row in table.tables("features"))
    bounds = None
    if loss.is_regression:
        bounds = table.number("label_low"), table.number("label_high")
    level = table.number("level") if loss is LossName.QUANTILE else None
    threshold = table.number("threshold") if loss is LossName.HUBER else None
    classes = table.whole("classes") if loss is LossName.MULTINOMIAL else None
    hidden = table.whole("hidden") if table.has("hidden") else None
    person = table.short_text("person") if table.has("person") else None
    time = table.short_text("time") if table.has("time") else None
    combine = _combine(table, "label_combine")
    missing = table.number("label_missing") if table.has("label_missing") else None
    unit = table.short_text("label_unit") if table.has("label_unit") else ""
    codes, concepts = table.short_texts("label_codes"), table.wholes("label_concepts")
    interactions = table.pairs("interactions")
    table.finish()
    return table.build(
        lambda: Task(
            loss,
            label,
            features,
            scaling,
            bias,
            bounds,
            level,
            threshold,
            classes,
            hidden,
            person=person,
            time=time,
            label_combine=combine,
            label_missing=missing,
            label_unit=unit,
            label_codes=codes,
            label_concepts=concepts,
            interactions=tuple(Interaction(*names) for names in interactions),
        )
    )


def _feature(table: Table) -> Feature:
    name = table.short_text("name")
    kind = Kind(table.choice("kind", [each.value for each in Kind], Kind.NUMBER.value))
    combine = _combine(table, "combine")
    codes, concepts = table.short_texts("codes"), table.wholes("concepts")
    if kind is Kind.CATEGORY:
        categories = table.short_texts("categories")
        chosen = table.short_text("missing") if table.has("missing") else ""
        table.finish()
        return table.build(
            lambda: category(
                name, categories, missing=chosen, combine=combine, codes=codes, concepts=concepts
            )
        )
    count = table.whole("count", 1)
    if kind is Kind.FLAG:
        known = table.flag("missing", default=False) if table.has("missing") else None
        table.finish()
        return table.build(
            lambda: flag(
                name, missing=known, count=count, combine=combine, codes=codes, concepts=concepts
            )
        )
    low, high = table.number("low"), table.number("high")
    missing = table.number("missing", (low + high) / 2)
    unit = table.short_text("unit") if table.has("unit") else ""
    table.finish()
    return table.build(
        lambda: Feature(
            name,
            low,
            high,
            missing,
            count,
            unit=unit,
            combine=combine,
            codes=codes,
            concepts=concepts,
        )
    )


def _combine(table: Table, key: str) -> Combine | None:
    if not table.has(key):
        return None
    return Combine(table.choice(key, [each.value for each in Combine]))


def _silo(table: Table) -> Silo:
    silo = Silo(
        name=_name(table),
        sign_key=_key(table, "sign_key"),
        node_key=_key(table, "node_key"),
        records=table.whole("records"),
        weight=table.number("weight", 1.0),
        target=_target(table) if table.has("epsilon") or table.has("delta") else None,
    )
    table.finish()
    if not 1e-3 <= silo.weight <= 1e3:
        raise InvalidField(f"silo {silo.name!r}: weight must lie between 0.001 and 1000")
    if not 1 <= silo.records <= _MOST_RECORDS:
        raise InvalidField(f"silo {silo.name!r}: records must lie between 1 and {_MOST_RECORDS}")
    return silo


def _mix(table: Table) -> Mix:
    mix = Mix(
        name=_name(table),
        address=table.address("address"),
        sign_key=_key(table, "sign_key"),
    )
    table.finish()
    return mix


def _server(table: Table) -> Server:
    server = Server(
        name=_name(table),
        fleet_address=table.address("fleet_address"),
        channel_address=table.address("channel_address"),
        sign_key=_key(table, "sign_key"),
    )
    table.finish()
    return server


def _name(table: Table) -> str:
    name = table.short_text("name")
    if not (name.isascii() and name.replace("-", "").isalnum() and len(name) <= 63):
        raise InvalidField(f"party name {name!r}: use letters, digits and hyphens")
    return name


def _key(table: Table, key: str) -> bytes:
    there = table.has(key)
    try:
        text = table.text(key)
    except InvalidField as error:
        hint = "" if there else "; `silomix study assemble` puts keys into an outline"
        raise InvalidField(f"{error}{hint}") from error
    return table.build(lambda: b64decode(text, validate=True))
