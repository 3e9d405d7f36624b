"""The writer of study files: from what a study lead decides to the tables that `reader` reads.

Parties and their keys are added by whoever knows them.
"""

from dataclasses import asdict
from typing import Any

from silomix_core.accounting.events import Scheme
from silomix_core.algorithms.base import Descent
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.reports.aggregation import Aggregation
from silomix_core.study.derive import weighting_of
from silomix_core.study.reader import VERSION
from silomix_core.study.specification import Specification
from silomix_core.task.feature import NO_CATEGORY, Feature, FeatureKind
from silomix_core.task.goal import PARAMETERS
from silomix_core.task.task import Task


def study_table(task: Task, specification: Specification) -> dict[str, Any]:
    """The tables of a study file, but for server, mixes and silos."""
    algorithm = {
        "name": specification.algorithm,
        "rounds": specification.most_rounds,
        "radius": specification.radius,
        "weights": weighting_of(specification).value,
        "participants": specification.participants,
        "draw": specification.draw.value if specification.participants else None,
        "ridge": specification.ridge or None,
        "local_steps": specification.local_steps,
    }
    privacy = {
        "clip": specification.clip,
        "epsilon": specification.target.epsilon,
        "delta": specification.target.delta,
    }
    held_out = specification.held_out
    return {
        "version": VERSION,
        "name": specification.name,
        "task": _task_table(task),
        "algorithm": _named(algorithm) | _descent_table(specification.descent),
        "privacy": privacy | _sampling(specification.minibatch),
        "batch": asdict(specification.batching),
        **_aggregation_table(specification.named_aggregation),
    } | ({"evaluation": {"share": held_out}} if held_out else {})


def _named(table: dict[str, Any]) -> dict[str, Any]:
    """The keys that somebody chose a value for."""
    return {key: value for key, value in table.items() if value is not None}


def _task_table(task: Task) -> dict[str, Any]:
    return {
        "loss": task.loss.value,
        "label": task.label,
        "scaling": task.scaling.value,
        "bias": task.bias,
        **_goal_table(task),
        **_people_table(task),
        "features": [_feature_table(feature) for feature in task.features],
    }


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


def _goal_table(task: Task) -> dict[str, float]:
    keys = {each.name: getattr(task, each.name) for each in PARAMETERS}
    if task.label_bounds is not None:
        keys["label_low"], keys["label_high"] = task.label_bounds
    return _named(keys)


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
    return _named(optional)
