"""Products of two features: what they become, that no record leaves the ball, what is refused."""

import re
from hashlib import sha256
from math import nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.mechanism.mechanism import Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.simulation.one_process import rehearsal
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy
from silomix_core.task.feature import Feature, category, flag
from silomix_core.task.interaction import Interaction
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Scaling, Task
from support.privacy_checks import (
    HOSTILE_VALUES,
    Floats,
    Neighbours,
    check_grid_is_bounded,
    check_record_is_bounded,
    full_batch,
)
from support.specifications import specification
from support.studies import Tree, parse, study_bytes, study_tree

ANYTHING = st.floats() | st.sampled_from(HOSTILE_VALUES)
AGE = Feature("age", 0.0, 100.0, 75.0)
SMOKER = flag("smoker")
SEX = category("sex", ("female", "male", "other"))
WARD = category("ward", ("icu", "surgery"), missing="surgery")
LAB = Feature("lab", -1.0, 1.0, 0.25, count=2)
FEATURES = (AGE, SMOKER, SEX, WARD, LAB)
RECORDS = arrays(np.float64, st.tuples(st.integers(0, 6), st.just(6)), elements=ANYTHING)
ALL = tuple(
    Interaction(one.name, other.name)
    for index, one in enumerate(FEATURES)
    for other in FEATURES[:index]
)


def task(
    *features: Feature,
    interactions: tuple[Interaction, ...] = (),
    scaling: Scaling = Scaling.UNIT_BALL,
) -> Task:
    return Task(LossName.LOGISTIC, "y", features, scaling, 0.5, interactions=interactions)


# Encoding ----------------------------------------------------------------------------------------


def test_a_product_is_that_of_the_scaled_values_and_weighs_as_one_more() -> None:
    made = task(
        AGE, SMOKER, SEX, interactions=(Interaction("smoker", "age"), Interaction("sex", "age"))
    )
    assert made.columns == ("age", "smoker", "sex")  # of a hospital no more is asked
    assert made.coordinates == (
        "age", "smoker", "sex=female", "sex=male", "sex=other",
        "smoker × age", "sex=female × age", "sex=male × age", "sex=other × age",
    )  # fmt: skip
    assert made.dimension == made.width == 10
    raw = [[100, 1, 1], [0, 0, 0], [1e9, 0, 2], [nan, nan, nan], [nan, 0, 1]]
    side, half = round(UNIT / sqrt(5)), round(UNIT / 2 / sqrt(5))  # three values, two products
    bias = UNIT // 2
    assert made.encode(np.array(raw, dtype=float)).tolist() == [
        [side, side, 0, side, 0, side, 0, side, 0, bias],
        [-side, -side, side, 0, 0, side, -side, 0, 0, bias],
        [side, -side, 0, 0, side, -side, 0, 0, side, bias],  # clamped
        [half, 0, 0, 0, 0, 0, 0, 0, 0, bias],  # 75, halfway, none of them
        [half, -side, 0, side, 0, -half, 0, half, 0, bias],
    ]


@given(values=RECORDS)
def test_the_features_themselves_are_those_without_interactions(values: Floats) -> None:
    """Up to the share of the norm that the products take."""
    plain = task(*FEATURES)
    crossed = task(*FEATURES, interactions=ALL)
    shares = 6 + sum(
        one.count * other.count for index, one in enumerate(FEATURES) for other in FEATURES[:index]
    )
    own = crossed.encode(values)[:, : plain.width - 1]
    assert own * sqrt(shares / 6) == pytest.approx(plain.encode(values)[:, :-1], abs=2)


@pytest.mark.parametrize("scaling", list(Scaling))
@given(values=RECORDS)
def test_no_record_leaves_the_ball_whatever_it_holds(scaling: Scaling, values: Floats) -> None:
    made = task(*FEATURES, interactions=ALL, scaling=scaling)
    encoded = made.encode(values)
    assert encoded.shape == (len(values), made.width) == (len(values), len(made.coordinates) + 1)
    assert np.array_equal(encoded, np.rint(encoded))
    # at most one, but for rounding each coordinate to an integer
    assert np.all(np.linalg.norm(encoded[:, :-1], axis=1) <= UNIT + sqrt(made.width) / 2)


@given(values=RECORDS, other=arrays(np.float64, 6, elements=ANYTHING))
def test_a_record_is_encoded_without_a_look_at_the_others(values: Floats, other: Floats) -> None:
    made = task(*FEATURES, interactions=ALL)
    together = made.encode(np.vstack([values, other]))
    assert np.array_equal(together[:-1], made.encode(values))
    assert np.array_equal(together[-1:], made.encode(other[None, :]))


