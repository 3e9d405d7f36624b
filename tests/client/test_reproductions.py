"""Named reproductions: each was a defect when it was written."""

import sqlite3
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import tomli_w
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import load
from silomix_client.data.snapshot import thaw
from silomix_client.errors import BadRecords, BudgetExhausted, InvalidSiloConfig, NotApproved
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.reports import StoredReport
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.study.reader import parse_study
from silomix_core.study.study import Study
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Consortium
from support.consortia import SMALL_TASK, csv_path, write_data
from support.records import read_records
from support.silos import (
    NOW,
    allowing,
    approval_of,
    approved_silo,
    asked,
    hostile,
    open_desk,
    open_ledger,
    query_at,
    respond,
    study_file,
    written,
)

LARGE = 100_000


def second_study(made: Consortium) -> tuple[Study, bytes]:
    content = study_file(made).replace(b'name = "test"', b'name = "second"')
    return parse_study(content), content


# Approval ----------------------------------------------------------------------------------------


def test_approving_again_with_changed_data_leaves_the_frozen_snapshot_alone(
    consortium: Consortium,
) -> None:
    """It was overwritten before the refusal, and the study could never be answered again."""
    config = approved_silo(consortium)
    before = written(config)
    write_data(csv_path(config.data), SMALL_TASK, 40, seed=77)
    with pytest.raises(NotApproved, match="already approved"):
        approve(config, review(config, study_file(consortium)), NOW)
    assert written(config) == before
    ledger = open_ledger(config)
    approval = ledger.approval(consortium.study.identity)
    ledger.close()
    thaw(consortium.study.identity, approval.snapshot, config.state / "snapshots")


@pytest.mark.parametrize("cause", ["policy", "calibration"])
def test_a_refused_approval_writes_no_snapshot(consortium: Consortium, cause: str) -> None:
    config = load(consortium.silos[0])
    content = study_file(consortium)
    if cause == "policy":
        policy = {"epsilon": 1.0, "delta": 1e-5, "minimum_batch": 1}
        (config.folder / "policy.toml").write_text(tomli_w.dumps(policy))
        config = load(consortium.silos[0])
    else:
        content = content.replace(b"delta = 1e-05", b"delta = 1e-300")
    with pytest.raises((BudgetExhausted, NotApproved)):
        approve(config, review(config, content), NOW)
    assert written(config) == ([], {})


@pytest.mark.parametrize("field", ["sign_key"])
def test_a_study_whose_keys_cannot_be_used_is_refused_at_approval(
    consortium: Consortium, field: str
) -> None:
    """It was approved, and then ended the silo's process when the first lease came."""
    lines = study_file(consortium).decode().splitlines()
    start = lines.index("[server]")
    row = next(i for i in range(start, len(lines)) if lines[i].startswith(f"{field} = "))
    lines[row] = f'{field} = "AAAA"'
    content = "\n".join(lines).encode()
    with pytest.raises(NotApproved, match="key"):
        review(load(consortium.silos[0]), content)


def test_a_more_generous_policy_allows_what_a_stricter_one_allows(consortium: Consortium) -> None:
    """The cost of integer noise was taken at the policy's ε, not at the ε that is spent."""
    for epsilon in (2.0, 6.0, 20.0, 100.0):
        folder = consortium.folder / f"state-{epsilon:g}"
        folder.mkdir()
        ledger = Ledger(folder, allowing(PrivacyTarget(epsilon, 1e-5)))
        ledger.approve(approval_of(consortium.study), study_file(consortium), NOW)
        ledger.close()


# Ledger ------------------------------------------------------------------------------------------


def large_report(made: Consortium, salt: bytes) -> StoredReport:
    onion = (sha256(salt).digest() * LARGE)[:LARGE]
    return StoredReport(asked(made, 1).descriptor, b"payload", onion, (sha256(onion).digest(),))


def charge_large(ledger: Ledger, made: Consortium, salt: bytes) -> StoredReport:
    report = large_report(made, salt)
    ledger.account(made.study).charge(ledger.approval(made.study.identity), report, NOW)
    return report


def test_a_large_report_of_one_study_outlives_a_round_of_another(
    consortium: Consortium,
) -> None:
    """The file was deleted with the other study's charge: a charged round nobody could resend."""
    config = approved_silo(consortium)
    other, content = second_study(consortium)
    ledger = open_ledger(config, PrivacyTarget(6.0, 1e-5))
    ledger.approve(approval_of(other), content, NOW)
    report = charge_large(ledger, consortium, b"first")
    charge_large(ledger, replace(consortium, study=other), b"second")
    assert ledger.account(consortium.study).stored(1) == report
    ledger.close()


