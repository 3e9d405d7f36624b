"""The ledger: every round charged once, in order, inside both budgets, and kept with its bytes."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from math import sqrt
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from silomix_client.config.silo_config import MAIN, SiloConfig
from silomix_client.errors import BudgetExhausted, LedgerBroken, NotApproved, RefusedQuery
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.reports import StoredReport
from silomix_core.accounting.budget import PrivacyLoss
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.accounting.integers import Released
from silomix_core.study.reader import parse_study
from silomix_core.study.study import StudyId
from silomix_lab.consortium.create import Consortium
from support.consortia import make_consortium
from support.silos import (
    NOW,
    allowing,
    altered,
    approval_of,
    approved_silo,
    asked,
    open_desk,
    open_ledger,
    study_file,
    written,
)


@pytest.fixture
def config(consortium: Consortium) -> SiloConfig:
    return approved_silo(consortium)


@pytest.fixture
def ledger(config: SiloConfig) -> Iterator[Ledger]:
    ledger = open_ledger(config)
    yield ledger
    ledger.close()


def report_of(made: Consortium, round_number: int, size: int = 100) -> StoredReport:
    """A report whose payload and onion have `size` bytes together."""
    body = (sha256(b"body %d" % round_number).digest() * (size // 32 + 1))[:size]
    trail = tuple(sha256(body + bytes([hop])).digest() for hop in range(3))
    cut = size // 3
    return StoredReport(asked(made, round_number).descriptor, body[:cut], body[cut:], trail)


def charge(ledger: Ledger, made: Consortium, round_number: int, size: int = 100) -> StoredReport:
    report = report_of(made, round_number, size)
    ledger.account(made.study).charge(ledger.approval(made.study.identity), report, NOW)
    return report


def test_a_round_asked_again_gets_the_same_bytes_and_costs_nothing(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    desk = open_desk(config, consortium.study, ledger)
    question = asked(consortium, 1)
    first = desk.answer(question)
    before = written(config)
    for _ in range(5):
        assert desk.answer(question) == first
    assert written(config) == before
    assert ledger.total().rounds == 1


def test_a_round_asked_again_after_a_restart_gets_the_same_bytes(
    consortium: Consortium, config: SiloConfig
) -> None:
    question = asked(consortium, 1)
    answers = []
    for _ in range(3):
        ledger = open_ledger(config)
        answers.append(open_desk(config, consortium.study, ledger).answer(question))
        assert ledger.total().rounds == 1
        ledger.close()
    assert answers[0] == answers[1] == answers[2]


def test_the_same_round_with_another_query_is_refused(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    desk = open_desk(config, consortium.study, ledger)
    desk.answer(asked(consortium, 1))
    before = written(config)
    with pytest.raises(RefusedQuery, match="asked again with another query"):
        desk.answer(asked(consortium, 1, [1.0, 0.0, 0.0]))
    assert written(config) == before


def test_a_round_before_the_last_answered_one_is_refused(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    desk = open_desk(config, consortium.study, ledger)
    desk.answer(asked(consortium, 4))
    before = written(config)
    for skipped_back in (1, 2, 3):
        with pytest.raises(RefusedQuery, match="comes after round 4 was answered"):
            desk.answer(asked(consortium, skipped_back))
    assert written(config) == before


def test_skipping_ahead_is_answered_and_skipped_rounds_are_not_charged(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    desk = open_desk(config, consortium.study, ledger)
    _, event = ledger.approval(consortium.study.identity).event(1)
    for round_number in (2, 5):
        desk.answer(asked(consortium, round_number))
    assert ledger.spending(consortium.study.identity).phases == (((event, 2),),)
    assert ledger.total().loss == PrivacyLoss(
        2 * event.mu**2, Released.of(2 * event.samples, event.noise)
    )


def test_a_charge_out_of_order_is_refused_even_without_the_desk(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    charge(ledger, consortium, 3)
    before = written(config)
    for round_number in (1, 2, 3):
        with pytest.raises(RefusedQuery):
            charge(ledger, consortium, round_number)
    assert written(config) == before


def test_a_study_that_was_not_approved_can_neither_be_looked_up_nor_charged(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    unknown = StudyId(sha256(study_file(consortium) + b"\n").digest())
    with pytest.raises(NotApproved, match=f"study {unknown.hex()[:12]} was not approved here"):
        ledger.approval(unknown)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=12))
def test_any_order_of_questions_charges_each_round_at_most_once_and_never_goes_back(
    template: Consortium, tmp_path_factory: pytest.TempPathFactory, rounds: list[int]
) -> None:
    """Against a model in two lines: a round is charged iff it is beyond all charged before."""
    state = tmp_path_factory.mktemp("state")
    study = template.study
    ledger = Ledger(state, allowing(study.target))
    ledger.approve(approval_of(study), study_file(template), NOW)
    charged: list[int] = []
    spent = 0.0
    for round_number in rounds:
        if round_number > max(charged, default=0):
            charge(ledger, template, round_number)
            charged.append(round_number)
        else:
            with pytest.raises(RefusedQuery):
                ledger.account(study).check(ledger.approval(study.identity), round_number)
        now = ledger.total()
        assert now.rounds == len(charged)
        assert now.loss.value >= spent
        spent = now.loss.value
    ledger.close()


def test_the_smallest_silo_can_answer_every_round_of_a_study(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    """The budget is met exactly: no rounding error may take the last round away."""
    desk = open_desk(config, consortium.study, ledger)
    for round_number in range(1, 6):
        desk.answer(asked(consortium, round_number))
    epsilon = ledger.total().epsilon(consortium.study.target.delta)
    assert epsilon == pytest.approx(2.0, rel=1e-6)
    assert epsilon <= 2.0


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 7, 100, 997])
def test_rounding_errors_of_many_rounds_neither_stop_a_study_early_nor_let_it_go_on(
    tmp_path: Path, rounds: int
) -> None:
    made = make_consortium(tmp_path / "consortium", records=(40,), minimum_batch=1, rounds=rounds)
    study = made.study
    ledger = Ledger(tmp_path, allowing(study.target))
    ledger.approve(approval_of(study), study_file(made), NOW)
    approval = ledger.approval(study.identity)
    ledger.database.execute("PRAGMA synchronous=OFF")
    for round_number in range(1, rounds + 1):
        charge(ledger, made, round_number)
    assert ledger.total().epsilon(study.target.delta) <= study.target.epsilon
    with pytest.raises(RefusedQuery, match=f"not one of the study's {rounds}"):
        ledger.account(study).check(approval, rounds + 1)
    ledger.close()


@pytest.mark.parametrize("kind", ["charged", "closed"])
def test_what_another_process_wrote_between_check_and_charge_counts(
    consortium: Consortium, config: SiloConfig, kind: str
) -> None:
    study = consortium.study.identity
    ledger, other = open_ledger(config), open_ledger(config)
    ledger.account(consortium.study).check(ledger.approval(study), 1)
    if kind == "charged":
        charge(other, consortium, 1)
    else:
        other.close_study(study, NOW)
    with pytest.raises(RefusedQuery):
        charge(ledger, consortium, 1)
    assert ledger.total().rounds == (1 if kind == "charged" else 0)
    ledger.close()
    other.close()


def test_what_this_process_wrote_between_two_checks_counts(
    consortium: Consortium, ledger: Ledger
) -> None:
    approval = ledger.approval(consortium.study.identity)
    ledger.account(consortium.study).check(approval, 1)
    charge(ledger, consortium, 1)
    with pytest.raises(RefusedQuery):
        ledger.account(consortium.study).check(approval, 1)


def test_a_policy_that_was_lowered_between_check_and_charge_counts(
    consortium: Consortium, ledger: Ledger
) -> None:
    ledger.account(consortium.study).check(ledger.approval(consortium.study.identity), 1)
    ledger.follow(allowing(PrivacyTarget(0.01, 1e-9)))
    with pytest.raises(BudgetExhausted):
        charge(ledger, consortium, 1)


def test_the_policy_holds_over_all_studies_together(
    consortium: Consortium, config: SiloConfig
) -> None:
    """Two approved studies, then the operator lowers the policy: their sum decides."""
    roomy = open_ledger(config, PrivacyTarget(6.0, 1e-5))
    content = study_file(consortium).replace(b'name = "test"', b'name = "second"')
    second = parse_study(content)
    roomy.approve(approval_of(second), content, NOW)
    for round_number in (1, 2, 3):
        charge(roomy, consortium, round_number)
    roomy.close()
    lowered = open_ledger(config, PrivacyTarget(2.0, 1e-5))
    other = replace(consortium, study=second)
    charge(lowered, other, 1)
    charge(lowered, other, 2)  # five rounds of μ: exactly the policy
    before = written(config)
    for made, round_number in ((other, 3), (consortium, 4)):
        with pytest.raises(BudgetExhausted, match="your policy's epsilon=2 "):
            charge(lowered, made, round_number)
    assert written(config) == before
    lowered.close()


def test_a_desk_refuses_beyond_the_policy_and_leaves_the_ledger_unchanged(
    consortium: Consortium, config: SiloConfig
) -> None:
    ledger = open_ledger(config, PrivacyTarget(0.9, 1e-5))
    desk = open_desk(config, consortium.study, ledger)
    desk.answer(asked(consortium, 1))
    before = written(config)
    for round_number in (2, 3, 4, 5):
        with pytest.raises(BudgetExhausted, match="your policy's"):
            desk.answer(asked(consortium, round_number))
    assert written(config) == before
    assert ledger.total().epsilon(1e-5) <= 0.9
    ledger.close()


def test_spending_is_what_an_independent_accountant_computes(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    """From clip, records (50 on average), dimension and noise; Balle, Wang 2018, Theorem 8."""
    study, delta = consortium.study, 1e-5
    mechanism = study.mechanism()
    sensitivity = 2 * study.clip / 50 + sqrt(3) * mechanism.grids[0] * (1 + 2**-9)

    def excess(epsilon: float, mu: float) -> float:
        far = norm.cdf(-epsilon / mu - mu / 2)
        return (
            float(norm.cdf(-epsilon / mu + mu / 2) - pow(2.718281828459045, epsilon) * far) - delta
        )

    previous = 0.0
    for round_number in range(1, 6):
        charge(ledger, consortium, round_number)
        mu = sqrt(round_number) * sensitivity / (mechanism.grids[0] * 2**20)
        expected = brentq(excess, 1e-9, 50.0, args=(mu,), xtol=1e-12)
        spent = ledger.spending(study.identity).epsilon(delta)
        assert spent == pytest.approx(expected, rel=1e-5)
        assert spent >= expected * (1 - 1e-9)
        assert spent > previous
        previous = spent


def test_nothing_spent_is_zero(ledger: Ledger) -> None:
    assert ledger.total().epsilon(1e-6) == 0.0


@pytest.mark.parametrize("size", [1, 64 * 1024, 64 * 1024 + 1, 300_000])
def test_a_stored_onion_comes_back_to_the_byte(
    consortium: Consortium, config: SiloConfig, size: int
) -> None:
    ledger = open_ledger(config)
    report = charge(ledger, consortium, 1, size)
    ledger.close()
    reopened = open_ledger(config)
    assert reopened.account(consortium.study).stored(1) == report
    reopened.close()


def test_an_onion_beyond_64_kib_lives_in_a_file_of_its_owner(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    folder = config.state / "reports"
    charge(ledger, consortium, 1, 64 * 1024)
    assert list(folder.iterdir()) == []
    report = charge(ledger, consortium, 2, 64 * 1024 + 1)
    (path,) = folder.iterdir()
    assert path.read_bytes() == report.payload + report.onion
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("size", [100, 100_000])
def test_the_report_of_a_round_that_is_over_is_gone_and_the_round_is_never_answered_anew(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, size: int
) -> None:
    charge(ledger, consortium, 1, size)
    second = charge(ledger, consortium, 2, size)
    before = written(config)
    with pytest.raises(RefusedQuery, match="that round is over"):
        ledger.account(consortium.study).stored(1)
    assert ledger.account(consortium.study).stored(2) == second
    assert written(config) == before
    assert len(before[1]) == (1 if size == 100 else 2)  # the snapshot, and a large onion


def test_a_ledger_whose_study_was_altered_refuses_it(
    consortium: Consortium, config: SiloConfig
) -> None:
    database = sqlite3.connect(config.state / "ledger.sqlite")
    content = study_file(consortium).replace(b"clip = 0.25", b"clip = 0.99")
    database.execute("UPDATE studies SET content = ?", (content,))
    database.commit()
    database.close()
    ledger = open_ledger(config)
    with pytest.raises(LedgerBroken, match="the ledger's copy of this study was changed"):
        ledger.approval(consortium.study.identity)
    with pytest.raises(LedgerBroken, match="changed"):
        ledger.approvals()
    ledger.close()


def test_only_the_owner_can_read_the_ledger(config: SiloConfig) -> None:
    ledger = open_ledger(config)  # while it is open, the write-ahead log exists too
    modes = {path.name: path.stat().st_mode & 0o077 for path in config.state.glob("ledger.*")}
    ledger.close()
    assert set(modes.values()) == {0}


def test_a_commit_waits_for_the_disk(ledger: Ledger) -> None:
    """A crash of the machine, too, must not forget a charge: SQLite's FULL synchronous mode."""
    assert ledger.database.execute("PRAGMA synchronous").fetchone() == (2,)


