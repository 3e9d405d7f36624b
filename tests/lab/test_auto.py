"""auto: one choice from public numbers, made before calibration and written out everywhere."""

import json
from dataclasses import replace
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from silomix.main import app
from silomix.text.study_and_ledger import describe_study
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.algorithms.base import Averaging, Descent
from silomix_core.algorithms.catalogue import ALGORITHMS, AUTO
from silomix_core.evaluation.calibration import Calibration, probabilities
from silomix_core.mechanism.mechanism import Participant
from silomix_core.model.clipped_sum import Records
from silomix_core.reports.aggregation import MEAN, USUAL, Aggregation, Rule
from silomix_core.simulation.one_process import rehearsal
from silomix_core.simulation.planning.simulated_studies import simulated_task
from silomix_core.study.defaults import chosen, loudness
from silomix_core.study.specification import Batching
from silomix_core.study.study import InvalidStudy
from silomix_core.task.goal import Goal
from silomix_core.task.losses import LossName
from silomix_core.task.task import UNIT, Feature, Scaling, Task
from silomix_lab.demo.run_demo import DemoOptions, prepare
from silomix_lab.simulate import SimulatedTrial, SimulateOptions, run_trial
from silomix_protocol.host.failure import Failure
from support.specifications import changed, specification
from support.studies import parse, with_value
from typer.testing import CliRunner

ASKED = specification(AUTO, most_rounds=40)
TASK = Task(LossName.LOGISTIC, "y", (Feature("x", -1.0, 1.0, 0.0),), Scaling.UNIT_BALL, bias=0.3)
SAMPLE = specification(most_rounds=40, target=PrivacyTarget(2.0, 1e-6), batching=Batching(2))


NUMBERS = replace(TASK, loss=LossName.SQUARED, label_bounds=(-1.0, 1.0))


def test_what_somebody_chose_stays_as_it_is() -> None:
    own = replace(ASKED, algorithm="multi-stage", most_rounds=7)
    assert chosen(own, NUMBERS, 1.0) == own


def test_auto_does_not_depend_on_what_it_replaces() -> None:
    first, second = (
        chosen(ASKED, TASK, 1.0),
        chosen(replace(ASKED, most_rounds=3, clip=9.0, radius=1.0), TASK, 1.0),
    )
    assert first == second
    assert first.algorithm in ALGORITHMS
    assert first.clip == pytest.approx(TASK.lipschitz / 8)


@pytest.mark.parametrize("name", [LossName.LOGISTIC, LossName.MULTINOMIAL, LossName.HINGE])
def test_probabilities_get_the_whole_bound_as_clip_where_records_are_loud(name: LossName) -> None:
    """Per coordinate: q/500 of L, from an eighth to all; without probabilities an eighth."""
    classes = 3 if name is LossName.MULTINOMIAL else None
    task = replace(TASK, loss=name, classes=classes)
    for each, share in ((1.0, 1 / 8), (62.5, 1 / 8), (250.0, 1 / 2), (500.0, 1.0), (inf, 1.0)):
        clip = chosen(ASKED, task, each * task.dimension).clip
        wanted = 1 / 8 if name is LossName.HINGE else share
        assert clip == pytest.approx(wanted * task.lipschitz), each


def test_a_network_has_the_clip_of_its_loss() -> None:
    assert chosen(ASKED, replace(TASK, hidden=3), inf) == chosen(ASKED, TASK, inf)


def test_numbers_get_a_smaller_clip_and_radius_where_noise_is_loud() -> None:
    """Per coordinate: √(q/40) of the clip and √(q/20) of the radius, and never more than all."""
    quiet = chosen(ASKED, NUMBERS, inf)
    assert quiet.descent is None
    assert quiet.clip == pytest.approx(NUMBERS.lipschitz / 8, rel=0.005)
    assert quiet.radius == pytest.approx(1.5 * sqrt(2), rel=0.005)
    for each, clip, radius in ((40.0, 1.0, 1.0), (20.0, sqrt(0.5), 1.0), (5.0, sqrt(0.125), 0.5)):
        loud = chosen(ASKED, NUMBERS, each * NUMBERS.dimension)
        assert loud.clip == pytest.approx(clip * quiet.clip, rel=0.01)
        assert loud.radius == pytest.approx(radius * quiet.radius, rel=0.01)
        assert loud.descent == (Descent(momentum=0.5) if each < 20 else None)


def test_loudness_is_what_the_noise_of_all_rounds_leaves_of_the_neediest_silo() -> None:
    """2·clip/(nμ√M) is the noise on a coordinate of the mean of all rounds: the mechanism's own."""
    strict, large = PrivacyTarget(0.5, 1e-6), PrivacyTarget(4.0, 1e-6)
    silos = [Participant(900, large), Participant(500, strict), Participant(2000, strict)]
    made = rehearsal(TASK, specification(most_rounds=30, radius=1.0, clip=0.3), silos)
    of_the_mean = made.mechanism.sigma() / sqrt(30 * 3)
    assert loudness(silos, ASKED) == pytest.approx(2 * 0.3 / of_the_mean, rel=0.01)


