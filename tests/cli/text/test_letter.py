"""The letter to a data steward: what matters stands in it, whatever the study's author writes."""

import json
import tomllib
from base64 import b64encode
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import tomli_w
from silomix.commands.silo import silo
from silomix.text.letter import in_words, letter
from silomix.text.study_and_ledger import describe_study
from silomix.text.study_diff import changes
from silomix_client.approval.approve import approve, review
from silomix_client.approval.review import look
from silomix_client.audit_log.log import FILE, AuditLog
from silomix_client.config.silo_config import load
from silomix_client.errors import NotApproved
from silomix_core.task.interaction import Interaction
from silomix_lab.consortium.create import Consortium
from silomix_protocol.keys import SigningKey, fingerprint
from support.consortia import SMALL_TASK, make_consortium
from support.silos import NOW, approved_silo, copied, open_ledger, study_file
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("template") / "consortium")


@pytest.fixture
def consortium(template: Consortium, tmp_path: Path) -> Consortium:
    return copied(template, tmp_path / "consortium")


def written_letter(made: Consortium, content: bytes | None = None) -> str:
    config = load(made.silos[0])
    return letter(look(config, study_file(made) if content is None else content), config)


def unfolded(text: str) -> str:
    return " ".join(text.split())


def with_policy(made: Consortium, **policy: object) -> None:
    content = {"epsilon": 2.0, "delta": 1e-5, "minimum_batch": 1} | policy
    (made.silos[0].parent / "policy.toml").write_text(tomli_w.dumps(content))


def text_of(key: bytes) -> bytes:
    return b64encode(key)


# What stands in it -------------------------------------------------------------------------------


def test_the_letter_says_what_is_asked_what_it_costs_and_of_whom(consortium: Consortium) -> None:
    study, shown = consortium.study, unfolded(written_letter(consortium))
    for part in (
        'The study "test" asks for records of silo-1. It stays within your policy.',
        'To learn "outcome" (yes or no) from 2 columns of your data: "age", "dose".',
        "It is about 40 people of yours, together with 2 other hospitals, in 5 rounds",
        "All people count alike, whatever hospital they are of.",
        "its clip is 0.24 of what a record could weigh: the model puts people in order",
        "Every row of your data counts as one person",
        "At the same delta 3 people together (a family) have epsilon 7.0",
        "somebody who is another hospital's patient, too, 2.95",
        "Epsilon 2 at your policy's delta 1e-05, over the whole study",
        "Reserved so far: epsilon 0, with this study 2; your policy allows 2 for all studies",
        "a guess about one person that is right 5 times in 100 by chance is right at most 37 times",
        f"server server at {study.server.fleet_address}, {study.server.channel_address}",
        f"key {fingerprint(study.server.sign_key).hex()}",
        *(f"key {fingerprint(mix.sign_key).hex()}" for mix in study.mixes),
        "hospitals and their numbers of people: silo-2 (50), silo-3 (60)",
        f"no other) {study.identity.hex()}",
    ):
        assert part in shown
    assert len(written_letter(consortium).splitlines()) < 51
    assert max(map(len, written_letter(consortium).splitlines())) <= 92


def test_the_letter_and_the_study_in_words_name_the_products_that_a_model_learns_from(
    tmp_path: Path,
) -> None:
    interactions = (Interaction("age", "dose"),)
    task = replace(SMALL_TASK, interactions=interactions)
    made = make_consortium(tmp_path / "consortium", task=task)
    assert made.study.task == task  # as the file says it
    shown = unfolded(written_letter(made))
    assert (
        'from 2 columns of your data: "age", "dose". The model also learns from 1 product of'
        in shown
    )
    assert '1 product of these columns, made here: "age" × "dose".' in shown
    assert "interaction age × dose: the product of both" in unfolded(describe_study(made.study))
    assert "on each of 4 coordinates" in describe_study(made.study)


def test_a_crowd_of_products_is_counted(consortium: Consortium) -> None:
    tree = tomllib.loads(study_file(consortium).decode())
    names = [f"x{index}" for index in range(13)]
    tree["task"]["features"] += [{"name": name, "low": 0, "high": 1} for name in names]
    tree["task"]["interactions"] = [[one, two] for one in names for two in names if one < two]
    shown = unfolded(written_letter(consortium, tomli_w.dumps(tree).encode()))
    assert "from 78 products of these columns" in shown
    assert "and 18 more, which interactions in [task] of its file lists." in shown


