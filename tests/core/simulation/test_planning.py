"""Plans: the numbers are those of the mechanism and the papers, errors come from the algorithm."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.algorithms.base import Aggregate, Algorithm, AlgorithmPlan, Query, Steps
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.model.clipped_sum import ClippedSum, Records
from silomix_core.reports.aggregation import MEAN, USUAL, Aggregation, Rule
from silomix_core.reports.reception import Reception
from silomix_core.simulation.planning import (
    InvalidPlan,
    Plan,
    PlanRequest,
    curves,
    plan,
    simulated_rounds,
    with_best_clip,
)
from silomix_core.simulation.planning.grid import Estimate, GridCell
from silomix_core.simulation.planning.recommendation import NO_PRIVATE_DATA
from silomix_core.simulation.planning.simulated_studies import Case, Shape, excess_errors, synthetic
from silomix_core.task.losses import LossName, loss
from silomix_core.task.task import UNIT

PAPER = PlanRequest(
    silos=25,
    records=1734,
    dimension=50,
    delta=3.33e-7,
    epsilons=(3.0,),
    rounds=(100,),
    clip=1.0,
    seeds=0,
)
SMALL = PlanRequest(
    silos=5,
    records=1000,
    dimension=6,
    delta=1e-5,
    epsilons=(0.05, 8.0),
    rounds=(5, 40),
    seeds=4,
)


@pytest.fixture(scope="module")
def small() -> Plan:
    return plan(SMALL)


def error(cell: GridCell) -> float:
    assert cell.excess_error is not None
    return cell.excess_error.mean


# Rules --------------------------------------------------------------------------------------------


def test_a_figure_against_outsiders_is_claimed_only_for_the_mean() -> None:
    """As `study show` does of the study that the plan is for, which names no rule."""
    usual, mean = (plan(replace(PAPER, named_rule=rule)).cells[0] for rule in (None, MEAN))
    assert mean.figures[2].epsilon is not None
    assert usual.figures[2].epsilon is None
    assert "reports are not summed" in (usual.figures[2].reason or "")
    assert (usual.sigma, usual.figures[:2]) == (mean.sigma, mean.figures[:2])


def test_a_plan_has_the_rule_that_a_study_would_have() -> None:
    made = PAPER.mechanism(3.0, 100)
    assert PAPER.aggregation(made) == USUAL
    assert replace(PAPER, minimum_batch=2).aggregation(made) == MEAN
    scaffold = replace(PAPER, algorithm="dp-scaffold")
    assert scaffold.aggregation(scaffold.mechanism(3.0, 100)) == MEAN
    trimmed = replace(PAPER, named_rule=Aggregation(Rule.TRIMMED_MEAN, 10))
    with pytest.raises(InvalidPlan, match="needs 21 reports"):
        trimmed.aggregation(made)


def test_the_rule_is_simulated(small: Plan) -> None:
    """Another rule, other errors from the same seeds; of the most trimmed one larger noise."""
    other = plan(replace(SMALL, named_rule=Aggregation(Rule.TRIMMED_MEAN, 1), minimum_batch=3))
    for usual, trimmed in zip(small.cells, other.cells, strict=True):
        assert error(usual) != error(trimmed)
        assert error(usual) == pytest.approx(error(trimmed), abs=0.05)


# Noise -------------------------------------------------------------------------------------------


def test_the_example_of_the_papers_has_these_numbers() -> None:
    (cell,) = plan(PAPER).cells
    assert cell.sigma == pytest.approx(0.0186, abs=5e-5)
    printed = 16 * sqrt(100 * log(250 / 3.33e-7) * log(2 / 3.33e-7)) / (1734 * 3)
    assert cell.sigma_paper == pytest.approx(printed, rel=1e-12)
    assert printed == pytest.approx(0.549, abs=5e-4)
    assert cell.signal_to_noise == pytest.approx(1 / (cell.sigma * sqrt(50 / 25)), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epsilons": (9.0,), "delta": 1e-3}, "needs epsilon <= ln"),
        ({"rounds": (10,), "algorithm": "one-pass-mb-sgd"}, "needs epsilon <= 1"),
        ({"minibatch": Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.001)}, "batch"),
        ({"minibatch": Minibatch(Scheme.POISSON, 0.9), "rounds": (2,)}, "not Poisson"),
    ],
)
def test_outside_its_validity_the_papers_formula_gives_a_reason_and_no_number(
    changes: dict[str, object], reason: str
) -> None:
    (cell,) = plan(replace(PAPER, **changes)).cells  # type: ignore[arg-type]
    assert cell.sigma_paper is None
    assert reason in (cell.paper_reason or "")


def test_one_pass_studies_are_compared_with_the_one_pass_formula() -> None:
    asked = replace(PAPER, epsilons=(1.0,), rounds=(10,), algorithm="one-pass-mb-sgd")
    (cell,) = plan(asked).cells
    assert cell.sigma_paper == pytest.approx(sqrt(8 * log(1.25 / 3.33e-7)) / 173, rel=1e-12)


# Simulation --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rule", [None, USUAL])
def test_the_simulation_asks_the_algorithm_with_clipped_means_and_the_mechanisms_noise(
    rule: Aggregation | None,
) -> None:
    """Against a silo's own integer sums; the noise has σ/√N (400·40 samples: ± 3 % is 5 σ), in so
    many coordinates nearly so for the usual rule."""
    shape = Shape(silos=9, records=30, dimension=400)
    mechanism = Mechanism.calibrate(
        [Participant(30, PrivacyTarget(1.0, 1e-5))],
        clip=0.3,
        dimension=400,
        phases=[Phase(40)],
    )
    point = np.linspace(-3, 3, 400)
    heard: list[Aggregate] = []

    def listen(asked: AlgorithmPlan) -> Steps:
        assert (asked.rounds, asked.setting.silos) == (40, 9)
        assert asked.noise() == pytest.approx(mechanism.sigma() / 3)
        for _ in range(asked.rounds):
            aggregate = yield Query(point=point, model=point)
            assert aggregate is not None
            heard.append(aggregate)
        return point

    spy = Algorithm("spy", "", "", "", listen, lambda known: (Phase(known.rounds),))
    asked = PlanRequest(9, 30, 400, delta=1e-5, epsilons=(1.0,), clip=0.3)
    data = synthetic(shape, 50.0, np.random.default_rng(1))
    setting, silos = asked.setting(1.0, 40), asked.participants(1.0)
    reception = Reception(mechanism, silos, rule) if rule else None
    cases = [Case(mechanism, setting, reception)]
    excess_errors(data, shape, spy, cases, np.random.default_rng(2))
    silo = ClippedSum(
        Records(data.features * UNIT, data.labels), loss(LossName.LOGISTIC), mechanism.clip
    )
    exact = silo.at(point) / (270 * 2.0**36)
    noise = np.stack([each.gradient for each in heard]) - exact
    scale = mechanism.sigma() / 3
    assert np.std(noise) == pytest.approx(scale, rel=0.03)
    assert np.abs(noise.mean(axis=0)).max() < 5 * scale / sqrt(40)
    assert np.linalg.norm(exact) > 0.001


def test_more_privacy_costs_error_and_hardly_any_costs_hardly_any(small: Plan) -> None:
    strict = [error(cell) for cell in small.cells if cell.epsilon == 0.05]
    lax = [error(cell) for cell in small.cells if cell.epsilon == 8]
    assert min(strict) > 0.05
    assert abs(min(lax)) < 0.01
    for cell in small.cells:
        assert cell.excess_error is not None
        assert cell.excess_error.standard_error is not None
        assert cell.excess_error.standard_error < 0.1


def test_the_baseline_is_near_the_best_possible_error() -> None:
    data = synthetic(Shape(25, 400, 11), 50.0, np.random.default_rng(3))
    best = np.minimum(data.test_chances, 1 - data.test_chances).mean()
    assert best <= data.baseline_error < best + 0.005
    assert data.error(np.zeros(11)) == pytest.approx(0.5, abs=0.02)
    assert np.linalg.norm(data.features[:, :-1], axis=1).max() <= 1 + 1e-4


def test_a_plan_is_the_same_every_time(small: Plan) -> None:
    assert plan(SMALL) == small


def test_large_studies_are_simulated_on_fewer_records_and_say_so() -> None:
    assert Shape(100, 10_000, 10).simulated_records == 60_000
    assert Shape(100, 10_000, 400).simulated_records == 30_000
    made = plan(replace(SMALL, records=20_000, epsilons=(1.0,), rounds=(2,), seeds=1))
    assert made.simulated is not None
    assert (made.simulated.records, made.simulated.of_records) == (60_000, 100_000)
    assert made.cells[0].excess_error is not None
    assert made.cells[0].excess_error.standard_error is None  # one run has none


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "one-pass-mb-sgd"},
        {"minibatch": Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.1)},
        {"minibatch": Minibatch(Scheme.WITHOUT_REPLACEMENT, 0.1), "algorithm": "one-pass-mb-sgd"},
    ],
)
def test_every_kind_of_batch_is_simulated(changes: dict[str, object]) -> None:
    asked = replace(SMALL, epsilons=(2.0,), rounds=(4,), seeds=2, **changes)  # type: ignore[arg-type]
    (cell,) = plan(asked).cells
    assert -0.1 < error(cell) < 0.5


def test_high_dimensions_and_zero_seeds_are_not_simulated() -> None:
    for asked in (replace(SMALL, dimension=501), replace(SMALL, seeds=0)):
        made = plan(asked)
        assert simulated_rounds(asked) == 0
        assert made.simulated is None
        assert all(cell.excess_error is None for cell in made.cells)
        assert made.recommendation.cell.rounds == 40
        assert "nothing was simulated" in made.recommendation.why[0]


def test_progress_is_told_round_by_round() -> None:
    calls = []
    asked = replace(SMALL, epsilons=(1.0,), rounds=(7,), seeds=2)
    asked = with_best_clip(asked, lambda: calls.append(1))
    made = plan(asked, lambda: calls.append(1))
    curves(made, lambda: calls.append(1))
    assert len(calls) == simulated_rounds(asked)


def test_the_curves_of_a_single_cell_show_what_is_around_it() -> None:
    made = plan(replace(SMALL, epsilons=(1.0,), rounds=(8,), seeds=1))
    pairs = {(cell.epsilon, cell.rounds) for cell in curves(made)}
    assert pairs == {(0.25, 8), (0.5, 8), (1, 8), (2, 8), (1, 2), (1, 4), (1, 16)}
    assert all(cell.excess_error is not None for cell in curves(made))
    assert len(made.cells) == 1


def test_the_curves_of_grids_are_the_grids() -> None:
    made = plan(replace(SMALL, epsilons=(1.0, 2.0), rounds=(4, 8), seeds=1))
    assert curves(made) == made.cells


# Recommendation ----------------------------------------------------------------------------------


def test_the_recommended_cell_has_the_least_error_but_for_ties(small: Plan) -> None:
    best = small.recommendation
    assert best.cell in small.cells
    assert best.cell.epsilon == 8  # 0.05 costs more than half a point
    rivals = [cell for cell in small.cells if cell.epsilon == 8]
    assert error(best.cell) <= min(error(cell) for cell in rivals) + 0.01
    assert best.minibatch == Minibatch()
    assert best.why[-1] == NO_PRIVATE_DATA


def test_other_clips_are_tried_at_the_recommended_cell(small: Plan) -> None:
    best = small.recommendation
    assert best.clip == small.request.clip
    assert [clip for clip, _ in best.clip_errors] == [0.25, 0.5]
    assert dict(best.clip_errors)[0.5] == best.cell.excess_error


def test_a_clip_that_is_far_too_large_is_told_of_a_better_one() -> None:
    made = plan(replace(SMALL, epsilons=(1.0,), rounds=(20,), clip=50.0))
    best = made.recommendation
    assert best.better_clip in (0.25, 0.5)
    assert f"a clip of {best.better_clip:g} would do better" in best.why[0]


def test_the_best_clip_is_the_better_of_the_usual_ones() -> None:
    asked = with_best_clip(replace(SMALL, epsilons=(0.5, 1.0), rounds=(10, 20)), lambda: None)
    made = plan(replace(asked, epsilons=(1.0,), rounds=(20,)))
    errors = dict(made.recommendation.clip_errors)
    assert asked.clip == min(errors, key=lambda clip: errors[clip].mean)


def test_without_a_simulation_no_larger_epsilon_is_shown_than_needs_be() -> None:
    made = plan(replace(SMALL, epsilons=(1.0, 4.0), seeds=0))
    assert made.recommendation.cell.epsilon == 1
    assert "nothing was simulated" in made.recommendation.why[0]
    assert NO_PRIVATE_DATA not in made.recommendation.why


def test_equal_errors_go_to_fewer_rounds() -> None:
    asked = replace(SMALL, epsilons=(8.0,), rounds=(40, 50, 60))
    made = plan(asked)
    assert [error(cell) for cell in made.cells] == pytest.approx([0] * 3, abs=0.002)
    assert made.recommendation.cell.rounds == 40


def test_an_estimate_is_a_mean_with_its_standard_error() -> None:
    assert Estimate.of([1.0, 3.0]).mean == 2
    assert Estimate.of([1.0, 3.0]).standard_error == pytest.approx(1.0)
    assert Estimate.of([2.0]) == Estimate(2.0, None)


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"silos": 0}, "silos 0"),
        ({"records": 0}, "records 0"),
        ({"dimension": 1}, "dimension 1"),
        ({"rounds": (10, 0)}, "rounds 0"),
        ({"rounds": ()}, "at least one"),
        ({"epsilons": ()}, "at least one"),
        ({"epsilons": (0.0,)}, "epsilon must be above 0"),
        ({"epsilons": (float("nan"),)}, "epsilon must be above 0"),
        ({"delta": 0.5}, "delta must be"),
        ({"clip": float("nan")}, "clip nan"),
        ({"radius": -1.0}, "radius -1"),
        ({"minimum_batch": 26}, "minimum-batch 26"),
        ({"algorithm": "magic"}, "unknown algorithm 'magic'; known:"),
        ({"rounds": tuple(range(1, 300))}, "at most 200 pairs"),
    ],
)
def test_numbers_that_describe_no_study_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidPlan, match=message):
        replace(PAPER, **changes)  # type: ignore[arg-type]


def test_impossible_pairs_are_left_out_and_named() -> None:
    asked = replace(PAPER, records=50, rounds=(10, 100), algorithm="one-pass-mb-sgd")
    made = plan(asked)
    assert [cell.rounds for cell in made.cells] == [10]
    assert [(each.rounds, "fewer rounds" in each.reason) for each in made.impossible] == [
        (100, True)
    ]
    with pytest.raises(InvalidPlan, match="use fewer rounds"):
        plan(replace(asked, rounds=(100,)))