@pytest.mark.parametrize(("spread", "most"), [(0.1, 0.8), (0.45, 0.1)])
def test_auto_learns_numbers_that_vary_little_or_much(spread: float, most: float) -> None:
    """Labels of this deviation in half ranges, noise of 0.05: error in variances of the label.

    A smaller radius cannot reach the second, the noise of a larger clip hides the first.
    """
    features = (Feature("x", -4.0, 4.0, 0.0, count=8),)
    task = Task(LossName.SQUARED, "y", features, Scaling.UNIT_BALL, 0.3, label_bounds=(-1.0, 1.0))
    silo = Participant(400, PrivacyTarget(2.0, 1e-5))
    choice, rng = chosen(ASKED, task, loudness([silo] * 3, ASKED)), np.random.default_rng(1)
    values = rng.normal(size=(4000, 8))
    labels = spread * values[:, :4].sum(axis=1) / 2 + 0.05 * rng.normal(size=4000)
    encoded, targets = task.encode(values), task.encode_labels(labels)
    silos = [Records(encoded[rows], targets[rows]) for rows in np.split(np.arange(1200), 3)]
    made = rehearsal(task, choice, [silo] * 3)
    model = made.run(silos, rng)
    wrong = task.predict(encoded[1200:] @ model / UNIT) - np.clip(labels[1200:], -1, 1)
    error = np.mean(wrong**2) / labels.var()
    assert error < most


@pytest.mark.parametrize(
    ("share", "ratio_off", "slope_off"), [(0.3, 0.05, 0.15), (0.05, 0.2, 0.4)], ids=["3/10", "1/20"]
)
def test_autos_probabilities_are_those_of_the_records_where_these_are_loud(
    share: float, ratio_off: float, slope_off: float
) -> None:
    """3 silos of 10,000, ε = 2.  Over 30 seeds ratio and slope were 1.00 ± 0.01 and 0.97 ± 0.02 at
    3 of 10, 0.95 ± 0.035 and 0.80 ± 0.05 at 1 of 20: bounds are 4 deviations away or more, about 1
    false alarm in 10,000 for another seed.  With a clip of L/8 they were 0.95 and 0.47, 0.63 and
    0.64."""
    found = probabilities_at(share, silos=3, records=10_000)
    assert found.prevalence_ratio == pytest.approx(1.0, abs=ratio_off)
    assert found.slope == pytest.approx(1.0, abs=slope_off)


def probabilities_at(share: float, *, silos: int, records: int) -> Calibration:
    """The calibration of auto's model on 40,000 fresh records: six features, of which three count,
    and so large a share of labels 1."""
    task = replace(TASK, features=(Feature("x", -1.0, 1.0, 0.0, count=6),))
    silo = Participant(records, PrivacyTarget(2.0, 1e-6))
    choice, rng = chosen(ASKED, task, loudness([silo] * silos, ASKED)), np.random.default_rng(1)
    values = rng.uniform(-1, 1, (silos * records + 40_000, 6))
    line = 3 * values[:, :3].sum(axis=1)
    shift = brentq(lambda shift: probabilities(line - shift).mean() - share, -20, 20)
    labels = (rng.uniform(size=len(line)) < probabilities(line - shift)).astype(np.float64)
    encoded, targets = task.encode(values), task.encode_labels(labels)
    held = np.arange(len(line)) >= silos * records
    parts = np.split(np.flatnonzero(~held), silos)
    own = [Records(encoded[rows], targets[rows]) for rows in parts]
    model = rehearsal(task, replace(choice, target=silo.target), [silo] * silos).run(own, rng)
    return Calibration.of(encoded[held] @ model / UNIT, labels[held])


def test_a_study_file_has_numbers_and_never_auto(tmp_path: Path) -> None:
    with pytest.raises(InvalidStudy, match=r"algorithm\.name"):
        parse(with_value(("algorithm", "name"), AUTO))
    made, data = prepare(
        DemoOptions(tmp_path / "demo", ASKED, silos=2, mixes=1, data="breast-cancer")
    )
    study, choice = made.study, chosen(ASKED, data.task, 1.0)
    assert (study.algorithm, study.rounds) == (choice.algorithm, choice.most_rounds)
    assert (study.clip, study.radius) == (choice.clip, choice.radius)
    assert study.mechanism().clip == choice.clip  # calibrated for it


