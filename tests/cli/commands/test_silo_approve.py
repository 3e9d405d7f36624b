"""`silomix silo approve`: what is shown, what is a yes, and what is wrong in one line."""

from collections.abc import Callable

import pytest
import tomli_w
from silomix_client.config.silo_config import load
from silomix_lab.consortium.create import Consortium
from support.operator_commands import approve, one_line_error, silomix, unfolded
from support.silos import altered, approved_silo, open_ledger, study_file, written


def approved(made: Consortium) -> list[bytes]:
    ledger = open_ledger(load(made.silos[0]))
    try:
        return [entry.study.identity for entry in ledger.approvals()]
    finally:
        ledger.close()


def cost(shown: str) -> float:
    """What a letter says that the study costs, at the delta of the silo's policy."""
    return float(unfolded(shown).partition("What it costs Epsilon ")[2].split()[0])


def test_approve_shows_what_is_asked_and_a_no_writes_nothing(consortium: Consortium) -> None:
    before = sorted(consortium.folder.rglob("*"))
    result = approve(consortium, typed="n\n")
    assert consortium.study.identity.hex() in result.stdout
    shown = unfolded(result.stdout)
    for part in (
        "It is about 40 people of yours, together with 2 other hospitals, in 5 rounds",
        "Epsilon 2 at your policy's delta 1e-05, over the whole study. It promises you epsilon 2 "
        "at delta 1e-05.",
        "Reserved so far: epsilon 0, with this study 2; your policy allows 2 for all studies",
        "right 5 times in 100 by chance is right at most 37 times in 100",
    ):
        assert part in shown
    assert "Approve this study? [y/N]" in result.stdout
    assert one_line_error(result) == "not approved; nothing was written"
    assert sorted(consortium.folder.rglob("*")) == before


def test_silence_is_not_consent(consortium: Consortium) -> None:
    """Neither an empty line nor an end of input approves; nothing is written."""
    before = sorted(consortium.folder.rglob("*"))
    for typed in ("\n", ""):
        assert approve(consortium, typed=typed).returncode == 1
    assert sorted(consortium.folder.rglob("*")) == before


def test_a_yes_approves_the_study_that_was_shown(consortium: Consortium) -> None:
    result = approve(consortium, typed="y\n")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(f"approved         {consortium.study.identity.hex()}\n")
    assert approved(consortium) == [consortium.study.identity]


def test_the_option_yes_approves_without_asking_but_not_twice(consortium: Consortium) -> None:
    result = approve(consortium, "--yes")
    assert result.returncode == 0, result.stderr
    assert "[y/N]" not in result.stdout
    assert one_line_error(approve(consortium, "--yes")) == "this study is already approved"
    assert approved(consortium) == [consortium.study.identity]


def test_a_bad_study_file_is_one_line_and_no_approval(consortium: Consortium) -> None:
    (consortium.folder / "study.toml").write_bytes(b"version = 1\n")
    message = one_line_error(approve(consortium, "--yes"))
    assert message == "not a valid study: missing key: name (a string)"
    assert written(load(consortium.silos[0])) == ([], {})


def _no_study_file(made: Consortium) -> str:
    (made.folder / "study.toml").unlink()
    return "study.toml: No such file or directory"


def _no_configuration(made: Consortium) -> str:
    made.silos[0].unlink()
    return "silo.toml: No such file or directory"


def _bad_cell(made: Consortium) -> str:
    path = made.silos[0].parent / "data.csv"
    path.write_text(path.read_text() + "old,0,1\n")
    return "data.csv: row 42, column 'age': not a number: 'old'"


def _unknown_key(made: Consortium) -> str:
    path = made.silos[0].parent / "policy.toml"
    path.write_text(path.read_text() + "sigma = 0\n")
    return "policy.toml: unknown key: sigma"


def _open_key(made: Consortium) -> str:
    (made.silos[0].parent / "sign.key").chmod(0o644)
    return "sign.key: readable by others"


def _small_policy(made: Consortium) -> str:
    path = made.silos[0].parent / "policy.toml"
    path.write_text(tomli_w.dumps({"epsilon": 1.0, "delta": 1e-5}))
    return "beyond your policy's epsilon=1"


@pytest.mark.parametrize(
    "break_it",
    [_no_study_file, _no_configuration, _bad_cell, _unknown_key, _open_key, _small_policy],
)
def test_whatever_is_wrong_is_one_line_that_names_it(
    consortium: Consortium, break_it: Callable[[Consortium], str]
) -> None:
    named = break_it(consortium)
    assert named in one_line_error(approve(consortium, "--yes"))
    assert not (consortium.silos[0].parent / "state" / "ledger.sqlite").exists() or (
        approved(consortium) == []
    )


def test_a_study_that_hides_its_cost_behind_another_delta_shows_it(consortium: Consortium) -> None:
    """At the δ that its author chose the loss looks like nothing; it is shown at the policy's."""
    own = 'name = "silo-1"\nrecords = 40'
    named = 'weights = "records"', 'weights = "named"'
    altered(consortium, named, (own, f"{own}\nepsilon = 0.001\ndelta = 0.0999\nweight = 2"))
    shown = unfolded(approve(consortium, "--yes").stdout)
    assert "It promises you epsilon 0.001 at delta 0.0999" in shown
    assert "Your hospital counts 1.5 times as much as the average one" in shown
    assert cost(shown) > 0.5
    assert f"Epsilon {cost(shown):.4g} at your policy's delta 1e-05" in shown


def test_a_silo_that_loses_less_than_promised_is_told_why(consortium: Consortium) -> None:
    """Silo 2 has 50 records, the smallest silo 40: the same noise hides its records better."""
    altered(consortium, ('weights = "records"', 'weights = "equal"'))
    study = consortium.folder / "study.toml"
    shown = silomix("silo", "approve", consortium.silos[1], study, "--yes").stdout
    assert cost(shown) < 2
    assert "(less than promised: the smallest silo decides the noise)" in unfolded(shown)


def test_a_silo_that_loses_less_because_another_was_promised_more_is_told_so(
    consortium: Consortium,
) -> None:
    own = 'name = "silo-2"\nrecords = 50'
    altered(consortium, (own, f"{own}\nepsilon = 0.5\ndelta = 1e-5"))
    shown = approve(consortium, "--yes").stdout
    assert "(less than promised: another silo needs more noise)" in unfolded(shown)


def test_approve_shows_what_other_studies_reserved_before_it_refuses(
    consortium: Consortium,
) -> None:
    """Nothing was spent yet, and still there is no room: the sum says why."""
    approved_silo(consortium)
    again = approve(consortium, "--yes")
    assert "Reserved so far: epsilon 2; your policy allows 2" in unfolded(again.stdout)
    study = consortium.folder / "study.toml"
    study.write_bytes(study_file(consortium).replace(b"rounds = 5", b"rounds = 4"))
    refused = approve(consortium, "--yes")
    _, _, after = unfolded(refused.stdout).partition("Reserved so far: epsilon 2, with this study ")
    assert float(after.partition(";")[0]) > 2
    assert "beyond your policy's epsilon=2" in one_line_error(refused)


def test_a_study_that_the_accountant_does_not_cover_is_refused_in_one_line(
    consortium: Consortium,
) -> None:
    altered(consortium, ("clip = 0.25", 'clip = 0.25\nsampling = "poisson"\nratio = 0.5'))
    refused = approve(consortium, "--yes")
    assert "Reserved so far: epsilon 0; your policy allows 2" in unfolded(refused.stdout)
    assert "does not cover" in one_line_error(refused)