def test_a_refused_charge_does_not_replace_a_large_report(consortium: Consortium) -> None:
    """Two processes answer one round: the loser's bytes took the place of those already sent.

    Sending both would be two releases for one charge.
    """
    config = approved_silo(consortium)
    study = consortium.study
    winner, loser = open_ledger(config), open_ledger(config)
    sent = charge_large(winner, consortium, b"round")
    late = large_report(consortium, b"late")
    with pytest.raises(Exception, match="round 1"):
        loser.account(study).charge(loser.approval(study.identity), late, NOW)
    assert winner.account(study).stored(1) == sent
    winner.close()
    loser.close()


def test_a_refused_charge_leaves_no_file(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    study = consortium.study
    ledger = open_ledger(config, PrivacyTarget(0.1, 1e-5))
    with pytest.raises(BudgetExhausted):
        ledger.account(study).charge(
            ledger.approval(study.identity), large_report(consortium, b""), NOW
        )
    assert list((config.state / "reports").iterdir()) == []
    ledger.close()


def test_a_full_disk_is_called_a_full_disk(consortium: Consortium) -> None:
    """SQLite had rolled back by itself; our own ROLLBACK then failed and hid the reason."""
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    (pages,) = ledger.database.execute("PRAGMA page_count").fetchone()
    ledger.database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        open_desk(config, consortium.study, ledger).answer(asked(consortium, 1))
    ledger.close()


def test_skipped_rounds_do_not_keep_old_onions(consortium: Consortium) -> None:
    """Only the round before the last one was forgotten; after a gap the older bytes stayed."""
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    desk = open_desk(config, consortium.study, ledger)
    for number in (1, 3, 5):
        desk.answer(asked(consortium, number))
    (kept,) = ledger.database.execute("SELECT COUNT(*) FROM reports").fetchone()
    ledger.close()
    assert kept == 1


# Queries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e155, 1e200, 1.7e308])
def test_a_point_whose_norm_overflows_is_refused_without_a_warning(
    consortium: Consortium, size: float
) -> None:
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    desk = open_desk(config, consortium.study, ledger)
    query = query_at([size, -size, size])
    with pytest.raises(Exception, match="outside the study's ball"):
        respond(consortium, desk, hostile(consortium, query), query)
    assert ledger.total().rounds == 0
    ledger.close()


# Files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["epsilon", "delta"])
def test_a_number_beyond_all_floats_is_refused_by_name(tmp_path: Path, key: str) -> None:
    (tmp_path / "silo.toml").write_text('name = "a"\ndata = "d.csv"\npolicy = "policy.toml"\n')
    numbers = {"epsilon": "3.0", "delta": "1e-6", key: "1" + "0" * 400}
    policy = "\n".join(f"{name} = {text}" for name, text in numbers.items())
    (tmp_path / "policy.toml").write_text(policy)
    with pytest.raises(InvalidSiloConfig, match=key):
        load(tmp_path / "silo.toml")


@pytest.mark.parametrize("minimum", [0, -1])
def test_a_floor_below_one_record_is_refused_by_name(tmp_path: Path, minimum: int) -> None:
    (tmp_path / "silo.toml").write_text('name = "a"\ndata = "d.csv"\npolicy = "policy.toml"\n')
    policy = {"epsilon": 3.0, "delta": 1e-6, "minimum_people": minimum}
    (tmp_path / "policy.toml").write_text(tomli_w.dumps(policy))
    with pytest.raises(InvalidSiloConfig, match="minimum_people"):
        load(tmp_path / "silo.toml")


@pytest.mark.parametrize("cell", ["1_0", "１０"])
def test_what_only_python_calls_a_number_is_refused(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"age,dose,outcome\n{cell},0,1\n", encoding="utf-8")
    with pytest.raises(BadRecords, match="row 2, column 'age': not a number"):
        read_records(path, SMALL_TASK)


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("age,dose,age,outcome\n1,0,99,1\n")
    with pytest.raises(BadRecords, match="'age'"):
        read_records(path, SMALL_TASK)


@pytest.mark.slow
def test_twenty_thousand_columns_are_read(tmp_path: Path) -> None:
    task = Task(
        LossName.LOGISTIC,
        "outcome",
        (Feature("x", 0.0, 1.0, 0.5, count=20_000),),
        Scaling.UNIT_BALL,
        0.3,
    )
    path = tmp_path / "data.csv"
    path.write_text(",".join([*task.columns, "outcome"]) + "\n" + "0," * 20_000 + "1\n")
    assert read_records(path, task).features.shape == (1, 20_001)
