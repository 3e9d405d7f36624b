"""What a study may say of its features, and the numbers that they become."""

import re
from hashlib import sha256
from itertools import permutations
from math import inf, isnan, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from silomix_core.study.study import InvalidStudy
from silomix_core.task.cell_values import BadCell, number, parser
from silomix_core.task.combine_rows import combined
from silomix_core.task.feature import Combine, Feature, FeatureKind, category, flag
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Scaling, Task
from support.privacy_checks import HOSTILE_VALUES
from support.studies import Tree, parse, study_tree

ANYTHING = st.floats() | st.sampled_from(HOSTILE_VALUES)
SEX = category("sex", ("female", "male", "other"))
WARD = category("ward", ("icu", "surgery"), missing="surgery")


def task(*features: Feature, scaling: Scaling = Scaling.UNIT_BALL) -> Task:
    return Task(LossName.LOGISTIC, "y", features, scaling, 0.5)


# Encoding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scaling", "digest"),
    [
        (
            Scaling.UNIT_BALL,
            "2478cdbd0d905b853faca9c9639f41e390780c575aabe21f87a26a7239b79801",
        ),
        (
            Scaling.UNIT_SPHERE,
            "8ee9c0d7d0f59e19ed41aa28338f4eb588c2e41827d117a2e495065915f9c259",
        ),
    ],
)
def test_numbers_encode_as_before_there_were_other_kinds(scaling: Scaling, digest: str) -> None:
    """Digests of what release 0.1.0 gave, before features had kinds."""
    rng = np.random.default_rng(20261116)
    values = rng.normal(0, 60, (500, 5))
    values[rng.random((500, 5)) < 0.1] = nan
    features = (
        Feature("a", 0.0, 100.0, 40.0),
        Feature("b", -3.0, 7.0, 0.1, count=3),
        Feature("c", -1e6, 1e-3, 0.0),
    )
    whole = Task(LossName.LOGISTIC, "y", features, scaling, 0.3)
    assert sha256(whole.encode(values).astype("<f8").tobytes()).hexdigest() == digest


def test_a_category_is_a_coordinate_for_each_and_weighs_as_one_number() -> None:
    mixed = task(Feature("age", 0.0, 100.0, 50.0), SEX, flag("smoker"), WARD)
    assert mixed.columns == ("age", "sex", "smoker", "ward")
    assert mixed.coordinates == (
        "age", "sex=female", "sex=male", "sex=other", "smoker", "ward=icu", "ward=surgery",
    )  # fmt: skip
    assert mixed.dimension == mixed.width == 8
    raw = [[100, 1, 1, 0], [0, nan, nan, nan], [nan, 2, 0, 1]]
    edge, bias = UNIT // 2, UNIT // 2  # 1/√4 for each of four features
    assert mixed.encode(np.array(raw, dtype=float)).tolist() == [
        [edge, 0, edge, 0, edge, edge, 0, bias],
        [-edge, 0, 0, 0, 0, 0, edge, bias],
        [0, 0, 0, edge, -edge, 0, edge, bias],
    ]


@pytest.mark.parametrize("scaling", list(Scaling))
@given(values=arrays(np.float64, st.tuples(st.integers(0, 6), st.just(5)), elements=ANYTHING))
def test_any_raw_values_encode_to_integers_of_norm_one(
    scaling: Scaling, values: np.ndarray
) -> None:
    mixed = task(SEX, Feature("x", -1.0, 1.0, 0.0, count=2), WARD, flag("z"), scaling=scaling)
    encoded = mixed.encode(values)
    assert encoded.shape == (len(values), mixed.width)
    assert np.array_equal(encoded, np.rint(encoded))
    norms = np.linalg.norm(encoded[:, :-1], axis=1)
    assert np.all(norms <= UNIT + sqrt(mixed.width) / 2)  # rounding each to an integer
    assert np.all(np.count_nonzero(encoded[:, :3], axis=1) <= 1)


# Cells -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1.5", 1.5),
        (" -2 ", -2),
        (3, 3),
        (True, 1),
        (1e308, 1e300),
        ("-0", 0),
        (-(10**400), -1e300),
    ],
)
def test_a_number_is_what_it_says_within_what_sums_can_hold(cell: object, value: float) -> None:
    assert number(cell) == value


@pytest.mark.parametrize("cell", ["", "  ", None, nan, "nan", "NaN"])
def test_nothing_is_a_missing_number(cell: object) -> None:
    assert isnan(number(cell))


@pytest.mark.parametrize("cell", ["1,5", "1_0", "１", "inf", inf, "0x10", "true", "12 mg"])
def test_what_is_no_number_is_refused(cell: object) -> None:
    with pytest.raises(BadCell, match="not a number"):
        number(cell)


def test_a_long_list_of_categories_is_not_shown_whole() -> None:
    many = category("x", tuple(map(str, range(1000))))
    assert parser(many)(999) == 999
    with pytest.raises(BadCell) as caught:
        parser(many)("?" * 5000)
    assert len(str(caught.value)) < 120


VALUES = st.lists(
    st.tuples(st.sampled_from([-inf, 0.0, 1.0, 1.5]), st.floats(-1e300, 1e300).map(number)),
    min_size=1,
    max_size=5,
)


@given(rule=st.sampled_from(list(Combine)), values=VALUES)
def test_the_order_of_rows_changes_no_bit(rule: Combine, values: list[tuple[float, float]]) -> None:
    found = {np.float64(combined(rule, order)).tobytes() for order in permutations(values)}
    assert len(found) == 1


# A study file ------------------------------------------------------------------------------------

PEOPLE: Tree = {"person": "mrn", "time": "at"}