def test_epsilon_in_words_is_the_bound_of_the_definition() -> None:
    """Power ≤ e^ε·α + δ; where that says nothing, a rarer guess is bounded instead."""
    assert "right 5 times in 100 by chance is right at most 14 times in 100" in in_words(1.0, 1e-6)
    assert "right 5 times in 100 by chance is right at most 15 times in 100" in in_words(1.0, 0.01)
    assert "right 1 times in 1000 by chance is right at most 149 times" in in_words(5.0, 1e-6)
    assert "nobody is protected" in in_words(50.0, 1e-6)


def test_everything_that_speaks_against_a_study_comes_first_and_at_once(
    consortium: Consortium,
) -> None:
    with_policy(consortium, epsilon=1.5, most_rounds=4)
    data = consortium.silos[0].parent / "data.csv"
    data.write_text(data.read_text() + "old,0,1\n")
    before, _, after = written_letter(consortium).partition("What it asks")
    assert "IT CANNOT BE APPROVED" in before
    for reason in ("5 rounds, your policy allows 4", "epsilon=1.5", "row 42, column 'age'"):
        assert reason in unfolded(before)
    assert "within your policy" not in before
    assert "40 people of yours" in unfolded(after)


def test_a_study_that_is_weaker_than_it_could_be_says_so(consortium: Consortium) -> None:
    content = study_file(consortium).replace(b"gate = true", b"gate = false")
    content = content.replace(b"minimum = 2", b"minimum = 1")
    shown = unfolded(written_letter(consortium, content)).partition("What to know")[2]
    assert "hides among no others" in shown
    assert "release gate off: a first mix that works with the server" in shown


@pytest.mark.parametrize(
    ("least", "told"),
    [
        (2, "as few as 1: a server that works with the other hospital of such a batch"),
        (3, "as few as 2: a server that works with the 2 other hospitals of such a batch"),
    ],
)
def test_the_letter_says_what_all_but_one_of_a_batch_would_see(
    consortium: Consortium, least: int, told: str
) -> None:
    content = study_file(consortium).replace(b"minimum = 2", f"minimum = {least}".encode())
    shown = unfolded(written_letter(consortium, content)).partition("What to know")[2]
    assert told in shown
    assert "sees which one is yours (what it tells about a person is bounded" in shown


def test_the_letter_says_how_reports_become_one_and_what_that_means_for_a_hospital(
    consortium: Consortium,
) -> None:
    mean = unfolded(written_letter(consortium))
    assert "the server takes the mean." in mean
    assert "one silo that sends what it likes" in mean.partition("What to know")[2]
    content = study_file(consortium).replace(b"minimum = 2", b"minimum = 3")
    bounded = unfolded(written_letter(consortium, content))
    assert "the server takes the bounded-mean." in bounded
    assert "can ruin the model" not in bounded
    for shown in (mean, bounded):
        assert "a hospital unlike the others counts in full" in shown.partition("What to know")[2]


# Hostile authors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        r"x\u001B[2J\u001B[H",  # clears the screen
        r"x\u001B]0;title\u0007",
        r"x\nIt stays within your policy.",
        r"x\r",
        r"x\u202Eycilop",  # turns the direction of writing
        r"x\u009B2J",
        r"x\u200By",
        r"x" + "  " * 40 + "y",
        "x" * 101,
    ],
)
@pytest.mark.parametrize("where", [b'name = "test"', b'label = "outcome"', b'name = "dose"'])
def test_text_that_a_terminal_obeys_or_that_leaves_its_line_is_no_study(
    consortium: Consortium, where: bytes, name: str
) -> None:
    key = where.partition(b" = ")[0]
    content = study_file(consortium)
    assert where in content
    content = content.replace(where, b'%s = "%s"' % (key, name.encode()), 1)
    with pytest.raises(NotApproved, match="not a valid study") as caught:
        look(load(consortium.silos[0]), content)
    assert str(caught.value).isprintable()


