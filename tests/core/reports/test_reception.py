"""The reports of a round as a server takes them, with or without a network."""

from dataclasses import replace

import numpy as np
import pytest
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.discrete_gaussian import SIGMA_UNITS
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase, PhaseKind
from silomix_core.reports import reception as reception_module
from silomix_core.reports.aggregation import MEAN, USUAL, Aggregation, Rule
from silomix_core.reports.reception import Gathered, Reception, ReportTooLong

SILOS = [Participant(2000, PrivacyTarget(2.0, 1e-6))] * 10
PHASES = (Phase(60, 0.8), Phase(1, 0.2, kind=PhaseKind.EVALUATION))
MECHANISM = Mechanism.calibrate(SILOS, clip=0.25, dimension=13, phases=PHASES)
CLIP = round(0.25 / MECHANISM.grids[0])


def gathered(reports: list[np.ndarray], aggregation: Aggregation, number: int = 1) -> Gathered:
    gathering = Reception(MECHANISM, SILOS, aggregation).gathering(number, len(reports))
    for report in reports:
        gathering.add(report)
    return gathering.close()


def honest(count: int, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    centre = np.full(13, 0.1 * CLIP)
    return list(np.rint(centre + SIGMA_UNITS * rng.normal(size=(count, 13))).astype(np.int64))


def pushing() -> np.ndarray:
    """As long as a report can be, and away from the others."""
    return np.full(13, -round(CLIP / np.sqrt(13)), dtype=np.int64)


RULES = [Aggregation(rule, 2 * (rule is Rule.TRIMMED_MEAN)) for rule in Rule]


@pytest.mark.parametrize("aggregation", RULES, ids=lambda each: each.rule.value)
def test_reports_become_one_by_the_studys_rule(aggregation: Aggregation) -> None:
    reports = [pushing(), *honest(9)]
    found = gathered(reports, aggregation)
    sway = MECHANISM.longest_mean_units(SILOS[0]) / 60  # training rounds
    expected = aggregation.sum_of(reports, SIGMA_UNITS, sway)
    assert np.array_equal(found.sum.total, expected.total)
    assert found.sum.reports == expected.reports
    assert found.outlying == 1


def test_an_evaluation_is_always_the_mean() -> None:
    reports = [pushing(), *honest(9)]
    found = gathered(reports, USUAL, number=61)
    assert np.array_equal(found.sum.total, np.sum(reports, axis=0))
    assert found.sum.reports == 10


def test_a_report_that_is_too_long_counts_for_nothing() -> None:
    gathering = Reception(MECHANISM, SILOS, MEAN).gathering(1, 10)
    for report in honest(9):
        gathering.add(report)
    with pytest.raises(ReportTooLong):
        gathering.add(2 * pushing())
    found = gathering.close()
    assert found.sum.reports == 9
    assert np.array_equal(found.sum.total, np.sum(honest(9), axis=0))
    assert found.outlying == 0


def test_a_round_without_reports_is_0() -> None:
    found = gathered([], USUAL)
    assert found.sum.reports == 0
    assert not found.sum.total.any()


def test_too_few_reports_for_the_rule_are_summed_as_nobody_uses_them() -> None:
    found = gathered(honest(2), USUAL)
    assert np.array_equal(found.sum.total, np.sum(honest(2), axis=0))


def test_a_round_too_large_to_be_looked_at_together_is_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reception_module, "LARGEST_ROUND", 129)
    reports = [pushing(), *honest(9)]
    found = gathered(reports, MEAN)
    assert np.array_equal(found.sum.total, np.sum(reports, axis=0))
    assert (found.sum.reports, found.outlying) == (10, 0)
    monkeypatch.setattr(reception_module, "LARGEST_ROUND", 130)
    assert gathered(reports, MEAN).outlying == 1


# Warnings -----------------------------------------------------------------------------------------


def warned(mechanism: Mechanism, silos: list[Participant], reports: list[np.ndarray]) -> int:
    gathering = Reception(mechanism, silos).gathering(1, len(reports))
    for report in reports:
        gathering.add(report)
    return gathering.close().outlying


def test_a_heavy_silo_that_says_what_all_say_raises_no_alarm() -> None:
    """Its report is three times as long as theirs: far away, and no reason for a warning."""
    heavy = [*SILOS[1:], Participant(2000, PrivacyTarget(2.0, 1e-6), weight=3.0)]
    mechanism = Mechanism.calibrate(heavy, clip=0.25, dimension=13, phases=[Phase(60)])
    rng = np.random.default_rng(1)
    answer = np.full(13, 0.9 * 0.25 / mechanism.grids[0] / np.sqrt(13))
    noise = SIGMA_UNITS * rng.normal(size=(10, 13))
    weights = np.array([[each.weight] for each in heavy])
    reports = list(np.rint(weights * answer + noise).astype(np.int64))
    assert warned(mechanism, heavy, reports) == 0
    equal = [replace(each, weight=1.0) for each in heavy]
    assert warned(mechanism, equal, [*reports[:9], reports[9] // 3]) == 0
    assert warned(mechanism, equal, [*reports[:9], -reports[9] // 3]) == 1


DIFFERING = {
    "batches": ([Phase(60)], Minibatch(Scheme.POISSON, 0.5)),
    "local steps": ([Phase(60, steps=5)], Minibatch()),
    "control variates": ([Phase(60, control=True)], Minibatch()),
}


@pytest.mark.parametrize(("phases", "batch"), DIFFERING.values(), ids=DIFFERING)
def test_where_more_than_noise_is_between_equal_silos_nobody_is_warned(
    phases: list[Phase], batch: Minibatch
) -> None:
    for made, found in (
        (MECHANISM, 1),
        (
            Mechanism.calibrate(SILOS, clip=0.25, dimension=13, phases=phases, minibatch=batch),
            0,
        ),
    ):
        clip = 0.25 / made.grids[0]
        push = np.full(13, -round(clip / np.sqrt(13)), dtype=np.int64)
        assert warned(made, SILOS, [push, *honest(9)]) == found
