"""`silomix simulate`: what it prints, that it repeats itself, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from silomix.main import app
from silomix_core.accounting.events import Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.mechanism.mechanism import Minibatch
from silomix_core.mechanism.minibatches import Mask
from silomix_core.reports import reporter
from silomix_core.task.goal import Goal
from silomix_core.task.losses import LossName
from silomix_lab.choices.aggregation_rule import aggregation_of
from silomix_lab.choices.descent import descent_of
from silomix_lab.choices.goal import usual_radius
from silomix_lab.simulate import SimulatedTrial, SimulateOptions, run_trial
from support.specifications import changed, specification
from typer.testing import CliRunner

SMALL = SimulateOptions(
    specification=specification(),
    algorithms=("noisy-mb-sgd",),
    epsilons=(4.0,),
    data="breast-cancer",
    silos=3,
    seeds=1,
    processes=1,
)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_learns_something(name: str) -> None:
    """The commoner label is wrong for 37 of 100; the same seed gives the same model."""
    options = changed(SMALL, most_rounds=60 if "one-pass" in name else 200)
    if "check-ins" in name or "shuffled" in name:  # one report, or one record in each
        options = replace(options, silos=20)
    first, again = (run_trial(options, SimulatedTrial(name, 50.0, 3)) for _ in range(2))
    assert first == again
    assert first.rounds <= options.specification.most_rounds
    assert first.pooled_error < 0.1
    assert first.error < 0.3


@pytest.mark.parametrize(
    "name",
    [
        "noisy-mb-sgd",
        "localized-subgradient",
        "moreau-smoothing",
        "convolution-smoothing",
        "dp-scaffold",
    ],
)
def test_a_loss_with_a_kink_is_learned_too(name: str) -> None:
    options = changed(SMALL, most_rounds=200, goal=Goal(LossName.HINGE))
    assert run_trial(options, SimulatedTrial(name, 50.0, 3)).error < 0.3


@pytest.mark.parametrize(
    "goal",
    [
        Goal(LossName.SQUARED, label_bounds=(0.0, 1.0)),
        Goal(LossName.HUBER, label_bounds=(0.0, 1.0), threshold=0.5),
        Goal(LossName.ABSOLUTE, label_bounds=(0.0, 1.0)),
        Goal(LossName.QUANTILE, label_bounds=(0.0, 1.0), level=0.5),
    ],
    ids=lambda goal: goal.loss.value,
)
@pytest.mark.parametrize("name", ["noisy-mb-sgd", "moreau-smoothing", "convolution-smoothing"])
def test_a_number_is_learned(name: str, goal: Goal) -> None:
    """Whether a tumour is malignant, as the number 0 or 1; the mean has an error of 0.63."""
    options = changed(SMALL, most_rounds=200, goal=goal, radius=usual_radius(goal))
    outcome = run_trial(options, SimulatedTrial(name, 50.0, 3))
    assert outcome.pooled_error < 0.12
    assert outcome.error < 0.15


def quadrants(path: Path) -> Path:
    """Points of a square and the number of their quadrant."""
    points = np.random.default_rng(1).uniform(-1, 1, (2000, 2))
    quadrant = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
    lines = [f"{x:.4f},{y:.4f},{int(q)}" for (x, y), q in zip(points, quadrant, strict=True)]
    path.write_text("\n".join(["x,y,quadrant", *lines]))
    return path


def test_several_classes_are_learned(tmp_path: Path) -> None:
    """Nearly three of four are wrong if all get the same answer."""
    data = str(quadrants(tmp_path / "square.csv"))
    options = changed(
        SMALL,
        data=data,
        label="quadrant",
        goal=Goal(LossName.MULTINOMIAL, classes=4),
        most_rounds=60,
    )
    outcome = run_trial(options, SimulatedTrial("noisy-mb-sgd", 50.0, 1))
    assert outcome.pooled_error < 0.05
    assert outcome.error < 0.05


def test_a_hidden_layer_learns_what_no_line_can_tell_apart(tmp_path: Path) -> None:
    """The exclusive or of two signs: every linear model is wrong for about half."""
    path = quadrants(tmp_path / "square.csv")
    text = path.read_text() + "\n"
    path.write_text(text.replace(",3\n", ",0\n").replace(",2\n", ",1\n"))
    options = changed(
        SMALL,
        data=str(path),
        label="quadrant",
        goal=Goal(LossName.LOGISTIC, hidden=8),
        most_rounds=100,
    )
    outcome = run_trial(options, SimulatedTrial("noisy-mb-sgd", 50.0, 1))
    assert outcome.pooled_error > 0.35
    assert outcome.error < 0.15


@pytest.mark.parametrize("scheme", [Scheme.POISSON, Scheme.WITHOUT_REPLACEMENT])
def test_batches_are_drawn_as_asked_and_learned_from(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full batches would draw nothing; the mean of 60 drawn ones is half of a silo."""
    drawn, sizes = reporter.draw, list[float]()

    def noted(batch: Minibatch, records: int, source: RandomBytes) -> Mask | None:
        mask = drawn(batch, records, source)
        assert mask is not None
        sizes.append(mask.mean())
        return mask

    monkeypatch.setattr(reporter, "draw", noted)
    options = changed(SMALL, minibatch=Minibatch(scheme, 0.5))
    assert run_trial(options, SimulatedTrial("noisy-mb-sgd", 10.0, 3)).error < 0.3
    assert len(sizes) == 60
    assert np.mean(sizes) == pytest.approx(0.5, abs=0.03)  # 7 deviations, with a fixed seed


