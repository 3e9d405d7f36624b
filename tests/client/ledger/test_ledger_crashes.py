"""Crashes and races of real processes: no charge is lost, doubled or overspent."""

import fcntl
import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import verify
from silomix_core.accounting.events import PrivacyTarget
from silomix_lab.consortium.create import Consortium
from support.children import child
from support.consortia import make_consortium
from support.silos import (
    NOW,
    allowing,
    approved_silo,
    asked,
    copied,
    open_desk,
    open_ledger,
    study_file,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def crashed(
    template: Consortium, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Consortium, SiloConfig, int]]:
    """One silo for each moment at which its process was killed; the children run side by side."""
    moments = (
        "before the charge",
        "before the row is written",
        "before the commit",
        "after the charge",
    )
    silos = {}
    for moment in moments:
        made = copied(template, tmp_path_factory.mktemp("crash") / "consortium")
        config = approved_silo(made)
        silos[moment] = (
            made,
            config,
            child("deaths", "answer_and_die", str(made.silos[0]), moment),
        )
    codes = {}
    for moment, (made, config, process) in silos.items():
        _, errors = process.communicate(timeout=60)
        assert process.returncode == -9, errors
        codes[moment] = (made, config, process.returncode)
    return codes


@pytest.mark.parametrize(
    "moment", ["before the charge", "before the row is written", "before the commit"]
)
def test_killed_before_the_charge_nothing_was_sent_and_nothing_is_charged(
    crashed: dict[str, tuple[Consortium, SiloConfig, int]], moment: str
) -> None:
    made, config, _ = crashed[moment]
    assert not (config.folder / "sent").exists()
    ledger = open_ledger(config)
    assert ledger.total().rounds == 0
    open_desk(config, made.study, ledger).answer(asked(made, 1))
    assert ledger.total().rounds == 1
    ledger.close()


def test_killed_after_the_charge_the_round_is_answered_with_the_same_bytes_and_charged_once(
    crashed: dict[str, tuple[Consortium, SiloConfig, int]],
) -> None:
    made, config, _ = crashed["after the charge"]
    sent = (config.folder / "sent").read_bytes()
    ledger = open_ledger(config)
    assert ledger.total().rounds == 1
    report = open_desk(config, made.study, ledger).answer(asked(made, 1))
    assert report.onion == sent
    assert ledger.total().rounds == 1
    ledger.close()


@pytest.mark.parametrize("attempt", [1, 2], ids=["answered", "sealed-again"])
@pytest.mark.parametrize("largest_row", [2**30, 10], ids=["row", "file"])
def test_killed_before_any_line_no_charge_is_lost_or_doubled_and_no_noise_is_fresh(
    template: Consortium, tmp_path: Path, largest_row: int, attempt: int
) -> None:
    """Reports stored in the database, and in files: `kill_at_every_line` says what must hold."""
    made = copied(template, tmp_path / "consortium")
    approved_silo(made)
    process = child("deaths", "kill_at_every_line", str(made.folder), attempt, largest_row)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    found = json.loads(output.splitlines()[-1])
    assert found["lines"] > 60
    assert 0 < found["stored"] < found["lines"]


@pytest.mark.parametrize("studies", [1, 2])
def test_processes_that_share_a_ledger_never_overspend_nor_answer_a_round_twice(
    tmp_path: Path, studies: int
) -> None:
    made = make_consortium(tmp_path / "consortium", rounds=40)
    config = approved_silo(made)
    if studies == 2:
        content = study_file(made).replace(b'name = "test"', b'name = "second"')
        budgets = allowing(PrivacyTarget(6.0, 1e-5)).budgets
        roomy = replace(config, policy=replace(config.policy, budgets=budgets))
        approve(roomy, review(roomy, content), NOW)
    children = [child("deaths", "answer_all_rounds", str(made.silos[0]), 1.0) for _ in range(3)]
    sent: dict[str, set[str]] = {}
    for process in children:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        for round_number, onion in json.loads(output).items():
            sent.setdefault(round_number, set()).add(onion)
    ledger = open_ledger(config)
    spent = ledger.total()
    assert verify(ledger).entries == studies + spent.rounds
    ledger.close()
    assert all(len(onions) == 1 for onions in sent.values())
    assert len({key.split()[0] for key in sent}) == studies
    assert len(sent) == spent.rounds
    assert 0 < spent.rounds < 40
    assert spent.epsilon(1e-5) <= 1.0


def test_opening_a_ledger_waits_for_whoever_is_making_it(
    consortium: Consortium, tmp_path: Path
) -> None:
    """SQLite does not wait when it changes a new file's mode: 6 of 400 pairs were told "locked"."""
    policy, opened = load(consortium.silos[0]).policy, []
    with (tmp_path / "ledger.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = Thread(target=lambda: opened.append(Ledger(tmp_path, policy).close()))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join(30)
    assert opened == [None]
