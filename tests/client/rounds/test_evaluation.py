"""The round that evaluates, at a silo: known from the study alone, charged, on other records."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from silomix.text.study_and_ledger import describe_study
from silomix_client.data.snapshot import thaw
from silomix_client.ledger.entries import worst
from silomix_client.ledger.verify_ledger import verify
from silomix_core.accounting.budget import Budget
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.mechanism.mechanism import Mechanism, Participant, Phase, PhaseKind
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from support.consortia import make_consortium
from support.silos import altered, approved_silo, asked, no_noise, open_desk, open_ledger, opened

FEATURES = tuple(Feature(name, -1.0, 1.0, 0.0) for name in ("x", "y", "z"))
TASK = Task(LossName.LOGISTIC, "outcome", FEATURES, Scaling.UNIT_BALL, 0.3)


@pytest.mark.parametrize(("dimension", "rounds"), [(13, 40), (1000, 200)])
def test_a_policy_of_exactly_the_studys_target_has_room_for_phases_of_different_length(
    dimension: int, rounds: int
) -> None:
    """The ledger counts the largest loss of any phase and the most integers of any."""
    target = PrivacyTarget(2.0, 1e-6)
    silo, phases = Participant(1000, target), [Phase(rounds, 0.8), Phase(1, 0.2)]
    for last in (phases[1], replace(phases[1], kind=PhaseKind.EVALUATION)):
        made = Mechanism.calibrate([silo], clip=0.25, dimension=dimension, phases=[phases[0], last])
        planned = worst(Budget(target), made.transcripts(silo))
        assert Budget(target).holds(planned)
        assert Budget(target).epsilon(planned) == pytest.approx(2.0, rel=1e-6)


def test_the_last_round_reports_counts_and_costs_what_its_phase_costs(tmp_path: Path) -> None:
    """Noise off: the report is the confusion matrix of 20 of the 100 records, in grid units."""
    made = make_consortium(tmp_path / "c", records=(100, 100), task=TASK, rounds=3)
    text = "\n[evaluation]\nshare = 0.2\n\n[server]"
    made = altered(made, ("\n[server]", text))
    study, mechanism = made.study, made.study.mechanism()
    config = approved_silo(made)
    ledger = open_ledger(config)
    desk = open_desk(config, study, ledger, no_noise)
    point = np.array([2.0, -1.0, 0.5, 0.1])
    points = [point * (1 + 0.1 * number) for number in (1, 2, 3)]
    reports = [
        opened(made, desk.answer(asked(made, number, each)))
        for number, each in enumerate([*points, point], start=1)
    ]
    cells = reports[-1] * mechanism.grids[-1] * 20
    assert cells == pytest.approx(np.rint(cells), abs=1e-3)
    assert np.rint(cells).sum() == 20
    assert cells.min() > -1e-3
    approval = ledger.approval(study.identity)
    records = thaw(study.identity, approval.snapshot, config.state / "snapshots")
    predicted, positive = records.features @ point > 0, records.labels > 0
    everywhere = [np.sum((positive == y) & (predicted == p)) for y in (0, 1) for p in (0, 1)]
    assert np.all(np.rint(cells) <= everywhere)
    spent = ledger.spending(study.identity)
    events = [mechanism.event(approval.participant, phase) for phase in (0, 1)]
    assert spent.phases == (((events[0], 3),), ((events[1], 1),))
    assert spent.epsilon(1e-5) == pytest.approx(2.0, rel=1e-6)
    verify(ledger)
    ledger.close()
    shown = " ".join(describe_study(study).split())
    assert "20 % of each silo's records, drawn in secret, are kept from training" in shown