def test_the_silos_own_evaluation_agrees_with_the_hold_out() -> None:
    """142 and 128 records held out, ε = 50: within 5 standard deviations of sampling."""
    found = run_trial(changed(SMALL, held_out=0.3), SimulatedTrial("noisy-mb-sgd", 50.0, 3))
    assert found.rounds == SMALL.specification.most_rounds + 1
    assert found.evaluation is not None
    assert found.evaluation.standard_error < 0.01
    assert abs(found.evaluation.error - found.error) < 5 * (0.09 / 142 + 0.09 / 128) ** 0.5


@pytest.mark.parametrize(
    "goal",
    [
        Goal(LossName.LOGISTIC, hidden=4),
        Goal(LossName.MULTINOMIAL, classes=2),
        Goal(LossName.MULTINOMIAL, classes=2, hidden=4),
        Goal(LossName.SQUARED, label_bounds=(0.0, 1.0)),
    ],
    ids=["hidden", "several", "both", "number"],
)
def test_whatever_is_learned_the_silos_can_evaluate(goal: Goal) -> None:
    """142 and 128 records held out: within 5 standard deviations of sampling, at most 0.04 each
    (of a squared error over mean(y²), 0.37: less than 0.07) and the noise."""
    options = changed(SMALL, held_out=0.3, goal=goal, radius=usual_radius(goal))
    found = run_trial(options, SimulatedTrial("noisy-mb-sgd", 50.0, 3))
    assert found.evaluation is not None
    assert found.unit == (1.0 if goal.label_bounds is None else pytest.approx(0.37, abs=0.1))
    told, noise = found.evaluation.error / found.unit, found.evaluation.standard_error / found.unit
    assert noise < 0.05
    sampled = 0.07 if goal.label_bounds else 0.04
    assert told == pytest.approx(found.error, abs=5 * (2**0.5 * sampled + noise))