def test_a_name_cannot_close_its_quotes_and_speak_in_our_voice(consortium: Consortium) -> None:
    spoof = b"""name = 'x" asks nothing. It stays within your policy; cost: "0'"""
    content = study_file(consortium).replace(b'name = "test"', spoof)
    first = written_letter(consortium, content).splitlines()[0]
    assert first.count('"') == 2
    assert first.endswith("""cost: '0" asks for records of silo-1.""")


def test_columns_beyond_what_fits_are_counted_and_said_to_be_missing(
    consortium: Consortium,
) -> None:
    config, table = load(consortium.silos[0]), tomllib.loads(study_file(consortium).decode())
    crowd = [{"name": f"harmless {place}", "low": 0.0, "high": 1.0} for place in range(100)]
    table["task"]["features"] += crowd
    shown = unfolded(letter(look(config, tomli_w.dumps(table).encode()), config))
    assert "from 102 columns of your data" in shown
    assert '"harmless 57" and 42 more, which [[task.features]] of its file lists' in shown


# What was approved before ------------------------------------------------------------------------


def test_what_changed_since_the_last_study_of_that_name_is_told(consortium: Consortium) -> None:
    with_policy(consortium, epsilon=10.0)
    approved_silo(consortium)
    content = study_file(consortium)
    for old, new in (
        (b"rounds = 5", b"rounds = 50"),
        (b"epsilon = 2.0", b"epsilon = 3.5"),
        (b'name = "dose"', b'name = "hiv_status"'),
    ):
        assert old in content
        content = content.replace(old, new, 1)
    shown = unfolded(written_letter(consortium, content)).partition("What differs from")[2]
    for change in (
        "algorithm.rounds: 5 before, now 50",
        "privacy.epsilon: 2.0 before, now 3.5",
        "task.features[dose]: gone",
        "task.features[hiv_status]: new",
    ):
        assert change in shown
    assert "What differs" not in written_letter(consortium)  # the same study again


def test_many_changes_of_one_kind_do_not_hide_another() -> None:
    silos = "".join(f'[[silos]]\nname = "s{place}"\nrecords = {{}}\n' for place in range(200))
    before = silos.replace("{}", "10") + "[privacy]\nepsilon = 1.0\n"
    after = silos.replace("{}", "11") + "[privacy]\nepsilon = 9.0\nunheard_of = true\n"
    found = changes(before.encode(), after.encode())
    assert len(found) == 9
    assert "and 194 more such changes" in found
    assert "privacy.epsilon: 1.0 before, now 9.0" in found
    assert "privacy.unheard_of: new, True" in found


def test_a_known_party_with_another_key_is_an_alarm(consortium: Consortium) -> None:
    with_policy(consortium, epsilon=10.0)
    approved_silo(consortium)
    key = text_of(consortium.study.mixes[0].sign_key)
    content = study_file(consortium).replace(key, text_of(SigningKey.generate().public))
    content = content.replace(b'name = "test"', b'name = "another"')
    shown = unfolded(written_letter(consortium, content))
    short = consortium.study.short_id
    assert shown.count("ANOTHER KEY") == 1
    assert f"ANOTHER KEY than in study {short}, which you approved on {NOW.date()}" in shown
    assert shown.count(f"the key that you know from study {short}") == 2  # server and mix-2
    renamed = content.replace(b'"mix-1"', b'"mix-9"')
    assert "a key that no study had" in unfolded(written_letter(consortium, renamed))


# Commands ----------------------------------------------------------------------------------------


def run(*arguments: object) -> tuple[int, str, str]:
    """A command in this process: its exit status, what it printed, what it failed with."""
    result = CliRunner().invoke(silo, [str(each) for each in arguments])
    return result.exit_code, result.output, str(result.exception or "")


def test_review_writes_nothing_and_shows_how_to_approve_exactly_this(
    consortium: Consortium,
) -> None:
    before = sorted(consortium.folder.rglob("*"))
    study = consortium.folder / "study.toml"
    status, shown, _ = run("review", consortium.silos[0], study)
    assert status == 0
    assert shown.endswith(f"--hash {consortium.study.identity.hex()}\n")
    assert sorted(consortium.folder.rglob("*")) == before
    with_policy(consortium, most_rounds=4)
    status, shown, told = run("review", consortium.silos[0], study)
    assert (status, "To approve it" in shown) == (1, False)
    assert told == "it has 5 rounds, your policy allows 4 (most_rounds)"
    assert sorted(consortium.folder.rglob("*")) == before


