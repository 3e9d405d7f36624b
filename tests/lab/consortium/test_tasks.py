"""Every kind of task on its way through a consortium: written, shown, approved, answered."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from silomix.text.study_and_ledger import describe_study
from silomix_core.task.losses import LossName
from silomix_core.task.task import Task
from support.consortia import SMALL_TASK, csv_path, make_consortium
from support.privacy_checks import SUM_UNIT
from support.records import read_records
from support.silos import approved_silo, asked, no_noise, open_desk, open_ledger, opened

NUMBERS = {"label_bounds": (0.0, 4.0)}
TASKS: dict[str, Task] = {
    "logistic": SMALL_TASK,
    "squared, clamped to 0 to 4": replace(SMALL_TASK, loss=LossName.SQUARED, **NUMBERS),
    "huber, threshold 0.5, clamped to 0 to 4": replace(
        SMALL_TASK, loss=LossName.HUBER, threshold=0.5, **NUMBERS
    ),
    "quantile, level 0.9, clamped to 0 to 4": replace(
        SMALL_TASK, loss=LossName.QUANTILE, level=0.9, **NUMBERS
    ),
    "multinomial, 3 classes": replace(SMALL_TASK, loss=LossName.MULTINOMIAL, classes=3),
    "logistic, a network of 5 hidden units": replace(SMALL_TASK, hidden=5),
}


@pytest.mark.parametrize("shown", sorted(TASKS))
def test_a_task_is_written_shown_and_answered(tmp_path: Path, shown: str) -> None:
    """The silo's report, without noise, is the sum of the model's clipped gradients, over the
    average number of records of a silo."""
    task = TASKS[shown]
    made = make_consortium(tmp_path / "consortium", mixes=1, task=task)
    assert made.study.task == task
    assert f"outcome ({shown}) from age, dose" in describe_study(made.study)
    config = approved_silo(made)
    point = np.random.default_rng(2).normal(0, 1, task.dimension)
    ledger = open_ledger(config)
    report = opened(
        made, open_desk(config, made.study, ledger, no_noise).answer(asked(made, 1, point))
    )
    ledger.close()
    records = read_records(csv_path(config.data), task)
    exact = made.study.model.gradients(records, made.study.clip).at(point) / SUM_UNIT
    grid = made.study.mechanism().grids[0]
    assert report * grid == pytest.approx(exact / 50, abs=grid)
    assert np.abs(exact).max() > 0.1