def with_task(features: list[Tree], **keys: object) -> Tree:
    tree = study_tree()
    tree["task"] |= {"features": features} | keys
    return tree


def test_a_study_may_say_everything_about_its_data() -> None:
    told = parse(
        with_task(
            [
                {"name": "sbp", "low": 60, "high": 260, "unit": "mm[Hg]", "combine": "mean",
                 "codes": ["http://loinc.org|8480-6"], "concepts": [3004249]},
                {"name": "smoker", "kind": "flag", "missing": True, "combine": "any"},
                {"name": "sex", "kind": "category", "categories": ["f", "m"], "missing": "m"},
                {"name": "ward", "kind": "category", "categories": ["a", "b"], "missing": ""},
            ],
            **PEOPLE,
            label_combine="any",
            label_missing=0,
            label_codes=["http://snomed.info/sct|22298006"],
            label_concepts=[4329847],
        )
    ).task  # fmt: skip
    sbp, smoker, sex, ward = told.features
    assert (sbp.unit, sbp.rule, sbp.missing) == ("mm[Hg]", Combine.MEAN, 160)
    assert (sbp.codes, sbp.concepts) == (("http://loinc.org|8480-6",), (3004249,))
    assert (smoker.kind, smoker.missing, smoker.rule) == (FeatureKind.FLAG, 1.0, Combine.ANY)
    assert (sex.kind, sex.missing, sex.rule) == (FeatureKind.CATEGORY, 1.0, Combine.LAST)
    assert ward.missing == -1
    assert (told.person, told.time, told.label_rule_of_rows) == ("mrn", "at", Combine.ANY)
    assert (told.label_missing, told.label_concepts) == (0, (4329847,))


NUMBER: Tree = {"name": "x", "low": 0, "high": 1}
FLAG: Tree = {"name": "x", "kind": "flag"}
CHOICE: Tree = {"name": "x", "kind": "category", "categories": ["a", "b"]}


@pytest.mark.parametrize(
    ("feature", "keys", "reason"),
    [
        (NUMBER | {"kind": "text"}, {}, "task.features[0].kind: 'text' is not one of"),
        (NUMBER | {"categories": ["a"]}, {}, "unknown key: task.features[0].categories"),
        (FLAG | {"low": 0}, {}, "unknown key: task.features[0].low"),
        (FLAG | {"missing": 0.5}, {}, "task.features[0].missing: expected true or false"),
        (FLAG | {"unit": "a"}, {}, "unknown key: task.features[0].unit"),
        (CHOICE | {"categories": ["a"]}, {}, "feature 'x': a category needs 2 to 1000"),
        (CHOICE | {"categories": ["a", "a"]}, {}, "feature 'x': categories must differ"),
        (CHOICE | {"categories": ["a", ""]}, {}, "none may be empty"),
        (CHOICE | {"categories": ["a", " b"]}, {}, "task.features[0].categories[1]: spaces"),
        (CHOICE | {"categories": "ab"}, {}, "task.features[0].categories: expected a list"),
        (CHOICE | {"missing": "c"}, {}, "feature 'x': missing must be one of the categories"),
        (CHOICE | {"count": 2}, {}, "unknown key: task.features[0].count"),
        (NUMBER | {"combine": "median"}, PEOPLE, "task.features[0].combine: 'median' is not"),
        (NUMBER | {"combine": "any"}, PEOPLE, "a number cannot be combined by 'any'"),
        (FLAG | {"combine": "mean"}, PEOPLE, "a flag cannot be combined by 'mean'"),
        (CHOICE | {"combine": "max"}, PEOPLE, "a category cannot be combined by 'max'"),
        (NUMBER | {"combine": "mean"}, {}, "combine is about several rows of one person"),
        (NUMBER, {"person": "mrn"}, "feature 'x': of a person's rows the last one is asked for"),
        (NUMBER | {"combine": "max"}, {"person": "mrn"}, "the label: of a person's rows"),
        (NUMBER, {"time": "at"}, "name its column (person) too"),
        (NUMBER, {"person": "x", "time": "at"}, "'x' is the person or time, and also listed"),
        (NUMBER, {"person": "outcome", "time": "at"}, "must be different columns"),
        (NUMBER, {"person": "mrn", "time": "mrn"}, "must be different columns"),
        (NUMBER, {"label_combine": "any"}, "the label: combine is about several rows"),
        (NUMBER, PEOPLE | {"label_combine": "mean"}, "0 or 1 cannot be combined by 'mean'"),
        (NUMBER, {"label_missing": 0.5}, "label_missing: a label must be 0 or 1"),
        (NUMBER, {"label_unit": "d"}, "label_unit belongs to a label that is a number"),
        (NUMBER | {"codes": ["8480-6"]}, {}, "feature 'x': a code is system|code"),
        (NUMBER | {"codes": ["a|b", "a|b"]}, {}, "feature 'x': a code or concept is listed twice"),
        (NUMBER | {"concepts": [0]}, {}, "feature 'x': a concept is a whole number above 0"),
        (NUMBER | {"concepts": ["7"]}, {}, "task.features[0].concepts: expected a list of whole"),
        (NUMBER | {"concepts": [True]}, {}, "task.features[0].concepts: expected a list of whole"),
        (NUMBER | {"concepts": [7], "count": 2}, {}, "codes or concepts have a count of 1 only"),
        (NUMBER, {"label_codes": ["x"]}, "the label: a code is system|code"),
    ],
)
def test_a_specification_that_cannot_be_fulfilled_is_refused(
    feature: Tree, keys: Tree, reason: str
) -> None:
    with pytest.raises(InvalidStudy, match=re.escape(reason)):
        parse(with_task([feature], **keys))