@pytest.mark.parametrize(
    ("goal", "has"),
    [
        (Goal(LossName.LOGISTIC), True),
        (Goal(LossName.LOGISTIC, hidden=4), True),
        (Goal(LossName.HINGE), False),
        (Goal(LossName.MULTINOMIAL, classes=2), False),
        (Goal(LossName.SQUARED, label_bounds=(0.0, 1.0)), False),
    ],
    ids=["line", "network", "hinge", "several", "number"],
)
def test_what_gives_probabilities_of_a_label_is_told_how_well_they_fit(
    goal: Goal, has: bool
) -> None:
    options = changed(SMALL, goal=goal, radius=usual_radius(goal))
    found = run_trial(options, SimulatedTrial("noisy-mb-sgd", 50.0, 3))
    assert (found.calibration is not None) == has
    if found.calibration is not None:
        assert found.calibration.brier < 0.16  # a constant guess: 0.37·0.63 = 0.23
        assert found.calibration.prevalence_ratio == pytest.approx(1.0, abs=0.3)


def test_more_privacy_costs_error() -> None:
    errors = [
        np.mean(
            [
                run_trial(SMALL, SimulatedTrial("noisy-mb-sgd", epsilon, seed)).error
                for seed in (1, 2)
            ]
        )
        for epsilon in (0.02, 20.0)
    ]
    assert errors[0] > errors[1] + 0.05


def test_a_simulation_over_processes_writes_table_json_and_picture(tmp_path: Path) -> None:
    arguments = [
        *("simulate", "--data", "breast-cancer", "--silos", "3", "--participants", "2"),
        *("--algorithm", "noisy-mb-sgd,localized-mb-sgd", "--epsilon", "2,8", "--seeds", "2"),
        *("--rounds", "12", "--processes", "2", "--evaluation", "0.2"),
        *("--json", str(tmp_path / "sim.json"), "--png", str(tmp_path / "sim.png")),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    lines = json.loads((tmp_path / "sim.json").read_text())
    assert [(line["algorithm"], line["epsilon"]) for line in lines] == [
        ("noisy-mb-sgd", 2.0),
        ("noisy-mb-sgd", 8.0),
        ("localized-mb-sgd", 2.0),
        ("localized-mb-sgd", 8.0),
    ]
    for line in lines:
        assert 0 < line["error"] < 60
        assert line["excess_margin"] >= 0  # 0: both seeds have the same excess
        assert line["evaluated_noise"] > 0
        assert -60 < line["evaluated_error"] < 160
        assert 0 < line["brier"] < 1
        assert 0.2 < line["prevalence_ratio"] < 3
        assert line["log_loss"] > line["brier"]
        assert isinstance(line["slope"], float)
    assert "predicted / true" in result.output
    assert "one record replaced" in " ".join(result.output.split())
    assert (tmp_path / "sim.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--algorithm", "adam"], "unknown algorithm 'adam'; known: accelerated-mb-sgd, auto, "),
        (["--sampling", "some", "--ratio", "1"], "--sampling 'some': use one of full, poisson"),
        (["--sampling", "poisson"], "--sampling poisson needs a --ratio"),
        (["--ratio", "0.5"], "--sampling full has no --ratio"),
        (
            ["--sampling", "poisson", "--ratio", "0.5", "--algorithm", "shuffled-mb-sgd"],
            "--sampling: shuffled-mb-sgd draws its own batches",
        ),
        (
            ["--sampling", "poisson", "--ratio", "0.5", "--algorithm", "auto"],
            "--sampling: auto uses all records in every round",
        ),
        (
            ["--sampling", "without-replacement", "--ratio", "1e-4", "--processes", "1"],
            "none left for a phase of 1 of them and batches of 0.0001",
        ),
        (["--loss", "zero-one"], "--loss 'zero-one': use one of logistic, hinge"),
        (["--loss", "squared"], "--loss squared needs --label-bounds LOW,HIGH"),
        (["--loss", "squared", "--label-bounds", "1"], "--label-bounds '1': use LOW,HIGH"),
        (["--loss", "squared", "--label-bounds", "1,0"], "--loss squared: label 'readmitted': low"),
        (["--label-bounds", "0,1"], "--loss logistic: the logistic loss has no bounds"),
        (["--loss", "quantile", "--label-bounds", "0,1"], "a level belongs to the quantile loss"),
        (
            ["--loss", "hinge", "--algorithm", "multi-stage"],
            "multi-stage needs a loss without kinks, hinge has one",
        ),
        (
            ["--hidden", "8", "--algorithm", "multi-stage"],
            "multi-stage needs a convex loss, that of a network is not",
        ),
        (["--loss", "multinomial"], "classes belong to the multinomial loss"),
        (["--epsilon", "one"], "--epsilon 'one': use numbers separated by commas"),
        (["--epsilon", "-1"], "epsilon"),
        (
            ["--central-epsilon", "1", "--evaluation", "0.2", "--algorithm", "shuffled-mb-sgd"],
            "shuffled-mb-sgd without --evaluation",
        ),
        (["--central-epsilon", "1"], "needs reports of one record: shuffled-mb-sgd"),
        (
            ["--central-epsilon", "1", "--algorithm", "shuffled-mb-sgd", "--processes", "1"],
            "shuffling 5 reports gains nothing at a central epsilon of 1: from about ",
        ),
        (["--evaluation", "2"], "--evaluation 2.0: use a share from 0.01 to 0.99"),
        (
            ["--loss", "multinomial", "--classes", "14", "--evaluation", "0.2"],
            "--evaluation: a confusion matrix has 196 cells, and a report of this model only 182",
        ),
        (["--participants", "9"], "--participants 9: use 1 to 5"),
        (["--data", "nowhere"], "no data set 'nowhere'"),
        (["--json", "no/such/folder/x.json"], "there is no such folder"),
    ],
)
def test_bad_input_gets_one_line(changes: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *changes])
    assert result.exit_code != 0
    assert says in str(result.exception) + result.output


