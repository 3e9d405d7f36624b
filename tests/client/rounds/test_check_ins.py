"""A silo with check-ins: it takes part once, is charged once, and nobody can tell when."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from silomix_client.config.silo_config import SiloConfig
from silomix_client.errors import BudgetExhausted, LedgerBroken
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import verify
from silomix_client.rounds.answer import StudyDesk
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.discrete_gaussian import RandomBytes
from silomix_core.mechanism.attendance import Attendance
from silomix_core.mechanism.report_format import decode_report, is_abstention
from silomix_lab.consortium.create import Consortium
from support.consortia import csv_path
from support.silos import (
    abandonments,
    allowing,
    altered,
    approved_silo,
    asked,
    copied,
    exact_mean_at_zero,
    no_noise,
    open_desk,
    open_ledger,
    plaintext,
)

ROUNDS = 8
CHECK_INS = (('name = "noisy-mb-sgd"', 'name = "check-ins-averaged"'), ("rounds = 5", "rounds = 8"))


@pytest.fixture
def made(consortium: Consortium) -> Consortium:
    return altered(consortium, *CHECK_INS)


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
    return open_desk(config, made.study, ledger)


def test_a_silo_takes_part_once_and_is_charged_for_that(
    made: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    desk, mechanism = open_desk(config, made.study, ledger, no_noise), made.study.mechanism()
    charged, there = [], []
    for number in range(1, ROUNDS + 1):
        content = plaintext(made, desk.answer(asked(made, number)))
        charged.append(ledger.spending(made.study.identity).rounds)
        if not is_abstention(content, mechanism):
            there.append(number)
            mean = exact_mean_at_zero(csv_path(config.data), made.study)
            # Later rounds ask a hair beside zero, where a residual is at most one unit (2⁻²⁰) away.
            apart = np.abs(decode_report(content, mechanism) - mean).max()
            assert apart <= 2**-20 / mechanism.grids[0] + 1
    assert len(there) == 1
    assert charged == [int(number >= there[0]) for number in range(1, ROUNDS + 1)]
    spent = ledger.spending(made.study.identity)
    participant = ledger.approval(made.study.identity).participant
    assert spent.phases == (((mechanism.event(participant), 1),),)
    assert spent.epsilon(1e-5) == pytest.approx(2.0, rel=1e-6)
    verify(ledger)
    again = [ledger.approval(made.study.identity).attendance.takes_part(each) for each in (1, 8)]
    assert again == [1 in there, 8 in there]


def test_on_the_way_and_on_disk_an_abstention_is_a_report_like_any_other(
    made: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    """The same lengths, statements, rows and random bytes in all rounds but the first.

    (The first answer of a study also starts its rows.)
    """
    drawn: list[int] = []

    def counting(_label: bytes) -> RandomBytes:
        stream, place = no_noise(), len(drawn)
        drawn.append(0)

        def count(number: int) -> bytes:
            drawn[place] += number
            return stream(number)

        return count

    desk = open_desk(config, made.study, ledger, counting)
    drawn.clear()
    seen = set()
    for number in range(1, ROUNDS + 1):
        statements: list[str] = []
        ledger.database.set_trace_callback(
            lambda text, kept=statements: kept.append(text.split()[0])  # type: ignore[misc]
        )
        rows = ledger.database.total_changes
        report = desk.answer(asked(made, number))
        ledger.database.set_trace_callback(None)
        if number > 1:
            written = ledger.database.total_changes - rows
            sizes = (len(report.onion), len(report.payload), len(report.trail))
            seen.add((sizes, written, tuple(statements)))
    assert len(seen) == 1
    assert len(set(zip(drawn[::2], drawn[1::2], strict=True))) == 1  # batch, noise
    assert len(drawn) == 2 * ROUNDS


def test_an_abstention_is_sent_again_byte_for_byte_and_sealed_again_as_it_was(
    made: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    for number in range(1, ROUNDS + 1):
        desk = open_desk(config, made.study, ledger)  # the process started again
        first = desk.answer(asked(made, number))
        assert desk.answer(asked(made, number)) == first
        abandoned = abandonments(made, first.descriptor.digest)
        later = desk.answer(asked(made, number, attempt=2, abandoned=abandoned))
        assert later.onion != first.onion
        assert later.payload == first.payload
    assert ledger.spending(made.study.identity).rounds == 1
    verify(ledger)


def test_silos_and_approvals_choose_for_themselves(template: Consortium, tmp_path: Path) -> None:
    """40 approvals of one study on the same data: not all choose alike (probability 8⁻³⁹)."""
    found = []
    made = altered(copied(template, tmp_path / "c"), *CHECK_INS)
    for secret in range(40):
        approval = Approval(made.study, "silo-1", b"", bytes([secret]) * 32)
        rounds = [n for n in range(1, ROUNDS + 1) if approval.attendance.takes_part(n)]
        assert len(rounds) == 1
        found += rounds
    assert len(set(found)) > 1


def test_a_refusal_does_not_tell_when_the_silo_would_have_come(
    made: Consortium, config: SiloConfig
) -> None:
    """A budget that no longer holds one report is refused in every round alike."""
    ledger = open_ledger(config)
    desk = open_desk(config, made.study, ledger)
    ledger.follow(allowing(PrivacyTarget(1.0, 1e-5)))
    for number in range(1, ROUNDS + 1):
        with pytest.raises(BudgetExhausted):
            desk.answer(asked(made, number))
    ledger.close()


@pytest.mark.parametrize("mutant", ["never charged", "twice", "another round"])
def test_a_silo_that_takes_part_otherwise_is_found_out(
    made: Consortium,
    config: SiloConfig,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    mutant: str,
) -> None:
    own = next(
        n
        for n in range(1, ROUNDS + 1)
        if ledger.approval(made.study.identity).attendance.takes_part(n)
    )
    rounds = {"never charged": set(), "twice": {own, own % 8 + 1}, "another round": {own % 8 + 1}}
    with monkeypatch.context() as patched:
        patched.setattr(Attendance, "takes_part", lambda _, number: number in rounds[mutant])
        desk = open_desk(config, made.study, ledger)
        if mutant == "twice":
            desk.answer(asked(made, min(rounds[mutant])))
            with pytest.raises(BudgetExhausted, match="one more than its phase has"):
                desk.answer(asked(made, max(rounds[mutant])))
            return
        for number in range(1, ROUNDS + 1):
            desk.answer(asked(made, number))
    with pytest.raises(LedgerBroken, match="another round than its check-in says"):
        verify(ledger)


def test_a_study_shows_that_silos_come_when_they_please(made: Consortium) -> None:
    from silomix.text.study_and_ledger import describe_study

    shown = " ".join(describe_study(made.study).split())
    assert "takes part in at most one round, which only it knows" in shown
    assert "who learns how many abstain in each round, and not which of them" in shown
