"""The commands of an operator, as real processes: what they show, ask, write and refuse."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import click
import pytest
import tomli_w
import typer
from google.protobuf.json_format import MessageToJson, Parse
from silomix.main import app
from silomix_client.config.silo_config import load
from silomix_client.rounds.complaint_files import save
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.rounds.complaints import sign_complaint
from silomix_protocol.rounds.statements import sign_receipt
from silomix_server.silos.complaint_box import ComplaintBox
from support.consortia import make_consortium
from support.coordinators import listed, report_of, signer
from support.rounds import make_round
from support.silos import (
    altered,
    approved_silo,
    asked,
    copied,
    open_desk,
    open_ledger,
    study_file,
    written,
)
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("template") / "consortium")


@pytest.fixture
def consortium(template: Consortium, tmp_path: Path) -> Consortium:
    return copied(template, tmp_path / "consortium")


def silomix(*arguments: object, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "silomix", *map(str, arguments)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
    )


def approve(made: Consortium, *options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    study = made.folder / "study.toml"
    return silomix("silo", "approve", made.silos[0], study, *options, typed=typed)


def one_line_error(result: subprocess.CompletedProcess[str]) -> str:
    """The only line on standard error of a command that failed as it should."""
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("silomix: ")
    assert "Traceback" not in result.stdout
    return line.removeprefix("silomix: ")


def approved(made: Consortium) -> list[bytes]:
    ledger = open_ledger(load(made.silos[0]))
    try:
        return [entry.study.identity for entry in ledger.approvals()]
    finally:
        ledger.close()


def unfolded(shown: str) -> str:
    """A letter without its line breaks."""
    return " ".join(shown.split())


def cost(shown: str) -> float:
    """What a letter says that the study costs, at the delta of the silo's policy."""
    return float(unfolded(shown).partition("What it costs Epsilon ")[2].split()[0])


# silo approve ------------------------------------------------------------------------------------


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
    altered(consortium, (own, f"{own}\nepsilon = 0.001\ndelta = 0.0999\nweight = 2"))
    shown = unfolded(approve(consortium, "--yes").stdout)
    assert "It promises you epsilon 0.001 at delta 0.0999" in shown
    assert "Your hospital counts 1.5 times as much as the average one" in shown
    assert cost(shown) > 0.5
    assert f"Epsilon {cost(shown):.4g} at your policy's delta 1e-05" in shown


def test_a_silo_that_loses_less_than_promised_is_told_why(consortium: Consortium) -> None:
    """Silo 2 has 50 records, the smallest silo 40: the same noise hides its records better."""
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


# silo ledger, study show -------------------------------------------------------------------------


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


def test_study_show_describes_the_study_by_its_hash(consortium: Consortium) -> None:
    result = silomix("study", "show", consortium.folder / "study.toml")
    assert result.returncode == 0, result.stderr
    for shown in (
        consortium.study.identity.hex(),
        "5 rounds",
        "3, 40 to 60 records",
        "mix-1 -> mix-2; a batch has at least 2 reports",
        "gate             on: nobody can open a batch before 2 silos confirmed",
        "if one mix is honest, a report hides among those of 2 silos",
        "tokens           on: a report counts only with a token that the server gave to one silo",
        "epsilon 2, delta 1e-05",
        "one record replaced",
        "vs. the server   no amplification claimed, because a full-batch report",
        "at delta 1e-05, one record replaced, against outsiders",
        "if server and mixes are honest",
    ):
        assert shown in " ".join(result.stdout.split(" " * 17)).replace("\n ", " ")


def test_study_show_says_what_a_study_without_gate_and_tokens_allows(
    consortium: Consortium,
) -> None:
    altered(consortium, ("gate = true", "gate = false"), ("tokens = true", "tokens = false"))
    shown = silomix("study", "show", consortium.folder / "study.toml").stdout
    letter = unfolded(approve(consortium, "--yes").stdout)
    for name, gap, text in (
        ("gate", 13, "off: a first mix that works with the server"),
        ("tokens", 11, "off: the server cannot tell silos' reports from those"),
    ):
        assert f"{name}{' ' * gap}{text}" in shown
        assert f"{name} {text}" in letter