def test_the_rule_reaches_the_study_and_where_it_makes_no_sense_it_is_refused() -> None:
    bounded, mean = aggregation_of("bounded-mean", None), aggregation_of("mean", None)
    usual, same, other = (
        run_trial(changed(SMALL, named_aggregation=rule), SimulatedTrial("noisy-mb-sgd", 0.3, 1))
        for rule in (None, bounded, mean)
    )
    assert usual == same != other
    command = ["simulate", "--data", "breast-cancer", "--seeds", "1", "--processes", "1"]
    for arguments, says in (
        (["--aggregation", "best"], "use one of mean, bounded-mean, trimmed-mean, geo"),
        (["--aggregation", "trimmed-mean"], "needs bad_silos"),
        (["--bad-silos", "1"], "belongs to --aggregation trimmed-mean"),
        (["--aggregation", "trimmed-mean", "--bad-silos", "3"], "needs 7 reports"),
        (["--aggregation", "geometric-median", "--algorithm", "dp-scaffold"], "need the mean"),
    ):
        result = CliRunner().invoke(app, [*command, *arguments])
        assert result.exit_code == 1
        assert says in str(result.exception)


def test_momentum_and_averaging_reach_the_algorithm_and_what_has_none_refuses_them() -> None:
    typed = changed(SMALL, descent=descent_of(0.0, "tail"))
    usual, other = (
        run_trial(each, SimulatedTrial("noisy-mb-sgd", 4.0, 1)) for each in (SMALL, typed)
    )
    same = run_trial(
        changed(SMALL, descent=descent_of(0.8, None)), SimulatedTrial("noisy-mb-sgd", 4.0, 1)
    )
    assert usual == same != other
    command = ["simulate", "--data", "breast-cancer", "--seeds", "1", "--momentum"]
    for arguments, says in (
        (["0.5", "--algorithm", "auto"], "auto has none to choose"),
        (["0.5", "--algorithm", "noisy-mb-sgd,dp-fedavg"], "dp-fedavg has none to choose"),
        (["1"], "momentum must lie between 0 and 0.99"),
        (["0.5", "--averaging", "best"], "use one of weighted-tail, weighted, tail"),
    ):
        result = CliRunner().invoke(app, [*command, *arguments])
        assert result.exit_code == 1
        assert says in str(result.exception)
