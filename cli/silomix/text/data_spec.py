"""What a study asks a hospital's data to be, and what was found there, in words for its data
steward."""

from silomix_client.data.profile import ColumnProfile, Profile
from silomix_core.task.feature import NO_CATEGORY, Combine, Feature, FeatureKind
from silomix_core.task.task import Task

from silomix.text.filled import short, titled

_MOST_SHOWN = 100  # features, and categories of one feature
_MOST_COUNTED = 30  # categories for which the dry run tells how many people have them
_SEVERAL = {
    Combine.LAST: "the last counts",
    Combine.FIRST: "the first counts",
    Combine.MEAN: "their mean counts",
    Combine.MIN: "the smallest counts",
    Combine.MAX: "the largest counts",
    Combine.SUM: "their sum counts",
    Combine.COUNT: "counts how many rows have a value",
    Combine.ANY: "true if one of them is",
}


def describe_specification(task: Task) -> list[str]:
    """Describe whose rows are whose, then every feature and the label."""
    lines = titled("people", _people(task))
    for feature in task.features[:_MOST_SHOWN]:
        lines += titled("feature", f"{short(feature.name)}: {_feature(feature, task)}")
    if len(task.features) > _MOST_SHOWN:
        more = len(task.features) - _MOST_SHOWN
        lines += titled("", f"and {more} more features, which the study file lists")
    for first, second in task.pairs[:_MOST_SHOWN]:
        name = f"{short(first.name)} × {short(second.name)}"
        lines += titled("interaction", f"{name}: {_products(first, second)}")
    if (more := len(task.interactions) - _MOST_SHOWN) > 0:
        lines += titled("", f"and {more} more interactions, which the study file lists")
    return [*lines, *titled("label", f"{short(task.label)}: {_label(task)}")]


def describe_profile(profile: Profile, task: Task) -> list[str]:
    lines = [f"read             {profile.source}", *titled("rows", _rows(profile, task))]
    for feature, found in zip(task.features, profile.features, strict=True):
        text = _column(found, profile.people * feature.count)
        if found.missing:
            text += f"; {found.missing} missing, taken for {taken_for_missing(feature)}"
        lines += titled("feature", f"{found.name}: {text}")
    text = _column(profile.label, profile.people)
    if profile.label.missing:
        text += f"; {profile.label.missing} missing, taken for {task.label_missing:g}"
    return [*lines, *titled("label", f"{profile.label.name}: {text}")]


def describe_people(people: int, stated: int | None, floor: int) -> list[str]:
    """Say how many people there are, once nothing speaks against them."""
    agreed = "as the study says"
    if stated is None:
        agreed = "tell the study lead, whose file does not state it yet"
    return titled("people", f"{people}: {agreed}; your policy asks for at least {floor}")


def taken_for_missing(feature: Feature) -> str:
    """The value that a missing one counts as, in words."""
    if feature.rule is Combine.COUNT:
        return "0"
    if feature.kind is FeatureKind.NUMBER:
        return f"{feature.missing:g}"
    if feature.kind is FeatureKind.FLAG:
        return {0.0: "false", 1.0: "true"}.get(feature.missing, "halfway between false and true")
    if feature.missing == NO_CATEGORY:
        return "none of them"
    return short(feature.categories[int(feature.missing)])


def _people(task: Task) -> str:
    if task.person is None:
        return (
            "every row is taken for another person; whoever has several rows is protected for "
            "each of them alone, so give one row per person"
        )
    ordered = f", in the order of {short(task.time)}" if task.time else ""
    return (
        f"rows that agree in {short(task.person)} are one person{ordered}; a record is a person, "
        "with all rows"
    )


def _feature(feature: Feature, task: Task) -> str:
    parts = [_kind(feature), f"missing counts as {taken_for_missing(feature)}"]
    if task.person is not None:
        parts.append(f"of several rows {_SEVERAL[feature.rule]}")
    parts += _places(feature.codes, feature.concepts)
    return "; ".join(parts)


def _products(first: Feature, second: Feature) -> str:
    """Describe what the model gets of an interaction, in the terms of `FeatureKind`."""
    width = first.width * second.width
    if width == 1:
        return "the product of both, each scaled to −1 to 1; made from these columns, one weight"
    return f"the {width} products of what both become; made from these columns, a weight for each"


def _kind(feature: Feature) -> str:
    columns = f" in each of {feature.count} columns" if feature.count > 1 else ""
    if feature.kind is FeatureKind.FLAG:
        return f"true or false{columns}"
    if feature.kind is FeatureKind.CATEGORY:
        shown = ", ".join(short(each) for each in feature.categories[:_MOST_SHOWN])
        more = len(feature.categories) - _MOST_SHOWN
        return f"one of {shown}" + (f" and {more} more" if more > 0 else "")
    unit = f" {feature.unit}" if feature.unit else ""
    return f"a number{columns}, clamped to {feature.low:g} to {feature.high:g}{unit}"


def _label(task: Task) -> str:
    parts = [task.label_rule]
    if task.label_bounds is not None:
        low, high = task.label_bounds
        unit = f" {task.label_unit}" if task.label_unit else ""
        parts = [f"a number, clamped to {low:g} to {high:g}{unit}"]
    if task.label_missing is None:
        parts.append("everybody must have one")
    else:
        parts.append(f"missing counts as {task.label_missing:g}")
    if task.person is not None:
        several = _SEVERAL[task.label_rule_of_rows].replace("true", "1")
        parts.append(f"of several rows {several}")
    parts += _places(task.label_codes, task.label_concepts)
    return "; ".join(parts)


def _places(codes: tuple[str, ...], concepts: tuple[int, ...]) -> list[str]:
    parts = [f"FHIR codes {', '.join(codes)}"] if codes else []
    return parts + ([f"OMOP concepts {', '.join(map(str, concepts))}"] if concepts else [])


def _rows(profile: Profile, task: Task) -> str:
    if task.person is None:
        return f"{profile.rows}, each taken for another person"
    several = f"{profile.several} of them have several rows, one has {profile.most}"
    return f"{profile.rows} of {profile.people} people" + (
        f"; {several}" if profile.several else ", one each"
    )


def _column(found: ColumnProfile, values: int) -> str:
    if found.counts:
        shown = ", ".join(f"{name}: {count}" for name, count in found.counts[:_MOST_COUNTED])
        more = len(found.counts) - _MOST_COUNTED
        return shown + (f" and {more} more categories" if more > 0 else "")
    if found.low is None or found.high is None:
        return "no value at all"
    clamped = f"; {found.clamped} beyond the bounds, clamped" if found.clamped else ""
    return f"{values - found.missing} values, {found.low:g} to {found.high:g}{clamped}"