def test_study_show_of_something_else_is_one_line(consortium: Consortium) -> None:
    path = consortium.folder / "study.toml"
    path.write_bytes(study_file(consortium).replace(b"rounds = 5", b'rounds = "many"'))
    message = one_line_error(silomix("study", "show", path))
    assert message.endswith("study.toml: algorithm.rounds: expected a whole number, got 'many'")


BEYOND_NOISE = "[privacy] with [algorithm]: epsilon=80 at delta=1e-05 cannot be kept"


def test_a_study_that_no_noise_can_serve_is_refused_by_whoever_reads_it(
    consortium: Consortium,
) -> None:
    """At once and with what would help, not when the first silo is asked."""
    altered(consortium, ("epsilon = 2.0", "epsilon = 80.0"))
    study = consortium.folder / "study.toml"
    for command in (
        ("study", "show", study),
        ("silo", "review", consortium.silos[0], study),
        ("silo", "approve", "--yes", consortium.silos[0], study),
        ("mix", "run", consortium.mixes[0]),
        ("server", "run", consortium.server),
    ):
        message = one_line_error(silomix(*command))
        assert BEYOND_NOISE in message
        assert "use an epsilon of at most" in message
        assert message.startswith(str(study)) or command[:2] != ("study", "show")


def test_no_folder_is_made_for_a_study_that_no_noise_can_serve(tmp_path: Path) -> None:
    message = one_line_error(silomix("consortium", "init", tmp_path / "new", "--epsilon", "80"))
    assert "use an epsilon of at most" in message
    assert not (tmp_path / "new").exists()


# Complaints --------------------------------------------------------------------------------------


def complained(made: Consortium) -> tuple[Path, Path]:
    """Silo 1's report is missing from round 1: the file at the server, and its operator's copy."""
    (made.server.parent / "state").mkdir()
    round_ = make_round(made.study, signer(made, "server"))
    onions = [round_.seal(round_.payload(report_of(made.study, value))) for value in range(3)]
    batch = listed(made, round_, [each.sealed for each in onions[1:]])
    receipt = sign_receipt(round_.digest, 0, onions[0].trail[0], signer(made, "mix-1"))
    complaint = sign_complaint(
        round_.descriptor, 0, receipt, batch.committed, signer(made, "silo-1")
    )
    box = ComplaintBox(made.study, made.server.parent / "state")
    box.put("silo-1", round_.descriptor, complaint)
    (at_server,) = (made.server.parent / "state" / "complaints").iterdir()
    complaint.trail.extend(onions[0].trail)
    complaint.chain.extend(batch.chain)
    folder = load(made.silos[0]).state / "complaints"
    return at_server, save(complaint, round_.descriptor, folder)


def test_anybody_can_check_a_complaint_with_the_study_file(consortium: Consortium) -> None:
    sent, kept = complained(consortium)
    study = consortium.folder / "study.toml"
    for path, explain in ((sent, "not said"), (kept, "mix-1")):
        result = silomix("study", "complaint", study, path)
        assert result.returncode == 0, result.stderr
        missing, *_, last = result.stdout.splitlines()
        assert missing.startswith("missing          the report of silo-1 in round 1")
        assert last.startswith(f"must explain     {explain}")


def test_a_complaint_that_shows_nothing_is_one_line(consortium: Consortium) -> None:
    sent, kept = complained(consortium)
    study = consortium.folder / "study.toml"
    text = kept.read_text()
    other = Parse(text, channel_pb2.Complaint())
    other.trail[0] = bytes(32)
    kept.write_text(MessageToJson(other))
    error = one_line_error(silomix("study", "complaint", study, kept))
    assert "shows nothing about this study: the digests are not those of the report" in error
    sent.write_text("{")
    assert one_line_error(silomix("study", "complaint", study, sent)).endswith("not a complaint")
    error = one_line_error(silomix("study", "complaint", study, sent.parent / "none.json"))
    assert "No such file" in error


