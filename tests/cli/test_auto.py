"""auto: one choice from public numbers, made before calibration and written out everywhere."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from silomix.demo.goal import Goal
from silomix.demo.run import DemoOptions, prepare
from silomix.main import app
from silomix.simulate import SimulateOptions, Trial, run_trial
from silomix_core.algorithms.auto import NAME, Choice, chosen
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.losses import LossName
from silomix_core.study import InvalidStudy
from silomix_core.task import Feature, Scaling, Task
from support.studies import parse, with_value
from typer.testing import CliRunner

ASKED = Choice(NAME, 40, 0.25, 50.0)
TASK = Task(LossName.LOGISTIC, "y", (Feature("x", -1.0, 1.0, 0.0),), Scaling.UNIT_BALL, bias=0.3)


def test_what_somebody_chose_stays_as_it_is() -> None:
    own = replace(ASKED, algorithm="multi-stage", rounds=7)
    assert chosen(own, TASK) == own


def test_auto_does_not_depend_on_what_it_replaces() -> None:
    first, second = chosen(ASKED, TASK), chosen(Choice(NAME, 3, 9.0, 1.0), TASK)
    assert first == second
    assert first.algorithm in ALGORITHMS
    assert first.clip == pytest.approx(TASK.lipschitz / 8)


def test_a_study_file_has_numbers_and_never_auto(tmp_path: Path) -> None:
    with pytest.raises(InvalidStudy, match=r"algorithm\.name"):
        parse(with_value(("algorithm", "name"), NAME))
    made, data = prepare(
        DemoOptions(out=tmp_path / "demo", silos=2, mixes=1, algorithm=NAME, data="breast-cancer")
    )
    study, choice = made.study, chosen(ASKED, data.task)
    assert (study.algorithm, study.rounds) == (choice.algorithm, choice.rounds)
    assert (study.clip, study.radius) == (choice.clip, choice.radius)
    assert study.mechanism().clip == choice.clip  # calibrated for it


def test_a_simulation_of_auto_is_that_of_its_numbers() -> None:
    options = SimulateOptions(
        data="breast-cancer",
        label=None,
        silos=3,
        participants=None,
        algorithms=(NAME,),
        epsilons=(4.0,),
        delta=1e-5,
        rounds=5,
        clip=1.0,
        radius=1.0,
        ridge=0.0,
        goal=Goal(),
        seeds=1,
        processes=1,
        json=None,
        png=None,
    )
    choice = chosen(ASKED, TASK)
    spelled = replace(
        options,
        algorithms=(choice.algorithm,),
        rounds=choice.rounds,
        clip=choice.clip,
        radius=choice.radius,
    )
    options.check(TASK)
    one = run_trial(options, Trial(NAME, 4.0, 1))
    other = run_trial(spelled, Trial(choice.algorithm, 4.0, 1))
    assert (one.rounds, one.error) == (other.rounds, other.error)


def test_a_plan_says_what_auto_stands_for(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    arguments = ["plan", "--records", "500", "--silos", "5", "--dimension", "10", "--epsilon", "2"]
    result = CliRunner().invoke(
        app, [*arguments, "--algorithm", NAME, "--no-simulation", "--json", str(path)]
    )
    assert result.exit_code == 0, (result.output, result.exception)
    choice = chosen(ASKED, TASK)
    text = json.dumps(json.loads(path.read_text()))
    assert choice.algorithm in text
    assert f'"clip": {choice.clip}' in text
    assert f'"rounds": {choice.rounds}' in text


def test_auto_is_listed() -> None:
    result = CliRunner().invoke(app, ["algorithms"])
    assert "│ auto " in result.output
