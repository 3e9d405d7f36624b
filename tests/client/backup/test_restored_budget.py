"""What a restored ledger may still answer.

The privacy claim: whatever happens between a backup and its restore, and after it, the silo never
answers more than its operator's policy allows.
"""

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from silomix.commands.backup import _named_study
from silomix_client.backup.backup import Since, restore
from silomix_client.config.silo_config import MAIN, load
from silomix_client.errors import BudgetExhausted, LedgerBroken, NotApproved
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import verify
from silomix_core.accounting.budget import NOTHING, PrivacyLoss
from silomix_core.accounting.integers import Released
from silomix_core.study.reader import parse_study
from silomix_lab.consortium.create import Consortium
from support.backups import charge, reopened, saved
from support.silos import NOW, approval_of, approved_silo, study_file


def studies_of(made: Consortium, count: int) -> list[Consortium]:
    """The same study under different names: other identities, the same cost."""
    text = study_file(made).decode()
    texts = [text.replace('name = "test"', f'name = "test {each}"', 1) for each in range(count)]
    return [replace(made, study=parse_study(each.encode())) for each in texts]


def content_of(made: Consortium) -> bytes:
    return (
        study_file(made)
        .decode()
        .replace('name = "test"', f'name = "{made.study.name}"', 1)
        .encode()
    )


class History:
    """One silo through losses and restores, and the truth that no single ledger knows."""

    def __init__(self, made: Consortium, folder: Path, seed: int) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.studies = studies_of(made, 6)
        self.config = load(made.silos[0])
        self.ledger = Ledger(self.config.state, self.config.policy)
        self.approved: list[Consortium] = []
        self.spent = NOTHING
        self.backups = [saved(self.config)]
        self.restores = 0

    def approve(self) -> None:
        study = self.random.choice(self.studies)
        try:
            self.ledger.approve(approval_of(study.study), content_of(study), NOW)
        except (BudgetExhausted, NotApproved):
            return
        self.approved.append(study)

    def answer(self) -> None:
        for study in self.approved:
            identity = study.study.identity
            if self.ledger.knows(identity) and not self.ledger.approval(identity).closed:
                number = self.ledger.account(study.study).last_round() + 1
                if number <= study.study.rounds:
                    charge(self.ledger, study, number)
                    _, event = self.ledger.approval(identity).event(number)
                    self.spent += PrivacyLoss(event.mu**2, Released.of(event.samples, event.noise))

    def back_up(self) -> None:
        self.backups.append(saved(self.config))

    def lose_and_restore(self) -> None:
        self.ledger.close()
        self.restores += 1
        since = Since()
        if self.random.random() < 0.8:
            since = Since(tuple((content_of(each), MAIN) for each in self.approved), complete=True)
        packed = self.random.choice(self.backups)
        folder = self.folder / f"restored-{self.restores}"
        self.config, self.ledger = reopened(packed, folder, since)


@pytest.mark.parametrize("seed", range(8))
def test_no_history_of_losses_and_restores_takes_the_total_beyond_the_policy(
    consortium: Consortium, tmp_path: Path, seed: int
) -> None:
    policy = consortium.silos[0].parent / "policy.toml"
    policy.write_text(
        "epsilon = 3.7\ndelta = 1e-5\nminimum_batch = 1\n"
    )  # about three studies of epsilon 2
    history = History(consortium, tmp_path, seed)
    steps = (history.approve, history.answer, history.answer, history.back_up)
    for _ in range(4):
        for _ in range(8):
            history.random.choice(steps)()
        history.lose_and_restore()
    for _ in range(12):
        history.approve()
        history.answer()
    budget = history.config.policy.budgets[MAIN]
    assert history.spent.value > 0
    assert budget.holds(history.spent), budget.epsilon(history.spent)
    assert budget.holds(history.ledger.total().loss)
    verify(history.ledger)
    history.ledger.close()


def test_a_study_that_was_open_is_closed_and_counts_in_full(
    consortium: Consortium, tmp_path: Path
) -> None:
    config, study = approved_silo(consortium), consortium.study.identity
    ledger = Ledger(config.state, config.policy)
    charge(ledger, consortium, 1)
    reserved = ledger.reserved().loss
    packed = saved(config)
    for number in (2, 3, 4, 5):
        charge(ledger, consortium, number)
    lost = ledger.total().loss
    ledger.close()
    _, again = reopened(packed, tmp_path / "new", Since(complete=True))
    with closing(again):
        assert again.approval(study).closed
        assert again.total().loss == again.reserved().loss == reserved == lost
        assert again.spending(study).rounds == consortium.study.rounds
        with pytest.raises(NotApproved, match="revoked study cannot be approved again"):
            again.approve(approval_of(consortium.study), study_file(consortium), NOW)
        verify(again)


