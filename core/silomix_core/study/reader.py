"""The reader of study files: every key is known, typed and named in the error if it is not.

`writer` writes what is read here; a test holds one against the other.  A study file comes from
somebody else: its size, its nesting and its numbers are bounded before anything is made of it.
"""

import tomllib
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.base import USUAL_DESCENT, Algorithm, Averaging, Descent
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.reports.aggregation import Aggregation, Rule
from silomix_core.study.schedule import Draw
from silomix_core.study.specification import Batching
from silomix_core.study.study import InvalidStudy, Mix, Server, Silo, Study, StudyId
from silomix_core.study.weighting import Weighting
from silomix_core.task.feature import Combine, FeatureKind, category, flag
from silomix_core.task.goal import PARAMETERS
from silomix_core.task.interaction import Interaction
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_core.toml_table import InvalidField, TomlTable

VERSION = 1
Read = TypeVar("Read")
_MOST_RECORDS = 100_000_000  # 2²⁷ integer gradients of 2³⁶ would overflow int64
_LARGEST_FILE, _LONGEST_LINE = 16 * 2**20, 8192


def parse_study(content: bytes) -> Study:
    """Read the study in these bytes, or raise InvalidStudy with the key and the reason."""
    return _parsed(content, lambda top: _study(top, StudyId(sha256(content).digest())))


@dataclass(frozen=True, slots=True)
class Outline:
    """The part of a study file that is about records; readable without the parties' keys, too."""

    task: Task
    records: dict[str, int]  # of the silos for which the file states them


def parse_outline(content: bytes) -> Outline:
    """Read the part of a study file that is about records, or raise InvalidStudy."""
    return _parsed(content, _outline)


def _parsed(content: bytes, read: Callable[[TomlTable], Read]) -> Read:
    if len(content) > _LARGEST_FILE or max(map(len, content.split(b"\n"))) > _LONGEST_LINE:
        raise InvalidStudy(  # reading long dotted keys takes a time quadratic in their length
            f"not a study: larger than {_LARGEST_FILE} bytes, or a line longer than {_LONGEST_LINE}"
        )
    try:
        return read(TomlTable(tomllib.loads(content.decode("utf-8"))))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidStudy(f"not a TOML file: {error}") from error
    except RecursionError as error:  # raised by tomllib, or when a value is shown in a message
        raise InvalidStudy("not a study: lists or tables are nested too deeply") from error
    except (InvalidField, ValueError) as error:
        raise InvalidStudy(str(error)) from error


def _outline(top: TomlTable) -> Outline:
    _check_version(top)
    task = _task(top.table("task"))
    rows = top.tables("silos") if top.has("silos") else []
    return Outline(task, {_name(row): row.whole("records") for row in rows if row.has("records")})


def _check_version(top: TomlTable) -> None:
    if (version := top.whole("version")) != VERSION:
        raise InvalidField(f"version {version} is not supported; this release reads {VERSION}")


def _study(top: TomlTable, identity: StudyId) -> Study:
    _check_version(top)
    name = top.short_text("name")
    task = _task(top.table("task"))
    table = top.table("algorithm")
    algorithm = ALGORITHMS[table.choice("name", ALGORITHMS)]
    learning = _learning(table, algorithm)
    silos = tuple(_silo(row) for row in top.tables("silos"))
    participants = table.whole("participants", len(silos))
    table.finish()
    return Study(
        identity=identity,
        name=name,
        task=task,
        participants=participants,
        silos=silos,
        **learning,
        **_privacy(top.table("privacy"), algorithm),
        batching=_batching(top.table("batch")),
        mixes=tuple(_mix(row) for row in top.tables("mixes")),
        server=_server(top.table("server")),
        **_rest(top),
    )


def _learning(table: TomlTable, algorithm: Algorithm) -> dict[str, Any]:
    """The fields of a specification that stand in [algorithm], but for the participants."""
    takes_steps = algorithm.takes_local_steps and table.has("local_steps")
    return {
        "algorithm": algorithm.name,
        "most_rounds": table.whole("rounds"),
        "radius": table.number("radius"),
        "draw": Draw(table.choice("draw", [each.value for each in Draw], Draw.BLOCKS.value)),
        "named_weighting": _weighting(table),
        "ridge": table.number("ridge", 0.0),
        "local_steps": table.whole("local_steps") if takes_steps else None,
        "descent": _descent(table, algorithm),
    }


def _weighting(table: TomlTable) -> Weighting:
    known = [each.value for each in Weighting]
    return Weighting(table.choice("weights", known, Weighting.NAMED.value))


def _privacy(table: TomlTable, algorithm: Algorithm) -> dict[str, Any]:
    fields = {
        "clip": table.number("clip"),
        "target": _target(table),
        "minibatch": _minibatch(table, algorithm),
    }
    table.finish()
    return fields


def _rest(top: TomlTable) -> dict[str, Any]:
    """The fields of a specification that have tables of their own, which a file may leave out."""
    fields = {
        "held_out": _held_out(top.table("evaluation")) if top.has("evaluation") else 0.0,
        "named_aggregation": _aggregation(top.table("aggregation"))
        if top.has("aggregation")
        else None,
    }
    top.finish()
    return fields


