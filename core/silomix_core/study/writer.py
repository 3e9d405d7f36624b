"""The writer of study files: from what a study lead decides to the tables that `reader` reads.

Parties and their keys are added by whoever knows them.
"""

from dataclasses import dataclass, field
from typing import Any

from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.base import Descent
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.reports.aggregation import Aggregation
from silomix_core.study.reader import VERSION
from silomix_core.task.feature import NO_CATEGORY, Feature, FeatureKind
from silomix_core.task.task import Task


@dataclass(frozen=True, slots=True)
class StudyChoices:
    """What a study lead decides."""

    name: str
    algorithm: str
    rounds: int
    radius: float
    clip: float
    target: PrivacyTarget
    minimum_batch: int
    deadline_s: float
    gate: bool = True
    tokens: bool = True
    participants: int | None = None  # silos asked in a round; all unless given
    ridge: float = 0.0
    local_steps: int | None = None  # a silo's in a round, where the algorithm has them
    descent: Descent | None = None  # where the algorithm leaves it to the study
    aggregation: Aggregation | None = None  # the usual one unless given
    held_out: float | None = None  # share of the records that evaluates the final model
    minibatch: Minibatch = field(default_factory=Minibatch)  # where algorithms leave a choice


def study_table(task: Task, choices: StudyChoices) -> dict[str, Any]:
    """The tables of a study file, but for server, mixes and silos."""
    return {
        "version": VERSION,
        "name": choices.name,
        "task": {
            "loss": task.loss.value,
            "label": task.label,
            "scaling": task.scaling.value,
            "bias": task.bias,
            **_label_table(task),
            **_people_table(task),
            "features": [_feature_table(feature) for feature in task.features],
        },
        "algorithm": {
            "name": choices.algorithm,
            "rounds": choices.rounds,
            "radius": choices.radius,
        }
        | ({"participants": choices.participants} if choices.participants else {})
        | ({"ridge": choices.ridge} if choices.ridge else {})
        | ({"local_steps": choices.local_steps} if choices.local_steps else {})
        | _descent_table(choices.descent),
        "privacy": {
            "clip": choices.clip,
            "epsilon": choices.target.epsilon,
            "delta": choices.target.delta,
        }
        | _sampling(choices.minibatch),
        "batch": {
            "minimum": choices.minimum_batch,
            "deadline_s": choices.deadline_s,
            "gate": choices.gate,
            "tokens": choices.tokens,
        },
        **_aggregation_table(choices.aggregation),
    } | ({"evaluation": {"share": choices.held_out}} if choices.held_out else {})


def _aggregation_table(aggregation: Aggregation | None) -> dict[str, Any]:
    if aggregation is None:
        return {}
    bad_silos = {"bad_silos": aggregation.bad_silos} if aggregation.bad_silos else {}
    return {"aggregation": {"rule": aggregation.rule.value} | bad_silos}


def _descent_table(descent: Descent | None) -> dict[str, Any]:
    if descent is None:
        return {}
    return {"momentum": descent.momentum, "averaging": descent.averaging.value}


def _sampling(batch: Minibatch) -> dict[str, str | float]:
    if batch.scheme is Scheme.FULL:
        return {}
    return {"sampling": batch.scheme.value, "ratio": batch.ratio}


def _label_table(task: Task) -> dict[str, float]:
    keys: dict[str, float | None] = {
        "level": task.level,
        "threshold": task.threshold,
        "classes": task.classes,
        "hidden": task.hidden,
    }
    if task.label_bounds is not None:
        keys["label_low"], keys["label_high"] = task.label_bounds
    return {key: value for key, value in keys.items() if value is not None}


def _feature_table(feature: Feature) -> dict[str, Any]:
    """The table of a feature, as a study file has it."""
    table: dict[str, Any] = {"name": feature.name}
    if feature.kind is FeatureKind.NUMBER:
        table |= {"low": feature.low, "high": feature.high, "missing": feature.missing}
    else:
        table["kind"] = feature.kind.value
    if feature.kind is FeatureKind.FLAG and feature.missing in (0.0, 1.0):
        table["missing"] = bool(feature.missing)
    if feature.kind is FeatureKind.CATEGORY:
        table["categories"] = list(feature.categories)
        if feature.missing != NO_CATEGORY:
            table["missing"] = feature.categories[int(feature.missing)]
    optional = {
        "count": feature.count if feature.count > 1 else None,
        "unit": feature.unit,
        "combine": feature.combine.value if feature.combine else None,
        "codes": list(feature.codes),
        "concepts": list(feature.concepts),
    }
    return table | {key: value for key, value in optional.items() if value}


def _people_table(task: Task) -> dict[str, Any]:
    """The keys of [task] about interactions, persons, and the label as the persons' data has it."""
    optional = {
        "interactions": [[each.first, each.second] for each in task.interactions] or None,
        "person": task.person,
        "time": task.time,
        "label_combine": task.label_combine.value if task.label_combine else None,
        "label_missing": task.label_missing,
        "label_unit": task.label_unit or None,
        "label_codes": list(task.label_codes) or None,
        "label_concepts": list(task.label_concepts) or None,
    }
    return {key: value for key, value in optional.items() if value is not None}