def test_a_closed_study_counts_as_what_was_spent_on_it(
    consortium: Consortium, tmp_path: Path
) -> None:
    config, study = approved_silo(consortium), consortium.study.identity
    ledger = Ledger(config.state, config.policy)
    charge(ledger, consortium, 1)
    ledger.close_study(study, NOW)
    spent = ledger.total().loss
    ledger.close()
    _, again = reopened(saved(config), tmp_path / "new", Since(complete=True))
    with closing(again):
        assert again.total().loss == again.reserved().loss == spent


def test_a_study_of_the_forgotten_time_counts_in_full_when_it_is_named(
    consortium: Consortium, tmp_path: Path
) -> None:
    config = load(consortium.silos[0])
    packed = saved(config)
    since = Since(((study_file(consortium), MAIN),), complete=True)
    _, again = reopened(packed, tmp_path / "new", since)
    with closing(again):
        planned = approval_of(consortium.study).planned(config.policy.budgets[MAIN])
        assert again.total().loss == planned
        (other, *_) = studies_of(consortium, 1)
        with pytest.raises(BudgetExhausted, match="beyond your policy's"):
            again.approve(approval_of(other.study), content_of(other), NOW)


def test_a_later_study_counts_for_the_population_that_is_named(
    consortium: Consortium, tmp_path: Path
) -> None:
    config = load(consortium.silos[0])
    with config.policy_file.open("a") as policy:
        policy.write('[[populations]]\nname = "a:b"\ndata = "x.csv"\nepsilon = 4.0\ndelta = 1e-5\n')
    file = tmp_path / "study.toml"
    file.write_bytes(study_file(consortium))
    packed, new = saved(load(consortium.silos[0])), tmp_path / "new"
    with pytest.raises(NotApproved, match=r"several populations.*POPULATION:FILE"):
        restore(packed, new, Since([_named_study(str(file))], complete=True), NOW)
    with pytest.raises(NotApproved, match="names no population 'b'"):
        restore(packed, new, Since([_named_study(f"b:{file}")], complete=True), NOW)
    assert not new.exists()
    for number, (population, other) in enumerate(((MAIN, "a:b"), ("a:b", MAIN))):
        since = Since([_named_study(f"{population}:{file}")], complete=True)
        _, again = reopened(packed, tmp_path / f"new-{number}", since)
        with closing(again):
            assert again.total(population).loss.value > 0
            assert again.total(other).loss.value == 0


def test_without_the_operators_word_nothing_is_approved_any_more(
    consortium: Consortium, tmp_path: Path
) -> None:
    packed = saved(load(consortium.silos[0]))
    config, again = reopened(packed, tmp_path / "new", Since())
    with closing(again), pytest.raises(BudgetExhausted, match="put back from a backup"):
        again.approve(approval_of(consortium.study), study_file(consortium), NOW)
    # Nor after a backup of it was put back by somebody who was sure.
    _, later = reopened(saved(config), tmp_path / "newer", Since(complete=True))
    with closing(later), pytest.raises(BudgetExhausted, match="put back from a backup"):
        later.approve(approval_of(consortium.study), study_file(consortium), NOW)


def test_what_a_restore_wrote_cannot_be_changed_unnoticed(
    consortium: Consortium, tmp_path: Path
) -> None:
    _, again = reopened(saved(approved_silo(consortium)), tmp_path / "new", Since())
    with closing(again):
        again.database.execute("UPDATE tallies SET count = count - 1")
        with pytest.raises(LedgerBroken, match="sums do not follow"):
            verify(again)
        again.database.execute("UPDATE tallies SET count = count + 1")
        verify(again)
        again.database.execute(
            "UPDATE entries SET line = replace(line, '\"complete\":false', '\"complete\":true')"
        )
        with pytest.raises(LedgerBroken, match="was changed"):
            verify(again)


def test_the_policy_as_it_last_was_replaces_the_backups(
    consortium: Consortium, tmp_path: Path
) -> None:
    packed = saved(approved_silo(consortium))
    since = Since(complete=True, policy=b"epsilon = 7.5\ndelta = 1e-5\n")
    config, again = reopened(packed, tmp_path / "new", since)
    again.close()
    assert config.policy.budgets[MAIN].target.epsilon == 7.5