def _batching(table: TomlTable) -> Batching:
    batching = Batching(
        minimum=table.whole("minimum"),
        deadline_s=table.number("deadline_s"),
        gate=table.flag("gate", default=True),
        tokens=table.flag("tokens", default=True),
    )
    table.finish()
    return batching


def _aggregation(table: TomlTable) -> Aggregation:
    rule = Rule(table.choice("rule", [each.value for each in Rule]))
    bad_silos = table.whole("bad_silos", 0)
    table.finish()
    return table.build(lambda: Aggregation(rule, bad_silos))


def _descent(table: TomlTable, algorithm: Algorithm) -> Descent | None:
    if not (table.has("momentum") or table.has("averaging")):
        return None
    if not algorithm.takes_descent:
        key = "momentum" if table.has("momentum") else "averaging"
        raise InvalidField(f"algorithm.{key}: {algorithm.name} has none to choose; leave it out")
    momentum = table.number("momentum", USUAL_DESCENT.momentum)
    known = [each.value for each in Averaging]
    averaging = Averaging(table.choice("averaging", known, USUAL_DESCENT.averaging.value))
    return table.build(lambda: Descent(momentum, averaging))


def _held_out(table: TomlTable) -> float:
    share = table.number("share")
    table.finish()
    if share == 0:
        raise InvalidField("evaluation.share must not be 0; leave [evaluation] out")
    return share


def _target(table: TomlTable) -> PrivacyTarget:
    epsilon, delta = table.number("epsilon"), table.number("delta")
    return table.build(lambda: PrivacyTarget(epsilon, delta))


def _minibatch(table: TomlTable, algorithm: Algorithm) -> Minibatch:
    if algorithm.minibatch is not None:
        if table.has("sampling"):
            raise InvalidField(
                f"privacy.sampling: {algorithm.name} draws its own batches; leave it out"
            )
        return algorithm.minibatch
    scheme = Scheme(table.choice("sampling", [entry.value for entry in Scheme], Scheme.FULL.value))
    ratio = 1.0 if scheme is Scheme.FULL else table.number("ratio")
    return table.build(lambda: Minibatch(scheme, ratio))


def _task(table: TomlTable) -> Task:
    loss = LossName(table.choice("loss", [name.value for name in LossName]))
    label = table.short_text("label")
    scaling = Scaling(table.choice("scaling", [entry.value for entry in Scaling]))
    bias = table.number("bias")
    features = tuple(_feature(row) for row in table.tables("features"))
    goal = _goal_parameters(table, loss)
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
            **goal,
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


def _goal_parameters(table: TomlTable, loss: LossName) -> dict[str, Any]:
    """The values that the loss needs, and those that it may have and the table names."""
    values: dict[str, Any] = {}
    if loss.is_regression:
        values["label_bounds"] = table.number("label_low"), table.number("label_high")
    for each in PARAMETERS:
        losses = each.metadata["losses"]
        if loss in losses or (not losses and table.has(each.name)):
            read = table.whole if each.metadata["kind"] is int else table.number
            values[each.name] = read(each.name)
    return values


def _feature(table: TomlTable) -> Feature:
    name = table.short_text("name")
    kind = FeatureKind(
        table.choice("kind", [each.value for each in FeatureKind], FeatureKind.NUMBER.value)
    )
    combine = _combine(table, "combine")
    codes, concepts = table.short_texts("codes"), table.wholes("concepts")
    if kind is FeatureKind.CATEGORY:
        categories = table.short_texts("categories")
        chosen = table.short_text("missing") if table.has("missing") else ""
        table.finish()
        return table.build(
            lambda: category(
                name, categories, missing=chosen, combine=combine, codes=codes, concepts=concepts
            )
        )
    count = table.whole("count", 1)
    if kind is FeatureKind.FLAG:
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


def _combine(table: TomlTable, key: str) -> Combine | None:
    if not table.has(key):
        return None
    return Combine(table.choice(key, [each.value for each in Combine]))


def _silo(table: TomlTable) -> Silo:
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


def _mix(table: TomlTable) -> Mix:
    mix = Mix(
        name=_name(table),
        address=table.address("address"),
        sign_key=_key(table, "sign_key"),
    )
    table.finish()
    return mix


def _server(table: TomlTable) -> Server:
    server = Server(
        name=_name(table),
        fleet_address=table.address("fleet_address"),
        channel_address=table.address("channel_address"),
        sign_key=_key(table, "sign_key"),
    )
    table.finish()
    return server


def _name(table: TomlTable) -> str:
    name = table.short_text("name")
    if not (name.isascii() and name.replace("-", "").isalnum() and len(name) <= 63):
        raise InvalidField(f"party name {name!r}: use letters, digits and hyphens")
    return name


def _key(table: TomlTable, key: str) -> bytes:
    there = table.has(key)
    try:
        text = table.text(key)
    except InvalidField as error:
        hint = "" if there else "; `silomix study assemble` puts keys into an outline"
        raise InvalidField(f"{error}{hint}") from error
    return table.build(lambda: b64decode(text, validate=True))
