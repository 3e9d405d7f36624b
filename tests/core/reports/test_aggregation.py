"""Rules that make one of many reports: exact where they can be, held against slow definitions."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.mechanism.mechanism import Minibatch, Phase
from silomix_core.reports.aggregation import (
    LARGEST_ROUND,
    MEAN,
    USUAL,
    Aggregation,
    Circumstances,
    Rule,
    unusable,
    usual,
)
from silomix_core.study.study import InvalidStudy
from support.studies import Tree, parse, study_tree

NOISE = 2.0**20
SWAY = 0.4 * NOISE
TRIMMED, MEDIAN = Aggregation(Rule.TRIMMED_MEAN, 2), Aggregation(Rule.GEOMETRIC_MEDIAN)
RULES = [MEAN, TRIMMED, USUAL, MEDIAN]
LARGEST = 2**48  # of a value in a report

values = st.integers(-LARGEST, LARGEST)
rounds = st.integers(5, 9).flatmap(
    lambda reports: st.lists(
        st.lists(values, min_size=3, max_size=3), min_size=reports, max_size=reports
    )
)


def arrays(reports: list[list[int]]) -> list[np.ndarray]:
    return [np.array(report, dtype=np.int64) for report in reports]


# What the rules are -------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule.value)
@given(reports=rounds, data=st.data())
def test_the_order_of_reports_changes_nothing(
    rule: Aggregation, reports: list[list[int]], data: st.DataObject
) -> None:
    other = data.draw(st.permutations(reports))
    one, two = (rule.sum_of(arrays(each), NOISE, SWAY) for each in (reports, other))
    assert np.array_equal(one.total, two.total)
    assert one.reports == two.reports


@given(reports=rounds)
def test_mean_and_trimmed_mean_are_exact(reports: list[list[int]]) -> None:
    """Against fractions of Python's whole numbers."""
    whole, trimmed = (rule.sum_of(arrays(reports), NOISE, SWAY) for rule in (MEAN, TRIMMED))
    for place, column in enumerate(zip(*reports, strict=True)):
        assert Fraction(int(whole.total[place]), whole.reports) == Fraction(
            sum(column), len(column)
        )
        kept = sorted(column)[2:-2]
        assert Fraction(int(trimmed.total[place]), trimmed.reports) == Fraction(
            sum(kept), len(kept)
        )


def radius_of(rule: Aggregation, reports: int) -> float:
    """As docs/algorithms.md has it, in units of the noise."""
    return sqrt(1 + (reports * SWAY / NOISE) ** 2) if rule == USUAL else 1.0


def away(reports: np.ndarray, point: np.ndarray, radius: float) -> float:
    """What the two rules have least of, in units of the noise."""
    squared = ((reports - point) ** 2).sum(axis=1) / NOISE**2
    return float(np.sqrt(squared + radius**2).sum())


