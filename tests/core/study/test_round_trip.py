"""What `writer` writes is what `reader` reads, for every value that a study lead may decide."""

from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import pytest
import tomli_w
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.base import LOCAL_STEPS, USUAL_DESCENT, Averaging, Descent
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.reports.aggregation import Aggregation, Rule
from silomix_core.study.derive import weighting_of
from silomix_core.study.reader import parse_study
from silomix_core.study.schedule import Draw
from silomix_core.study.specification import Batching, Specification
from silomix_core.study.study import InvalidStudy, Study
from silomix_core.study.weighting import Weighting
from silomix_core.study.writer import study_table
from silomix_core.task.feature import COMBINES, Feature, FeatureKind, category, flag
from silomix_core.task.interaction import Interaction
from silomix_core.task.losses import LossName
from silomix_core.task.task import Scaling, Task
from support.studies import parse, study_tree

SILOS = 5
CODES = st.lists(
    st.sampled_from(["http://loinc.org|8480-6", "LOINC|8867-4", "urn:x|é"]), unique=True
).map(tuple)
CONCEPTS = st.lists(st.integers(1, 10**9), max_size=2, unique=True).map(tuple)


def bounds() -> st.SearchStrategy[tuple[float, float]]:
    low = st.floats(-1e6, 1e6, allow_subnormal=False)
    return st.tuples(low, st.floats(1.0, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@st.composite
def feature(draw: Any, name: str, *, several_rows: bool) -> Feature:
    kind = draw(st.sampled_from(FeatureKind))
    known = COMBINES[kind] if several_rows else ()
    combine = draw(st.sampled_from([None, *known]))
    codes, concepts = draw(CODES), draw(CONCEPTS)
    if kind is FeatureKind.CATEGORY:
        names = tuple(draw(st.lists(st.sampled_from("abcdé"), min_size=2, unique=True)))
        missing = draw(st.sampled_from(["", *names]))
        return category(
            name, names, missing=missing, combine=combine, codes=codes, concepts=concepts
        )
    count = 1 if codes or concepts else draw(st.integers(1, 3))
    if kind is FeatureKind.FLAG:
        missing = draw(st.sampled_from([None, True, False]))
        return flag(
            name, missing=missing, count=count, combine=combine, codes=codes, concepts=concepts
        )
    low, high = draw(bounds())
    missing = draw(st.floats(low, high))
    unit = draw(st.sampled_from(["", "mmol/L"]))
    return Feature(
        name, low, high, missing, count, unit=unit, combine=combine, codes=codes, concepts=concepts
    )


@st.composite
def tasks(draw: Any) -> Task:
    loss = draw(st.sampled_from(LossName))
    several_rows = draw(st.booleans())
    features = tuple(
        draw(feature(f"x{index}", several_rows=several_rows))
        for index in range(draw(st.integers(2, 4)))
    )
    single = [each.name for each in features if each.count == 1]
    interactions = (Interaction(*single[:2]),) if len(single) > 1 and draw(st.booleans()) else ()
    label_bounds = draw(bounds()) if loss.is_regression else None
    return Task(
        loss,
        "outcome",
        features,
        draw(st.sampled_from(Scaling)),
        draw(st.floats(0.01, 1.0)),
        label_bounds=label_bounds,
        level=0.25 if loss is LossName.QUANTILE else None,
        threshold=(label_bounds[1] - label_bounds[0]) / 4
        if loss is LossName.HUBER and label_bounds
        else None,
        classes=3 if loss is LossName.MULTINOMIAL else None,
        hidden=draw(st.sampled_from([None, 4]))
        if loss in (LossName.LOGISTIC, LossName.MULTINOMIAL)
        else None,
        person="patient" if several_rows else None,
        time="taken_at" if several_rows else None,
        label_missing=label_bounds[0] if label_bounds and draw(st.booleans()) else None,
        label_unit=draw(st.sampled_from(["", "days"])) if label_bounds else "",
        label_codes=draw(CODES),
        label_concepts=draw(CONCEPTS),
        interactions=interactions,
    )


@st.composite
def specifications(draw: Any) -> Specification:
    """The specification of a study whose algorithm leaves open as much as any does."""
    algorithm = draw(st.sampled_from(["noisy-mb-sgd", "local-sgd", "plain-mb-sgd"]))
    entry = ALGORITHMS[algorithm]
    scheme = draw(st.sampled_from(Scheme))
    full = scheme is Scheme.FULL
    descent = Descent(draw(st.floats(0.0, 0.9)), draw(st.sampled_from(Averaging)))
    return Specification(
        name=draw(st.sampled_from(["small", "réadmission 30 d"])),
        algorithm=algorithm,
        most_rounds=draw(st.integers(2, 50)),
        radius=draw(st.floats(0.5, 100.0)),
        clip=draw(st.floats(0.05, 4.0)),
        target=PrivacyTarget(draw(st.floats(0.5, 4.0)), draw(st.sampled_from([1e-5, 1e-7]))),
        batching=Batching(
            minimum=draw(st.integers(3, SILOS)),
            deadline_s=draw(st.floats(1.0, 60.0)),
            gate=draw(st.booleans()),
            tokens=draw(st.booleans()),
        ),
        participants=draw(st.sampled_from([None, SILOS])),
        draw=draw(st.sampled_from(Draw)),
        named_weighting=draw(st.sampled_from([None, *Weighting])),
        ridge=draw(st.sampled_from([0.0, 0.125])),
        local_steps=draw(st.integers(1, 9)) if entry.takes_local_steps else None,
        descent=draw(st.sampled_from([None, descent])) if entry.takes_descent else None,
        named_aggregation=draw(
            st.sampled_from(
                [
                    None,
                    Aggregation(Rule.MEAN),
                    Aggregation(Rule.GEOMETRIC_MEDIAN),
                    Aggregation(Rule.TRIMMED_MEAN, 1),
                ]
            )
        ),
        held_out=draw(st.sampled_from([0.0, 0.25])),
        minibatch=Minibatch() if full else Minibatch(scheme, draw(st.floats(0.2, 0.9))),
    )


def read(content: bytes) -> Study | None:
    """The study; None if its choices do not go together, however they are written."""
    try:
        return parse_study(content)
    except InvalidStudy as refusal:
        if any(word in str(refusal) for word in ("unknown", "missing key", "expected")):
            raise
        return None


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(tasks(), specifications())
def test_what_is_written_is_read(task: Task, written: Specification) -> None:
    """Every field, by its name: a parameter that the writer or the reader forgets fails here."""
    parties = {key: study_tree(SILOS)[key] for key in ("server", "mixes", "silos")}
    content = tomli_w.dumps(study_table(task, written) | parties).encode("utf-8")
    study = read(content)
    assume(study is not None)
    assert study is not None
    assert study.task == task
    named = replace(
        written,
        participants=written.participants or SILOS,
        draw=written.draw if written.participants else Draw.BLOCKS,  # of all, all the same
        named_weighting=weighting_of(written),
    )
    for each in fields(Specification):
        assert getattr(study, each.name) == getattr(named, each.name), each.name
    again = tomli_w.dumps(study_table(study.task, study) | parties).encode("utf-8")
    assert parse_study(again) == replace(study, identity=sha256(again).digest())


def test_what_a_specification_leaves_open_is_as_usual() -> None:
    study = parse(study_tree())
    assert (study.local_steps, study.descent, study.named_aggregation) == (None, None, None)
    assert (study.setting.local_steps, study.setting.descent) == (LOCAL_STEPS, USUAL_DESCENT)
    assert study.participants == len(study.silos)


def test_every_field_is_drawn() -> None:
    """A parameter of a study that the property above never varies would not be held by it."""
    drawn: dict[str, set[object]] = {each.name: set() for each in fields(Specification)}

    @settings(max_examples=100, derandomize=True, database=None)
    @given(specifications())
    def collect(one: Specification) -> None:
        for name, values in drawn.items():
            values.add(getattr(one, name))

    collect()
    assert {name for name, values in drawn.items() if len(values) < 2} == set()
