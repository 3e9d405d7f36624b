"""The ledger as evidence: whatever is changed in it, by whomever, `verify` says so."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from hashlib import sha256

import pytest
from silomix_client.approval.approve import approve, review
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.errors import (
    BudgetExhausted,
    InvalidSiloConfig,
    LedgerBroken,
    NotApproved,
    RefusedQuery,
)
from silomix_client.ledger import hash_chain
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.verify_ledger import check_snapshots, verify
from silomix_client.process import run
from silomix_core.accounting.composition import epsilon_of
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.mechanism import mechanism as mechanism_module
from silomix_lab.consortium.create import Consortium
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
)


@pytest.fixture
def config(consortium: Consortium) -> SiloConfig:
    return approved_silo(consortium)


@pytest.fixture
def ledger(consortium: Consortium, config: SiloConfig) -> Iterator[Ledger]:
    """An approval and three charged rounds: four entries."""
    ledger = open_ledger(config)
    desk = open_desk(config, consortium.study, ledger)
    for round_number in (1, 2, 4):
        desk.answer(asked(consortium, round_number))
    yield ledger
    ledger.close()


def change(ledger: Ledger, statement: str, *values: object) -> None:
    """What somebody with the file and SQLite can do."""
    ledger.database.execute("PRAGMA foreign_keys=OFF")
    ledger.database.execute(statement, values)


def rewrite(ledger: Ledger, number: int, edit: Callable[[dict[str, object]], object]) -> None:
    """The careful forger: edits an entry and computes all later hashes anew."""
    rows = ledger.database.execute("SELECT number, line FROM entries ORDER BY number").fetchall()
    bodies = {row[0]: json.loads(row[1]) for row in rows}
    edit(bodies[number])
    ledger.database.execute("DELETE FROM entries")
    for body in bodies.values():
        hash_chain.append(ledger.database, body)


def test_an_honest_ledger_is_whole_and_its_head_is_the_last_entry(ledger: Ledger) -> None:
    found = verify(ledger)
    (head,) = ledger.database.execute("SELECT hash FROM entries WHERE number = 4").fetchone()
    assert (found.entries, found.head) == (4, head)


def test_the_chain_can_be_recomputed_from_its_description(ledger: Ledger) -> None:
    """SHA-256(label ‖ previous ‖ line), as docs/privacy.md says, starting with 32 zero bytes."""
    previous = bytes(32)
    for line, known in ledger.database.execute("SELECT line, hash FROM entries ORDER BY number"):
        previous = sha256(b"silomix ledger entry v1\0" + previous + line.encode()).digest()
        assert previous == known


def test_an_empty_ledger_is_whole(
    config: SiloConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    empty = Ledger(tmp_path_factory.mktemp("empty"), config.policy)
    assert verify(empty).entries == 0
    empty.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE entries SET line = replace(line, '2026', '2025') WHERE number = 2",
            "entry 2.*changed",
        ),
        ("UPDATE entries SET line = '{}' WHERE number = 3", "entry 3.*changed"),
        ("UPDATE entries SET hash = zeroblob(32) WHERE number = 4", "entry 4.*changed"),
        ("DELETE FROM entries WHERE number = 2", "entry 2.*missing"),
        ("DELETE FROM entries WHERE number = 4", "answers are not|sums do not follow"),
        ("DELETE FROM entries", "sums do not follow|list of studies"),
        ("UPDATE tallies SET count = 1", "sums do not follow"),
        ("DELETE FROM tallies", "sums do not follow"),
        ("DELETE FROM answers WHERE round = 4", "answers are not"),
        ("UPDATE answers SET digest = zeroblob(32) WHERE round = 4", "answers are not"),
        ("UPDATE answers SET query = zeroblob(32) WHERE round = 4", "answers are not"),
        ("UPDATE answers SET round = 3 WHERE round = 4", "answers are not"),
        ("UPDATE reports SET round = 2", "was never charged"),
        ("UPDATE reports SET digest = zeroblob(32)", "was never charged"),
        ("UPDATE reports SET descriptor = zeroblob(9)", "stored report of study"),
        ("UPDATE studies SET partition = zeroblob(32)", "entry 1.*split into phases was changed"),
        ("UPDATE studies SET closed = 4", "list of studies"),
        ("UPDATE studies SET population = 'nobody'", "list of studies"),
        ("UPDATE studies SET approved = 2", "cannot be read|list of studies"),
        (
            "CREATE TRIGGER undo AFTER INSERT ON answers BEGIN DELETE FROM answers; END",
            "more, or less, than the ledger's tables",
        ),
    ],
)
def test_every_change_of_a_table_is_found(ledger: Ledger, statement: str, message: str) -> None:
    change(ledger, statement)
    with pytest.raises(LedgerBroken, match=message):
        verify(ledger)


@pytest.mark.parametrize(
    ("number", "edit", "message"),
    [
        (2, lambda body: body["event"].update(sensitivity=1.0), "not the event that was agreed"),
        (2, lambda body: body["event"].update(noise=2.0**40), "not the event that was agreed"),
        (3, lambda body: body.update(round=1), "round 1 is charged after round 1"),
        (3, lambda body: body.update(study="00" * 32), "not approved, or closed"),
        (3, lambda body: body.update(kind="nothing"), "unknown kind"),
        (3, lambda body: body.pop("event"), "cannot be read"),
        (3, lambda body: body.update(query="00" * 32), "answers are not"),
        (3, lambda body: body.update(digest="00" * 32), "answers are not"),
        (
            1,
            lambda body: body["plan"][0]["event"].update(sensitivity=1.0),
            "not what the study asks",
        ),
        (1, lambda body: body["plan"][0].update(rounds=500), "not what the study asks"),
        (1, lambda body: body.update(snapshot="00" * 32), "head"),
    ],
)
def test_a_forger_who_mends_the_hashes_is_found_by_the_studies_or_by_a_noted_head(
    ledger: Ledger, number: int, edit: Callable[[dict[str, object]], object], message: str
) -> None:
    noted = verify(ledger).head.hex()
    rewrite(ledger, number, edit)
    if message != "head":
        with pytest.raises(LedgerBroken, match=message):
            verify(ledger)
    with pytest.raises(LedgerBroken):
        verify(ledger, noted)


def test_a_ledger_that_was_rolled_back_is_found_by_a_noted_head(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    """A backup from before round 5 is whole in itself: only a head noted since tells."""
    backup = sqlite3.connect(":memory:")
    ledger.database.backup(backup)
    earlier = verify(ledger).head.hex()
    open_desk(config, consortium.study, ledger).answer(asked(consortium, 5))
    noted = verify(ledger).head.hex()
    found = verify(ledger, earlier[:16])
    assert (found.entries, found.earlier) == (5, 4)
    assert verify(ledger).earlier is None
    backup.backup(ledger.database)
    assert verify(ledger, earlier).entries == 4
    with pytest.raises(LedgerBroken, match="rolled back"):
        verify(ledger, noted)


def test_a_silo_does_not_run_on_a_broken_ledger(config: SiloConfig, ledger: Ledger) -> None:
    change(ledger, "UPDATE tallies SET count = 1")
    with pytest.raises(LedgerBroken, match="sums do not follow"):
        run(config)


def test_a_ledger_of_another_format_is_refused(config: SiloConfig) -> None:
    database = sqlite3.connect(config.state / "ledger.sqlite")
    database.execute("PRAGMA user_version = 1")
    database.close()
    with pytest.raises(LedgerBroken, match="another release"):
        open_ledger(config)


# Closing -----------------------------------------------------------------------------------------


def test_a_closed_study_is_answered_no_more_and_frees_what_it_did_not_spend(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    """Three of five rounds were answered: their loss stays, the other two's comes back."""
    content = study_file(consortium).replace(b"rounds = 5", b"rounds = 4")
    smaller = review(config, content)
    with pytest.raises(BudgetExhausted, match="beyond your policy's"):
        approve(config, smaller, NOW)
    desk = open_desk(config, consortium.study, ledger)
    reserved = ledger.reserved()
    assert (reserved.rounds, reserved.epsilon()) == (5, pytest.approx(2))
    ledger.close_study(consortium.study.identity, NOW)
    with pytest.raises(RefusedQuery, match="revoked"):
        desk.answer(asked(consortium, 5))
    with pytest.raises(NotApproved, match="already revoked"):
        ledger.close_study(consortium.study.identity, NOW)
    assert ledger.total().rounds == 3
    assert ledger.reserved() == ledger.total()
    with pytest.raises(BudgetExhausted):  # its four rounds cost as much as the five of the other
        approve(config, smaller, NOW)
    event = ledger.approval(consortium.study.identity).event(1)[1]
    planned = smaller.study.mechanism().transcripts(smaller.participant)[0]
    needed = epsilon_of([(event, 3), *planned], 1e-5)
    for factor, allowed in ((1 - 1e-6, False), (1 + 1e-6, True)):
        roomy = Ledger(config.state, allowing(PrivacyTarget(needed * factor, 1e-5)))
        with nullcontext() if allowed else pytest.raises(BudgetExhausted):
            roomy.check_new(approval_of(smaller.study))
        roomy.close()
    assert verify(ledger).entries == 5