@pytest.mark.parametrize("rule", [USUAL, MEDIAN], ids=lambda rule: rule.rule.value)
@pytest.mark.parametrize("seed", range(12))
def test_bounded_mean_and_geometric_median_are_where_distances_sum_up_to_least(
    rule: Aggregation, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    count, dimension = int(rng.integers(3, 12)), int(rng.integers(1, 9))
    spread, radius = 10 ** rng.uniform(-1, 3), radius_of(rule, count)
    reports = NOISE * (rng.normal(size=(count, dimension)) * (1 + spread * rng.random((count, 1))))
    whole = [np.rint(report).astype(np.int64) for report in reports]
    found = rule.sum_of(whole, NOISE, SWAY)
    point = found.total / found.reports
    slow = minimize(
        lambda at: away(reports, NOISE * at, radius), reports.mean(axis=0) / NOISE, method="BFGS"
    )
    assert away(reports, point, radius) <= slow.fun * (1 + 1e-6)
    assert np.linalg.norm(point / NOISE - slow.x) < 0.02 * (1 + spread)


@pytest.mark.parametrize("rule", [USUAL, MEDIAN], ids=lambda rule: rule.rule.value)
def test_the_middle_of_reports_in_any_number_of_coordinates_moves_with_them(
    rule: Aggregation,
) -> None:
    """Shifted reports, a million coordinates, and values near the largest."""
    rng = np.random.default_rng(3)
    reports = np.rint(NOISE * rng.normal(size=(5, 10**6))).astype(np.int64)
    plain, shift = rule.sum_of(list(reports), NOISE, SWAY), 2**44 + 12345
    moved = rule.sum_of(list(reports + shift), NOISE, SWAY)
    assert np.array_equal(moved.total, plain.total + 5 * shift)


def test_three_reports_of_which_two_agree_are_those_two() -> None:
    """Nothing in common, or all alike: no division by a distance of 0."""
    same, other = np.full(4, 7, dtype=np.int64), np.full(4, 2**40, dtype=np.int64)
    found = MEDIAN.sum_of([same, other, same], NOISE, SWAY)
    assert np.abs(found.total / found.reports - 7).max() < NOISE
    for rule in RULES[1:]:
        alike = rule.sum_of([same] * 5, NOISE, SWAY)
        assert np.array_equal(alike.total, alike.reports * same)


@pytest.mark.parametrize("reports", [3, 10, 100])
def test_what_one_report_moves_a_bounded_mean_by_is_the_same_among_few_and_many(
    reports: int,
) -> None:
    """r/√(n(n − 2)) with r = n sways, the others being alike, however far away it is."""
    alike, noise = [np.zeros(3, dtype=np.int64)] * (reports - 1), 1e-3 * NOISE
    for length in (1e4, 1e8):
        far = np.array([0, 0, length * SWAY]).astype(np.int64)
        found = USUAL.sum_of([far, *alike], noise, SWAY)
        moved = np.linalg.norm(found.total / found.reports) / SWAY
        assert moved == pytest.approx(reports / sqrt(reports * (reports - 2)), rel=0.05)


def test_a_report_within_the_radius_counts_nearly_as_in_the_mean() -> None:
    """One of ten silos says something as long as the radius, the others nothing: three quarters of
    it count, in the median a hundredth; of something shorter nearly all."""
    alike, noise = [np.zeros(2, dtype=np.int64)] * 9, 0.01 * SWAY
    for length, rule, low, high in (
        (10.0, USUAL, 0.7, 0.8),
        (10.0, MEDIAN, 0.0, 0.02),
        (1.0, USUAL, 0.98, 1.0),
    ):
        report = np.array([length * SWAY, 0]).astype(np.int64)
        found = rule.sum_of([report, *alike], noise, SWAY)
        assert low < found.total[0] / report[0] < high


# What they hold off -------------------------------------------------------------------------------

Attack = Callable[[np.ndarray, int], list[np.ndarray]]
BAD: dict[str, Attack] = {
    "far away": lambda good, bad: [np.full(good.shape[1], LARGEST)] * bad,
    "apart": lambda good, bad: [np.full(good.shape[1], (-1) ** at * LARGEST) for at in range(bad)],
    "just beyond": lambda good, bad: [good.max(axis=0) + 1] * bad,
    "turned": lambda good, bad: [-30 * good[at] for at in range(bad)],
}


@pytest.mark.parametrize("attack", BAD.values(), ids=BAD)
@pytest.mark.parametrize("bad", [1, 2, 3])
def test_a_trimmed_mean_stays_among_the_good_reports(attack: Attack, bad: int) -> None:
    rng = np.random.default_rng(bad)
    good = np.rint(NOISE * rng.normal(3.0, 1.0, (7, 6))).astype(np.int64)
    rule = Aggregation(Rule.TRIMMED_MEAN, bad)
    found = rule.sum_of([*attack(good, bad), *good], NOISE, SWAY)
    middle = found.total / found.reports
    assert (middle >= good.min(axis=0)).all()
    assert (middle <= good.max(axis=0)).all()


@pytest.mark.parametrize("rule", [USUAL, MEDIAN], ids=lambda rule: rule.rule.value)
@pytest.mark.parametrize("attack", BAD.values(), ids=BAD)
@pytest.mark.parametrize("bad", [1, 2, 3])
def test_what_bad_reports_do_is_bounded_by_where_the_good_ones_are(
    rule: Aggregation, attack: Attack, bad: int
) -> None:
    """R + √(R² + r²)·f/√(n(n − 2f)), good reports being within R (docs/protocol.md, Poisoning)."""
    rng = np.random.default_rng(bad)
    good = np.rint(NOISE * rng.normal(3.0, 1.0, (7, 6))).astype(np.int64)
    reports, many = [*attack(good, bad), *good], 7 + bad
    found = rule.sum_of(reports, NOISE, SWAY)
    centre = good.mean(axis=0)
    farthest = np.linalg.norm(good - centre, axis=1).max()
    swayed = np.hypot(farthest, NOISE * radius_of(rule, many)) * bad
    allowed = farthest + swayed / sqrt(many * (many - 2 * bad))
    assert np.linalg.norm(found.total / found.reports - centre) < allowed
    mean = MEAN.sum_of(reports, NOISE, SWAY)
    if attack is BAD["far away"]:
        assert np.linalg.norm(mean.total / mean.reports - centre) > 10**6 * allowed


def test_fewer_reports_than_a_rule_needs_are_refused() -> None:
    report = np.zeros(3, dtype=np.int64)
    for rule, fewest in ((TRIMMED, 5), (USUAL, 3), (MEDIAN, 3), (MEAN, 1)):
        assert rule.fewest_reports == fewest
        rule.sum_of([report] * fewest, NOISE, SWAY)
        with pytest.raises(ValueError, match="too few"):
            rule.sum_of([report] * (fewest - 1), NOISE, SWAY)


# What a study may name ----------------------------------------------------------------------------

FITS = Circumstances((Phase(60),), Minibatch(), fewest=8, asked=10, dimension=13)
MISFITS = {
    "control variates": (replace(FITS, phases=(Phase(60, control=True),)), "running sum"),
    "one record": (replace(FITS, minibatch=ALGORITHMS["shuffled-mb-sgd"].minibatch), "one record"),
    "too few": (replace(FITS, fewest=2), "reports in every round, and a batch may have 2"),
    "too wide": (replace(FITS, dimension=LARGEST_ROUND), "looks at together"),
    "too many": (replace(FITS, asked=2**14), "looks at together"),
}


@pytest.mark.parametrize(("given", "reason"), MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("rule", [TRIMMED, USUAL, MEDIAN], ids=lambda rule: rule.rule.value)
def test_where_a_rule_makes_no_sense_it_is_refused_and_the_mean_is_usual(
    rule: Aggregation, given: Circumstances, reason: str
) -> None:
    assert reason in (unusable(rule, given) or "")
    assert unusable(MEAN, given) is None
    assert usual(given, [1.0]) == MEAN


def test_the_bounded_mean_is_usual_where_it_can_be_and_weights_are_equal() -> None:
    assert usual(FITS, [1.0, 1.0]) == usual(FITS, [0.7, 1.4]) == USUAL
    assert usual(FITS, [0.7, 1.41]) == MEAN
    assert unusable(USUAL, FITS) is None


def test_a_rule_without_sense_cannot_be_made() -> None:
    for rule, many in ((Rule.TRIMMED_MEAN, 0), (Rule.MEAN, 1), (Rule.BOUNDED_MEAN, 2)):
        with pytest.raises(ValueError, match="bad_silos"):
            Aggregation(rule, many)


def study_with(aggregation: dict[str, object] | None, **changes: object) -> Tree:
    tree = study_tree(7)
    tree["batch"]["minimum"] = 5
    if aggregation is not None:
        tree["aggregation"] = aggregation
    tree["algorithm"] |= changes
    return tree


def test_a_study_names_a_rule_or_has_the_usual_one() -> None:
    assert parse(study_with(None)).aggregation == USUAL
    assert parse(study_with({"rule": "mean"})).aggregation == MEAN
    named = parse(study_with({"rule": "trimmed-mean", "bad_silos": 2}))
    assert named.aggregation == TRIMMED
    heavy = study_with(None)
    heavy["silos"][0]["weight"] = 2.1
    assert parse(heavy).aggregation == MEAN
    assert parse(study_with(None, name="dp-scaffold")).aggregation == MEAN
    assert parse(study_with(None, name="check-ins-averaged")).aggregation == MEAN


@pytest.mark.parametrize(
    ("aggregation", "changes", "reason"),
    [
        ({"rule": "median"}, {}, "aggregation.rule"),
        ({}, {}, "aggregation.rule"),
        ({"rule": "trimmed-mean"}, {}, "aggregation: a trimmed mean needs bad_silos"),
        ({"rule": "mean", "bad_silos": 1}, {}, "aggregation: bad_silos belongs to"),
        ({"rule": "geometric-median", "noise": 1}, {}, "aggregation.noise"),
        ({"rule": "trimmed-mean", "bad_silos": 3}, {}, "needs 7 reports in every round"),
        ({"rule": "geometric-median"}, {"name": "dp-scaffold"}, "control variates need the mean"),
        ({"rule": "trimmed-mean", "bad_silos": 1}, {"name": "check-ins-fixed"}, "check-ins"),
        ({"rule": "geometric-median"}, {"name": "shuffled-mb-sgd"}, "one record"),
    ],
)
def test_a_study_is_refused_with_the_reason(
    aggregation: dict[str, object], changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidStudy) as refused:
        parse(study_with(aggregation, **changes))
    assert reason in str(refused.value)