def test_a_demo_writes_and_shows_momentum_and_averaging(tmp_path: Path) -> None:
    options = DemoOptions(tmp_path / "demo", SAMPLE, silos=2, mixes=1, data="breast-cancer")
    usual, _ = prepare(options)
    assert "rounds; momentum 0.8, weighted-tail average" in describe_study(usual.study)
    own = changed(options, out=tmp_path / "own", descent=Descent(0.5, Averaging.TAIL))
    made, _ = prepare(own)
    assert made.study.descent == own.specification.descent
    assert "rounds; momentum 0.5, tail average" in describe_study(made.study)
    with pytest.raises(Failure, match="plain-mb-sgd has none to choose"):
        prepare(changed(own, algorithm="plain-mb-sgd"))


def test_a_demo_writes_and_shows_how_reports_become_one(tmp_path: Path) -> None:
    options = DemoOptions(
        tmp_path / "demo",
        replace(SAMPLE, batching=Batching(4)),
        silos=5,
        mixes=1,
        data="breast-cancer",
    )
    usual, _ = prepare(options)
    shown = describe_study(usual.study)
    assert usual.study.aggregation == USUAL
    assert "aggregation      bounded-mean: over all rounds one silo moves" in shown
    assert "a hospital unlike the others counts in full while" in " ".join(shown.split())
    assert "no amplification claimed, because reports are not summed" in " ".join(shown.split())
    rule = Aggregation(Rule.TRIMMED_MEAN, 1)
    made, _ = prepare(changed(options, out=tmp_path / "own", named_aggregation=rule))
    assert made.study.aggregation == rule
    shown = " ".join(describe_study(made.study).split())
    assert "holds off up to 1 silo that sends what it likes, and with them as many hosp" in shown
    mean, _ = prepare(changed(options, out=tmp_path / "mean", named_aggregation=MEAN))
    shown = " ".join(describe_study(mean.study).split())
    assert "against outsiders who see only the published models" in shown
    assert "can ruin the model; a hospital unlike the others counts in full" in shown
    other = changed(options, out=tmp_path / "none", named_aggregation=USUAL)
    for changes, says in (
        ({"algorithm": "dp-scaffold"}, "--aggregation bounded-mean: control variates need"),
        ({"batching": Batching(2)}, "needs 3 reports in every round, and a batch may have 2"),
    ):
        with pytest.raises(Failure, match=says):
            prepare(changed(other, **changes))
    assert not (tmp_path / "none").exists()


def test_a_demo_of_numbers_writes_what_auto_says_of_momentum(tmp_path: Path) -> None:
    goal = Goal(LossName.SQUARED, label_bounds=(0.0, 1.0))
    quiet = specification(AUTO, target=PrivacyTarget(0.5, 1e-6))
    options = DemoOptions(tmp_path, quiet, silos=2, mixes=1, data="breast-cancer", goal=goal)
    made, _ = prepare(options)
    assert made.study.descent == Descent(momentum=0.5)


def test_a_simulation_of_auto_is_that_of_its_numbers() -> None:
    options = SimulateOptions(
        specification=specification(AUTO, most_rounds=5, clip=1.0, radius=1.0),
        algorithms=(AUTO,),
        epsilons=(4.0,),
        data="breast-cancer",
        silos=3,
        seeds=1,
        processes=1,
    )
    choice = chosen(ASKED, TASK, 1.0)
    spelled = changed(
        options,
        algorithms=(choice.algorithm,),
        most_rounds=choice.most_rounds,
        clip=choice.clip,
        radius=choice.radius,
    )
    options.check(TASK)
    one = run_trial(options, SimulatedTrial(AUTO, 4.0, 1))
    other = run_trial(spelled, SimulatedTrial(choice.algorithm, 4.0, 1))
    assert (one.rounds, one.error) == (other.rounds, other.error)


@pytest.mark.parametrize("records", [500, 10_000])
def test_a_plan_says_what_auto_stands_for(records: int, tmp_path: Path) -> None:
    """Of several ε it takes the middle one; 500 records are too few for more than an eighth."""
    path = tmp_path / "plan.json"
    arguments = ["plan", "--records", str(records), "--silos", "5", "--dimension", "10"]
    arguments += ["--epsilon", "0.1,0.5,8", "--delta", "1e-6"]
    result = CliRunner().invoke(
        app, [*arguments, "--algorithm", AUTO, "--no-simulation", "--json", str(path)]
    )
    assert result.exit_code == 0, (result.output, result.exception)
    middle = [Participant(records, PrivacyTarget(0.5, 1e-6))] * 5
    choice = chosen(ASKED, simulated_task(10), loudness(middle, ASKED))
    assert (choice.clip == pytest.approx(TASK.lipschitz / 8)) == (records == 500)
    text = json.dumps(json.loads(path.read_text()))
    assert choice.algorithm in text
    assert f'"clip": {choice.clip}' in text
    assert f'"rounds": {choice.most_rounds}' in text


def test_auto_is_listed() -> None:
    result = CliRunner().invoke(app, ["algorithms"])
    assert "│ auto " in result.output