def test_the_secret_that_noise_follows_from_goes_with_the_study(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    study = consortium.study.identity
    secret = ledger.approval(study).partition
    ledger.close_study(study, NOW)
    assert ledger.approval(study).partition == b""
    assert secret not in ledger.database.serialize()
    assert verify(ledger).entries == 5


def test_without_its_secret_a_study_is_not_answered(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    change(ledger, "UPDATE studies SET partition = x''")
    with pytest.raises(NotApproved, match="the secret of this approval is gone"):
        open_desk(config, consortium.study, ledger)


def test_a_closed_study_cannot_be_approved_again(
    consortium: Consortium, config: SiloConfig, ledger: Ledger
) -> None:
    approval = approval_of(consortium.study)
    with pytest.raises(NotApproved, match="already approved"):
        ledger.check_new(approval)
    ledger.close_study(consortium.study.identity, NOW)
    with pytest.raises(NotApproved, match="was revoked here; a revoked study cannot be approved"):
        ledger.check_new(approval)


# What a policy may not leave out -----------------------------------------------------------------


def test_a_population_that_was_used_cannot_leave_the_policy(
    consortium: Consortium, config: SiloConfig
) -> None:
    """Renaming it would forget what was spent on its persons."""
    ledger = open_ledger(config)
    ledger.database.execute("UPDATE studies SET population = 'children'")
    ledger.close()
    with pytest.raises(InvalidSiloConfig, match="names no population 'children'"):
        open_ledger(config)


def test_charges_of_subsampled_rounds_cannot_be_counted_by_the_gaussian_accountant(
    consortium: Consortium,
) -> None:
    made = altered(consortium, ("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5'))
    policy = made.silos[0].parent / "policy.toml"
    policy.write_text('epsilon = 8.0\ndelta = 1e-5\nminimum_batch = 1\naccountant = "renyi"\n')
    config = approved_silo(made)
    ledger = open_ledger(config)
    open_desk(config, made.study, ledger).answer(asked(made, 1))
    ledger.close()
    policy.write_text("epsilon = 8.0\ndelta = 1e-5\nminimum_batch = 1\n")
    with pytest.raises(InvalidSiloConfig, match='keep accountant = "renyi"'):
        open_ledger(load(made.silos[0]))


def test_a_release_with_other_numbers_charges_what_was_agreed_and_verifies(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unit in the last place: another libm, another processor."""
    agreed = ledger.approval(consortium.study.identity).event(1)[1]
    with another_release(monkeypatch, 1 - 2**-50):
        derived = consortium.study.mechanism().event(
            consortium.study.participant(consortium.study.silos[0])
        )
        assert derived != agreed
        open_desk(config, consortium.study, ledger).answer(asked(consortium, 5))
    assert verify(ledger).entries == 5


def test_a_release_that_would_add_less_noise_than_agreed_answers_nothing(
    consortium: Consortium, config: SiloConfig, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        another_release(monkeypatch, 1.001),
        pytest.raises(NotApproved, match="less noise than was agreed"),
    ):
        open_desk(config, consortium.study, ledger).answer(asked(consortium, 5))
    assert verify(ledger).entries == 4


@contextmanager
def another_release(monkeypatch: pytest.MonkeyPatch, factor: float) -> Iterator[None]:
    """One whose calibration comes out with so many times the sensitivity to noise ratio."""
    largest = mechanism_module.largest_mu
    with monkeypatch.context() as patched:
        patched.setattr(mechanism_module, "largest_mu", lambda *each: factor * largest(*each))
        mechanism_module._calibrate.cache_clear()
        yield
    mechanism_module._calibrate.cache_clear()


def test_a_report_that_no_charge_names_is_swept_away(config: SiloConfig, ledger: Ledger) -> None:
    orphan = config.state / "reports" / ("0" * 64)
    orphan.write_bytes(b"never sent, never charged")
    (config.state / "reports" / "half.part").write_bytes(b"")
    ledger.sweep()
    assert list((config.state / "reports").iterdir()) == []


def test_a_changed_snapshot_is_found(config: SiloConfig, ledger: Ledger) -> None:
    check_snapshots(ledger)
    (path,) = (config.state / "snapshots").iterdir()
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(LedgerBroken, match="changed since"):
        check_snapshots(ledger)


def test_an_approval_does_not_show_its_key(ledger: Ledger) -> None:
    (approval,) = ledger.approvals()
    assert approval.partition.hex() not in repr(approval)
    assert repr(approval.partition) not in repr(approval)
