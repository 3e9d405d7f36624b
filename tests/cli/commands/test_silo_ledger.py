"""`silomix silo ledger` and `revoke` as an operator types them."""

import json
import subprocess
from pathlib import Path

import pytest
from silomix_client.config.silo_config import load
from silomix_lab.consortium.create import Consortium
from support.operator_commands import approve, one_line_error, silomix
from support.silos import altered, approved_silo, asked, open_desk, open_ledger


def test_the_ledger_shows_what_was_approved_and_spent(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    desk = open_desk(config, consortium.study, ledger)
    for number in (1, 2):
        desk.answer(asked(consortium, number))
    spent = ledger.total().epsilon(1e-5)
    ledger.close()
    result = silomix("silo", "ledger", consortium.silos[0])
    assert result.returncode == 0, result.stderr
    study, total, note, verified = result.stdout.splitlines()
    assert study == (
        f"study {consortium.study.short_id} test: 2 of 5 rounds, "
        f"epsilon {spent:.4f} spent, reserved 2.0000, of the promised 2 at delta 1e-05"
    )
    assert total == (
        f"all studies: reserved epsilon 2.0000, spent {spent:.4f}, of 2 at delta 1e-05, 2 rounds, "
        "gaussian accountant"
    )
    assert "one record replaced" in note
    assert "against server, mixes and all other silos" in note
    assert verified.startswith("verified 3 entries, head ")


def test_the_ledger_as_json_says_the_same(consortium: Consortium, tmp_path: Path) -> None:
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    open_desk(config, consortium.study, ledger).answer(asked(consortium, 1))
    spent = ledger.total().epsilon()
    ledger.close()
    out = tmp_path / "ledger.json"
    assert silomix("silo", "ledger", consortium.silos[0], "--json", out).returncode == 0
    figures = json.loads(out.read_text())
    assert figures["adjacency"] == "replace-one-record"
    assert figures["chain"]["entries"] == 2
    (study,) = figures["studies"]
    assert (study["rounds_answered"], study["closed"]) == (1, False)
    assert study["epsilon_spent"] == pytest.approx(spent)
    (total,) = figures["populations"].values()
    assert total["epsilon_spent"] == pytest.approx(spent)
    assert total["epsilon_reserved"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("path", "said"),
    [("nowhere/x.json", "--json nowhere/x.json: there is no such folder"), (".", "is a folder")],
)
def test_figures_that_cannot_be_written_are_refused_before_anything_is_read(
    consortium: Consortium, path: str, said: str
) -> None:
    result = silomix("silo", "ledger", consortium.silos[0], "--json", path)
    assert said in one_line_error(result)
    assert result.stdout == ""


def test_a_policy_that_no_longer_covers_a_reserved_study_is_shown_and_the_study_can_be_revoked(
    consortium: Consortium, tmp_path: Path
) -> None:
    """The accountant was changed before the first round: there is no figure, and no traceback."""
    made = altered(consortium, ("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5'))
    policy = made.silos[0].parent / "policy.toml"
    policy.write_text('epsilon = 8.0\ndelta = 1e-5\nminimum_batch = 1\naccountant = "renyi"\n')
    approved_silo(made)
    policy.write_text("epsilon = 8.0\ndelta = 1e-5\nminimum_batch = 1\n")
    out = tmp_path / "ledger.json"
    shown = silomix("silo", "ledger", made.silos[0], "--json", out)
    assert "all studies: reserved more than this accountant covers, spent 0.0000" in shown.stdout
    assert json.loads(out.read_text())["populations"][""]["epsilon_reserved"] is None
    assert "does not cover the open study" in one_line_error(approve(made, "--yes"))
    closed = silomix("silo", "revoke", made.silos[0], made.study.short_id, "--yes")
    assert closed.returncode == 0, closed.stderr


def test_a_changed_ledger_fails_the_command(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    open_desk(config, consortium.study, ledger).answer(asked(consortium, 1))
    ledger.database.execute("UPDATE tallies SET count = 0")
    ledger.close()
    error = one_line_error(silomix("silo", "ledger", consortium.silos[0]))
    assert "the ledger's sums do not follow from its entries" in error


def test_a_head_that_is_not_in_the_chain_fails_the_command(consortium: Consortium) -> None:
    approved_silo(consortium)
    verified = silomix("silo", "ledger", consortium.silos[0]).stdout.splitlines()[-1]
    assert verified.startswith("verified 1 entry, head ")
    head = verified.split()[-1]
    for noted in (head[:16], head.upper()):
        found = silomix("silo", "ledger", consortium.silos[0], "--head", noted)
        assert f"head {head[:16]}… found: entry 1 of 1" in found.stdout.splitlines()
    error = one_line_error(silomix("silo", "ledger", consortium.silos[0], "--head", "00" * 8))
    assert "rolled back or replaced" in error


@pytest.mark.parametrize("head", ["", "-", "a", "0123456789abcde", "0" * 65, "no head, but long"])
def test_what_cannot_be_a_head_is_bad_input_and_no_alarm(consortium: Consortium, head: str) -> None:
    approved_silo(consortium)
    error = one_line_error(silomix("silo", "ledger", consortium.silos[0], f"--head={head}"))
    assert error.startswith(f"--head {head!r}: give at least the first 16 hex digits of a head")


def test_a_study_is_revoked_by_the_beginning_of_its_identity(consortium: Consortium) -> None:
    approved_silo(consortium)
    identity = consortium.study.identity.hex()
    unknown = one_line_error(silomix("silo", "revoke", consortium.silos[0], "f" * 8))
    assert "0 approved studies begin with 'ffffffff'" in unknown
    closed = silomix("silo", "revoke", consortium.silos[0], identity[:8], "--yes")
    assert closed.returncode == 0, closed.stderr
    assert "[y/N]" not in closed.stdout
    shown = silomix("silo", "ledger", consortium.silos[0]).stdout
    assert "revoked" in shown
    assert "all studies: reserved epsilon 0.0000" in shown  # all of it is free again
    again = one_line_error(silomix("silo", "revoke", consortium.silos[0], identity))
    assert "already revoked" in again
    error = one_line_error(approve(consortium, "--yes"))
    assert error == "this study was revoked here; a revoked study cannot be approved again"


@pytest.mark.parametrize("beginning", ["", "-", "abc", "0123456", "test-study", "0" * 65])
def test_a_study_is_not_revoked_by_less_than_eight_digits(
    consortium: Consortium, beginning: str
) -> None:
    approved_silo(consortium)
    error = one_line_error(silomix("silo", "revoke", consortium.silos[0], "--yes", "--", beginning))
    assert error.startswith(f"{beginning!r}: give at least the first 8 hex digits")
    assert is_open(consortium)


def test_revoke_shows_what_it_frees_and_only_a_yes_revokes(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    open_desk(config, consortium.study, ledger).answer(asked(consortium, 1))
    spent = ledger.total().epsilon()
    ledger.close()
    for typed in ("n\n", "\n", ""):
        refused = close(consortium, typed)
        assert refused.returncode == 1
        assert f"spent            epsilon {spent:.4f} at delta 1e-05 in 1 of 5" in refused.stdout
        assert "reserved         epsilon 2.0000; what of it was not spent is free" in refused.stdout
        assert is_open(consortium)
    assert one_line_error(close(consortium, "n\n")) == "not revoked; nothing was written"
    assert close(consortium, "y\n").returncode == 0
    assert not is_open(consortium)
    shown = silomix("silo", "ledger", consortium.silos[0]).stdout
    assert f"all studies: reserved epsilon {spent:.4f}, spent {spent:.4f}, of 2" in shown
    assert ", 1 round, " in shown


def close(made: Consortium, typed: str) -> subprocess.CompletedProcess[str]:
    return silomix("silo", "revoke", made.silos[0], made.study.short_id, typed=typed)


def is_open(made: Consortium) -> bool:
    ledger = open_ledger(load(made.silos[0]))
    try:
        return not ledger.approval(made.study.identity).closed
    finally:
        ledger.close()


def test_an_empty_ledger_shows_nothing_spent(consortium: Consortium) -> None:
    result = silomix("silo", "ledger", consortium.silos[0])
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == (
        "all studies: reserved epsilon 0.0000, spent 0.0000, of 2 at delta 1e-05, 0 rounds, "
        "gaussian accountant"
    )
    assert result.stdout.splitlines()[-1] == "verified 0 entries, head -"
