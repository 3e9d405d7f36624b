"""Local steps and control variates at the silo: what is charged, what is kept, what is refused.

With one local step and the noise off, a report is exactly g(x) − S: the gradient on the grid, less
what the silo keeps.  So reports show, to the integer, what a silo took for its last used answer.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.errors import BudgetExhausted, RefusedQuery, Unsettled
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.outcome_rules import ReportOutcome
from silomix_client.ledger.study_account import StudyAccount
from silomix_client.ledger.verify_ledger import verify
from silomix_client.rounds.answer import StudyDesk
from silomix_client.rounds.inclusion import Inclusion
from silomix_core.mechanism.mechanism import Phase
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Consortium
from silomix_protocol.keys import SigningKey
from support.children import child
from support.consortia import make_consortium
from support.controls import ONE_STEP, POINTS, answer_at, plain_gradients, settle
from support.silos import (
    NOW,
    altered,
    approved_silo,
    asked,
    closed_round,
    committed_list,
    copied,
    hostile,
    no_noise,
    open_desk,
    open_ledger,
    opened,
    query_at,
    respond,
    round_of,
    study_file,
    written,
)

FIVE_STEPS = ('name = "noisy-mb-sgd"', 'name = "dp-scaffold"')
POISSON = ("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5')
DIMENSION = 3


@pytest.fixture
def made(template: Consortium, tmp_path: Path) -> Consortium:
    return altered(copied(template, tmp_path / "consortium"), ONE_STEP)


@pytest.fixture
def config(made: Consortium) -> SiloConfig:
    return approved_silo(made)


@pytest.fixture
def ledger(config: SiloConfig) -> Iterator[Ledger]:
    ledger = open_ledger(config)
    yield ledger
    ledger.close()


@pytest.fixture
def desk(made: Consortium, config: SiloConfig, ledger: Ledger) -> StudyDesk:
    return open_desk(config, made.study, ledger, no_noise)


@pytest.fixture
def gradients(template: Consortium, tmp_path: Path) -> list[np.ndarray]:
    return plain_gradients(copied(template, tmp_path / "plain"))


# What is charged ---------------------------------------------------------------------------------


def check_charges(made: Consortium) -> None:
    """A study of five rounds of five steps costs 25 events, which are all that was promised."""
    config = load(made.silos[0])
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    silo, delta = made.study.participant(made.study.silos[0]), made.study.target.delta
    spent = [0.0]
    for number in range(1, 6):
        desk.answer(asked(made, number))
        settle(made, ledger, number)
        spent.append(ledger.spending(made.study.identity).epsilon(delta))
    assert all(later > earlier for earlier, later in pairwise(spent))
    assert spent[-1] == pytest.approx(made.study.mechanism().epsilon(silo), rel=1e-9)
    assert spent[-1] == pytest.approx(made.study.target.epsilon, rel=2e-3)
    assert ledger.total().rounds == 5
    assert ledger.total().loss.released.samples == 25 * DIMENSION
    assert verify(ledger).entries == 6
    with pytest.raises(RefusedQuery):
        ledger.account(made.study).check(ledger.approval(made.study.identity), 6)
    ledger.close()


@pytest.mark.parametrize("name", ["dp-fedavg", "dp-scaffold", "local-sgd"])
def test_every_local_step_is_charged(template: Consortium, tmp_path: Path, name: str) -> None:
    made = altered(copied(template, tmp_path / "c"), (FIVE_STEPS[0], f'name = "{name}"'))
    approved_silo(made)
    check_charges(made)


def test_every_local_step_with_a_batch_of_its_own_is_charged(
    template: Consortium, tmp_path: Path
) -> None:
    made = altered(copied(template, tmp_path / "c"), FIVE_STEPS, POISSON)
    policy = made.silos[0].parent / "policy.toml"
    policy.write_text('epsilon = 8.0\ndelta = 1e-5\nminimum_batch = 1\naccountant = "renyi"\n')
    approved_silo(made)
    check_charges(made)


def test_a_ledger_that_charges_rounds_instead_of_steps_is_caught(
    template: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = altered(copied(template, tmp_path / "c"), FIVE_STEPS)
    approved_silo(made)
    decide = StudyAccount._decide
    rounds_only = lambda *given: replace(decide(*given), times=1, takes_part=True)  # noqa: E731
    monkeypatch.setattr(StudyAccount, "_decide", rounds_only)
    with pytest.raises(AssertionError):
        check_charges(made)


def test_the_round_that_evaluates_has_no_control_variates(tmp_path: Path) -> None:
    features = tuple(Feature(f"x{place}", -1.0, 1.0, 0.0) for place in range(4))
    task = Task(LossName.LOGISTIC, "outcome", features, Scaling.UNIT_BALL, bias=0.3)
    made = altered(
        make_consortium(tmp_path / "c", rounds=2, task=task),
        FIVE_STEPS,
        ("[batch]", "[evaluation]\nshare = 0.3\n\n[batch]"),
    )
    config = approved_silo(made)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    for number in (1, 2):
        desk.answer(asked(made, number))
        settle(made, ledger, number)
    control = query_at(np.zeros(5), np.zeros(5))
    with pytest.raises(RefusedQuery, match="says more than a point"):
        desk.answer(replace(asked(made, 3), **hostile_query(made, 3, control)))
    desk.answer(asked(made, 3))
    silo, delta = made.study.participant(made.study.silos[0]), made.study.target.delta
    spent = ledger.spending(made.study.identity)
    assert spent.rounds == 3
    assert [count for ((_, count),) in spent.phases] == [10, 1]
    assert spent.epsilon(delta) == pytest.approx(made.study.mechanism().epsilon(silo), rel=1e-9)
    verify(ledger)
    ledger.close()


def hostile_query(made: Consortium, number: int, query: bytes) -> dict[str, Any]:
    """Another query under a descriptor that covers it."""
    return {"query": query, "descriptor": round_of(made, number, query=query).descriptor}


def test_a_policy_without_room_for_every_step_refuses_the_study(
    template: Consortium, tmp_path: Path
) -> None:
    made = altered(copied(template, tmp_path / "c"), FIVE_STEPS)
    policy = made.silos[0].parent / "policy.toml"
    policy.write_text("epsilon = 1.9\ndelta = 1e-5\nminimum_batch = 1\n")
    with pytest.raises(BudgetExhausted):
        approved_silo(made)


# What is kept ------------------------------------------------------------------------------------


def check_commit_rule(
    made: Consortium, ledger: Ledger, desk: StudyDesk, gradients: list[np.ndarray]
) -> None:
    """Round by round: used, not in the list, void although in the list, used."""
    first = opened(made, answer_at(made, desk, 1))
    assert np.array_equal(first, gradients[0])
    settle(made, ledger, 1)
    second = opened(made, answer_at(made, desk, 2))
    assert np.array_equal(second, gradients[1] - gradients[0])
    settle(made, ledger, 2, included=False)
    third = opened(made, answer_at(made, desk, 3))
    assert np.array_equal(third, gradients[2] - gradients[0])
    settle(made, ledger, 3, void=True)
    fourth = opened(made, answer_at(made, desk, 4))
    assert np.array_equal(fourth, gradients[3] - gradients[0])
    settle(made, ledger, 4)
    fifth = opened(made, answer_at(made, desk, 5))
    assert np.array_equal(fifth, gradients[4] - gradients[3])


def test_a_report_is_the_difference_from_the_last_used_answer_to_the_integer(
    made: Consortium, ledger: Ledger, desk: StudyDesk, gradients: list[np.ndarray]
) -> None:
    check_commit_rule(made, ledger, desk, gradients)


@pytest.mark.parametrize("always", [True, False])
def test_a_silo_that_keeps_whatever_it_sent_or_nothing_is_caught(
    made: Consortium,
    ledger: Ledger,
    desk: StudyDesk,
    gradients: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    always: bool,
) -> None:
    monkeypatch.setattr(ReportOutcome, "used", always)
    with pytest.raises(AssertionError):
        check_commit_rule(made, ledger, desk, gradients)


@pytest.mark.parametrize("known", ["nothing", "the list", "the end without the list"])
def test_nothing_is_answered_or_charged_before_it_is_known_whether_the_last_answer_was_used(
    made: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk, known: str
) -> None:
    report = answer_at(made, desk, 1)
    key = SigningKey.load(config.folder / "sign.key")
    inclusion = Inclusion(made.study, config.name, ledger, key, config.state)
    digest = report.descriptor.digest
    if known == "the list":
        inclusion.committed(committed_list(made, digest, [bytes(32), report.trail[-1]]))
    elif known != "nothing":
        inclusion.closed(closed_round(made, report.descriptor))
    before = written(config)
    with pytest.raises(Unsettled, match="round 1"):
        answer_at(made, desk, 2)
    assert written(config) == before
    assert inclusion.unsettled == digest
    assert answer_at(made, desk, 1) == report, "the same round again is no other answer"
    settle(made, ledger, 1)
    assert inclusion.unsettled is None
    answer_at(made, desk, 2)


def test_a_silo_that_does_not_wait_is_caught(
    made: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ReportOutcome, "settled", True)
    with pytest.raises(pytest.fail.Exception):
        test_nothing_is_answered_or_charged_before_it_is_known_whether_the_last_answer_was_used(
            made, config, ledger, desk, "nothing"
        )


def test_a_round_that_is_asked_again_gets_the_same_bytes_and_changes_nothing(
    made: Consortium, config: SiloConfig, ledger: Ledger, desk: StudyDesk
) -> None:
    answer_at(made, desk, 1)
    settle(made, ledger, 1)
    report = answer_at(made, desk, 2)
    before = written(config)
    assert answer_at(made, desk, 2) == report
    assert written(config) == before


def test_what_is_kept_goes_with_the_last_round_or_when_the_study_is_closed(
    made: Consortium, ledger: Ledger, desk: StudyDesk
) -> None:
    def rows() -> int:
        (count,) = ledger.database.execute("SELECT COUNT(*) FROM controls").fetchone()
        return int(count)

    answer_at(made, desk, 4)
    settle(made, ledger, 4)
    assert rows() == 1
    last = answer_at(made, desk, 5)
    assert rows() == 0
    assert answer_at(made, desk, 5) == last
    ledger.close_study(made.study.identity, NOW)
    assert rows() == 0


def test_closing_a_study_forgets_its_control_variate(
    made: Consortium, ledger: Ledger, desk: StudyDesk
) -> None:
    answer_at(made, desk, 1)
    ledger.close_study(made.study.identity, NOW)
    assert ledger.database.execute("SELECT COUNT(*) FROM controls").fetchone() == (0,)
    assert verify(ledger).entries == 3


@pytest.mark.slow
def test_killed_before_any_line_of_the_next_answer_the_control_variate_stays_consistent(
    made: Consortium, config: SiloConfig, gradients: list[np.ndarray]
) -> None:
    """`support.controls.kill_at_every_line` says what must hold after each death."""
    expected = [each.tolist() for each in gradients]
    process = child("controls", "kill_at_every_line", str(made.folder), expected)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    found = json.loads(output.splitlines()[-1])
    assert found["lines"] > 60
    assert 0 < found["stored"] < found["lines"]


# What is refused ---------------------------------------------------------------------------------


def test_the_largest_mean_of_control_variates_is_accepted_and_one_beyond_is_not(
    made: Consortium, config: SiloConfig, desk: StudyDesk
) -> None:
    bound = made.study.mechanism().largest_gradient()
    for factor, accepted in ((1 + 1e-6, False), (1.0, True)):
        query = query_at(POINTS[0], [0.0, -factor * bound, bound])
        signed = round_of(made, 1, query=query).descriptor.to_wire()
        before = written(config)
        if accepted:
            respond(made, desk, signed, query)
        else:
            with pytest.raises(RefusedQuery, match="noise and clip"):
                respond(made, desk, signed, query)
            assert written(config) == before


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (query_at(POINTS[0]), "another dimension"),
        (query_at(POINTS[0], [0.0, 0.0]), "another dimension"),
        (query_at(POINTS[0], [0.0] * 4), "another dimension"),
        (query_at(POINTS[0], [0.0, np.nan, 0.0]), "noise and clip"),
        (query_at(POINTS[0], [np.inf, 0.0, 0.0]), "noise and clip"),
        (query_at(POINTS[0], [0.0, 0.0, -1e300]), "noise and clip"),
        (query_at([60.0, 0.0, 0.0], [0.0] * 3), "outside the study's ball"),
        (query_at(POINTS[0], [0.0] * 3) + b"\x20\x01", "more than a point"),
    ],
)
def test_a_hostile_query_is_refused_and_costs_nothing(
    made: Consortium, config: SiloConfig, desk: StudyDesk, query: bytes, says: str
) -> None:
    before = written(config)
    with pytest.raises(RefusedQuery, match=says):
        respond(made, desk, hostile(made, query, round=3), query)
    assert written(config) == before


@pytest.mark.parametrize("name", ["noisy-mb-sgd", "dp-fedavg"])
@pytest.mark.parametrize(
    "query", [query_at(POINTS[0], [0.0] * 3), query_at(POINTS[0]) + b"\x18\x01"]
)
def test_a_study_without_control_variates_refuses_those_of_the_server(
    template: Consortium, tmp_path: Path, name: str, query: bytes
) -> None:
    made = altered(copied(template, tmp_path / "c"), (FIVE_STEPS[0], f'name = "{name}"'))
    config = approved_silo(made)
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    before = written(config)
    with pytest.raises(RefusedQuery, match="more than a point"):
        respond(made, desk, hostile(made, query, round=3), query)
    assert written(config) == before
    ledger.close()


def test_what_an_operator_approved_says_how_many_steps(made: Consortium) -> None:
    assert b"local_steps = 1" in study_file(made)
    assert made.study.phases == (Phase(5, steps=1, control=True),)