def test_a_silo_lists_its_complaints(consortium: Consortium) -> None:
    approved_silo(consortium)
    none = silomix("silo", "complaints", consortium.silos[0])
    assert none.stdout == "no report of this silo went missing\n"
    _, own = complained(consortium)
    listed = silomix("silo", "complaints", consortium.silos[0])
    assert listed.stdout == (
        f"study {consortium.study.short_id} test, round 1: mix-1 has to explain it; {own}\n"
    )


# Mixes -------------------------------------------------------------------------------------------


def test_a_mix_without_a_metrics_address_cannot_be_asked_for_its_health(
    consortium: Consortium,
) -> None:
    error = one_line_error(silomix("mix", "health", consortium.mixes[0]))
    assert "metrics_listen is not set" in error


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, {"status": "ok", "problems": []}, None),
        (503, {"status": "failing", "problems": ["disk full", "late"]}, "disk full; late"),
        (503, {"problems": []}, "status 503"),
        (200, ["something"], "is not a mix"),
    ],
)
def test_the_health_of_a_mix_is_what_it_says(
    consortium: Consortium, status: int, body: object, said: str | None
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        path = consortium.mixes[0]
        path.write_text(f'metrics_listen = "{address}"\n' + path.read_text())
        result = silomix("mix", "health", path)
        thread.join()
    if said is None:
        assert (result.returncode, result.stdout) == (0, f"ok: the mix at {address} is well\n")
    else:
        assert said in one_line_error(result)
    assert "no mix answers" in one_line_error(silomix("mix", "health", path))


def test_rotating_a_mix_that_has_no_keys_throws_nothing_away(consortium: Consortium) -> None:
    result = silomix("mix", "rotate", consortium.mixes[0])
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("keys of 0 rounds thrown away")


# Help --------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, ...]]:
    """Every command and group of the command line."""

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*path, name))

    return walk(typer.main.get_command(app), ())


def test_the_command_line_has_the_commands_of_every_party() -> None:
    assert set(commands()) >= {
        ("demo",),
        ("silo", "approve"),
        ("silo", "run"),
        ("silo", "ledger"),
        ("silo", "complaints"),
        ("mix", "run"),
        ("mix", "rotate"),
        ("mix", "health"),
        ("server", "run"),
        ("study", "show"),
        ("study", "complaint"),
        ("study", "assemble"),
        *(("authority", name) for name in ("init", "run", "invite", "list", "revoke", "roster")),
        ("join",),
        ("renew",),
        ("consortium", "init"),
    }


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert len(result.output.splitlines()) > 3


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_help_shows_every_word_as_it_is_written(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets too, which a terminal's markup would swallow."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 1000)
    command = typer.main.get_command(app)
    for name in path:
        command = getattr(command, "commands")[name]  # noqa: B009 - of groups alone
    texts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
    texts += [each.get_short_help_str(1000) for each in getattr(command, "commands", {}).values()]
    shown = CliRunner().invoke(app, [*path, "--help"]).output.split()
    assert [word for text in texts for word in text.split() if word not in shown] == []


def test_help_is_what_a_process_prints_and_needs_no_flower() -> None:
    result = silomix("--help")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "silo" in result.stdout
    code = "import sys, silomix.main; assert not {'flwr', 'grpc', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("arguments", [("silo", "forget"), ("silo", "approve"), ("noise", "off")])
def test_a_command_that_does_not_exist_is_an_error_of_usage(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2


# Algorithms ---------------------------------------------------------------------------------------


def test_every_algorithm_is_listed_with_its_theorem_and_when_to_use_it() -> None:
    shown = CliRunner().invoke(app, ["algorithms", "--json"])
    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    assert [each["name"] for each in found] == list(ALGORITHMS)
    assert all(each["theorem"] and each["advice"] for each in found)
    table = CliRunner().invoke(app, ["algorithms"]).output
    assert all(name in table for name in ALGORITHMS)