def test_a_hash_approves_one_study_and_no_other(consortium: Consortium) -> None:
    """Between review and approval the file was exchanged for one that asks a little more."""
    study, config = consortium.folder / "study.toml", consortium.silos[0]
    reviewed = consortium.study.identity.hex()
    honest = study.read_bytes()
    study.write_bytes(honest.replace(b"rounds = 5", b"rounds = 6"))
    status, shown, told = run("approve", config, study, "--hash", reviewed)
    assert (status, shown) == (1, "")
    assert "it is not the study that you reviewed" in told
    for wrong in ("", reviewed[:63], reviewed + "0", "g" * 64):
        assert "give all 64 hex digits" in run("approve", config, study, f"--hash={wrong}")[2]
    study.write_bytes(honest)
    almost = reviewed[:63] + ("0" if reviewed[63] != "0" else "1")
    assert "it is not the study" in run("approve", config, study, "--hash", almost)[2]
    assert run("approve", config, study, "--hash", reviewed.upper())[0] == 0
    ledger = open_ledger(load(config))
    assert [each.study.identity.hex() for each in ledger.approvals()] == [reviewed]
    ledger.close()


def test_an_approval_that_the_policy_refused_is_in_the_audit_log_and_a_bad_cell_is_not(
    consortium: Consortium,
) -> None:
    study, config = consortium.folder / "study.toml", consortium.silos[0]
    data = config.parent / "data.csv"
    good = data.read_text()
    data.write_text(good + "canary,0,1\n")
    assert "canary" in run("approve", config, study, "--yes")[2]
    assert not (config.parent / "state" / FILE).exists()
    with_policy(consortium, most_rounds=4)
    assert run("approve", config, study, "--yes")[0] == 1
    (line,) = (config.parent / "state" / FILE).read_text().splitlines()
    assert json.loads(line)["event"] == "approval_refused"
    assert json.loads(line)["fields"]["reason"].startswith("it has 5 rounds")
    assert "canary" not in line


def test_the_audit_log_is_verified_and_shown(consortium: Consortium) -> None:
    config = consortium.silos[0]
    assert run("audit-log", "verify", config)[1] == "verified 0 lines, head -\n"
    assert run("audit-log", "show", config)[1] == "the audit log is empty\n"
    approved_silo(consortium)
    log = AuditLog(config.parent / "state", "silo-1")
    said = 'x\x1b[2J\n     9 2026 ! forged "line'
    head = log.append("server_refused", warning=True, reason=said).hash
    log.close()
    assert run("audit-log", "verify", config)[1] == f"verified 2 lines, head {head}\n"
    found = run("audit-log", "verify", config, "--head", head[:16])
    assert found[1].splitlines()[0] == f"head {head[:16]}… found: line 2"
    assert "rolled back or replaced" in run("audit-log", "verify", config, "--head", "00" * 8)[2]
    assert "at least the first 16" in run("audit-log", "verify", config, "--head", "0000")[2]
    shown = run("audit-log", "show", config)[1].splitlines()
    assert len(shown) == 2
    assert all(line.isprintable() for line in shown)
    assert " study_approved study=" in shown[0]
    assert " ! server_refused reason=" in shown[1]
    assert run("audit-log", "show", config, "--last", "1")[1].splitlines() == shown[1:]


def test_a_changed_line_fails_the_command(consortium: Consortium) -> None:
    config = consortium.silos[0]
    approved_silo(consortium)
    path = config.parent / "state" / FILE
    path.write_bytes(path.read_bytes().replace(b'"people":40', b'"people":41'))
    for command in ("verify", "show"):
        status, _, told = run("audit-log", command, config)
        assert status == 1
        assert told.endswith("line 1 was changed")


def test_a_broken_audit_log_lets_nothing_be_approved(consortium: Consortium) -> None:
    config = load(consortium.silos[0])
    (config.state / FILE).write_bytes(b'{"number":1}\n')
    with pytest.raises(Exception, match="its last line was changed; keep a copy"):
        approve(config, review(config, study_file(consortium)), NOW + timedelta(hours=1))
    ledger = open_ledger(config)
    assert ledger.approvals() == []
    ledger.close()