# Turns -------------------------------------------------------------------------------------------


@pytest.fixture
def in_turns(tmp_path: Path) -> Consortium:
    """Three silos, of which every round asks two: four of six rounds ask each."""
    return make_consortium(tmp_path / "turns", rounds=6, participants=2)


def test_a_silo_reserves_and_is_charged_for_its_turns_alone(in_turns: Consortium) -> None:
    """Four rounds of less noise cost as much as six of more: the study's ε, and not more."""
    ledger = open_ledger(approved_silo(in_turns))
    reserved = ledger.reserved(MAIN)
    assert reserved.rounds == 4
    assert reserved.epsilon() == pytest.approx(2.0, rel=1e-6)
    turns = [n for n in range(1, 7) if "silo-1" in in_turns.study.asked(n)]
    assert len(turns) == 4
    for number in turns:
        charge(ledger, in_turns, number)
    assert ledger.total().rounds == 4
    spent = ledger.spending(in_turns.study.identity).epsilon(1e-5)
    assert spent == pytest.approx(2.0, rel=1e-6)
    assert spent <= 2.0
    ledger.close()


def test_a_round_beyond_a_silos_turns_is_refused_whatever_the_schedule_would_say(
    in_turns: Consortium,
) -> None:
    """Were the schedule wrong, or checked nowhere, the ledger still has room for no fifth round."""
    ledger = open_ledger(approved_silo(in_turns))
    for number in range(1, 5):
        charge(ledger, in_turns, number)
    with pytest.raises(BudgetExhausted, match="one more than its phase has"):
        charge(ledger, in_turns, 5)
    assert ledger.total().rounds == 4
    ledger.close()


def test_who_may_be_asked_in_all_rounds_pays_for_all(tmp_path: Path) -> None:
    made = make_consortium(tmp_path / "c", rounds=6, participants=2)
    drawn = altered(made, ('draw = "turns"', 'draw = "independent"'))
    assert drawn.study.mechanism().sigma() > 1.2 * made.study.mechanism().sigma()
    ledger = open_ledger(approved_silo(drawn))
    assert ledger.reserved(MAIN).rounds == 6
    ledger.close()