@given(data=st.data())
def test_a_replaced_record_moves_a_report_no_more_than_the_noise_was_made_for(
    data: st.DataObject,
) -> None:
    made = task(*FEATURES, interactions=ALL)
    values = data.draw(arrays(np.float64, (4, 6), elements=ANYTHING))
    point = np.random.default_rng(data.draw(st.integers(0, 9))).normal(0, 20, made.dimension)
    case = Neighbours(
        task=made,
        values=values,
        labels=np.array([0.0, 1.0, 0.0, 1.0]),
        replaced=2,
        other_values=data.draw(arrays(np.float64, 6, elements=ANYTHING)),
        other_label=1.0,
        point=point,
        clip=data.draw(st.sampled_from([0.01, 0.25, 2.0])),
    )
    check_record_is_bounded(case)
    target = PrivacyTarget(1.0, 1e-6)
    check_grid_is_bounded(
        case,
        full_batch(target, clip=case.clip, rounds=3, dimension=made.dimension, records=4),
    )


# Learning ----------------------------------------------------------------------------------------


def test_what_only_a_product_explains_is_learned_with_it_alone() -> None:
    rng = np.random.default_rng(3)
    values = np.column_stack([rng.uniform(0, 100, 900), rng.integers(0, 2, 900)])
    labels = ((values[:, 0] > 50) == (values[:, 1] > 0)).astype(float)
    right = []
    for interactions in ((), (Interaction("age", "smoker"),)):
        made = task(AGE, SMOKER, interactions=interactions)
        features, signs = made.encode(values), made.encode_labels(labels)
        silos = [Records(features[i::3], signs[i::3]) for i in range(3)]
        study = rehearsal(
            made,
            specification(most_rounds=30),
            [Participant(300, PrivacyTarget(5.0, 1e-5))] * 3,
        )
        scores = features @ study.run(silos, np.random.default_rng(4))
        right.append(np.mean((scores > 0) == (labels > 0)))
    assert right[0] < 0.75
    assert right[1] > 0.9


# A study file ------------------------------------------------------------------------------------


def with_interactions(*interactions: object) -> Tree:
    tree = study_tree()
    tree["task"] |= {
        "features": [
            {"name": "age", "low": 0, "high": 100, "missing": 40},
            {"name": "smoker", "kind": "flag"},
            {"name": "sex", "kind": "category", "categories": ["female", "male"]},
            {"name": "lab", "low": -1.0, "high": 1.0, "count": 2},
        ],
        "interactions": list(interactions),
    }
    return tree


def test_everybody_derives_the_same_dimension_from_the_file() -> None:
    study = parse(with_interactions(["smoker", "age"], ["sex", "lab"]))
    assert study.task.interactions == (Interaction("smoker", "age"), Interaction("sex", "lab"))
    # age, smoker, two sexes, two labs; one product, four products; the bias
    assert study.task.dimension == 6 + 1 + 4 + 1
    assert study.setting.dimension == study.mechanism().dimension == study.task.dimension
    assert len(study.task.coordinates) + 1 == study.task.dimension


def test_a_study_without_interactions_is_what_it_was() -> None:
    """Its hash is that of its file, and the key has to be there to mean anything."""
    content = study_bytes(study_tree())
    study = parse_study(content)
    assert study.identity == sha256(content).digest()
    assert study.task.interactions == ()
    assert study.task.dimension == 4
    assert study.task == parse(study_tree() | {"name": "another"}).task


@pytest.mark.parametrize(
    ("interactions", "reason"),
    [
        ([["smoker", "bmi"]], "task: the interaction 'smoker' × 'bmi': no feature is called 'bmi'"),
        ([["lab_1", "age"]], "no feature is called 'lab_1'"),
        ([["outcome", "age"]], "no feature is called 'outcome'"),
        ([["age", "age"]], "'age' × 'age' is one of a feature with itself; name two features"),
        ([["age", "sex"], ["age", "sex"]], "an interaction is listed twice"),
        ([["age", "sex"], ["sex", "age"]], "an interaction is listed twice"),
        ([["age"]], "task.interactions[0]: expected a pair of names, got ['age']"),
        ([["age", "sex", "lab"]], "task.interactions[0]: expected a pair of names"),
        ([["age", "sex"], ["age", 7]], "task.interactions[1]: expected a pair of names"),
        (["age"], "task.interactions[0]: expected a pair of names, got 'age'"),
        ([["age", "x\x1b[2J"]], r"no feature is called 'x\x1b[2J'"),
    ],
)
def test_an_interaction_that_cannot_be_made_is_refused(
    interactions: list[object], reason: str
) -> None:
    with pytest.raises(InvalidStudy, match=re.escape(reason)):
        parse(with_interactions(*interactions))


def test_interactions_are_a_list() -> None:
    tree = study_tree()
    tree["task"]["interactions"] = "age × lab"
    with pytest.raises(InvalidStudy, match="expected a list of pairs of names"):
        parse(tree)


def test_products_count_among_the_columns_that_a_task_may_have() -> None:
    wide = [Feature(name, 0.0, 1.0, 0.0, 2**11) for name in ("x", "y")]
    with pytest.raises(ValueError, match="more than 2097152 columns in all"):
        task(*wide, interactions=(Interaction("x", "y"),))
    many = [Feature(f"x{index}", 0.0, 1.0, 0.0) for index in range(150)]
    every = tuple(Interaction(one.name, two.name) for one in many for two in many if one != two)
    with pytest.raises(ValueError, match="at most 10000 interactions"):
        task(*many, interactions=every)
